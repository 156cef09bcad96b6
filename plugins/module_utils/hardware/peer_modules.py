# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel modules that let others reach the GPUs' memory through the driver (nv-p2p.h): which of them a boot loads by a
file of ours, and how each is built for a kernel.

nvidia-peermem comes with the driver and is made for the RDMA stack that is there when it is built: without
ib_register_peer_memory_client it is built too, and refuses to be loaded (open-gpu-kernel-modules, kernel-open/
nvidia-peermem/nvidia-peermem.c, and check_for_ib_peer_memory_symbols in conftest.sh). One that uses the stack depends
on ib_core, which depmod(8) notes.
"""
from __future__ import annotations

import re
from typing import Iterable, Tuple

from ..core.host import Host
from ..core.steps import managed

PEERMEM, GDRDRV, FS = "nvidia_peermem", "gdrdrv", "nvidia_fs"
# In the order in which they are loaded
PEER_MODULES = (PEERMEM, GDRDRV, FS)
# NVIDIA's predecessor of nvidia-peermem, a package of its own (Mellanox/nv_peer_memory)
NV_PEER_MEM = "nv_peer_mem"
# Whole ours, and read by who loads the driver
PEERS_FILE = "/etc/modules-load.d/gpuops-peer-modules.conf"

_PEERMEM_FILE = re.compile(r"nvidia(-current|-tesla(-\d+)?)?(-open)?-peermem\.ko(\.\w+)?")
_IB_CORE = re.compile(r"(^|/)ib_core\.ko(\.\w+)?$")
_SYMBOL = re.compile(r"\tib_register_peer_memory_client\t")
# Where conftest.sh and nvidia-peermem.Kbuild look for an RDMA stack that is none of the kernel's own
OFED_DIRECTORIES = ("/usr/src/ofa_kernel", "/usr/src/ofa_kernel-dkms")


def modules_in(text: str) -> Tuple[str, ...]:
    """Those of PEER_MODULES that a file of modules-load.d(5) names, in the order of these."""
    named = {line.strip().replace("-", "_") for line in text.splitlines() if not line.startswith(("#", ";"))}
    return tuple(name for name in PEER_MODULES if name in named)


def modules_text(modules: Iterable[str]) -> str:
    return managed("".join("%s\n" % name.replace("_", "-") for name in modules))


def loaded_at_boot(host: Host) -> Tuple[str, ...]:
    """See HostFacts.peer_modules."""
    return modules_in(host.read(PEERS_FILE) or "")


def peermem_uses_rdma(host: Host, release: str) -> bool:
    """Whether a kernel's nvidia-peermem was built for an RDMA stack that it can register with."""
    for line in (host.read("/lib/modules/%s/modules.dep" % release) or "").splitlines():
        path, _colon, needed = line.partition(":")
        if _PEERMEM_FILE.fullmatch(path.rsplit("/", 1)[-1]):
            return any(map(_IB_CORE.search, needed.split()))
    return False


def offers_peer_memory(host: Host, release: str, arch: str) -> bool:
    """Whether nvidia-peermem would be built for such a stack: the kernel's own, or an OFED whose source is there."""
    places = ["/lib/modules/%s/build" % release]
    for directory in OFED_DIRECTORIES:
        places += ["%s/%s/%s" % (directory, arch, release), "%s/%s" % (directory, release), directory + "/default",
                   directory]
    files = ["%s/Module.symvers" % place for place in places]
    files += host.glob("/var/lib/dkms/mlnx-ofed-kernel/*/build/Module.symvers")
    return any(_SYMBOL.search(host.read(path) or "") for path in files)
