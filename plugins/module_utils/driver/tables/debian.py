# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on Debian. Sources: NVIDIA Driver Installation Guide; Debian's archive."""
from __future__ import annotations

from typing import Iterable, Sequence, Tuple

from .sets import DKMS, FULL, PackageSet, Wanted

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# By kernel module, of Debian's own packages: its source, and what has modprobe load it
_OPEN, _PROPRIETARY = ("nvidia-open-kernel-dkms", "nvidia-open-kernel-support"), (
    "nvidia-kernel-dkms", "nvidia-kernel-support")
_FLOATING = frozenset(("nvidia-persistenced", "nvidia-modprobe", "nvidia-settings", "nvidia-xconfig"))


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first."""
    return (DKMS,)


def packages(wanted: Wanted) -> PackageSet:
    """Metapackages come last and in one exact version: 'cuda-drivers-580' has no ceiling, and is in no set."""
    if wanted.of_distribution:
        anchor = "nvidia-open-kernel-dkms" if wanted.open else "nvidia-kernel-dkms"
        display = ("nvidia-driver",) if wanted.flavour == FULL else ()
        return PackageSet(anchor, (anchor, "nvidia-smi", "libcuda1", "nvidia-persistenced", *display),
                          ("nvidia-modprobe",), _FLOATING, firmware="firmware-nvidia-gsp")
    anchor = "nvidia-kernel-open-dkms" if wanted.open else "nvidia-kernel-dkms"
    display = ("nvidia-open" if wanted.open else "cuda-drivers",) if wanted.flavour == FULL else ()
    return PackageSet(anchor, (anchor, "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe", *display),
                      firmware="firmware-nvidia-gsp")


def excluded(wanted: Wanted, installed: Iterable[str]) -> Tuple[str, ...]:
    """Installed packages of the other kernel module, of Debian's own.

    They lie beside those that are wanted, and what is loaded is the proprietary module then, whichever came last: its
    alternative has the higher priority (nvidia-alternative, postinst).
    """
    return tuple(sorted(set(_PROPRIETARY if wanted.open else _OPEN).intersection(installed)))


def headers(arch: str, kernels: Sequence[str]) -> Tuple[str, ...]:
    """Header packages of kernels, and the one that follows their updates."""
    return (*("linux-headers-" + kernel for kernel in kernels), "linux-headers-" + _MACHINES.get(arch, arch))
