# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA devices on the PCI bus, read from sysfs: needs no driver and no library."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import PHYSICAL
from ..core.host import Host
from . import boards, vgpu

NVIDIA_VENDOR = "10de"
MELLANOX_VENDOR = "15b3"
DEVICES = "/sys/bus/pci/devices"
GPU_CLASSES = ("0300", "0302")


@dataclass(frozen=True)
class PciDevice:
    """A device of NVIDIA's on the PCI bus, as sysfs has it.

    address:   'domain:bus:device.function', lower case.
    device_id: four lower-case hexadecimal digits.
    subsystem: 'vendor:device' of the subsystem, '' when sysfs has none.
    driver:    bound kernel driver ('nvidia', 'nouveau', 'vfio-pci'), '' when none.
    numa_node: NUMA node, -1 when the firmware names none.
    role:      see core.facts.Gpu; of a device that is no GPU, PHYSICAL.
    manager:   of a virtual GPU of a guest the version of the vGPU manager below (see vgpu.manager_of()), else ''.
    """

    address: str
    device_id: str
    subsystem: str
    driver: str
    numa_node: int
    role: str = PHYSICAL
    manager: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class PciBus:
    """NVIDIA's GPUs (class 0300 and 0302) and what belongs to their fabric, each sorted by address.

    gpus:       those that the host's driver is for.
    other_gpus: virtual functions, those passed through to virtual machines, and display cards.
    nvswitches: NVSwitches, without those passed through.
    bridges:    functions of network adapters through which the switches of an NVLink 5 board are managed.
    """

    gpus: Tuple[PciDevice, ...]
    nvswitches: Tuple[PciDevice, ...]
    other_gpus: Tuple[PciDevice, ...] = ()
    bridges: Tuple[PciDevice, ...] = ()

    @property
    def fabric(self) -> str:
        """See HostFacts.fabric."""
        return boards.fabric_of([gpu.device_id for gpu in self.gpus], len(self.nvswitches), len(self.bridges))

    @property
    def vgpu_manager(self) -> str:
        """See HostFacts.vgpu_manager."""
        return next((gpu.manager for gpu in self.gpus if gpu.manager), "")

    @property
    def imex(self) -> bool:
        """See HostFacts.imex."""
        return any(boards.in_rack(gpu.device_id) for gpu in self.gpus)


def read_bus(host: Host) -> PciBus:
    """Read /sys/bus/pci/devices."""
    directories: Dict[str, List[str]] = {NVIDIA_VENDOR: [], MELLANOX_VENDOR: []}
    for address in host.list(DEVICES):
        directory = "%s/%s" % (DEVICES, address)
        directories.get(_hexadecimal(host, directory, "vendor"), []).append(directory)
    gpu_directories, nvswitches = [], []
    for directory in directories[NVIDIA_VENDOR]:
        if _class(host, directory) in GPU_CLASSES:
            gpu_directories.append(directory)
        elif _hexadecimal(host, directory, "device") in boards.NVSWITCH_IDS:
            nvswitches.append(_device(host, directory))
    slots = {directory: _slot(host, directory) for directory in gpu_directories}
    gpus = [
        _device(host, directory, boards.role_of(slot, [other for where, other in slots.items() if where != directory]))
        for directory, slot in slots.items()
    ]
    physical = tuple(gpu for gpu in gpus if gpu.role == PHYSICAL)
    bridges = directories[MELLANOX_VENDOR] if boards.may_have_bridges([gpu.device_id for gpu in physical]) else []
    return PciBus(
        gpus=physical,
        nvswitches=tuple(device for device in nvswitches if not boards.passes_through(device.driver)),
        other_gpus=tuple(gpu for gpu in gpus if gpu.role != PHYSICAL),
        bridges=tuple(_device(host, directory) for directory in bridges if _manages_switches(host, directory)),
    )


def address_of(bus_id: Any) -> str:
    """sysfs form of a bus id of NVML or nvidia-smi: '00000000:17:00.0' is '0000:17:00.0', and '00010000:17:00.0'
    '10000:17:00.0'."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    domain, rest = text.lower().split(":", 1)
    return "%04x:%s" % (int(domain, 16), rest)


def _slot(host: Host, directory: str) -> boards.Slot:
    override = (host.read(directory + "/driver_override") or "").strip()
    return boards.Slot(
        device_class=_class(host, directory),
        device_id=_hexadecimal(host, directory, "device"),
        driver=_driver(host, directory),
        override="" if override == "(null)" else override,
        virtual=host.link(directory + "/physfn") is not None,
    )


def _manages_switches(host: Host, directory: str) -> bool:
    """Only root may read vital product data; to others an InfiniBand function beside such GPUs counts as a bridge."""
    try:
        data = host.read_bytes(directory + "/vpd")
    except (GpuOpsError, OSError):
        return _class(host, directory) == "0207"
    return data is not None and boards.SWITCH_MANAGER in data and not boards.passes_through(_driver(host, directory))


def _device(host: Host, directory: str, role: str = PHYSICAL) -> PciDevice:
    vendor = _hexadecimal(host, directory, "subsystem_vendor")
    device = _hexadecimal(host, directory, "subsystem_device")
    numa_node = (host.read(directory + "/numa_node") or "").strip()
    return PciDevice(
        address=directory.rsplit("/", 1)[-1].lower(),
        device_id=_hexadecimal(host, directory, "device"),
        subsystem="%s:%s" % (vendor, device) if vendor else "",
        driver=_driver(host, directory),
        numa_node=int(numa_node) if numa_node.lstrip("-").isdigit() else -1,
        role=role,
        manager=vgpu.manager_of(_configuration(host, directory)),
    )


def _configuration(host: Host, directory: str) -> bytes:
    """The configuration space, b'' where it is not to be read."""
    try:
        return host.read_bytes(directory + "/config") or b""
    except (GpuOpsError, OSError):
        return b""


def _driver(host: Host, directory: str) -> str:
    return (host.link(directory + "/driver") or "").rsplit("/", 1)[-1]


def _class(host: Host, directory: str) -> str:
    """Class and subclass, four hexadecimal digits."""
    return _hexadecimal(host, directory, "class")[:4]


def _hexadecimal(host: Host, directory: str, name: str) -> str:
    text = (host.read("%s/%s" % (directory, name)) or "").strip().lower()
    return text[2:] if text.startswith("0x") else text
