# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a system and what is wanted to the full set of a driver: packages, repository, stream, lock, headers, compiler.

One function a question; the tables of each family are in files of their own.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, Optional, Sequence, Tuple, Union

from ...core.facts import PROPRIETARY
from ...core.refusal import Refusal
from . import amazon, debian, enterprise, guests, repositories, suse, ubuntu
from .branches import FIRST_OPEN_ONLY
from .companions import is_companion, lacking, with_companions
from .repositories import Definition
from .sets import ANY_VERSION, DKMS, EXACT, PRECOMPILED, PackageSet, Wanted
from .systems import AMAZON, APT, DEBIAN, DNF, ENTERPRISE, FEDORA, SUSE, UBUNTU, ZYPPER, System

# A compiler, make, and what calls them
BUILDERS = ("gcc", "make", "dkms")
# NVIDIA's rpm packages of the driver itself; those of the fabric, and of SUSE's systems, have none
_EPOCH = 3


@dataclass(frozen=True)
class Resolution:
    """Everything that one driver is on one system.

    wanted:        what it is the answer to, with the way its module is made.
    packages:      the set.
    repository:    the repository that has it, None where the system's sources do.
    brought_first: packages that name the system's own source.
    enabled_first: further repositories, without which it cannot be installed.
    stream:        of a dnf module, '' where there is none.
    headers:       of the kernels that its module is built for; () for a precompiled one.
    compiler:      what builds it and does not come along by itself.
    """

    wanted: Wanted
    packages: PackageSet
    repository: Optional[Definition] = None
    brought_first: Tuple[str, ...] = ()
    enabled_first: Tuple[str, ...] = ()
    stream: str = ""
    headers: Tuple[str, ...] = ()
    compiler: Tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """The driver's exact version, ANY_VERSION where only the repository tells it."""
        return self.wanted.version or ANY_VERSION

    def requests(self) -> Tuple[str, ...]:
        """Every package as the system's package manager is asked for it."""
        return tuple(self.request(name) for name in self.packages.names)

    def request(self, name: str) -> str:
        """'nvidia-driver-cuda-3:580.178.04' for dnf, 'nvlsm' for a package with a version of its own."""
        if self.packages.relation(name) != EXACT or self.version in name:
            return name
        manager = self.wanted.system.manager
        if manager == APT:
            return "%s=%s-*" % (name, self.version)
        if manager == ZYPPER:
            return "%s=%s" % (name, self.version)
        epoch = "" if is_companion(name) or self.wanted.of_distribution else "%d:" % _EPOCH
        return "%s-%s%s" % (name, epoch, self.version)

    def lock(self) -> Tuple[str, ...]:
        """The command that keeps the version against upgrades by others; apt's is a pin, see driver/files.py."""
        names = tuple(name for name in self.packages.names if self.packages.relation(name) == EXACT)
        if self.packages.firmware:
            names += (self.packages.firmware,)
        return {APT: (), DNF: ("dnf", "versionlock", "add", *names),
                ZYPPER: ("zypper", "addlock", *names)}[self.wanted.system.manager]


def ways(wanted: Wanted) -> Tuple[str, ...]:
    """DKMS and PRECOMPILED as far as the source has them, what is preferred first; () where it has no set."""
    if wanted.guest:
        return (DKMS,)
    if _has_no_proprietary(wanted):
        return ()
    return {DEBIAN: debian.builds, UBUNTU: ubuntu.builds, ENTERPRISE: enterprise.builds, FEDORA: enterprise.builds,
            SUSE: suse.builds, AMAZON: amazon.builds}[wanted.system.family](wanted)


def _has_no_proprietary(wanted: Wanted) -> bool:
    """The package cuda-drivers is there still in such a branch, and empty."""
    return not wanted.open and wanted.branch >= FIRST_OPEN_ONLY


def way(wanted: Wanted, build: str, secure_boot: bool) -> str:
    """How the module is made: as asked for; of 'auto' precompiled where its maker keeps up and Secure Boot is on.

    A module that somebody signed whom the firmware knows needs no key of the host's own. '' where there is no way.
    """
    offered = ways(wanted)
    if build != "auto":
        return build if build in offered else ""
    if secure_boot and PRECOMPILED in offered and not lags(wanted):
        return PRECOMPILED
    return offered[0] if offered else ""


def lags(wanted: Wanted) -> bool:
    """Whether modules that come built are for those who ask for them: NVIDIA's own for EL were left behind by its
    kernels, which do not know the key that signs them either."""
    return wanted.system.manager == DNF and not wanted.of_distribution


def package_set(wanted: Wanted) -> PackageSet:
    """The packages of a set that the source has, see ways()."""
    if wanted.guest:
        return guests.packages(wanted).plus(wanted.extra)
    named = {DEBIAN: debian.packages, UBUNTU: ubuntu.packages, ENTERPRISE: enterprise.packages,
             FEDORA: enterprise.packages, SUSE: suse.packages, AMAZON: amazon.packages}[wanted.system.family](wanted)
    return with_companions(named, wanted)


