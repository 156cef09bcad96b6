# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on RHEL and its rebuilds, and on Fedora.

Sources: NVIDIA Driver Installation Guide (names, module streams, and that EL 10 and Fedora have none);
NVIDIA/yum-packaging-precompiled-kmod (kernels that its modules are for, their names, the key that signs them); Red
Hat's and AlmaLinux' documentation of the signed modules that they ship; kernel.spec of CentOS Stream and
kernel-uek.spec of Oracle (kinds of kernels).
"""
from __future__ import annotations

import re
from typing import Sequence, Tuple

from ...core.versions import version_key
from .sets import ANY_VERSION, DKMS, FULL, PRECOMPILED, PackageSet, Wanted
from .systems import ENTERPRISE, System

STREAM = "nvidia-driver"
# Where the proprietary module has no stream of its own, its packages ended with this branch
_LAST_PROPRIETARY = 580
_FIRMWARE = "nvidia-kmod-common"
# Oracle's kernel is what its Linux boots by default
_ORACLES = "-uek"
# RHEL with a signed driver of its own
_FIRST_SIGNED = (10, 1)
# '.el9_6.x86_64' of '5.14.0-570.12.1.el9_6.x86_64'
_OF_RELEASE = re.compile(r"\.el\d.*$")


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
    display = ("nvidia-driver",) if wanted.flavour == FULL else ()
    if wanted.of_distribution:
        if wanted.system.os_id == "rhel":
            # Its own tool chooses the rest of the set
            return PackageSet("kmod-nvidia-open", ("kmod-nvidia-open", "nvidia-driver-cuda", *display))
        return PackageSet("nvidia-open-kmod", ("nvidia-open-kmod", "nvidia-driver", "nvidia-driver-cuda"))
    modules: Tuple[str, ...] = ("kmod-nvidia-open-dkms" if wanted.open else "kmod-nvidia-latest-dkms",)
    if wanted.build == PRECOMPILED:
        modules = tuple("kmod-nvidia-%s-%s" % (wanted.version or ANY_VERSION, _OF_RELEASE.sub("", kernel))
                        for kernel in dict.fromkeys((wanted.kernel, *wanted.kernels)))
    return PackageSet(modules[0], (*modules, "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe", *display),
                      firmware=_FIRMWARE)


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
    if not wanted.of_distribution:
        return ()
    return ("rhel-drivers",) if wanted.system.os_id == "rhel" else ("almalinux-release-nvidia-driver",)


def tool(wanted: Wanted) -> Tuple[str, ...]:
    """Red Hat's command, which chooses module and user space that it has signed together."""
    return ("rhel-drivers", "install", "nvidia") if wanted.of_distribution and wanted.system.os_id == "rhel" else ()


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
