# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The health of a fabric in words."""
from __future__ import annotations

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.fabric_health import (
    FIELDS,
    complaints,
    decoded,
    degradations,
    faults,
    summary_of,
    told_health,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, binding

# What a healthy GPU of GB200 says, and one of HGX B200, which tells less
HEALTHY, SHORT = 0x1AA, 0x80


@pytest.mark.parametrize("mask, words", [
    (0, {}),
    (HEALTHY, {"degraded_bandwidth": "false", "route_recovery": "false", "route_unhealthy": "false",
               "access_timeout_recovery": "false", "incorrect_configuration": "none"}),
    (SHORT, {"access_timeout_recovery": "false"}),
    (0x1, {"degraded_bandwidth": "true"}),
    (0x3, {"degraded_bandwidth": "unknown (3)"}),
    (0x400, {"incorrect_configuration": "no_partition"}),
    (0xF00, {"incorrect_configuration": "unknown (15)"}),
    (0x2000, {"partition_assigned": "false"}),
    (0x8000, {"fabric_manager_connection": "disconnected"}),
])
def test_each_field_says_one_thing(mask: int, words: dict) -> None:
    assert {name: word for name, word in decoded(mask).items() if word != "not_supported"} == words


@pytest.mark.parametrize("mask, wrong", [
    (HEALTHY, []), (SHORT, []), (0, []),
    (HEALTHY - 1, ["bandwidth degraded"]), (0x04, ["route recovery in progress"]), (0x10, ["route unhealthy"]),
    (0x40, ["recovery from an access timeout in progress"]),
    (0x300, ["incorrect configuration: chassis serial number"]), (0x11, ["bandwidth degraded", "route unhealthy"]),
    (0x1000, []), (0x2000, ["assigned to no partition"]), (0x4000, []), (0x8000, ["fabric manager disconnected"]),
])
def test_what_is_wrong_is_said_with_what_to_do(mask: int, wrong: list) -> None:
    found = complaints(decoded(mask))
    assert [words for words, _remedy in found] == wrong and all(remedy for _words, remedy in found)


@pytest.mark.parametrize("number, wrong", [
    (0, []), (1, []), (2, ["fabric unhealthy"]), (3, ["fabric limited capacity"]), (9, [])])
def test_a_summary_without_a_cause_is_one(number: int, wrong: list) -> None:
    assert [words for words, _remedy in complaints({}, summary_of(number))] == wrong
    assert len(complaints(decoded(0x10), summary_of(number))) == 1


@pytest.mark.parametrize("mask, summary, wrong, rung, less", [
    (0x1, 3, [], "", ["bandwidth degraded"]), (0, 3, [], "", ["fabric limited capacity"]),
    (0x11, 2, ["route unhealthy"], "board_reset", ["bandwidth degraded"]),
    (0x1, 2, ["fabric unhealthy"], "board_reset", ["bandwidth degraded"]),
    (0x4, 2, ["route recovery in progress"], "service", []), (HEALTHY, 1, [], "", []),
])
def test_less_bandwidth_is_no_fault_of_a_fabric(
    mask: int, summary: int, wrong: list, rung: str, less: list
) -> None:
    told = decoded(mask), summary_of(summary)
    assert (faults(*told), degradations(*told)) == ((wrong, rung), less)


def test_the_table_is_that_of_the_binding() -> None:
    nvml = binding()
    names = {"degraded_bandwidth": "DEGRADED_BW", "route_recovery": "ROUTE_RECOVERY",
             "route_unhealthy": "ROUTE_UNHEALTHY", "access_timeout_recovery": "ACCESS_TIMEOUT_RECOVERY",
             "incorrect_configuration": "INCORRECT_CONFIGURATION", "partition_assigned": "PARTITION_ASSIGNED",
             "fabric_manager_connection": "GFM_STATE"}
    for field in FIELDS:
        begin = "NVML_GPU_FABRIC_HEALTH_MASK_"
        assert field.shift == getattr(nvml, begin + "SHIFT_" + names[field.name])
        assert field.bits == getattr(nvml, begin + "WIDTH_" + names[field.name])
        numbers = {value for name, value in vars(nvml).items() if name.startswith(begin + names[field.name] + "_")}
        assert set(field.words) == numbers
        assert set(field.complaints) <= set(field.words.values())


def test_a_gpu_is_named_with_what_is_wrong() -> None:
    sick = NvmlGpu(2, pci_address="0000:52:00.0", fabric_state="completed", fabric_health=decoded(0x1))
    lost = NvmlGpu(3, error="GPU is lost", fabric_health=decoded(0x1))
    assert [found for found, _remedy in told_health((sick, lost))] == ["GPU 2 (0000:52:00.0): bandwidth degraded"]


@pytest.mark.parametrize("gpu, waits", [
    (NvmlGpu(0), False), (NvmlGpu(0, fabric_state="completed"), False),
    (NvmlGpu(0, fabric_state="completed", fabric_status=999), True), (NvmlGpu(0, fabric_state="not_started"), True),
    (NvmlGpu(0, fabric_state="in_progress"), True), (NvmlGpu(0, fabric_state="in_progress", error="lost"), False),
])
def test_a_gpu_that_reports_none_waits_for_no_fabric(gpu: NvmlGpu, waits: bool) -> None:
    assert gpu.waits_for_fabric is waits
