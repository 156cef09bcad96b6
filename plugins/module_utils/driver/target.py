# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a policy to one exact driver: where it comes from, which version, which packages. Pure."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ..core.facts import FABRIC_MANAGER_NVLSM, OPEN, PROPRIETARY, HostFacts
from ..core.refusal import Refusal
from ..core.versions import branch_of, version_key
from ..packages.managers import APT, manager_of
from . import catalogue, prebuilt
from .catalogue import DKMS, PRECOMPILED, PackageSet, Wanted, system_of
from .policy import Policy
from .prebuilt import NOTHING, Prebuilt

_ALWAYS = ("debian", "ubuntu")
_ASKED_BRANCHES = (535, 550, 570, 580, 590, 595)


@dataclass(frozen=True)
class Target:
    """One driver: its version, kernel module and packages.

    build:        DKMS, or PRECOMPILED where the modules come built and signed.
    fits:         {package whose version is a kernel's: that version}.
    leaves:       installed packages that leave with the transaction: modules of the other kind, those of another
                  source, on SUSE's systems those of the other generation too.
    replaces:     those of another source among them.
    file:         'sha256' and 'flavour' of what NVIDIA's installer brings it from: packages only bring what builds its
                  module then. {} where they bring all of it.
    """

    version: str
    module: str
    packages: PackageSet
    build: str = DKMS
    fits: Mapping[str, str] = field(default_factory=dict)
    leaves: Tuple[str, ...] = ()
    replaces: Tuple[str, ...] = ()
    file: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_installer(self) -> bool:
        return bool(self.file)

    @property
    def is_precompiled(self) -> bool:
        return self.build == PRECOMPILED

    @property
    def pinned(self) -> str:
        """Its versions as apt's preferences name them, whatever the revision."""
        return self.version if any(map(catalogue.is_guest, self.packages.required)) else "%s-*" % self.version

    def request(self, versions: Mapping[str, Sequence[str]]) -> Dict[str, str]:
        """{package: version} of every package of the set that the repository has."""
        named = ((name, self.package_version(name, versions))
                 for name in self.packages.required + self.packages.optional)
        return {name: version for name, version in named if version}

    def package_version(self, name: str, versions: Mapping[str, Sequence[str]]) -> str:
        """The package's version in the repository that belongs to this driver, '' if there is none.

        versions: those that the repository has of each, newest first.
        """
        if name in self.packages.bounded:
            return self.fits.get(name, "")
        known = versions.get(name, ())
        if name in self.packages.floating:
            return known[0] if known else ""
        fitting = [version for version in known if catalogue.upstream(version) == self.version]
        return fitting[0] if fitting else ""


def is_driven(policy: Policy, facts: HostFacts) -> bool:
    """Whether this driver is installed here by us: on the systems of rpm not as a guest of vGPU, and not from the
    distribution's own source, which packages of its own name, but for RHEL's: that its modules are for a kernel stands
    in their names."""
    system = system_of(facts.os_id, facts.os_version, facts.arch)
    if system is None:
        return facts.os_id in _ALWAYS
    return catalogue.is_driven(system) and (facts.os_id in _ALWAYS or not (
        (policy.comes_from.of_distribution and system.os_id != "rhel")
        or (facts.vgpu_manager and not policy.comes_from.is_installer)))


def target_of(
    policy: Policy, facts: HostFacts, installed: Mapping[str, str], versions: Mapping[str, Sequence[str]],
    there: Prebuilt = NOTHING
) -> Union[Target, Refusal]:
    """The driver that the policy means on this host.

    A branch means the installed driver where that is of the branch, else the newest that the repository has of it.
    """
    wanted = chosen(policy, facts, installed, versions)
    if isinstance(wanted, Refusal):
        return wanted
    if policy.comes_from.is_installer:
        leaves = replaced(policy, facts, installed)
        packages = _builders(wanted, () if leaves else installed)
        packages = packages.plus((), floating=[name for name, version in sorted(installed.items())
                                               if goes_beside(policy, name, version)])
        return Target(policy.version, wanted.module, packages, leaves=leaves, replaces=leaves,
                      file={"sha256": policy.runfile_checksum, "flavour": policy.flavour})
    ways = catalogue.ways(wanted)
    if policy.build not in ("auto", *ways) and ways:
        return catalogue.refuse_way(wanted, policy.build)
    built = prebuilt.choice(policy, facts, wanted, there, installed, versions) if PRECOMPILED in ways else None
    build = prebuilt.build_of(policy, facts, wanted, there, installed, built is not None and not built.lacking)
    wanted = replace(wanted, build=build)
    replaces = replaced(policy, facts, installed)
    leaves = tuple(dict.fromkeys((*prebuilt.leaving(policy, wanted, there, installed, built), *replaces)))
    if built is not None and build == PRECOMPILED:
        leaves = leaves or catalogue.leaving(wanted, built.packages, installed)
        return prebuilt.refusal(facts, wanted, built, there.unread) or Target(
            built.version, wanted.module, built.packages, build, built.fits, leaves, replaces)
    packages = catalogue.package_set(wanted).plus(prebuilt.unbrought(wanted, there, installed, leaves))
    leaves = leaves or catalogue.leaving(wanted, packages, {*installed, *there.half})
    known = [catalogue.upstream(version) for version in versions.get(packages.anchor, ())]
    version = policy.version if policy.exact else ""
    if not version:
        # User space is the same for modules that come built
        others = installed.get(built.packages.anchor, "") if built is not None else ""
        present = catalogue.upstream(installed.get(packages.anchor, others))
        version = present if present and not replaces and catalogue.matches(present, policy.version) else ""
    return Target(version or catalogue.newest(known, policy.version), wanted.module, packages, leaves=leaves,
                  replaces=replaces)


