# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Writing a host's simulated silicon: its board before the first boot, and faults while it runs.

A host's silicon directory is /var/lib/gpusim inside the host. `tests/lab/silicon/README.md` describes the files in it.
"""
from __future__ import annotations

import importlib
import json
import sys
import uuid
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

SILICON_SOURCES = Path(__file__).resolve().parent.parent / "silicon"
if str(SILICON_SOURCES / "python") not in sys.path:
    sys.path.insert(0, str(SILICON_SOURCES / "python"))
board_file = importlib.import_module("gpusim.board")
host_files = importlib.import_module("gpusim.files")

PROFILES = tuple(sorted(path.stem for path in (SILICON_SOURCES / "boards").glob("*.json")))

EVENT_SINGLE_BIT_ECC = 1
EVENT_DOUBLE_BIT_ECC = 2
EVENT_XID = 8
XID_DOUBLE_BIT_ECC = 48
XID_FELL_OFF_BUS = 79
XID_RECOVERY_ACTION = 154

FAULT_KINDS = {
    "lost": "the GPU fell off the bus: Xid 79, then NVML answers GPU_IS_LOST; lasts until cleared",
    "excluded": "the driver leaves the GPU out (NVreg_ExcludedGpus): NVML tells of it, and lists it not",
    "absent": "the GPU is gone as a dead board is: from NVML at once, from the PCI bus at the next boot",
    "ecc": "an uncorrectable memory error: counters, a row to remap, a double-bit event and Xid 48",
    "ecc-corrected": "one corrected memory error: counters and a single-bit event",
    "remap-failed": "a row of memory cannot be remapped: NVIDIA takes such a board back",
    "sram": "uncorrectable errors of a cache are more than its threshold: NVIDIA takes such a board back",
    "recovery": "the driver asks for a recovery action (--code, 1 unless given: reset) and says so with Xid 154",
    "nvlink-down": "NVLinks are down until a reset (--code: a bit for each, 1 unless given: the first)",
    "slowdown": "the GPU is slowed down (--code: NVML's reasons, 64 unless given: too hot)",
    "xid": "one Xid event (--code, 31 unless given)",
    "call": "a call of NVML or libcuda fails (--call; the --nth, for --times calls, 0 for ever; with --code)",
    "slow": "calls take --ms longer (--call: only this one)",
    "mig-in-use": "SetMigMode answers IN_USE and leaves the mode pending",
    "mig-pending": "SetMigMode answers RESET_REQUIRED and leaves the mode pending, as in a virtual machine",
    "busy": "a process holds the GPU (--mib of its memory)",
    "module-in-use": "the nvidia module cannot be removed: something in the kernel holds it",
    "fabric": "the fabric manager cannot configure the fabric",
    "wrong-result": "a multiprocessor (--sm, 0 unless given) computes wrongly",
    "idle-sm": "a multiprocessor (--sm, 0 unless given) gets no work",
    "bad-memory": "a word of memory (--at, a byte of the largest allocation) keeps nothing right",
    "bad-copy": "copies to the GPU spoil a byte (--at)",
    "bad-peer-copy": "copies from the GPU to another spoil a byte (--at)",
    "slow-copy": "copies between host and GPU reach --percent of their rate",
    "slow-memory": "the GPU's memory reaches --percent of its rate",
    "slow-peer": "copies between the GPU and others reach --percent of their rate",
}
# Keys of a GPU that a fault sets
_MARKS = {"remap-failed": "remapped.failed", "sram": "sram_threshold", "recovery": "recovery_action",
          "nvlink-down": "nvlinks_down", "slowdown": "clock_reasons"}
_HW_THERMAL = 0x40
_DETAILS = ("call", "nth", "times", "code", "ms", "sm", "at", "percent")


class SiliconError(ValueError):
    """A profile, a number of GPUs or a fault that does not exist; the message lists those that do."""


def profile_table(profile: str) -> Dict[str, Any]:
    """The table of a board profile, as its JSON file has it."""
    path = SILICON_SOURCES / "boards" / ("%s.json" % profile)
    if profile not in PROFILES:
        raise SiliconError("no board profile %r; there are: %s" % (profile, ", ".join(PROFILES)))
    table: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


def write_board(silicon_dir: Path, profile: str, gpus: int, seed: Optional[str] = None) -> None:
    """Write a new board into a host's silicon directory; the same seed gives the same UUIDs and serial numbers."""
    table = profile_table(profile)
    slots: List[str] = table["slots"]
    if not 0 <= gpus <= len(slots):
        raise SiliconError("%s has slots for 0 to %d GPUs, not for %d" % (profile, len(slots), gpus))
    word = seed if seed is not None else "%s/%s" % (silicon_dir.parent.name, profile)
    values = {"profile": profile, "seed": word, "gpu.count": str(gpus)}
    values.update(_board_values(table))
    for index in range(gpus):
        values.update(_gpu_values(table, index, gpus, word))
    board_file.create(silicon_dir / "board", values)


