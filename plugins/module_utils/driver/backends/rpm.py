# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the backends of dnf and zypper share: keys of rpm's database, locks, and what a stopped transaction has left.

A lock leaves one version to choose from, so it is written before the transaction that changes the version, and is
deferred with it: until then that of the version before keeps it in place.
"""
from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, ClassVar, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.facts import HostFacts
from ...core.plan import Disruption, Step
from ...core.refusal import Refusal
from ...core.steps import PACKAGES_DOWNLOAD, file_step, restore_step
from ...hardware.parameters import PARAMETERS_FILE
from ...hardware.peer_modules import PEERS_FILE
from ...packages.manager import PackageManager
from .. import catalogue
from ..archive import STORE
from ..files import DRACUT_FILE, DRACUT_TEXT, FRAMEWORK_FILE, RPM_KEY_FILE, places_of, repository_of
from ..observation import Observation
from ..origin import Origin, origin_of
from ..peer_builds import wanted_products
from ..policy import Policy
from ..record import is_archived
from ..tables import boot_tools, kernel_locks
from ..tables.peers import packages_of
from ..target import Target, of_another_source, wanted_of
from .backend import NAME, own_file

# Why no transaction can be here, whether anything is held or not
_NO_LIST = "packages.no_versionlock_list"


class Rpm:
    """The common part of both.

    reinstalls:  the command that installs once more what is there.
    stream_file: the file that chooses the branch, '' where nothing does.
    history:     what names and ends what a stopped transaction has left.
    """

    manager: PackageManager
    reinstalls: ClassVar[str]
    stream_file: ClassVar[str] = ""
    history: ClassVar[Any]
    builds_ahead = False
    replaces_foreign = False

    def foreign(self, policy: Policy, installed: Mapping[str, str]) -> List[str]:
        """Firmware of the distribution is called as a driver is (nvidia-gpu-firmware), and is none."""
        if policy.comes_from.is_installer:
            return of_another_source(policy, {name: version for name, version in installed.items()
                                              if catalogue.is_of_driver(name, version)})
        return sorted(name for name in installed
                      if catalogue.is_foreign_rpm(name, policy.comes_from.of_distribution))

    def purging(self, names: Sequence[str]) -> str:
        return "%s remove %s" % (self.manager.name, " ".join(names))

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        refusals = [each for each in observation.of_rpm.objections if policy.hold or each.code == _NO_LIST]
        return refusals + [Refusal(
            "driver.option_by_hand", "`%s` on %s %s" % (option, facts.os_id, facts.os_version),
            "Debian or Ubuntu, where it is done by us",
            "run `%s`%s, and leave `%s` out" % (
                shlex.join(words), " once the driver is there" if option in ("gds", "gdrcopy") else "", option)
            if words else "install it yourself once the driver is there, and leave `%s` out" % option,
            option=option) for option, words in self._by_hand(policy, facts).items()]

    def _by_hand(self, policy: Policy, facts: HostFacts) -> Dict[str, Sequence[str]]:
        """{option of the policy: the command} of what is done on Debian and Ubuntu alone; () where none is known."""
        system = catalogue.system_of(facts.os_id, facts.os_version, facts.arch)
        if system is None:
            return {}
        named = {peer.option: packages_of(peer, system, False) for peer in wanted_products(policy)}
        found: Dict[str, Sequence[str]] = {option: [self.manager.name, "install", *names] if names else ()
                                           for option, names in named.items()}
        if policy.kernel_hold:
            found["kernel_hold"] = kernel_locks.lock(system, facts.kernel)
        if policy.kernel_arguments:
            found["kernel_arguments"] = boot_tools.command(system.family, policy.kernel_arguments)
        return found

    def refuse_target(self, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
        """Of some branches there is no set; NVIDIA's installer has both kernel modules."""
        if target.of_installer:
            return []
        resolved = catalogue.resolve(wanted_of(policy, facts, catalogue.branch_wanted(target.version or policy.version),
                                               target.module), build=target.build)
        return [resolved] if isinstance(resolved, Refusal) else []

    def refuse_broken(self, observation: Observation) -> List[Refusal]:
        left = observation.of_rpm.left
        if not left or observation.ours_unfinished:
            return []
        return [Refusal(
            "driver.transaction_unfinished",
            "packages that a transaction of %s has not finished: %s" % (
                self.manager.name, ", ".join(observation.broken)),
            "a package database in order before packages are added",
            "run `rpm --erase` of what came first where two versions of a package are there, and `%s` of these "
            "packages; then run this again" % self.reinstalls)]

    def enabled_first(self, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
        if target.of_installer:
            return catalogue.builders_first(wanted_of(policy, facts, 0, target.module).system)
        resolved = catalogue.resolve(wanted_of(policy, facts, catalogue.branch_wanted(target.version), target.module),
                                     build=target.build)
        return () if isinstance(resolved, Refusal) else resolved.enabled_first

    def repository_steps(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        if not policy.from_repository:
            # One that is there stays as it is, with who we are for it: without that dnf would end at it
            return []
        origin, places = origin_of(policy, facts), places_of(facts)
        key = origin.key_text or (observation.offer.key if observation.offer else "")
        login = self.login_steps(observation, origin)
        steps: List[Step] = login if origin.credentials else []
        if key:
            steps += own_file(observation, places.key, key, "rpm checks packages of this repository with this key.")
            trust = self.manager.trust_steps(NAME, repository_of(origin, key), observation.of_rpm.trusted)
            steps += [replace(step, depends_on=tuple(each.id for each in steps)) for step in trust]
        steps = steps + own_file(observation, places.sources, places.sources_text(origin),
                                 "The driver's packages come from this repository.", tuple(step.id for step in steps))
        return steps if origin.credentials else steps + login

    def login_steps(self, observation: Observation, origin: Origin) -> List[Step]:
        """Who we are for the repository is written down, or taken away where it asks nobody."""
        return []

    def logout_steps(self, observation: Observation) -> List[Step]:
        """What login_steps() wrote goes."""
        return []

    def finishing_steps(
        self, observation: Observation, facts: HostFacts, transaction_follows: bool, repository: List[Step],
        goes_back: bool = False
    ) -> List[Step]:
        if goes_back:
            # What was coming is of the repository that is configured now, under the stream and locks of now
            return [*self._finish(observation), *repository]
        return [*repository, *self._finish(observation, tuple(step.id for step in repository))]

    def _finish(self, observation: Observation, requires: Tuple[str, ...] = ()) -> List[Step]:
        left = observation.of_rpm.left
        files = {name: "%s/%s" % (STORE, each) for name, version in left.doubtful.items()
                 for each in observation.kept if is_archived(name, version, [each])}
        return [self.history.finish_step(NAME, left, requires, files)] if left else []

    def download_step(self, observation: Observation, target: Target, packages: Step) -> Step:
        """The plan counts on what is of our repository: of what another one has on this host no copy is kept."""
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
        versions = {**(_family_after(observation, target, packages) if policy.hold else {}),
                    **self.kept_away(observation, target)}
        locks = self._lock_steps(observation, versions, packages.disruption if packages else Disruption.none, (
            "This version is left to choose from, for everybody." if policy.hold
            else "What DKMS builds gives way to no other build of its version." if versions
            else "The policy does not hold the version."))
        return _initramfs_steps(observation, target) + locks

    def kept_away(self, observation: Observation, target: Target) -> Mapping[str, str]:
        """{package: its one version that is left to choose from} of what would come in the place of what is asked for.
        """
        return {}

    def _lock_steps(
        self, observation: Observation, versions: Mapping[str, str], disruption: Disruption, why: str
    ) -> List[Step]:
        texts = self.manager.hold_files(NAME, versions, observation.files)
        return [file_step(NAME, path, observation.files.get(path), text, why, disruption)
                for path, text in texts.items() if text != observation.files.get(path)]

    def steps_after(
        self, observation: Observation, policy: Policy, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        return []

    def finish_before_removal(
        self, observation: Observation, facts: HostFacts, leaving: Collection[str]
    ) -> List[Step]:
        return self._finish(observation) if observation.ours_unfinished else []

    def removal_parameters(self, observation: Observation, leaving: Collection[str]) -> Dict[str, Any]:
        return {}

    def notes(
        self, observation: Observation, coming: Mapping[str, str], facts: HostFacts, target: Target
    ) -> List[str]:
        return []

    def steps_back(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        """What others wrote into a file of locks since then stays there."""
        steps: List[Step] = []
        for path, without in self.manager.hold_files(NAME, {}, observation.files).items():
            if path not in observation.originals:
                continue
            there = observation.files.get(path)
            if (without or "") == (observation.originals[path] or ""):
                steps.append(restore_step(NAME, path, there, observation.originals[path]))
            else:
                steps += self._lock_steps(observation, {}, Disruption.none, "Our locks go; those of others stay.")
        paths = (PARAMETERS_FILE, self.stream_file, FRAMEWORK_FILE, PEERS_FILE, DRACUT_FILE,
                 places_of(facts).sources)
        steps += [restore_step(NAME, path, observation.files.get(path), observation.originals[path])
                  for path in paths if path in observation.originals]
        steps += self.logout_steps(observation)
        steps += self.manager.distrust_steps(NAME, observation.of_rpm.our_keys)
        return steps + [restore_step(NAME, RPM_KEY_FILE, observation.files.get(RPM_KEY_FILE),
                                     observation.originals[RPM_KEY_FILE])
                        for path in (RPM_KEY_FILE,) if path in observation.originals]


def _initramfs_steps(observation: Observation, target: Target) -> List[Step]:
    return own_file(
        observation, DRACUT_FILE, DRACUT_TEXT,
        "An initramfs that has a driver's module would load that one, whichever is installed by then."
    ) if target.of_installer else []


def _family_after(observation: Observation, target: Target, packages: Optional[Step]) -> Mapping[str, str]:
    """{package: version} of the driver once the transaction is done."""
    after: Dict[str, str] = dict(observation.installed)
    for name, version in (packages.change["after"].items() if packages else ()):
        if version is None:
            after.pop(name, None)
        else:
            after[name] = version
    return catalogue.family({name: version for name, version in after.items() if name not in target.leaves},
                            target.packages.floating)