def _builders(wanted: Wanted, there: Iterable[str]) -> PackageSet:
    """What builds the module of NVIDIA's installer; what is there of it is good as it is. A transaction that packages
    leave with names something that comes or stays."""
    names = catalogue.builders(wanted.system)
    return PackageSet("", tuple(name for name in names if name not in there), floating=frozenset(names))


def goes_beside(policy: Policy, name: str, version: str) -> bool:
    """Whether an installed package is a companion that others bring for the driver of NVIDIA's installer, which has
    none: one in the driver's version, and any where the policy leaves it to them."""
    return policy.comes_from.is_installer and catalogue.is_companion(name) and (
        catalogue.upstream(version) == policy.version or getattr(policy, catalogue.option_of(name)) == "absent")


def of_another_source(policy: Policy, installed: Mapping[str, str]) -> List[str]:
    """Installed packages that are called as those of other sources alone."""
    return sorted(name for name, version in installed.items()
                  if policy.comes_from.foreign.match(name) and not goes_beside(policy, name, version))


def replaced(policy: Policy, facts: HostFacts, installed: Mapping[str, str]) -> Tuple[str, ...]:
    """Installed packages of another source that go for the policy's: with apt, whose one transaction does both."""
    if not policy.migrate or manager_of(facts) is not APT:
        return ()
    return tuple(of_another_source(policy, installed))


def chosen(
    policy: Policy, facts: HostFacts, installed: Mapping[str, str], versions: Mapping[str, Sequence[str]]
) -> Union[Wanted, Refusal]:
    """Branch and kernel module."""
    branch = _branch(policy, facts, installed, versions)
    if not branch:
        return Refusal(
            "driver.not_in_sources",
            found="no driver in the sources of %s %s" % (facts.os_id, facts.os_version),
            wanted="a driver from source %s" % policy.source,
            remedy="enable what carries it (Debian: non-free and contrib; RHEL: the repositories Extensions and "
                   "Supplementary), or set `source` to `nvidia_repository`",
            option="source",
        )
    module = catalogue.module_of_guest(facts.gpus) if facts.vgpu_manager else ""
    choice = catalogue.choose_module(facts.gpus, module or policy.kernel_module, branch)
    if choice.refusal is not None:
        return choice.refusal
    return wanted_of(policy, facts, branch, choice.module)


def chosen_built(
    policy: Policy, facts: HostFacts, installed: Mapping[str, str], versions: Mapping[str, Sequence[str]]
) -> Optional[Wanted]:
    """What is chosen where its modules may come built; None else."""
    wanted = chosen(policy, facts, installed, versions)
    return wanted if isinstance(wanted, Wanted) and PRECOMPILED in catalogue.ways(wanted) else None


def wanted_of(policy: Policy, facts: HostFacts, branch: int, module: str) -> Wanted:
    """What the catalogue is asked for, of a system that it knows."""
    system = system_of(facts.os_id, facts.os_version, facts.arch)
    if system is None:
        raise ValueError("no driver packages are known for %s %s" % (facts.os_id, facts.os_version))
    return Wanted(
        system, policy.comes_from.of_distribution, branch, module, policy.flavour,
        version=policy.version if policy.exact else "", kernel=facts.boot_kernel or facts.kernel,
        kernels=(facts.kernel,) if facts.kernel else (),
        fabric_manager=policy.fabric_manager == "present" or (policy.fabric_manager == "auto" and bool(facts.fabric)),
        subnet_manager=facts.fabric == FABRIC_MANAGER_NVLSM,
        imex=policy.imex == "present" or (policy.imex == "auto" and facts.imex), extra=policy.extra_packages,
        guest=bool(facts.vgpu_manager))


def _branch(
    policy: Policy, facts: HostFacts, installed: Mapping[str, str], versions: Mapping[str, Sequence[str]]
) -> int:
    if policy.version:
        return catalogue.branch_wanted(policy.version)
    names = anchors(policy, facts)
    present = [installed[name] for name in names if name in installed]
    offered = [version for name in names for version in versions.get(name, ())]
    candidates = offered if replaced(policy, facts, installed) else present or offered
    return max((branch_of(version) for version in candidates if catalogue.is_driver_version(version)), default=0)


def anchors(policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    """Names of module packages whose versions are the driver versions that a source has."""
    if policy.comes_from.is_installer:
        return ()
    branches: Set[int] = set(_ASKED_BRANCHES)
    if policy.version:
        branches.add(catalogue.branch_wanted(policy.version))
    names: Dict[str, None] = {}
    for branch in sorted(branches):
        for module in (OPEN, PROPRIETARY):
            wanted = wanted_of(policy, facts, branch, module)
            for build in {DKMS: None, **dict.fromkeys(catalogue.ways(wanted))}:
                names[catalogue.package_set(replace(wanted, build=build)).anchor] = None
    return tuple(names)


def packages_settled(target: Target, installed: Mapping[str, str]) -> bool:
    """Whether every package of the driver is there in its version, and none of another one."""
    if not target.version or target.leaves:
        return False
    own = target.packages.floating | target.packages.bounded
    for name in target.packages.required:
        if name not in installed:
            return False
        if name not in own and catalogue.upstream(installed[name]) != target.version:
            return False
    present = catalogue.family(installed, target.packages.floating)
    return all(catalogue.upstream(version) == target.version for version in present.values())


def versions_offered(policy: Policy, facts: HostFacts, versions: Mapping[str, Sequence[str]]) -> List[str]:
    """Every driver version that the source has, in order."""
    return sorted({catalogue.upstream(version) for name in anchors(policy, facts)
                   for version in versions.get(name, ())}, key=version_key)
