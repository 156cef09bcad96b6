# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hosts write, kept in memory where the machine has enough of it.

A host lives for minutes and writes half a gigabyte at most, which nobody needs afterwards. On a disk it is waited for,
and an ext4 without a journal looks, for each file that is made, at all those that were deleted in the last minute
(Linux fs/ext4/ialloc.c, recently_deleted()): while hosts come and go by the dozen, a sixth of all processor time.
"""
from __future__ import annotations

import os
import re
from pathlib import Path

from .processes import run

# What must be free for a lab's hosts to be kept there, and what these see as the size of their disk
LEAST_GB = 8
SIZE_GB = 16


def available_gb() -> int:
    """Memory that programs may still take."""
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    return (int(found.group(1)) if found else 0) >> 20


def bring_up(directory: Path) -> None:
    """Whatever is written below directory is, from now on, in memory; where that is scarce, on the disk as ever."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(directory) or available_gb() < LEAST_GB:
        return
    run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=%dg" % SIZE_GB, "gpulab", directory])
    try:
        # Only since Linux 6.6, and hosts have them
        os.setxattr(directory, "user.gpulab", b"")
    except OSError:
        take_down(directory)


def take_down(directory: Path) -> None:
    """Forget what is in memory."""
    while os.path.ismount(directory):
        # A host that was killed may not have ended yet
        run(["umount", "--lazy", directory])
