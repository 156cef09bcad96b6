# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a set of packages is asked for, and what it is.

The relation of a package to the driver
  exact     its version is the driver's, to the last number.
  bounded   its version is a kernel's, and it was made for one driver: user space must not be newer than that.
  floating  its version is its own, and the newest one will do.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import FrozenSet, Iterable, Tuple

from ...core.facts import OPEN
from .systems import System

EXACT, BOUNDED, FLOATING = "exact", "bounded", "floating"
DKMS, PRECOMPILED = "dkms", "precompiled"
HEADLESS, FULL = "headless", "full"
# Stands for a version that only the repository tells
ANY_VERSION = "V"


@dataclass(frozen=True)
class Wanted:
    """What the packages of a driver are asked for.

    system:          where they are installed.
    of_distribution: whether they are the distribution's own, not NVIDIA's.
    branch:          the driver's branch.
    module:          OPEN or PROPRIETARY.
    flavour:         HEADLESS, or FULL with what displays need.
    build:           DKMS (built on the host) or PRECOMPILED (signed by who made it).
    version:         the driver's exact version, '' where it is not known yet.
    kernel:          release of the kernel that a precompiled module is for.
    kernels:         releases of further kernels that it is for.
    follows:         kinds of kernels whose updates it follows, as their metapackages end ('generic-hwe-24.04'); ()
                     for the kind of those kernels.
    fabric_manager:  whether the board needs NVIDIA's Fabric Manager.
    subnet_manager:  whether it is one of NVLink 5, which needs the subnet manager too.
    imex:            whether the host shares its GPUs' memory with others.
    extra:           further packages in the driver's version.
    guest:           whether the GPUs are virtual ones of NVIDIA's vGPU software.
    """

    system: System
    of_distribution: bool
    branch: int
    module: str
    flavour: str = HEADLESS
    build: str = DKMS
    version: str = ""
    kernel: str = ""
    kernels: Tuple[str, ...] = ()
    follows: Tuple[str, ...] = ()
    fabric_manager: bool = False
    subnet_manager: bool = False
    imex: bool = False
    extra: Tuple[str, ...] = ()
    guest: bool = False

    @property
    def open(self) -> bool:
        return self.module == OPEN


@dataclass(frozen=True)
class PackageSet:
    """The packages of one driver.

    anchor:   the package whose version is the driver's.
    required: names that must be there, the anchor included.
    optional: names that are taken where the repository has them.
    floating: names whose version is not the driver's.
    bounded:  names whose version is a kernel's, and which set the driver's newest version.
    firmware: the package of the GPUs' firmware, which the others bring along; '' where they hold it themselves.
    """

    anchor: str
    required: Tuple[str, ...]
    optional: Tuple[str, ...] = ()
    floating: FrozenSet[str] = frozenset()
    bounded: FrozenSet[str] = frozenset()
    firmware: str = ""

    @property
    def names(self) -> Tuple[str, ...]:
        return self.required + self.optional

    def relation(self, name: str) -> str:
        """EXACT, BOUNDED or FLOATING."""
        return BOUNDED if name in self.bounded else FLOATING if name in self.floating else EXACT

    def plus(self, required: Iterable[str] = (), optional: Iterable[str] = (),
             floating: Iterable[str] = ()) -> PackageSet:
        """With further packages, each of them once."""
        more = tuple(name for name in dict.fromkeys(required) if name not in self.required)
        return replace(self, required=self.required + more, floating=self.floating.union(floating), optional=tuple(
            dict.fromkeys(name for name in (*self.optional, *optional) if name not in self.required + more)))
