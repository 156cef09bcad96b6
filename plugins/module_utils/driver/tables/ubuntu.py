# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on Ubuntu.

Sources: NVIDIA Driver Installation Guide (names without a branch since 590); Ubuntu's archive (server drivers, signed
modules) and its documentation of them.
"""
from __future__ import annotations

from typing import Sequence, Tuple

from .branches import FIRST_UNSUFFIXED_BRANCH
from .sets import DKMS, FULL, PRECOMPILED, PackageSet, Wanted

_FLOATING = frozenset(("nvidia-modprobe", "nvidia-settings"))


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first."""
    return (DKMS, PRECOMPILED) if wanted.of_distribution else (DKMS,)


def packages(wanted: Wanted) -> PackageSet:
    if wanted.of_distribution:
        return _precompiled(wanted) if wanted.build == PRECOMPILED else _of_archive(wanted)
    return _unsuffixed(wanted) if wanted.branch >= FIRST_UNSUFFIXED_BRANCH else _suffixed(wanted)


def _unsuffixed(wanted: Wanted) -> PackageSet:
    anchor = "nvidia-dkms-open" if wanted.open else "nvidia-dkms"
    display = ("nvidia-open" if wanted.open else "cuda-drivers",) if wanted.flavour == FULL else ()
    return PackageSet(anchor, (anchor, "libnvidia-compute", "nvidia-persistenced", "nvidia-modprobe", *display),
                      ("nvidia-utils",), firmware="nvidia-firmware")


def _suffixed(wanted: Wanted) -> PackageSet:
    anchor = "nvidia-dkms-%d%s" % (wanted.branch, "-open" if wanted.open else "")
    display = ("nvidia-open-%d" if wanted.open else "cuda-drivers-%d",) if wanted.flavour == FULL else ()
    return PackageSet(
        anchor, (anchor, "libnvidia-compute-%d" % wanted.branch, "nvidia-utils-%d" % wanted.branch,
                 *(name % wanted.branch for name in display)),
        ("nvidia-persistenced", "nvidia-modprobe"), firmware="nvidia-firmware-%d" % wanted.branch)


def _of_archive(wanted: Wanted) -> PackageSet:
    kind = "nvidia-driver" if wanted.flavour == FULL else "nvidia-headless"
    anchor = "%s-%d-server%s" % (kind, wanted.branch, "-open" if wanted.open else "")
    return PackageSet(anchor, (anchor, "nvidia-utils-%d-server" % wanted.branch), ("nvidia-modprobe",), _FLOATING,
                      firmware="nvidia-firmware-%d-server" % wanted.branch)


def _precompiled(wanted: Wanted) -> PackageSet:
    """Modules that Ubuntu has signed, for this kernel and, by the metapackage, for those that follow it.

    They are made for one driver, which Ubuntu's updates may have left behind: that one is the driver's version.
    """
    branch = "%d-server%s" % (wanted.branch, "-open" if wanted.open else "")
    kernel = wanted.kernel
    modules = ["linux-modules-nvidia-%s-%s" % (branch, kernel),
               "linux-modules-nvidia-%s-%s" % (branch, flavour_of(kernel))]
    if not wanted.open:
        modules.append("linux-objects-nvidia-%s-%s" % (branch, kernel))
    if wanted.system.arch == "x86_64":
        modules.append("linux-signatures-nvidia-" + kernel)
    kind = "nvidia-driver-no-dkms" if wanted.flavour == FULL else "nvidia-headless-no-dkms"
    anchor = "%s-%s" % (kind, branch)
    return PackageSet(
        anchor, (anchor, "nvidia-utils-%d-server" % wanted.branch, *modules), ("nvidia-modprobe",), _FLOATING,
        frozenset(modules), "nvidia-firmware-%d-server" % wanted.branch)


def flavour_of(kernel: str) -> str:
    """'generic' of '6.8.0-90-generic': what its metapackages end in."""
    return kernel.rpartition("-")[2]


def headers(kernels: Sequence[str]) -> Tuple[str, ...]:
    """Header packages of kernels, and those that follow their updates."""
    return tuple(dict.fromkeys([*("linux-headers-" + kernel for kernel in kernels),
                                *("linux-headers-" + flavour_of(kernel) for kernel in kernels)]))
