# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HostFacts: the few facts that more than one capability plans with.

A capability's planner never asks another capability. It reads these facts, and says how they will be once its own
plan is done, so that plans of several capabilities chain on a host where nothing is installed yet.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Optional, Tuple


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus, known without a driver.

    address:   'domain:bus:device.function' in lower case, e.g. '0000:17:00.0'.
    device_id: PCI device id, four lower-case hexadecimal digits.
    """

    address: str
    device_id: str


@dataclass(frozen=True)
class HostFacts:
    """
    hostname:          name of the host.
    os_id, os_version: ID and VERSION_ID of os-release.
    arch:              machine as uname prints it.
    kernel:            release of the running kernel.
    boot_kernel:       release that the next boot will choose, '' when it cannot be told.
    gpus:              NVIDIA GPUs on the PCI bus.
    nvswitches:        NVSwitches on the PCI bus.
    immutable:         why the system is not ours to install on ('/run/ostree-booted' ...), '' when it is.
    secure_boot:       whether the firmware enforces signed modules.
    driver_installed:  version of the driver's kernel module on disk for the running kernel, '' if none.
    driver_boots:      version of the driver's kernel module on disk for boot_kernel, '' if none.
    driver_userspace:  version of the installed libnvidia-ml, '' if none.
    driver_loaded:     version of the loaded module, '' if none.
    nouveau_loaded:    whether a driver of the kernel's own is loaded: nouveau, or nova since Linux 6.15.
    toolkit:           version of the installed NVIDIA container toolkit, '' if none.
    """

    hostname: str = ""
    os_id: str = ""
    os_version: str = ""
    arch: str = ""
    kernel: str = ""
    boot_kernel: str = ""
    gpus: Tuple[Gpu, ...] = ()
    nvswitches: int = 0
    immutable: str = ""
    secure_boot: bool = False
    driver_installed: str = ""
    driver_boots: str = ""
    driver_userspace: str = ""
    driver_loaded: str = ""
    nouveau_loaded: bool = False
    toolkit: str = ""

    def but(self, **changes: Any) -> HostFacts:
        """These facts with some replaced."""
        return replace(self, **changes)

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @property
    def loaded_is_installed(self) -> Optional[bool]:
        """Whether loaded module, module on disk and user space agree; None while nothing is loaded."""
        if not self.driver_loaded:
            return None
        return self.driver_loaded == self.driver_installed == self.driver_userspace