def _board_values(table: Mapping[str, Any]) -> Dict[str, str]:
    gpu: Dict[str, Any] = table["gpu"]
    values = {"board.%s" % key: str(value) for key, value in gpu.items() if key != "pci_bars_mib"}
    values["board.pci_bars_mib"] = "+".join(str(size) for size in gpu["pci_bars_mib"])
    values.update({
        "board.power_management": "1",
        "board.power_limit_w": str(gpu["power_default_w"]),
        "board.persistence": "0",
        "board.compute_mode": "0",
        "board.display": "0",
        "board.virtualization": "0",
        "board.pcie_replays": "0",
        "board.multi_gpu_board": "0",
    })
    values.update(_fabric_values(table["fabric"]))
    values.update(_mig_values(table.get("mig")))
    if "vgpu_manager" in table:
        values["vgpu.manager"] = table["vgpu_manager"]
        # How the tokens begin that the license server knows
        values["vgpu.server"] = "eyJ"
    return values


def _fabric_values(fabric: Mapping[str, Any]) -> Dict[str, str]:
    values = {"board.fabric": str(fabric["kind"])}
    for index, slot in enumerate(fabric.get("switch_slots", [])):
        values["nvswitch.%d.bus" % index] = slot
    if "switch_device" in fabric:
        values["nvswitch.count"] = str(len(fabric["switch_slots"]))
        values["nvswitch.pci_device"] = fabric["switch_device"]
    for index, slot in enumerate(fabric.get("bridge_slots", [])):
        values["nvlink_bridge.%d.bus" % index] = slot
    if "bridge_device" in fabric:
        values["nvlink_bridge.count"] = str(len(fabric["bridge_slots"]))
        values["nvlink_bridge.pci_device"] = fabric["bridge_device"]
    if fabric.get("reports_state"):
        values["board.fabric.healthy"] = str(fabric["healthy"])
        values["board.fabric.reports"] = "1"
        values["board.fabric.state"] = "1"
        values["board.fabric.cluster"] = fabric.get("cluster", "00000000-0000-0000-0000-000000000000")
        values["board.fabric.clique"] = str(fabric.get("clique", 0))
    return values


def _mig_values(mig: Optional[Mapping[str, Any]]) -> Dict[str, str]:
    if mig is None:
        return {}
    values = {"board.mig_units": str(mig["units"]), "board.mig_slices": str(mig["slices"])}
    columns = ("enum", "id", "name", "slices", "max", "sms", "memory_mib", "copy", "decoders", "encoders", "jpeg",
               "ofa", "capabilities", "size")
    for index, row in enumerate(mig["profiles"]):
        cells = [str(row[column]) for column in columns] + ["+".join(str(start) for start in row["starts"])]
        values["board.gpu_instance_profile.%d" % index] = ",".join(cells)
    return values


