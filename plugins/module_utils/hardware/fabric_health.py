# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU says of the health of its NVLink fabric, in words. Pure.

Source of the table: nvml.h of the CUDA toolkit, NVML_GPU_FABRIC_HEALTH_MASK_* and NVML_GPU_FABRIC_HEALTH_SUMMARY_*,
with the values of the Python binding nvidia-ml-py. What a fabric works on with: NVIDIA NMX Manager, "Partition Health"
(less bandwidth "is considered to be operational").
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from .recovery import BOARD_RESET, LADDER, NONE, RESET, SERVICE

NOT_SUPPORTED = "not_supported"
_YES_OR_NO = {0: NOT_SUPPORTED, 1: "true", 2: "false"}
# NVML_GPU_FABRIC_HEALTH_SUMMARY_*, by number
_UNHEALTHY, _LIMITED = "unhealthy", "limited_capacity"
SUMMARIES = (NOT_SUPPORTED, "healthy", _UNHEALTHY, _LIMITED)

_LINKS = "read `nvidia-smi nvlink -e` and the kernel log for SXid, then reset all GPUs of the board together"
_PLACE = "compare the GPU's chassis and slot with the fabric's inventory, and ask who runs the fabric manager"


@dataclass(frozen=True)
class HealthField:
    """A field of the mask.

    shift:      its lowest bit.
    bits:       the mask of its width.
    words:      {value: what it says}.
    complaints: {what it says: that in the words of a person}, of what is a fault.
    remedy:     what to do then.
    rung:       of it what can be done on this host, of recovery.LADDER.
    works:      whether the fabric works on with it.
    """

    name: str
    shift: int
    bits: int
    complaints: Mapping[str, str]
    remedy: str
    words: Mapping[int, str] = field(default_factory=lambda: _YES_OR_NO)
    rung: str = NONE
    works: bool = False


FIELDS: Tuple[HealthField, ...] = (
    HealthField("degraded_bandwidth", 0, 0x3, {"true": "bandwidth degraded"}, _LINKS, works=True),
    HealthField("route_recovery", 2, 0x3, {"true": "route recovery in progress"},
                "wait until the fabric has found other routes; where it does not end, restart the fabric manager",
                rung=SERVICE),
    HealthField("route_unhealthy", 4, 0x3, {"true": "route unhealthy"}, _LINKS, rung=BOARD_RESET),
    HealthField("access_timeout_recovery", 6, 0x3, {"true": "recovery from an access timeout in progress"},
                "stop the GPU work of this host, then reset the GPU", rung=RESET),
    HealthField(
        "incorrect_configuration", 8, 0xF, {
            "incorrect_system_guid": "incorrect configuration: system GUID",
            "incorrect_chassis_serial": "incorrect configuration: chassis serial number",
            "no_partition": "incorrect configuration: no partition",
            "insufficient_nvlinks": "incorrect configuration: too few NVLinks",
            "incompatible_firmware": "incorrect configuration: GPU firmware",
            "invalid_location": "incorrect configuration: location",
            "gpu_state_invalid": "incorrect configuration: state of the GPU",
        }, _PLACE, {
            0: NOT_SUPPORTED, 1: "none", 2: "incorrect_system_guid", 3: "incorrect_chassis_serial", 4: "no_partition",
            5: "insufficient_nvlinks", 6: "incompatible_firmware", 7: "invalid_location", 8: "gpu_state_invalid",
        }),
    HealthField("partition_assigned", 12, 0x3, {"false": "assigned to no partition"},
                "assign the GPU to a partition of the fabric"),
    HealthField("fabric_manager_connection", 14, 0x3, {"disconnected": "fabric manager disconnected"},
                "check the fabric manager of the switches (NMX on switch trays)",
                {0: NOT_SUPPORTED, 1: "connected", 2: "disconnected"}),
)


def decoded(mask: int) -> Dict[str, str]:
    """{field: what it says}; a value that the table has not is 'unknown' with its number."""
    found = {}
    for each in FIELDS:
        value = (mask >> each.shift) & each.bits
        found[each.name] = each.words.get(value, "unknown (%d)" % value)
    return found


def summary_of(number: int) -> str:
    return SUMMARIES[number] if number < len(SUMMARIES) else "unknown (%d)" % number


class _Complaint(NamedTuple):
    """As of a field."""

    text: str
    remedy: str
    rung: str
    works: bool


def _found(health: Mapping[str, str], summary: str) -> List[_Complaint]:
    """A summary without a cause is a complaint itself, about links."""
    found = [_Complaint(each.complaints[word], each.remedy, each.rung, each.works) for each in FIELDS
             for word in (health.get(each.name, NOT_SUPPORTED),) if word in each.complaints]
    if summary == _UNHEALTHY and all(each.works for each in found):
        found.append(_Complaint("fabric unhealthy", _LINKS, BOARD_RESET, False))
    if summary == _LIMITED and not found:
        found.append(_Complaint("fabric limited capacity", _LINKS, NONE, True))
    return found


def complaints(health: Mapping[str, str], summary: str = NOT_SUPPORTED) -> List[Tuple[str, str]]:
    """[(what is wrong, what to do)] of a decoded mask and the summary."""
    return [(each.text, each.remedy) for each in _found(health, summary)]


def faults(health: Mapping[str, str], summary: str = NOT_SUPPORTED) -> Tuple[List[str], str]:
    """(what the fabric does not work with, the highest rung of that)."""
    found = [each for each in _found(health, summary) if not each.works]
    return [each.text for each in found], max((each.rung for each in found), key=LADDER.index, default=NONE)


def degradations(health: Mapping[str, str], summary: str = NOT_SUPPORTED) -> List[str]:
    """What is wrong, and the fabric works on with."""
    return [each.text for each in _found(health, summary) if each.works]


def told_health(gpus: Any, works: Tuple[bool, ...] = (False, True)) -> List[Tuple[str, str]]:
    """[(GPU and what is wrong with its fabric, what to do)] of GPUs as NVML answered for them.

    works: whether only that is told which the fabric works on with, or only what it does not; both by default.
    """
    return [("%s: %s" % (gpu.named(), each.text), each.remedy) for gpu in gpus if not gpu.error
            for each in _found(gpu.fabric_health, gpu.fabric_summary) if each.works in works]
