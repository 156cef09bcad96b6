# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on Ubuntu.

Sources: NVIDIA Driver Installation Guide (names without a branch since 590); Ubuntu's archive (server drivers, signed
modules) and its documentation of them; NVIDIA/gpu-driver-container, precompiled drivers (what a signed module is of).
"""
from __future__ import annotations

import re
from typing import Sequence, Tuple

from .branches import FIRST_UNSUFFIXED_BRANCH
from .sets import DKMS, FULL, PRECOMPILED, PackageSet, Wanted

_FLOATING = frozenset(("nvidia-modprobe", "nvidia-settings"))
# What nvidia-driver-580-server needs for displays; that itself needs DKMS's package too
_DISPLAY = ("libnvidia-gl-%d-server", "libnvidia-decode-%d-server", "libnvidia-encode-%d-server",
            "libnvidia-extra-%d-server", "libnvidia-fbc1-%d-server", "xserver-xorg-video-nvidia-%d-server")
# '6.8.0-90' and 'generic-64k' of '6.8.0-90-generic-64k'
_RELEASE = re.compile(r"^(.+?)-([a-z].*)$")


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
    """Modules that Ubuntu has signed, for these kernels and, by the metapackages, for those that follow them.

    They are made for one driver, which Ubuntu's updates may have left behind: that one is the driver's version. What
    modules are put together from (the objects of the proprietary one, the signatures for both) comes by their own
    dependencies, and is named so that it is seen and leaves with them.
    """
    kernels = tuple(dict.fromkeys((wanted.kernel, *wanted.kernels)))
    follows = wanted.follows or tuple(dict.fromkeys(map(flavour_of, kernels)))
    required = tuple(modules_package(wanted, kernel) for kernel in kernels)
    optional = [modules_package(wanted, flavour) for flavour in follows]
    for kernel in kernels:
        if not wanted.open:
            optional.append("linux-objects-nvidia-%s-%s" % (_branch(wanted), kernel))
        if wanted.system.arch == "x86_64":
            optional.append("linux-signatures-nvidia-" + kernel)
    anchor = "nvidia-headless-no-dkms-" + _branch(wanted)
    display = [name % wanted.branch for name in _DISPLAY] if wanted.flavour == FULL else []
    return PackageSet(
        anchor, (anchor, "nvidia-utils-%d-server" % wanted.branch, *display, *required), ("nvidia-modprobe", *optional),
        _FLOATING, frozenset((*required, *optional)), "nvidia-firmware-%d-server" % wanted.branch)


def _branch(wanted: Wanted) -> str:
    return "%d-server%s" % (wanted.branch, "-open" if wanted.open else "")


def modules_package(wanted: Wanted, kernel: str) -> str:
    """The signed modules for a kernel's release; for what its metapackages end in, those that follow its updates."""
    return "linux-modules-nvidia-%s-%s" % (_branch(wanted), kernel)


def serves(package: str, kernel: str) -> bool:
    """Whether a package has signed modules for a kernel."""
    return package.startswith("linux-modules-nvidia-") and package.endswith("-" + kernel)


def flavour_of(kernel: str) -> str:
    """'generic' of '6.8.0-90-generic': what its metapackages end in."""
    parts = _RELEASE.match(kernel)
    return parts.group(2) if parts else kernel


def headers(kernels: Sequence[str]) -> Tuple[str, ...]:
    """Header packages of kernels, and those that follow their updates."""
    return tuple(dict.fromkeys([*("linux-headers-" + kernel for kernel in kernels),
                                *("linux-headers-" + flavour_of(kernel) for kernel in kernels)]))
