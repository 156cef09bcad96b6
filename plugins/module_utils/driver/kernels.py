# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installed kernels: which can be booted, which have headers, which driver module lies there."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from ..core.host import Host
from ..hardware.boot import installed_module, kernels


@dataclass(frozen=True)
class Kernel:
    """
    release: as uname prints it.
    headers: whether modules can be built for it.
    module:  version of the driver's module for it, '' if none.
    license: licence of that module ('Dual MIT/GPL' is the open one).
    signer:  who signed the module, '' if nobody.
    """

    release: str
    headers: bool = False
    module: str = ""
    license: str = ""
    signer: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def read_kernels(host: Host, running: str) -> Tuple[Kernel, ...]:
    """Kernels that can be booted, oldest first, and the running one if it is not among them."""
    releases = kernels(host)
    if running not in releases and host.is_dir("/lib/modules/" + running):
        releases += (running,)
    return tuple(_read_kernel(host, release) for release in releases)


def _read_kernel(host: Host, release: str) -> Kernel:
    headers = host.exists("/lib/modules/%s/build/Makefile" % release)
    module = installed_module(host, release)
    return Kernel(release, headers, module.version, module.license, module.signer)
