# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The guest driver of NVIDIA's vGPU software: one package, which no public repository has.

Source: NVIDIA Virtual GPU Software User Guide (installing the vGPU software graphics driver on Linux from a package).
"""
from __future__ import annotations

from typing import Sequence

from ...core.facts import OPEN, PROPRIETARY, Gpu
from .architectures import architecture_of
from .sets import PackageSet, Wanted

_PREFIX = "nvidia-linux-grid-"


def packages(wanted: Wanted) -> PackageSet:
    anchor = "%s%d" % (_PREFIX, wanted.branch)
    return PackageSet(anchor, (anchor,))


def is_guest(name: str) -> bool:
    """Whether a package is a guest driver; the version of such a one has no revision."""
    return name.startswith(_PREFIX)


def module(gpus: Sequence[Gpu]) -> str:
    """The kernel module that the package builds: the proprietary one where the GPUs leave a choice."""
    return PROPRIETARY if all(PROPRIETARY in architecture_of(gpu.device_id).modules for gpu in gpus) else OPEN
