# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on RHEL and its rebuilds, and on Fedora.

Modules that come built are in packages of one driver and one kernel, both in the name: NVIDIA's of the usual kernel of
RHEL, kmod-nvidia-DRIVER-KERNEL, with the proprietary module, signed by a key that no kernel knows; Red Hat's
kmod-nvidia-open-DRIVER-KERNEL, and kmod-64k-nvidia-open-... of the kernel with larger pages, signed by a key that
RHEL's kernels know. Those of several kernels are there beside each other, and so are those of several drivers, of which
the last one has its modules in the place of the others': NVIDIA's are put together by their scripts, in one place
for all drivers, and exclude the proprietary module of DKMS alone. So what is of another driver, or built here, is
removed once the new one is there. User space needs any package that provides nvidia-kmod in the driver's version.

AlmaLinux' kmod-nvidia-open names no kernel: by the checksums of symbols that it requires, a build fits some kernels of
a minor release and not others.

Sources: NVIDIA Driver Installation Guide (names, module streams, and that EL 10 and Fedora have none);
NVIDIA/yum-packaging-precompiled-kmod, dnf-kmod-nvidia.spec and UEFI.md (kernels that its modules are for, their names,
what they exclude, the key that signs them), issue 67 there (that key's name); mizdebsk/radii, Red Hat's tool that
installs drivers (names of its modules, of its packages and repositories); AlmaLinux' documentation of the modules that
it ships; kernel.spec of CentOS Stream and kernel-uek.spec of Oracle (kinds of kernels).
"""
from __future__ import annotations

import re
from typing import Iterable, Sequence, Tuple

from ...core.versions import version_key
from .sets import ANY_VERSION, DKMS, FULL, PRECOMPILED, PackageSet, Wanted
from .systems import ENTERPRISE, System

STREAM = "nvidia-driver"
DISPLAY = "nvidia-driver"
# Where the proprietary module has no stream of its own, its packages ended with this branch
_LAST_PROPRIETARY = 580
_FIRMWARE = "nvidia-kmod-common"
# Oracle's kernel is what its Linux boots by default
_ORACLES = "-uek"
# RHEL with a signed driver of its own
_FIRST_SIGNED = (10, 1)
# '.el9_6.x86_64' of '5.14.0-570.12.1.el9_6.x86_64'
_OF_RELEASE = re.compile(r"\.el\d.*$")
# (kind of kernel, '-open' of Red Hat's, driver, kernel). RPM Fusion's have the kernel first
MODULES = re.compile(r"^kmod(-[a-z0-9]+)?-nvidia(-open)?-(\d{3}(?:\.\d+){1,2})-(\d+\.\d+\.\d+-[\d.]+)$")
_BUILT_HERE = re.compile(r"^kmod-nvidia-(open|latest)-dkms$")
# As the certificate calls itself whose key signs NVIDIA's modules
SIGNER = "NVIDIA"
# Red Hat's packages of user space are called as NVIDIA's are, whose repository may be there for CUDA
_VENDOR = "Red Hat, Inc."


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first; () where the source has none.

    NVIDIA's precompiled modules follow the kernels with months of delay, are of the proprietary kind, and are signed by
    a key that no kernel knows: they are for those who ask for them.
    """
    system = wanted.system
    if wanted.of_distribution:
        signed = wanted.open and (system.os_id == "rhel" and version_key(system.version) >= _FIRST_SIGNED
                                  or system.os_id == "almalinux" and system.major >= 9)
        return (PRECOMPILED,) if signed else ()
    if system.has_streams:
        return (DKMS,) if wanted.open else (DKMS, PRECOMPILED)
    return (DKMS,) if wanted.open or wanted.branch <= _LAST_PROPRIETARY else ()


def packages(wanted: Wanted) -> PackageSet:
    display = (DISPLAY,) if wanted.flavour == FULL else ()
    if wanted.of_distribution and wanted.system.os_id != "rhel":
        return PackageSet("nvidia-open-kmod", ("nvidia-open-kmod", "nvidia-driver", "nvidia-driver-cuda"))
    user_space = ("nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe", *display)
    if wanted.of_distribution or wanted.build == PRECOMPILED:
        # A kernel has them of some drivers: which ones there are, user space tells
        modules = tuple(modules_package(wanted, kernel) for kernel in dict.fromkeys((wanted.kernel, *wanted.kernels)))
        return PackageSet(user_space[0], (*modules, *user_space), firmware=_FIRMWARE, bounded=frozenset(modules))
    anchor = "kmod-nvidia-open-dkms" if wanted.open else "kmod-nvidia-latest-dkms"
    return PackageSet(anchor, (anchor, *user_space), firmware=_FIRMWARE)


def modules_package(wanted: Wanted, kernel: str) -> str:
    """The modules of a driver that come built for a kernel."""
    return "kmod%s-nvidia%s-%s-%s" % (_kind_of(kernel), "-open" if wanted.of_distribution else "",
                                      wanted.version or ANY_VERSION, _OF_RELEASE.sub("", kernel))


def serves(package: str, kernel: str) -> bool:
    """Whether modules that come built are for a kernel."""
    match = MODULES.match(package)
    return match is not None and (match.group(1) or "", match.group(4)) == (
        _kind_of(kernel), _OF_RELEASE.sub("", kernel))


def vendor(system: System, of_distribution: bool) -> str:
    """Whose packages a set is of, as they say it themselves; '' where their repository tells it."""
    return _VENDOR if of_distribution and system.os_id == "rhel" else ""


def excluded(names: Iterable[str], installed: Iterable[str]) -> Tuple[str, ...]:
    """Installed packages whose modules are in the place of those of a driver: beside modules that come built those
    of other drivers, and what is built here; beside what is built here all that come built."""
    drivers = {match.group(3) for match in map(MODULES.match, names) if match}
    found = []
    for name in installed:
        match = MODULES.match(name)
        if (match is not None and match.group(3) not in drivers) or (drivers and is_built_here(name)):
            found.append(name)
    return tuple(sorted(found))


def is_built_here(package: str) -> bool:
    """Whether it is the source of a module, which DKMS builds, as NVIDIA's packages for EL are called."""
    return bool(_BUILT_HERE.match(package))


def is_of_red_hat(package: str) -> bool:
    """Whether modules that come built are Red Hat's, not NVIDIA's."""
    match = MODULES.match(package)
    return match is not None and bool(match.group(2))


def stream(wanted: Wanted) -> str:
    """'nvidia-driver:580-open', '' where the source has no streams.

    Streams without a branch ('open-dkms') follow the newest one: no set ever enables them.
    """
    if wanted.of_distribution or not wanted.system.has_streams:
        return ""
    kind = "-open" if wanted.open else "" if wanted.build == PRECOMPILED else "-dkms"
    return "%s:%d%s" % (STREAM, wanted.branch, kind)


def enabled_first(wanted: Wanted) -> Tuple[str, ...]:
    """Repositories without which the packages cannot be installed."""
    system = wanted.system
    if wanted.of_distribution:
        return ("rhel-%d-for-%s-extensions-rpms" % (system.major, system.arch),
                "rhel-%d-for-%s-supplementary-rpms" % (system.major, system.arch)) if system.os_id == "rhel" else ()
    return () if system.family != ENTERPRISE or wanted.build == PRECOMPILED else builders_first(system)


def builders_first(system: System) -> Tuple[str, ...]:
    """Where dkms is, and what it needs."""
    return ("epel", _builder(system))


def _builder(system: System) -> str:
    """Where the headers are that dkms of EPEL needs; clouds call it otherwise."""
    if system.os_id == "rhel":
        return "codeready-builder-for-rhel-%d-%s-rpms" % (system.major, system.arch)
    if system.os_id == "ol":
        return "ol%d_codeready_builder" % system.major
    return "powertools" if system.major == 8 else "crb"


def brought_first(wanted: Wanted) -> Tuple[str, ...]:
    """Packages that name the distribution's own source."""
    return ("almalinux-release-nvidia-driver",) if wanted.of_distribution and wanted.system.os_id == "almalinux" else ()


def headers(system: System, kernels: Sequence[str]) -> Tuple[str, ...]:
    """EL 9 and later have a package that always fits the newest kernel, of each kind of kernel but Oracle's own."""
    matched = system.family == ENTERPRISE and system.major >= 9
    kinds = [_kind_of(kernel) for kernel in kernels] or [""]
    return (*(dict.fromkeys("kernel%s-devel-matched" % kind for kind in kinds if matched and kind != _ORACLES)),
            *("kernel%s-devel-%s" % (_kind_of(kernel), kernel.partition("+")[0]) for kernel in kernels))


def devel(kernel: str) -> Tuple[str, str]:
    """(package, version) of the headers of a kernel: ('kernel-64k-devel', '5.14.0-570.12.1.el9_6')."""
    release = kernel.partition("+")[0].rpartition(".")[0]
    return "kernel%s-devel" % _kind_of(kernel), release


def matched(kernel: str) -> str:
    """The package that brings the headers of every kernel to come, '' where the kind of kernel has none."""
    return "" if _kind_of(kernel) == _ORACLES else "kernel%s-devel-matched" % _kind_of(kernel)


def _kind_of(kernel: str) -> str:
    """'-64k' of '5.14.0-570.12.1.el9_6.aarch64+64k', whose pages are larger; '' of the usual kernel."""
    if "uek." in kernel:
        return _ORACLES
    kind = kernel.partition("+")[2]
    return "-" + kind if kind else ""


def without_set(wanted: Wanted) -> str:
    """Why a source has no set, '' where it has one."""
    if builds(wanted):
        return ""
    if wanted.of_distribution:
        return "%s ships no driver of its own with the %s kernel module" % (wanted.system, wanted.module)
    return "NVIDIA packages the proprietary kernel module for %s in branch %d and before" % (
        wanted.system, _LAST_PROPRIETARY)
