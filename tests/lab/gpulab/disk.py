# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A disk of a host's own: an ext4 in a file, which keeps over a power cut what was synced and forgets the rest.

It is mounted in the namespace of the host's supervisor alone, so that nothing else holds it when the host is gone. The
cut is ext4's own shutdown (EXT4_IOC_SHUTDOWN, Linux fs/ext4/ioctl.c): from then on nothing is written, the log neither,
and the next mount recovers from what lies in the file, as it does on a machine after a power cut. What the disk has
accepted counts as kept: a disk that loses its own write cache is not simulated.
"""
from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from .processes import run, wait_for

BYTES = 16 << 30
SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING_THE_LOG = 2


def image(directory: Path) -> Path:
    return directory / "disk.img"


def mount(directory: Path, upper: Path) -> Path:
    """Mount the disk of the host in directory; a new one gets the upper layer that was prepared. Returns its top."""
    top = directory / "disk"
    top.mkdir(exist_ok=True)
    if image(directory).is_file():
        run(["mount", "-o", "loop", image(directory), top])
        return top
    scratch = image(directory).with_suffix(".new")
    with scratch.open("wb") as handle:
        handle.truncate(BYTES)
    run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", scratch])
    run(["mount", "-o", "loop", scratch, top])
    run(["cp", "-a", upper, top])
    (top / "work").mkdir()
    run(["sync", "--file-system", top])
    scratch.rename(image(directory))
    return top


def cut(directory: Path, supervisor: int) -> None:
    """Nothing is written from now on; the supervisor's process sees the disk, this one does not."""
    handle = os.open("/proc/%d/root%s/disk" % (supervisor, directory), os.O_RDONLY)
    try:
        fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_LOG))
    finally:
        os.close(handle)


def wait_released(directory: Path) -> None:
    """Wait until nobody has it mounted: a mount before that would find the file system that was shut down."""
    if image(directory).is_file():
        wait_for("the disk %s is released" % image(directory),
                 lambda: not run(["losetup", "--associated", image(directory)]).strip(), 20.0)