def leaving(wanted: Wanted, packages: PackageSet, installed: Iterable[str]) -> Tuple[str, ...]:
    """Installed packages that leave when a set comes, and do not say so themselves."""
    if wanted.system.family == ENTERPRISE:
        return enterprise.excluded(packages.names, installed)
    if wanted.system.family == SUSE and not wanted.of_distribution:
        return suse.excluded(packages.names, installed)
    if wanted.system.family == DEBIAN and wanted.of_distribution:
        return debian.excluded(wanted, installed)
    return ()


def modules_package(wanted: Wanted, kernel: str) -> str:
    """What modules that come built for a kernel are called in the sources."""
    named: Dict[str, Callable[[Wanted, str], str]] = {
        UBUNTU: ubuntu.modules_package, SUSE: suse.modules_package, ENTERPRISE: enterprise.modules_package}
    return named[wanted.system.family](wanted, kernel)


def serves(package: str, kernel: str) -> bool:
    """Whether modules that come built are for a kernel. package: as the database calls it once it is installed."""
    return any(family.serves(package, kernel) for family in (ubuntu, suse, enterprise))


def resolve(
    wanted: Wanted, build: str = "auto", secure_boot: bool = False, kernels: Sequence[str] = (), url: str = "",
    key: str = "", fingerprint: str = ""
) -> Union[Resolution, Refusal]:
    """The full set. url, key, fingerprint: the repository of the policy, '' for NVIDIA's own."""
    made = way(wanted, build, secure_boot)
    if not made:
        return refuse_way(wanted, build)
    absent = lacking(wanted)
    if absent:
        return Refusal(
            "driver.companion_not_in_source", "no %s in the driver's source of %s" % (absent, wanted.system),
            "%s in the driver's version, from the same source" % absent,
            "set `source` to `nvidia_repository`, which has all of them", option="source")
    wanted = replace(wanted, build=made)
    built = made == DKMS
    return Resolution(
        wanted, package_set(wanted), repositories.definition(wanted.system, wanted.of_distribution, url, key,
                                                             fingerprint),
        _brought_first(wanted), enterprise.enabled_first(wanted) if wanted.system.manager == DNF else (),
        enterprise.stream(wanted) if wanted.system.manager == DNF else "",
        header_packages(wanted.system, kernels) if built else (),
        _compiler(wanted.system) if built else ())


def refuse_way(wanted: Wanted, build: str) -> Refusal:
    """Why a source has no set whose module is made so."""
    if ways(wanted):
        return Refusal(
            "driver.build_not_offered", "kernel modules of this source on %s: %s" % (
                wanted.system, ", ".join(ways(wanted))),
            "a %s kernel module" % build, "set `build` to one of these" + (
                ", or set `source` to `distribution`, which signs modules" if _is_signed_elsewhere(wanted, build)
                else "") + (
                    ", or `kernel_module` to `proprietary`" if wanted.open and build in ways(
                        replace(wanted, module=PROPRIETARY)) else ""), option="build")
    if _has_no_proprietary(wanted):
        why = "packages with the proprietary kernel module are of branches before %d" % FIRST_OPEN_ONLY
    else:
        why = suse.without_set(wanted) if wanted.system.family == SUSE else enterprise.without_set(wanted)
    return Refusal(
        "driver.not_packaged", why, "driver branch %d with the %s kernel module" % (wanted.branch, wanted.module),
        "set `source` to `nvidia_repository`" if wanted.of_distribution and wanted.open
        else "set `source` to `nvidia_repository`, or, where the GPU has it, `kernel_module` to `open`"
        if wanted.of_distribution and wanted.system.manager == DNF
        else "set `kernel_module` to `open`, or `version` to such a branch",
        option="source" if wanted.of_distribution and wanted.open else "kernel_module")


def _is_signed_elsewhere(wanted: Wanted, build: str) -> bool:
    return build == PRECOMPILED and not wanted.of_distribution and PRECOMPILED in ways(
        replace(wanted, of_distribution=True))


def _brought_first(wanted: Wanted) -> Tuple[str, ...]:
    if wanted.system.family == AMAZON:
        return amazon.brought_first(wanted)
    return enterprise.brought_first(wanted) if wanted.system.family == ENTERPRISE else ()


def header_packages(system: System, kernels: Sequence[str]) -> Tuple[str, ...]:
    """What has to be there to build a module for these kernels."""
    if system.family == DEBIAN:
        return debian.headers(system.arch, kernels)
    if system.family == UBUNTU:
        return ubuntu.headers(kernels)
    if system.family == SUSE:
        return suse.headers(kernels)
    return amazon.headers(kernels) if system.family == AMAZON else enterprise.headers(system, kernels)


def _compiler(system: System) -> Tuple[str, ...]:
    """What dkms of Debian and Ubuntu brings along by itself."""
    return () if system.manager == APT else BUILDERS[:2] if system.manager == ZYPPER else BUILDERS


def builders(system: System) -> Tuple[str, ...]:
    """What builds a module whose source comes in no package."""
    return tuple(dict.fromkeys((*_compiler(system), *BUILDERS[2:])))


def builders_first(system: System) -> Tuple[str, ...]:
    """Repositories, beside the system's first ones, that have it."""
    if system.family == ENTERPRISE:
        return enterprise.builders_first(system)
    return suse.builders_first(system) if system.family == SUSE else ()
