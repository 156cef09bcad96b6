# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The control groups of one host: a group of its own in every hierarchy, which is also how its processes are found.

systemd-nspawn makes the group it starts in the root of the host's cgroup namespace, so hosts do not see each other's
pods, and removing one group removes everything that a boot left behind.
"""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import List, Set

MOUNT = Path("/sys/fs/cgroup")


def is_unified() -> bool:
    """True on a machine whose only hierarchy is cgroup v2."""
    return (MOUNT / "cgroup.controllers").is_file()


def hierarchies() -> List[Path]:
    if is_unified():
        return [MOUNT]
    return sorted(path for path in MOUNT.iterdir() if path.is_dir() and not path.is_symlink()
                  and (path / "cgroup.procs").is_file())


def create(name: str) -> None:
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (group / "cpuset.cpus").is_file() and not is_unified():
            for knob in ("cpuset.cpus", "cpuset.mems"):
                (group / knob).write_text((hierarchy / knob).read_text())
            (group / "cgroup.clone_children").write_text("1")
    if is_unified():
        available = (MOUNT / "cgroup.controllers").read_text().split()
        (MOUNT / "cgroup.subtree_control").write_text(" ".join("+" + each for each in available))


def join(name: str) -> None:
    """Move the calling process into the group."""
    for hierarchy in hierarchies():
        (hierarchy / name / "cgroup.procs").write_text(str(os.getpid()))


def members(name: str) -> List[int]:
    found: Set[int] = set()
    for hierarchy in hierarchies():
        for directory, _, _ in os.walk(hierarchy / name):
            try:
                found.update(int(word) for word in (Path(directory) / "cgroup.procs").read_text().split())
            except OSError:
                continue
    found.discard(0)
    return sorted(found)


def exists(name: str) -> bool:
    return any((hierarchy / name).is_dir() for hierarchy in hierarchies())


def remove(name: str, seconds: float = 10.0) -> None:
    """Kill what is in the group and remove it from every hierarchy."""
    deadline = time.monotonic() + seconds
    while True:
        for pid in members(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for hierarchy in hierarchies():
            for directory, _, _ in os.walk(hierarchy / name, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    pass
        if not exists(name) or time.monotonic() > deadline:
            return
        time.sleep(0.02)
