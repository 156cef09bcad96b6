# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the PCI ids of a board tell of it: whom its GPUs are for, and what configures its NVLink fabric. Pure.

Sources: NVIDIA Fabric Manager User Guide (which systems need which daemons), NVIDIA/gpu-driver-container (how an
NVLink 5 board without NVSwitches on the PCI bus is told), NVIDIA Driver Installation Guide (supported generations),
NVIDIA MIG User Guide (which chips have it), PCI ID Repository (which chips have which ids).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, Sequence, Tuple

from ..core.facts import DISPLAY, FABRIC_MANAGER, FABRIC_MANAGER_NVLSM, PASSED_THROUGH, PHYSICAL, VIRTUAL_FUNCTION

NVIDIA_DRIVER = "nvidia"
VGA_CONTROLLER = "0300"
# NVSwitches of HGX-2 (V100), HGX A100 and HGX H100/H200 on the host's bus
NVSWITCH_IDS = ("1ac2", "1af1", "22a3")
# Said by the vital product data of those ConnectX-7 functions through which switches of an NVLink 5 board are managed
SWITCH_MANAGER = b"SW_MNG"

# The generations that a driver of today is for begin with Maxwell; for those before Turing, branch 580 is the last
_MAXWELL = 0x1340
_TURING = 0x1E00
_FIRST_NVLINK5 = 0x2900
# Before GA100; the other Ampere chips of the first half; those between GH100 and the first of Blackwell
_WITHOUT_MIG: Tuple[Tuple[int, int], ...] = ((0, 0x207F), (0x2100, 0x22FF), (0x2400, 0x28FF))
# Before Hopper, GPU work ends with the fabric manager (its configuration key ABORT_CUDA_JOBS_ON_FM_EXIT)
_HOPPER = 0x2300
# GB200 and GB300: their switches are in trays of their own, and so is what configures them
_RACKS: Tuple[Tuple[int, int], ...] = ((0x2940, 0x297F), (0x31A1, 0x31A1), (0x31C0, 0x31FF))
_GRACE_HOPPER = (0x2340, 0x237F)
# GA100, GH100 and the large dies of Blackwell: the ECC of their HBM is always on (NVIDIA "GPU memory error management",
# of A100; the later ones are taken to be like it). Ranges: pci.ids of the PCI ID project
_ECC_ALWAYS_ON: Tuple[Tuple[int, int], ...] = ((0x2080, 0x20FF), (0x2300, 0x23FF), (0x2900, 0x29FF), (0x3180, 0x31FF))
_STUBS = ("pci-stub", "pciback", "xen-pciback")


@dataclass(frozen=True)
class Board:
    """A board that a node can have, by name.

    device_ids: those of its GPUs; a board that comes in several kinds has one of each.
    fabric:     what configures its NVLink fabric on the host, see HostFacts.fabric.
    """

    device_ids: Tuple[str, ...]
    fabric: str = ""


# Names for images that are made before the hardware is there. PCI ids: pci.ids of the PCI ID project; fabrics: NVIDIA
# Fabric Manager User Guide.
BOARDS: Dict[str, Board] = {
    "hgx-a100": Board(("20b0", "20b2"), FABRIC_MANAGER),
    "hgx-h100": Board(("2330",), FABRIC_MANAGER),
    "hgx-h200": Board(("2335",), FABRIC_MANAGER),
    "hgx-b200": Board(("2901",), FABRIC_MANAGER_NVLSM),
    "hgx-b300": Board(("3182",), FABRIC_MANAGER_NVLSM),
    "gb200": Board(("2941",)),
    "gb300": Board(("31c2",)),
    "gh200": Board(("2342",)),
    "a10": Board(("2236",)),
    "a30": Board(("20b7",)),
    "a40": Board(("2235",)),
    "a100-pcie": Board(("20b5", "20f1")),
    "h100-nvl": Board(("2321",)),
    "h100-pcie": Board(("2331",)),
    "h200-nvl": Board(("233b",)),
    "l4": Board(("27b8",)),
    "l40": Board(("26b5",)),
    "l40s": Board(("26b9",)),
    "rtx-pro-6000": Board(("2bb5",)),
    "t4": Board(("1eb8",)),
    "v100-pcie": Board(("1db4", "1db6")),
    "v100-sxm2": Board(("1db1", "1db5")),
}


