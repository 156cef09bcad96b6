# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on Amazon Linux 2023.

Sources: NVIDIA Driver Installation Guide; Amazon Linux 2023 user guide (NVIDIA drivers, kernels);
awslabs/amazon-eks-ami (installation of exact versions).
"""
from __future__ import annotations

import re
from typing import Sequence, Tuple

from .sets import DKMS, FULL, PackageSet, Wanted

# The kernel that a release began with has packages without a number
_FIRST_KERNEL = "6.1"
_KERNEL = re.compile(r"^(\d+\.\d+)\.")


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first."""
    return (DKMS,)


def packages(wanted: Wanted) -> PackageSet:
    anchor = "kmod-nvidia-open-dkms" if wanted.open else "kmod-nvidia-latest-dkms"
    display = ("nvidia-driver",) if wanted.flavour == FULL else ()
    return PackageSet(anchor, (anchor, "nvidia-driver-cuda", "nvidia-persistenced", *display), ("nvidia-modprobe",),
                      firmware="nvidia-kmod-common")


def brought_first(wanted: Wanted) -> Tuple[str, ...]:
    """The package that names Amazon's own copy of NVIDIA's repository."""
    return ("nvidia-release",) if wanted.of_distribution else ()


def headers(kernels: Sequence[str]) -> Tuple[str, ...]:
    """Packages of each kernel's series; its further modules hold what the driver's need."""
    found = []
    for kernel in kernels:
        series = _KERNEL.match(kernel)
        beginning = "kernel" if series is None or series.group(1) == _FIRST_KERNEL else "kernel" + series.group(1)
        found += ["%s-devel" % beginning, "%s-modules-extra" % beginning]
    return tuple(dict.fromkeys(found))
