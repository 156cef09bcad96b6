# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A GPU that may be divided, and what it is to be divided into."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ..hardware.mig import Mig


@dataclass(frozen=True)
class Board:
    """A GPU as MIG is planned for it.

    index:        NVML's, in the order of the PCI bus.
    address:      'domain:bus:device.function' in lower case.
    device_id:    as a mig-parted file writes it, '0x233010DE': device, then vendor.
    subsystem_id: the same of its subsystem.
    memory_mib:   all of its memory, in MiB.
    mig:          None on a GPU without MIG.
    resets:       whether a change of MIG mode takes a reset of it.
    resettable:   whether it can be reset without a reboot of the host.
    holders:      who has the whole GPU, by name.
    watchers:     services that watch GPUs and have this one open: they are stopped while it changes.
    """

    index: int
    uuid: str
    address: str
    name: str
    device_id: str
    subsystem_id: str
    memory_mib: int
    mig: Optional[Mig]
    resets: bool = False
    resettable: bool = True
    holders: Tuple[str, ...] = ()
    watchers: Tuple[str, ...] = ()

    def named(self) -> str:
        return "GPU %d (%s, %s)" % (self.index, self.address, self.name)


@dataclass(frozen=True)
class Wanted:
    """A GPU instance that is wanted.

    profile: Profile.id.
    compute: slices of its compute instances, the greatest first.
    start:   the unit at which it has to begin; None for any.
    """

    profile: int
    compute: Tuple[int, ...]
    start: Optional[int] = None


@dataclass(frozen=True)
class Target:
    """What a GPU is to be. instances: None leaves those that there are, () takes all away."""

    enabled: bool
    instances: Optional[Tuple[Wanted, ...]] = None
