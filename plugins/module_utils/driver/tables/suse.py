# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on SUSE Linux Enterprise and openSUSE Leap.

Sources: NVIDIA Driver Installation Guide; SUSE's documentation of the open driver and of the modules that SUSE signs.
"""
from __future__ import annotations

from typing import Sequence, Tuple

from .sets import DKMS, FULL, PRECOMPILED, PackageSet, Wanted

_LAST_PROPRIETARY = 580


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first; () where the source has none."""
    if not wanted.open:
        return () if wanted.branch > _LAST_PROPRIETARY else (DKMS,)
    return (PRECOMPILED,) if wanted.of_distribution else (DKMS, PRECOMPILED)


def packages(wanted: Wanted) -> PackageSet:
    generation = "G07" if wanted.open else "G06"
    user_space = "nvidia-compute-utils-" + generation
    display = ("nvidia-gl-" + generation,) if wanted.flavour == FULL else ()
    if wanted.of_distribution:
        anchor = "nvidia-open-driver-G07-signed-kmp-meta" if wanted.open else "nvidia-driver-G06-kmp-meta"
        return PackageSet(anchor, (anchor, user_space, *display), ("nvidia-persistenced",))
    if wanted.build == PRECOMPILED:
        # SUSE's own, which lag: they set the version of all that comes from NVIDIA
        modules = tuple(dict.fromkeys("nvidia-open-driver-G07-signed-cuda-kmp-" + flavour_of(kernel)
                                      for kernel in (wanted.kernel, *wanted.kernels)))
        return PackageSet(user_space, (user_space, *modules, "nvidia-persistenced", *display),
                          bounded=frozenset(modules))
    anchor = "nvidia-open-driver-G07" if wanted.open else "nvidia-driver-G06-kmp-" + flavour_of(wanted.kernel)
    return PackageSet(anchor, (anchor, user_space, "nvidia-persistenced", *display))


def flavour_of(kernel: str) -> str:
    """'default' of '6.4.0-150600.23.78-default'."""
    return kernel.rpartition("-")[2] or "default"


def headers(kernels: Sequence[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys("kernel-%s-devel" % flavour_of(kernel) for kernel in kernels))


def without_set(wanted: Wanted) -> str:
    """Why a source has no set, '' where it has one."""
    if builds(wanted):
        return ""
    return "NVIDIA packages the proprietary kernel module for %s in branch %d and before" % (
        wanted.system, _LAST_PROPRIETARY)