@dataclass(frozen=True)
class Slot:
    """What sysfs tells of a GPU.

    device_class: class and subclass, '0300' or '0302'.
    device_id:    four hexadecimal digits.
    driver:       the bound driver, '' when none.
    override:     what driver_override reserves it for, '' when nothing.
    virtual:      whether it is a virtual function of another device of this host.
    """

    device_class: str
    device_id: str
    driver: str = ""
    override: str = ""
    virtual: bool = False

    @property
    def is_taken(self) -> bool:
        return self.virtual or passes_through(self.driver or self.override)


def role_of(slot: Slot, others: Sequence[Slot]) -> str:
    """Whom a GPU is for, beside the other GPUs of the host; see core.facts.ROLES.

    A GPU that was passed into this virtual machine is an ordinary one here.
    """
    if slot.virtual:
        return VIRTUAL_FUNCTION
    if slot.is_taken:
        return PASSED_THROUGH
    return DISPLAY if _is_display(slot, [other for other in others if not other.is_taken]) else PHYSICAL


def _is_display(slot: Slot, others: Sequence[Slot]) -> bool:
    """A VGA controller without a driver of today; or of an old generation beside a data centre's board, whose driver it
    would hold back; or one that has stayed with another driver while that of the others is NVIDIA's."""
    if slot.device_class != VGA_CONTROLLER:
        return False
    if int(slot.device_id, 16) < _MAXWELL:
        return True
    if slot.driver == NVIDIA_DRIVER:
        return False
    beside_board = any(other.device_class != VGA_CONTROLLER for other in others)
    beside_nvidia = any(other.driver == NVIDIA_DRIVER for other in others)
    return (int(slot.device_id, 16) < _TURING and beside_board) or (slot.driver != "" and beside_nvidia)


def passes_through(driver: str) -> bool:
    """Whether a kernel driver keeps devices for virtual machines: 'vfio-pci', 'nvgrace-gpu-vfio-pci', 'pci-stub' ..."""
    return "vfio" in driver or driver in _STUBS


def may_be_divided(device_id: str) -> bool:
    """Whether the board may have MIG, which only its driver tells for certain."""
    return not any(first <= int(device_id, 16) <= last for first, last in _WITHOUT_MIG)


def in_rack(device_id: str) -> bool:
    """Whether the GPU's NVLink switches stand outside of its host."""
    return any(first <= int(device_id, 16) <= last for first, last in _RACKS)


def is_coherent(device_id: str) -> bool:
    """Whether the processor reads the GPU's memory as its own: boards with a Grace processor."""
    return _GRACE_HOPPER[0] <= int(device_id, 16) <= _GRACE_HOPPER[1] or in_rack(device_id)


def ecc_is_always_on(device_id: str) -> bool:
    """Whether the board's memory has ECC that nobody can switch off; of a device that is not known, False."""
    return bool(device_id) and any(first <= int(device_id, 16) <= last for first, last in _ECC_ALWAYS_ON)


def works_on_without_fabric_manager(device_ids: Iterable[str]) -> bool:
    """Whether GPU work outlives a restart of the fabric manager."""
    return all(int(device_id, 16) >= _HOPPER for device_id in device_ids)


def may_have_bridges(device_ids: Iterable[str]) -> bool:
    """Whether NVLink switches of these GPUs may be behind network adapters: their vital product data tells then."""
    return any(int(device_id, 16) >= _FIRST_NVLINK5 and not in_rack(device_id) for device_id in device_ids)


def fabric_of(device_ids: Iterable[str], nvswitches: int, bridges: int) -> str:
    """What has to run on this host for the NVLink fabric of its GPUs, see HostFacts.fabric.

    In a virtual machine it is the machine that was given the switches, and nothing runs where there are none.
    """
    if bridges and may_have_bridges(device_ids):
        return FABRIC_MANAGER_NVLSM
    return FABRIC_MANAGER if nvswitches else ""
