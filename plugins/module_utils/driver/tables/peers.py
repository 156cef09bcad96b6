# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUDirect Storage and GDRCopy: their packages by source and package manager, and what they need of the driver.

Both build one kernel module against the driver's source, by DKMS, and have versions of their own.

Sources: NVIDIA GPUDirect Storage Installation and Troubleshooting Guide (nvidia-fs, the open module since 2.17.5);
NVIDIA/gdrcopy, README.md, packages/ (names, dkms.conf); NVIDIA's CUDA repositories and Debian's archive.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Tuple

from ...hardware.peer_modules import FS, GDRDRV
from .systems import APT, DEBIAN, DNF, System

# The first nvidia-fs that needs the open kernel module
FIRST_FS_OPEN_ONLY = "2.17.5"
# The first kernel through which memory can be shared by DMA-BUF with RDMA devices (NVIDIA GPUDirect RDMA guide)
FIRST_DMABUF_KERNEL = (5, 12)


@dataclass(frozen=True, eq=False)
class Peer:
    """A product that is one kernel module beside the driver, and what belongs to it.

    option:   the option of the policy that asks for it.
    called:   its name for people.
    module:   as it is loaded.
    dkms:     the name that DKMS knows its source by.
    packages: {package manager: names in NVIDIA's repository}, that of the module first.
    """

    option: str
    called: str
    module: str
    dkms: str
    packages: Mapping[str, Tuple[str, ...]]


GDS = Peer("gds", "GPUDirect Storage", FS, "nvidia-fs",
           {APT: ("nvidia-fs-dkms",), DNF: ("nvidia-fs-dkms", "nvidia-fs")})
GDRCOPY = Peer("gdrcopy", "GDRCopy", GDRDRV, "gdrdrv",
               {APT: ("gdrdrv-dkms", "libgdrapi"), DNF: ("gdrcopy-kmod", "gdrcopy")})
PEERS = (GDRCOPY, GDS)
PACKAGES = tuple(sorted({name for peer in PEERS for names in peer.packages.values() for name in names}))


def packages_of(peer: Peer, system: System, of_distribution: bool) -> Tuple[str, ...]:
    """Names of its packages in a source, () where that has none."""
    if of_distribution:
        return peer.packages[APT] if peer is GDS and system.family == DEBIAN else ()
    return peer.packages.get(system.manager, ())