def _gpu_values(table: Mapping[str, Any], index: int, gpus: int, seed: str) -> Dict[str, str]:
    identity = uuid.uuid5(uuid.NAMESPACE_URL, "gpusim:%s:%d" % (seed, index))
    prefix = "gpu.%d." % index
    values = {
        prefix + "uuid": "GPU-%s" % identity,
        prefix + "serial": "%013d" % (identity.int % 10 ** 13),
        prefix + "bus": table["slots"][index],
        prefix + "minor": str(index),
        prefix + "numa": str(0 if index < (gpus + 1) // 2 else 1),
        prefix + "module_id": str(index + 1),
        prefix + "board_id": str(int(table["slots"][index].split(":")[1], 16) << 8),
    }
    if "mig" in table:
        values[prefix + "mig"] = values[prefix + "mig_pending"] = "0"
    return values


def inject_fault(silicon_dir: Path, kind: str, gpu: Optional[int] = None, **details: Any) -> str:
    """Make a fault; returns what a person should know about it. `details`: mib, pid, and those of _DETAILS."""
    if kind not in FAULT_KINDS:
        raise SiliconError("no fault %r; there are: %s" % (kind, ", ".join(FAULT_KINDS)))
    with board_file.opened(silicon_dir) as board:
        if gpu is not None and not 0 <= gpu < board.gpus:
            raise SiliconError("no GPU %d; this host has %d" % (gpu, board.gpus))
        _inject(board, kind, gpu, {name: value for name, value in details.items() if value is not None})
        host_files.write_configuration_spaces(silicon_dir, board)
    board_file.log(silicon_dir, "fault %s gpu=%s %s" % (kind, "all" if gpu is None else gpu, details), "lab")
    return FAULT_KINDS[kind]


def _inject(board: Any, kind: str, gpu: Optional[int], details: Mapping[str, Any]) -> None:
    chosen = range(board.gpus) if gpu is None else [gpu]
    if kind == "ecc":
        for each in chosen:
            _uncorrectable_error(board, each)
    elif kind == "ecc-corrected":
        for each in chosen:
            _count_error(board, each, "corrected")
            board.raise_event(each, EVENT_SINGLE_BIT_ECC, 0)
    elif kind == "xid":
        for each in chosen:
            board.raise_event(each, EVENT_XID, int(details.get("code", 31)))
    elif kind in _MARKS:
        for each in chosen:
            usual = _HW_THERMAL if kind == "slowdown" else 1
            board.set("gpu.%d.%s" % (each, _MARKS[kind]), details.get("code", usual))
            if kind == "recovery":
                board.raise_event(each, EVENT_XID, XID_RECOVERY_ACTION)
    elif kind == "busy":
        for each in chosen:
            _declare_process(board, each, details)
    else:
        if kind == "call" and "call" not in details:
            raise SiliconError("the fault 'call' needs the name of an NVML function")
        _lasting_fault(board, kind, gpu, details)
        for each in chosen if kind == "lost" else []:
            board.raise_event(each, EVENT_XID, XID_FELL_OFF_BUS)


def _count_error(board: Any, gpu: int, kind: str) -> None:
    for span in ("volatile", "aggregate"):
        key = "gpu.%d.ecc_errors.%s.%s" % (gpu, kind, span)
        board.set(key, board.number(key) + 1)


def _uncorrectable_error(board: Any, gpu: int) -> None:
    _count_error(board, gpu, "uncorrected")
    if board.gpu(gpu, "remaps_rows") == "1":
        key = "gpu.%d.remapped.uncorrected" % gpu
        board.set(key, board.number(key) + 1)
        board.set("gpu.%d.remapped.pending" % gpu, 1)
    board.raise_event(gpu, EVENT_DOUBLE_BIT_ECC, 0)
    board.raise_event(gpu, EVENT_XID, XID_DOUBLE_BIT_ECC)


def _next_id(board: Any, group: str) -> int:
    used = {key.split(".")[1] for key in board.below(group)}
    return next(number for number in range(1, len(used) + 2) if str(number) not in used)


def _declare_process(board: Any, gpu: int, details: Mapping[str, Any]) -> None:
    number = _next_id(board, "process")
    board.set("process.%d.gpu" % number, gpu)
    board.set("process.%d.pid" % number, details.get("pid", 4000 + number))
    board.set("process.%d.mib" % number, details.get("mib", 1024))


def _lasting_fault(board: Any, kind: str, gpu: Optional[int], details: Mapping[str, Any]) -> None:
    number = _next_id(board, "fault")
    board.set("fault.%d.kind" % number, kind)
    if gpu is not None:
        board.set("fault.%d.gpu" % number, gpu)
    for name in _DETAILS:
        if name in details:
            board.set("fault.%d.%s" % (number, name), details[name])


def clear_faults(silicon_dir: Path) -> List[str]:
    """Undo every fault; returns the kinds that lasted until now."""
    with board_file.opened(silicon_dir) as board:
        kinds = sorted({board.values[key] for key in board.below("fault") if key.endswith(".kind")})
        board.remove("fault")
        board.remove("process")
        for gpu in range(board.gpus):
            board.remove("gpu.%d.ecc_errors" % gpu)
            board.remove("gpu.%d.remapped" % gpu)
            for mark in ("sram_threshold", "recovery_action", "nvlinks_down", "clock_reasons"):
                board.remove("gpu.%d.%s" % (gpu, mark))
        host_files.write_configuration_spaces(silicon_dir, board)
    board_file.log(silicon_dir, "faults cleared: %s" % ", ".join(kinds), "lab")
    return kinds


def list_faults(silicon_dir: Path) -> List[Dict[str, str]]:
    """The lasting faults and declared processes, one dictionary each."""
    board = board_file.read(silicon_dir)
    groups: Dict[str, Dict[str, str]] = {}
    for key in board.below("fault") + board.below("process"):
        group, number, name = key.split(".", 2)
        entry = groups.setdefault("%s.%s" % (group, number), {"kind": "busy"} if group == "process" else {})
        entry[name] = board.values[key]
    return list(groups.values())
