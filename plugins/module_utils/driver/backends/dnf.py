# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's packages with dnf: key, module stream, locks, and what a stopped transaction has left.

A lock leaves one version to choose from, and a stream those of a branch, so both are written before the transaction
that changes the version, and are deferred with it: until then those of the version before keep that in place, against
dnf-automatic too, which is dnf with its plugins.
"""
from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.facts import HostFacts
from ...core.plan import Disruption, Step
from ...core.refusal import Refusal
from ...core.steps import PACKAGES_DOWNLOAD, file_step, restore_step
from ...hardware.parameters import PARAMETERS_FILE
from ...hardware.peer_modules import PEERS_FILE
from ...packages import space
from ...packages.apt import credentials as apt_credentials
from ...packages.dnf import credentials, locks
from ...packages.dnf.history import finish_step
from ...packages.dnf.manager import DNF
from ...packages.manager import PackageManager
from .. import catalogue
from ..archive import STORE
from ..files import (
    FRAMEWORK_FILE,
    PASSWORD_FILE,
    REPO_FILE,
    RPM_KEY_FILE,
    STREAM_FILE,
    repo_text,
    repository_of,
)
from ..observation import Observation
from ..origin import origin_of
from ..peer_builds import wanted_products
from ..policy import Policy
from ..record import is_archived
from ..tables import boot_tools, kernel_locks
from ..tables.peers import packages_of
from ..target import Target, wanted_of
from .backend import NAME, Backend, own_file

_CLEAN = " (`dnf clean packages`)"
# Why no transaction can be here, whether anything is held or not
_NO_LIST = "packages.no_versionlock_list"


class Dnf:
    """One of a kind: BACKEND."""

    manager: PackageManager = DNF
    builds_ahead = False
    make_room: Mapping[str, str] = {
        space.SYSTEM: _CLEAN, space.DNF_ARCHIVES: _CLEAN, space.BOOT: ": remove kernels that are not booted any more"}

    def foreign(self, policy: Policy, installed: Mapping[str, str]) -> List[str]:
        return sorted(name for name in installed if catalogue.FOREIGN_RPM.match(name))

    def purging(self, names: Sequence[str]) -> str:
        return "dnf remove %s" % " ".join(names)

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        refusals = [each for each in observation.of_rpm.objections if policy.hold or each.code == _NO_LIST]
        refusals += [Refusal(
            "driver.option_by_hand", "`%s` on %s %s" % (option, facts.os_id, facts.os_version),
            "Debian or Ubuntu, where it is done by us",
            "run `%s`%s, and leave `%s` out" % (
                shlex.join(words), " once the driver is there" if option in ("gds", "gdrcopy") else "", option),
            option=option) for option, words in _by_hand(policy, facts).items()]
        objection = credentials.objection(policy.credentials) if policy.credentials else ""
        if objection:
            refusals.append(Refusal(
                "driver.credentials_not_with_dnf", "%s in `repository_url`, on %s %s" % (
                    objection, facts.os_id, facts.os_version),
                "a user name that dnf takes as it stands: it would put a variable in its place",
                "choose another user for this repository", option="repository_url"))
        return refusals

    def refuse_target(self, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
        """Of some branches there is no set."""
        resolved = catalogue.resolve(wanted_of(policy, facts, catalogue.branch_wanted(target.version or policy.version),
                                               target.module), build=catalogue.DKMS)
        return [resolved] if isinstance(resolved, Refusal) else []

    def refuse_broken(self, observation: Observation) -> List[Refusal]:
        left = observation.of_rpm.left
        if not left or observation.ours_unfinished:
            return []
        return [Refusal(
            "driver.transaction_unfinished",
            "packages that a transaction of dnf has not finished: %s" % ", ".join(observation.broken),
            "a package database in order before packages are added",
            "run `dnf remove --duplicates`, and `dnf reinstall` of these packages; then run this again")]

    def enabled_first(self, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
        resolved = catalogue.resolve(wanted_of(policy, facts, catalogue.branch_wanted(target.version), target.module))
        return () if isinstance(resolved, Refusal) else resolved.enabled_first

    def repository_steps(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        origin = origin_of(policy, facts)
        key = origin.key_text or (observation.offer.key if observation.offer else "")
        login = apt_credentials.steps(NAME, PASSWORD_FILE, origin.url, origin.credentials, observation.auth,
                                      credentials.FORM, manager=self.manager.name)
        steps: List[Step] = login if origin.credentials else []
        if key:
            steps += own_file(observation, RPM_KEY_FILE, key, "rpm checks packages of this repository with this key.")
            trust = self.manager.trust_steps(NAME, repository_of(origin, key), observation.of_rpm.trusted)
            steps += [replace(step, depends_on=tuple(each.id for each in steps)) for step in trust]
        steps = steps + own_file(observation, REPO_FILE, repo_text(origin),
                                 "The driver's packages come from this repository.", tuple(step.id for step in steps))
        return steps if origin.credentials else steps + login

    def finishing_steps(
        self, observation: Observation, facts: HostFacts, transaction_follows: bool, repository: List[Step],
        goes_back: bool = False
    ) -> List[Step]:
        if goes_back:
            # What was coming is of the repository that is configured now, under the stream and locks of now
            return [*_finish(observation), *repository]
        return [*repository, *_finish(observation, tuple(step.id for step in repository))]

    def download_step(self, observation: Observation, target: Target, packages: Step) -> Step:
        """The plan counts on what is of our repository: dnf keeps no copy of what another one has on this host."""
        coming = {name: version for name, version in packages.change["after"].items() if version is not None}
        ours = {name: version for name, version in coming.items() if catalogue.FAMILY.match(name)}
        return Step(
            NAME, PACKAGES_DOWNLOAD, "driver %s" % target.version,
            "The packages are on the host before anything on it changes.",
            change={"before": dict.fromkeys(ours), "after": ours},
            parameters={"manager": self.manager.name, "request": coming,
                        "without": list(packages.parameters.get("without", ()))})

    def steps_before(
        self, observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        disruption = packages.disruption if packages else Disruption.none
        steps = _stream_steps(observation, policy, facts, target, disruption)
        versions = _family_after(observation, target, packages) if policy.hold else {}
        return steps + _lock_steps(observation, versions, disruption, (
            "This version is left to choose from, for everybody." if policy.hold
            else "The policy does not hold the version."))

    def steps_after(
        self, observation: Observation, policy: Policy, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        return []

    def finish_before_removal(self, observation: Observation, facts: HostFacts, removal_follows: bool) -> List[Step]:
        return _finish(observation) if observation.ours_unfinished else []

    def steps_back(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        """What others wrote into the list of locks since then stays there."""
        steps: List[Step] = []
        if locks.LIST in observation.originals:
            there = observation.files.get(locks.LIST)
            without = locks.text(NAME, {}, there)
            if (without or "") == (observation.originals[locks.LIST] or ""):
                steps.append(restore_step(NAME, locks.LIST, there, observation.originals[locks.LIST]))
            elif without != there:
                steps += _lock_steps(observation, {}, Disruption.none, "Our locks go; those of others stay.")
        steps += [restore_step(NAME, path, observation.files.get(path), observation.originals[path])
                  for path in (PARAMETERS_FILE, STREAM_FILE, FRAMEWORK_FILE, PEERS_FILE, REPO_FILE)
                  if path in observation.originals]
        if observation.auth.shown is not None:
            steps.append(apt_credentials.removal(NAME, PASSWORD_FILE, observation.auth))
        steps += self.manager.distrust_steps(NAME, observation.of_rpm.our_keys)
        return steps + [restore_step(NAME, RPM_KEY_FILE, observation.files.get(RPM_KEY_FILE),
                                     observation.originals[RPM_KEY_FILE])
                        for path in (RPM_KEY_FILE,) if path in observation.originals]


def _by_hand(policy: Policy, facts: HostFacts) -> Dict[str, Sequence[str]]:
    """{option of the policy: the command} of what is done on Debian and Ubuntu alone."""
    system = catalogue.system_of(facts.os_id, facts.os_version, facts.arch)
    if system is None:
        return {}
    found: Dict[str, Sequence[str]] = {peer.option: ["dnf", "install", *packages_of(peer, system, False)]
                                       for peer in wanted_products(policy)}
    if policy.kernel_hold:
        found["kernel_hold"] = kernel_locks.lock(system, facts.kernel)
    if policy.kernel_arguments:
        found["kernel_arguments"] = boot_tools.command(system.family, policy.kernel_arguments)
    return found


def _finish(observation: Observation, requires: Tuple[str, ...] = ()) -> List[Step]:
    left = observation.of_rpm.left
    files = {name: "%s/%s" % (STORE, each) for name, version in left.doubtful.items()
             for each in observation.kept if is_archived(name, version, [each])}
    return [finish_step(NAME, left, requires, files)] if left else []


def _stream_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, disruption: Disruption
) -> List[Step]:
    """The stream of the branch. dnf writes the file itself when it likes, so its words are compared."""
    there = observation.files.get(STREAM_FILE)
    has_streams = bool(observation.offer.streams) if observation.offer and observation.offer.versions else (
        STREAM_FILE in observation.originals)
    wanted = streams_wanted(policy, facts, target) if has_streams else {}
    if not wanted or locks.streams_of({STREAM_FILE: there}) == wanted:
        return []
    return [file_step(NAME, STREAM_FILE, there, DNF.choose(wanted)[STREAM_FILE],
                      "Packages of this branch are chosen from, with this kernel module.", disruption)]


def streams_wanted(policy: Policy, facts: HostFacts, target: Target) -> Dict[str, str]:
    """{module: stream} of a driver, {} on a system that has no streams."""
    stream = catalogue.stream_of(wanted_of(policy, facts, catalogue.branch_wanted(target.version), target.module))
    module, _colon, name = stream.partition(":")
    return {module: name} if stream else {}


def _family_after(observation: Observation, target: Target, packages: Optional[Step]) -> Mapping[str, str]:
    """{package: version} of the driver once the transaction is done."""
    after: Dict[str, str] = dict(observation.installed)
    for name, version in (packages.change["after"].items() if packages else ()):
        if version is None:
            after.pop(name, None)
        else:
            after[name] = version
    return catalogue.family(after, target.packages.floating)


def _lock_steps(
    observation: Observation, versions: Mapping[str, str], disruption: Disruption, why: str
) -> List[Step]:
    there = observation.files.get(locks.LIST)
    text = locks.text(NAME, versions, there)
    return [] if text == there else [file_step(NAME, locks.LIST, there, text, why, disruption)]


BACKEND: Backend = Dnf()
