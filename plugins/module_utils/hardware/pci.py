# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA devices on the PCI bus, read from sysfs: needs no driver and no library."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Tuple

from ..core.host import Host

NVIDIA_VENDOR = "10de"
DEVICES = "/sys/bus/pci/devices"

# NVIDIA Fabric Manager User Guide: NVSwitches of HGX-2 (V100), HGX A100 and HGX H100/H200 on the host's bus
NVSWITCH_IDS = ("1ac2", "1af1", "22a3")


@dataclass(frozen=True)
class PciDevice:
    """
    address:   'domain:bus:device.function', lower case.
    device_id: four lower-case hexadecimal digits.
    subsystem: 'vendor:device' of the subsystem, '' when sysfs has none.
    driver:    bound kernel driver ('nvidia', 'nouveau', 'vfio-pci'), '' when none.
    numa_node: NUMA node, -1 when the firmware names none.
    """

    address: str
    device_id: str
    subsystem: str
    driver: str
    numa_node: int

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PciBus:
    """NVIDIA's GPUs (class 0300 and 0302) and NVSwitches, each sorted by address."""

    gpus: Tuple[PciDevice, ...]
    nvswitches: Tuple[PciDevice, ...]


def read_bus(host: Host) -> PciBus:
    """Read /sys/bus/pci/devices."""
    gpus, nvswitches = [], []
    for address in host.list(DEVICES):
        folder = "%s/%s" % (DEVICES, address)
        if _hexadecimal(host, folder, "vendor") != NVIDIA_VENDOR:
            continue
        device = _device(host, folder, address)
        if _hexadecimal(host, folder, "class")[:4] in ("0300", "0302"):
            gpus.append(device)
        elif device.device_id in NVSWITCH_IDS:
            nvswitches.append(device)
    return PciBus(tuple(gpus), tuple(nvswitches))


def _device(host: Host, folder: str, address: str) -> PciDevice:
    vendor = _hexadecimal(host, folder, "subsystem_vendor")
    device = _hexadecimal(host, folder, "subsystem_device")
    numa_node = (host.read(folder + "/numa_node") or "").strip()
    return PciDevice(
        address=address.lower(),
        device_id=_hexadecimal(host, folder, "device"),
        subsystem="%s:%s" % (vendor, device) if vendor else "",
        driver=(host.link(folder + "/driver") or "").rsplit("/", 1)[-1],
        numa_node=int(numa_node) if numa_node.lstrip("-").isdigit() else -1,
    )


def _hexadecimal(host: Host, folder: str, name: str) -> str:
    text = (host.read("%s/%s" % (folder, name)) or "").strip().lower()
    return text[2:] if text.startswith("0x") else text
