# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU says of the health of its NVLink fabric, in words. Pure.

Source of the table: nvml.h of the CUDA toolkit, NVML_GPU_FABRIC_HEALTH_MASK_* and NVML_GPU_FABRIC_HEALTH_SUMMARY_*,
with the values of the Python binding nvidia-ml-py.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Tuple

from .recovery import BOARD_RESET, LADDER, NONE, RESET, SERVICE

NOT_SUPPORTED = "not_supported"
_YES_OR_NO = {0: NOT_SUPPORTED, 1: "true", 2: "false"}
# NVML_GPU_FABRIC_HEALTH_SUMMARY_*, by number
SUMMARIES = (NOT_SUPPORTED, "healthy", "unhealthy", "limited_capacity")

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
    """

    name: str
    shift: int
    bits: int
    complaints: Mapping[str, str]
    remedy: str
    words: Mapping[int, str] = field(default_factory=lambda: _YES_OR_NO)
    rung: str = NONE


FIELDS: Tuple[HealthField, ...] = (
    HealthField("degraded_bandwidth", 0, 0x3, {"true": "bandwidth degraded"}, _LINKS, rung=BOARD_RESET),
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


def complaints(health: Mapping[str, str], summary: str = NOT_SUPPORTED) -> List[Tuple[str, str]]:
    """[(what is wrong, what to do)] of a decoded mask and the summary; a summary without a cause is one itself."""
    found = [(each.complaints[word], each.remedy) for each in FIELDS
             for word in (health.get(each.name, NOT_SUPPORTED),) if word in each.complaints]
    if not found and summary in SUMMARIES[2:]:
        found.append(("fabric %s" % summary.replace("_", " "), _LINKS))
    return found


def rung_of(health: Mapping[str, str], summary: str = NOT_SUPPORTED) -> str:
    """The highest rung of what complaints() has; a summary without a cause is about links."""
    rungs = [each.rung for each in FIELDS if health.get(each.name) in each.complaints]
    return max(rungs, key=LADDER.index) if rungs else BOARD_RESET if complaints(health, summary) else NONE


def told_health(gpus: Any) -> List[Tuple[str, str]]:
    """[(GPU and what is wrong with its fabric, what to do)] of GPUs as NVML answered for them."""
    return [("%s: %s" % (gpu.named(), wrong), remedy) for gpu in gpus if not gpu.error
            for wrong, remedy in complaints(gpu.fabric_health, gpu.fabric_summary)]
