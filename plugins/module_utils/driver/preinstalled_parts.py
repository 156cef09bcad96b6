# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What there is of a driver that others have brought, part by part. Reading it changes nothing.

Sources: NVIDIA Linux driver README, "GSP firmware" (where the files lie) and "Installed components"; NVIDIA Fabric
Manager User Guide (the daemon ends with any other version than the driver's); awslabs/amazon-eks-ami, its templates of
Amazon Linux 2023 (the archive of modules, and the unit that loads one of them at boot).
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Tuple

from ..core.daemons import read_daemon
from ..core.facts import HostFacts
from ..core.host import Host
from ..hardware.node import library_version
from .policy import Policy
from .runfile import UNINSTALLER

FIRMWARE_DIRECTORIES = ("/lib/firmware/nvidia", "/usr/lib/firmware/nvidia", "/lib/firmware/updates/nvidia")
EKS_ARCHIVE, EKS_UNIT = "/var/lib/dkms-archive", "nvidia-kmod-load.service"
UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
RUNFILE = (UNINSTALLER, "/usr/bin/nvidia-installer")
# Device nodes are made by this program, which libraries of the driver call, too
NODES_PROGRAM = "nvidia-modprobe"
DAEMONS = {"fabric_manager": ("nvidia-fabricmanager.service", "nv-fabricmanager"),
           "imex": ("nvidia-imex.service", "nvidia-imex")}
_FIRMWARE = re.compile(r"gsp_\w+\.bin(\.xz|\.zst)?")


@dataclass(frozen=True)
class Parts:
    """Parts of a driver beside its kernel module.

    brought_by:    who brought it, as far as files tell; '' where nothing does.
    cuda:          version of libcuda.so.1, '' without one.
    firmware:      versions that the firmware for the GPUs' own processor (GSP) is there for.
    nodes_program: whether the program that makes device nodes is there.
    daemons:       (daemon of DAEMONS, its version or '' where it is not installed) of those that the board needs.
    """

    brought_by: str = ""
    cuda: str = ""
    firmware: Tuple[str, ...] = ()
    nodes_program: bool = False
    daemons: Tuple[Tuple[str, str], ...] = ()


def read_parts(host: Host, policy: Policy, facts: HostFacts) -> Parts:
    needed = {"fabric_manager": (policy.fabric_manager, bool(facts.fabric)), "imex": (policy.imex, facts.imex)}
    wanted = {name: asked == "present" or (asked == "auto" and needs) for name, (asked, needs) in needed.items()}
    return Parts(
        brought_by=brought_by(host),
        cuda=library_version(host, "libcuda.so.1"),
        firmware=_firmware(host),
        nodes_program=host.which(NODES_PROGRAM) is not None,
        daemons=tuple((name, read_daemon(host, *DAEMONS[name]).version) for name in DAEMONS if wanted[name]),
    )


def brought_by(host: Host) -> str:
    """Who has brought the driver of this host, as far as files tell; '' where nothing does."""
    runfile = [path for path in RUNFILE if host.exists(path)]
    return image_of_driver(host) or ("NVIDIA's runfile installer (%s)" % runfile[0] if runfile else "")


def image_of_driver(host: Host) -> str:
    """The image that brings a driver of its own at every boot, '' where none does.

    That of EKS keeps built modules of both kinds in an archive, and its unit loads the one that suits the GPUs.
    """
    told = [EKS_ARCHIVE] if host.is_dir(EKS_ARCHIVE) else []
    told += [EKS_UNIT] if any(host.exists("%s/%s" % (each, EKS_UNIT)) for each in UNIT_DIRECTORIES) else []
    return "EKS's image of Amazon Linux 2023 for GPUs (%s)" % ", ".join(told) if told else ""


def _firmware(host: Host) -> Tuple[str, ...]:
    found: Dict[str, None] = {}
    for directory in FIRMWARE_DIRECTORIES:
        for version in host.list(directory):
            if any(_FIRMWARE.fullmatch(name) for name in host.list("%s/%s" % (directory, version))):
                found[version] = None
    return tuple(found)
