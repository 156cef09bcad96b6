# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's packages with apt: pin, hold of the kernel, unattended upgrades, credentials, and what dpkg was stopped
in."""
from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.facts import HostFacts
from ...core.plan import Disruption, Step
from ...core.refusal import Refusal
from ...core.steps import PACKAGES_DOWNLOAD, command_step, file_step, restore_step
from ...hardware.parameters import PARAMETERS_FILE
from ...hardware.peer_modules import PEERS_FILE
from ...packages import space, torn
from ...packages.apt import credentials
from ...packages.apt.manager import APT
from ...packages.apt.transaction import install_words
from ...packages.manager import PackageManager
from .. import catalogue, kernel_hold
from ..files import (
    AUTH_FILE,
    FRAMEWORK_FILE,
    KERNEL_FILE,
    PIN_FILE,
    SOURCES_FILE,
    UNATTENDED_FILE,
    pin_text,
    sources_text,
    unattended_text,
)
from ..observation import Observation
from ..origin import KEY_FILE, origin_of
from ..policy import Policy
from ..target import Target, of_another_source
from .backend import NAME, Backend, own_file


class Apt:
    """One of a kind: BACKEND."""

    manager: PackageManager = APT
    builds_ahead = True
    replaces_foreign = True
    make_room: Mapping[str, str] = {
        space.SYSTEM: " (`apt-get clean`)", space.ARCHIVES: " (`apt-get clean`)",
        space.BOOT: ": remove kernels that are not booted any more"}

    def foreign(self, policy: Policy, installed: Mapping[str, str]) -> List[str]:
        return of_another_source(policy, installed)

    def purging(self, names: Sequence[str]) -> str:
        return "apt-get purge %s" % " ".join(names)

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        return kernel_hold.refusals(observation.there, policy, facts)

    def refuse_target(self, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
        return []

    def refuse_broken(self, observation: Observation) -> List[Refusal]:
        refusals = torn.refusals(observation.torn, observation.offer.lost if observation.offer else ())
        if refusals or not observation.broken or _repairable(observation):
            return refusals
        return [Refusal(
            "driver.packages_unfinished", "packages that dpkg has not finished: %s%s" % (
                ", ".join(observation.broken),
                "; the build that failed last: %s" % observation.build_log if observation.build_log else ""),
            "a package database in order before packages are added",
            "run `dpkg --configure -a`; when a kernel package fails there because a module does not build, remove that "
            "kernel, or first remove or upgrade that module's package, and do not reboot before that")]

    def enabled_first(self, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
        return ()

    def repository_steps(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        origin = origin_of(policy, facts)
        if not policy.from_repository:
            return [] if observation.auth.shown is None else credentials.steps(
                NAME, AUTH_FILE, origin.url, None, observation.auth)
        key = origin.key_text or (observation.offer.key if observation.offer else "")
        steps: List[Step] = credentials.steps(NAME, AUTH_FILE, origin.url, origin.credentials, observation.auth)
        if key:
            steps += own_file(observation, KEY_FILE, key, "apt checks the repository's signature with this key.")
        return steps + own_file(observation, SOURCES_FILE, sources_text(origin),
                                "The driver's packages come from this repository.", tuple(step.id for step in steps))

    def finishing_steps(
        self, observation: Observation, facts: HostFacts, transaction_follows: bool, repository: List[Step],
        goes_back: bool = False
    ) -> List[Step]:
        if observation.offer is None or not observation.offer.unpacks:
            return _repair_steps(observation, transaction_follows) + repository
        unpack = torn.unpack_step(NAME, observation.offer.unpacks, _swapping(observation.offer.unpacks, facts),
                                  requires=tuple(step.id for step in repository))
        return [*repository, unpack, *_repair_steps(observation, transaction_follows, (unpack.id,))]

    def download_step(self, observation: Observation, target: Target, packages: Step) -> Step:
        wanted = packages.parameters["request"]
        comes = {name: version for name, version in wanted.items() if version is not None}
        return command_step(
            NAME, PACKAGES_DOWNLOAD, "driver %s" % target.version,
            ["--download-only", *install_words(wanted, packages.parameters["allow_downgrade"])],
            "The packages are on the host before anything on it changes.",
            change={"before": dict.fromkeys(comes), "after": comes}, timeout=1800)

    def steps_before(
        self, observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        return own_file(observation, UNATTENDED_FILE, unattended_text(target.is_precompiled),
                        "Unattended upgrades would swap user space under the loaded kernel module."
                        ) if policy.hold else []

    def steps_after(
        self, observation: Observation, policy: Policy, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        """The pin of the version before would have apt keep that, so the new one comes with the new version."""
        requires = (packages.id,) if packages else ()
        if policy.hold:
            return own_file(observation, PIN_FILE, pin_text(target.pinned),
                            "The version stays until the policy names another one.", requires)
        return [file_step(NAME, path, observation.files[path], None, "The policy does not hold the version.",
                          requires=requires)
                for path in (PIN_FILE, UNATTENDED_FILE) if observation.files.get(path) is not None]

    def finish_before_removal(
        self, observation: Observation, facts: HostFacts, leaving: Collection[str]
    ) -> List[Step]:
        """dpkg's scripts take back what they have made."""
        ours = torn.unpacked_first(observation.torn)
        if not ours:
            return _repair_steps(observation, bool(leaving))
        unpack = torn.unpack_step(NAME, ours, _swapping(ours, facts), leaving)
        return [unpack, *_repair_steps(observation, bool(leaving), (unpack.id,))]

    def removal_parameters(self, observation: Observation, leaving: Collection[str]) -> Dict[str, Any]:
        return torn.removal_parameters(observation.broken, observation.ours_unfinished, leaving)

    def notes(
        self, observation: Observation, coming: Mapping[str, str], facts: HostFacts, target: Target
    ) -> List[str]:
        return []

    def steps_back(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        steps = [restore_step(NAME, path, observation.files.get(path), observation.originals[path])
                 for path in (PARAMETERS_FILE, PIN_FILE, KERNEL_FILE, UNATTENDED_FILE, FRAMEWORK_FILE, PEERS_FILE,
                              SOURCES_FILE, KEY_FILE)
                 if path in observation.originals]
        if observation.auth.shown is not None:
            steps.append(credentials.removal(NAME, AUTH_FILE, observation.auth))
        if observation.lists and not observation.foreign_sources and (
                SOURCES_FILE in observation.originals or observation.files.get(SOURCES_FILE) is None):
            steps.append(Step(
                NAME, "repository.forget", origin_of(policy, facts).url,
                "apt keeps the index of a repository that is gone.",
                change={"before": "\n".join(observation.lists) + "\n", "after": None},
                parameters={"files": list(observation.lists)},
                depends_on=tuple(step.id for step in steps if step.subject == SOURCES_FILE)))
        return steps


def _repairable(observation: Observation) -> bool:
    """Whether what is unfinished was left by a transaction of ours, or is the driver itself."""
    return observation.ours_unfinished or all(
        name in observation.installed_by_us or name in observation.torn for name in observation.broken)


def _swapping(packages: Mapping[str, str], facts: HostFacts) -> Disruption:
    """What it disturbs to unpack packages of a driver: none is loaded, this one is, or another one."""
    others = any(catalogue.upstream(version) != facts.driver_loaded for version in catalogue.family(packages).values())
    return Disruption.driver_reload if others and facts.driver_loaded else Disruption.none


def _repair_steps(observation: Observation, transaction_follows: bool, requires: Tuple[str, ...] = ()) -> List[Step]:
    """Finish what dpkg began; a package that does not configure may be one that the transaction replaces."""
    if not observation.interrupted and not observation.broken:
        return []
    return [torn.configure_step(
        NAME, observation.broken, torn.CONFIGURE if transaction_follows else "dpkg.finish", requires)]


BACKEND: Backend = Apt()
