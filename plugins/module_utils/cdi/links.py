# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Links under /dev/char to NVIDIA's device nodes: their driver makes nodes that udev knows nothing of.

runc 1.1.3 to 1.1.6 tells systemd of a container's device only if its link is there (opencontainers/runc, pull request
3845), and systemd before 240 looks at the link as well. Where it is missing, the next reload of systemd takes the GPU
from a running container (NVIDIA/nvidia-container-toolkit, issue 48).
"""
from __future__ import annotations

import os
import stat
from typing import Tuple

from ..core.host import Host

DIRECTORY = "/dev/char"
COMMAND = ("system", "create-dev-char-symlinks", "--create-all")
# It numbers GPUs from 0; a node with a higher minor (a GPU before it was given away) is linked by being there
COMMAND_FOR_EXISTING = COMMAND[:2]
# Of what these commands link, that which containers get; nodes of NVSwitches and IMEX channels they leave alone
NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# Capabilities of MIG; those of the fabric have nodes beside theirs, which the fabric manager alone opens
MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
MIG_NODE = "/dev/nvidia-caps/nvidia-cap%s"


def unlinked(host: Host) -> Tuple[str, ...]:
    """Device nodes without a link that leads to them."""
    names = [node for pattern in NODES for node in host.glob(pattern)]
    there = set(host.glob(MIG_NODE % "[0-9]*"))
    if there:
        minors = (line.split()[-1] for line in (host.read(MIG_MINORS) or "").splitlines() if line.strip())
        names += [name for name in (MIG_NODE % minor for minor in minors) if name in there]
    nodes = [(node, _number(host, node)) for node in names]
    return tuple(node for node, number in nodes if number and _target(host, "%s/%s" % (DIRECTORY, number)) != node)


def misleading(host: Host) -> Tuple[str, ...]:
    """Links to device nodes that have another number by now: the driver is given its majors at every load."""
    numbers = {link: _number(host, _target(host, link)) for link in ours(host)}
    return tuple(link for link, number in numbers.items() if number and number != os.path.basename(link))


def ours(host: Host) -> Tuple[str, ...]:
    """Every link to a device node of NVIDIA's, there or not."""
    links = ["%s/%s" % (DIRECTORY, name) for name in host.list(DIRECTORY)]
    return tuple(link for link in links if _target(host, link).startswith("/dev/nvidia"))


def _target(host: Host, link: str) -> str:
    """What a link names, there or not; '' when it is none. There are a hundred links a GPU that can do MIG."""
    named = host.link(link)
    return "" if named is None else os.path.normpath(os.path.join(DIRECTORY, named))


def _number(host: Host, node: str) -> str:
    """'major:minor' of a device node, '' when it is none."""
    seen = host.stat(node)
    if seen is None or not stat.S_ISCHR(seen.st_mode):
        return ""
    return "%d:%d" % (os.major(seen.st_rdev), os.minor(seen.st_rdev))
