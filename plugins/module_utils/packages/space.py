# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a transaction has the room that it needs, before it begins."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Set, Tuple

from ..core.host import Host
from .model import Simulation

SYSTEM, ARCHIVES, BOOT = "/usr", "/var/cache/apt/archives", "/boot"
DNF_ARCHIVES = "/var/cache/dnf"
ZYPPER_ARCHIVES = "/var/cache/zypp"
MIB = 1024 * 1024
# vmlinuz, System.map and config of a kernel; its modules count with the package
_KERNEL_IN_BOOT = 32 * MIB
_KERNEL = re.compile(r"^(linux-image-\d|kernel(-uek|-64k)?-core-)")
_REBUILDS_INITRAMFS = re.compile(
    r"^(linux-image-\d|kernel(-uek|-64k)?-core-|(kmod-)?nvidia-.*dkms|firmware-nvidia|nvidia-driver|nvidia-headless"
    r"|nvidia-open-driver-G)")


@dataclass(frozen=True)
class Space:
    """Where a transaction writes, and how much room is there.

    device:    {directory: the file system it lies on}, so that directories of one share their room.
    free:      {directory: bytes that can be written there}.
    initramfs: size of the largest one in /boot, 0 where there is none.
    archives:  the directory of package files that are fetched.
    """

    device: Mapping[str, int]
    free: Mapping[str, int]
    initramfs: int = 0
    archives: str = ARCHIVES


def observe(host: Host, archives: str = ARCHIVES) -> Space:
    device, free = {}, {}
    for directory in (SYSTEM, archives, BOOT):
        there = host.stat(directory)
        device[directory] = there.st_dev if there else 0
        free[directory] = host.free(directory)
    sizes = [host.stat(path) for path in host.glob("/boot/initrd*") + host.glob("/boot/initramfs*")]
    return Space(device, free, max((size.st_size for size in sizes if size), default=0), archives)


def held_by(host: Host, directory: str) -> int:
    """Bytes that the files of a directory take."""
    return sum(512 * os.lstat(os.path.join(above, name)).st_blocks
               for above, _directories, names in os.walk(host.path(directory)) for name in names)


def lacking(space: Space, transaction: Simulation) -> List[Tuple[str, int, int]]:
    """Pure: (directory, bytes needed, bytes free) of every file system that the transaction would fill.

    A new initramfs is written beside the old one (update-initramfs(8)).
    """
    kernels = sum(1 for name in transaction.installs if _KERNEL.match(name))
    rebuilt = any(_REBUILDS_INITRAMFS.match(name) for name in transaction.installs)
    needs = {
        SYSTEM: transaction.unpacked,
        space.archives: transaction.download,
        BOOT: kernels * (space.initramfs + _KERNEL_IN_BOOT) + (space.initramfs if rebuilt else 0),
    }
    together: Dict[int, int] = {}
    for directory, need in needs.items():
        together[space.device[directory]] = together.get(space.device[directory], 0) + need
    found: List[Tuple[str, int, int]] = []
    told: Set[int] = set()
    for directory, need in needs.items():
        device = space.device[directory]
        if need and device not in told and together[device] > space.free[directory]:
            told.add(device)
            found.append((directory, together[device], space.free[directory]))
    return found
