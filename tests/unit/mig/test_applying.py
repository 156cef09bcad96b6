# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Layouts are made on simulated GPUs, through NVML's real interface, and what goes wrong there is told."""
from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
from mig_host import MigHost

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import WATCHERS
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig import boot

Gpus = Callable[..., MigHost]
A100, H100, A30 = "a100-80gb-sxm", "h100-sxm-hgx", "a30"
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
IN_USE, NO_ROOM, LOST, RESET_REQUIRED = 19, 23, 15, 16
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def error(answer: Dict[str, Any]) -> Dict[str, Any]:
    assert "error" in answer, answer
    found: Dict[str, Any] = answer["error"]
    return found


def codes(answer: Dict[str, Any]) -> List[str]:
    return [refusal["code"] for refusal in error(answer)["refusals"]]


def layout(*instances: Any, gpus: Any = ("all",), **more: Any) -> List[Dict[str, Any]]:
    return [{"gpus": list(gpus), "enabled": True, "instances": [
        {"profile": each} if isinstance(each, str) else each for each in instances], **more}]


def test_a_layout_is_made_and_made_again_without_a_write(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    assert host.apply(config="all-balanced")["applied"][:2] == [
        "mig/mig.mode/0000:1b:00.0", "mig/mig.divide/0000:1b:00.0"]
    assert host.layout(0) == host.layout(1) == ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]
    calls = len(host.calls())
    assert host.apply(config="all-balanced")["applied"] == []
    assert len(host.calls()) == calls, "a converged host is not written to"


def test_whoever_watches_gpus_starts_after_their_layout_is_made() -> None:
    """It would keep the MIG mode from changing, and not learn of instances that come later."""
    (before,) = [line.partition("=")[2].split() for line in boot.UNIT_TEXT.splitlines() if line.startswith("Before=")]
    assert {*WATCHERS, "kubelet.service", "containerd.service"} <= set(before)


def test_what_both_layouts_have_stays_with_its_uuid(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(config="all-balanced")
    before = host.uuids()
    written = host.writes()
    host.apply(layout=layout("3g.40gb", "2g.20gb", "2g.20gb"))
    assert host.layout() == ["2g.20gb@0", "2g.20gb@2", "3g.40gb@4"]
    assert {start: host.uuids()[start] for start in (0, 4)} == {start: before[start] for start in (0, 4)}
    assert host.writes() - written == 6, "two instances with theirs go, one with its own comes"


def test_what_is_in_use_stays_where_it_is_and_the_others_go_round_it(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 7}))
    used = host.migs()[0]["instances"][2]
    host.set(process__1__gpu=0, process__1__pid=4711, process__1__gi=used["id"], process__1__ci=0)
    host.apply(config="all-balanced")
    assert host.uuids()[used["start"]] == used["compute"][0]["uuid"]
    assert sorted(name.split("@")[0] for name in host.layout()) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]


def test_what_is_in_use_and_has_to_go_is_named_before_the_first_write(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "7g.80gb"}))
    host.set(process__1__gpu=0, process__1__pid=4711, process__1__gi=0, process__1__ci=0)
    calls = len(host.calls())
    answer = host.apply(config="all-balanced")
    assert codes(answer) == ["mig.instance_in_use"]
    assert "process 4711" in error(answer)["found"]
    assert len(host.calls()) == calls


def test_a_removal_ends_with_mode_off_and_nothing_of_ours(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.apply(config="all-balanced")
    host.apply(state="absent")
    assert [(mig["current"], mig["pending"], mig["instances"]) for mig in host.migs()] == [(False, False, [])] * 2
    left = [path for path in (host.directory / "etc").rglob("*") if path.is_file()]
    assert left == []
    assert not (host.directory / "var/lib/gpuops/mig-restore").exists()
    assert host.apply(state="absent")["applied"] == []


def test_smaller_compute_instances(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "3g.40gb", "compute": ["1c", "2c"]}, "3g.40gb"))
    slices = [[each["slices"] for each in instance["compute"]] for instance in host.migs()[0]["instances"]]
    assert sorted(map(sorted, slices)) == [[1, 2], [3]]
    assert host.apply(layout=layout({"profile": "3g.40gb", "compute": ["1c", "2c"]}, "3g.40gb"))["applied"] == []


@pytest.mark.parametrize("compute", [["3c", "2c", "2c"], ["4c", "3c"], ["3c", "1c", "1c", "1c", "1c"], ["1c"] * 7])
def test_compute_instances_leave_room_for_each_other(gpus: Gpus, compute: List[str]) -> None:
    host = gpus(H100)
    assert "applied" in host.apply(layout=layout({"profile": "7g.80gb", "compute": compute}))
    slices = [each["slices"] for each in host.migs()[0]["instances"][0]["compute"]]
    assert sorted(slices) == sorted(int(each[0]) for each in compute)


# the faults of NVIDIA's own tool


def test_a_name_that_the_gpu_lacks_changes_nothing(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(config="all-balanced")
    calls = len(host.calls())
    answer = host.apply(layout=layout("3g.40gb", "2g.47gb"))
    assert len(host.calls()) == calls
    assert "2g.20gb" in error(answer)["msg"], "the names that there are"


def test_a_subset_of_the_gpus_is_judged_alone(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.apply(layout=layout("7g.80gb", gpus=["1"]))
    assert (host.migs()[0]["current"], host.layout(1)) == (False, ["7g.80gb@0"])
    assert host.apply(layout=layout("7g.80gb", gpus=["1"]))["applied"] == []


def test_an_impossible_layout_is_refused_without_a_call(gpus: Gpus) -> None:
    host = gpus(A100)
    host.apply(config="all-balanced")
    calls = len(host.calls())
    answer = host.apply(layout=layout(
        {"profile": "1g.10gb", "count": 4}, {"profile": "2g.20gb", "count": 2}, "3g.40gb"))
    assert codes(answer) == ["mig.layout_impossible"]
    assert "4 x 1g.10gb" in error(answer)["found"] or "2 x 2g.20gb" in error(answer)["found"]
    assert len(host.calls()) == calls


def test_a_gpu_that_does_not_exist_is_refused(gpus: Gpus) -> None:
    host = gpus(H100)
    answer = host.apply(layout=layout("7g.80gb", gpus=["3"]))
    assert "0000:1b:00.0" in error(answer)["msg"], "the GPUs that there are"
    assert host.calls() == []


def test_a_mode_that_stays_pending_is_an_error_with_its_users(gpus: Gpus) -> None:
    host = gpus(A100, 2)
    host.fault("mig-in-use", 0)
    answer = host.apply(config="all-balanced")
    assert codes(answer) == ["mig.in_use"]
    assert [mig["pending"] for mig in host.migs()] == [False, True], "no later reset changes the first one unasked"
    assert host.layout(1) != [], "the other GPU is divided"


def test_a_mode_that_waits_on_one_gpu_concerns_no_other(gpus: Gpus) -> None:
    """Somebody has set the mode of the first, whose reset is theirs to choose, until the layout is for it too."""
    host = gpus(A100, 3)
    host.set(gpu__0__mig_pending=1)
    made = host.apply(layout=layout("7g.80gb", gpus=["1"]))
    assert [(mig["current"], mig["pending"]) for mig in host.migs()] == [(False, True), (True, True), (False, False)]
    assert not any("0000:07:00.0" in step for step in made["applied"])
    assert len(host.calls()) == 3 and all(" gpu=1 " in call for call in host.calls())
    made = host.apply(layout=layout("7g.80gb", gpus=["0", "1"]))
    assert [step for step in made["applied"] if "mig.mode" in step] == ["mig/mig.mode/0000:07:00.0"]
    assert [mig["current"] for mig in host.migs()] == [True, True, False]


def test_a_failure_on_one_gpu_brings_that_one_back_and_leaves_the_others(gpus: Gpus) -> None:
    host = gpus(H100, 3)
    host.apply(config="all-3g.40gb")
    host.fault("call", 1, call=CREATE, code=NO_ROOM, nth=2, times=1)
    answer = host.apply(config="all-balanced")
    assert codes(answer) == ["mig.does_not_fit"]
    assert "has been brought back" in error(answer)["found"]
    assert error(answer)["failed_steps"] == ["mig/mig.divide/0000:43:00.0"]
    assert host.layout(1) == ["3g.40gb@0", "3g.40gb@4"]
    assert host.layout(0) == host.layout(2) == ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]
    host.apply(config="all-balanced")
    assert host.layout(1) == host.layout(0)


def test_what_cannot_be_brought_back_is_told(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 7}))
    host.fault("call", 0, call=CREATE, code=NO_ROOM, times=0)
    answer = host.apply(layout=layout("7g.80gb"))
    assert "of its former instances 7 of 7 could not be made again" in error(answer)["found"]


def test_one_session_does_all(gpus: Gpus) -> None:
    host = gpus(H100, 8)
    host.set(log_all=1)
    host.apply(config="all-balanced")
    assert len({line.split()[1] for line in host.calls() if "SetMigMode" in line or "GpuInstance" in line}) == 1


@pytest.mark.parametrize("code, refused", [
    (NO_PERMISSION, "mig.no_permission"), (LOST, "mig.lost"), (RESET_REQUIRED, "mig.reset_required"),
    (999, "mig.call_failed"),
])
def test_every_error_of_nvml_has_its_word(gpus: Gpus, code: int, refused: str) -> None:
    host = gpus(H100)
    host.fault("call", 0, call=CREATE, code=code, times=0)
    assert codes(host.apply(config="all-balanced")) == [refused]


@pytest.mark.parametrize("call", ["nvmlGpuInstanceGetInfo", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetMigMode",
                                  "nvmlDeviceGetGpuInstanceId"])
def test_a_gpu_whose_mig_cannot_be_read_is_none_without_mig(gpus: Gpus, call: str) -> None:
    """Its layout would be removed from the boot, and the GPU left out with success."""
    host = gpus(H100, 2)
    host.apply(config="all-balanced")
    script = host.directory / "var/lib/gpuops/mig-restore"
    restored = script.read_text()
    for code in (NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND):
        host.fault("call", 1, call=call, code=code, times=0)
        if (call, code) != ("nvmlDeviceGetMigMode", NOT_SUPPORTED):
            refused = host.apply(config="all-balanced")
            assert codes(refused) == ["mig.silent"] and call in error(refused)["found"]
        host.clear_faults()
    assert script.read_text() == restored
    host.fault("call", 1, call=call, code=NOT_FOUND, nth=1, times=1)
    assert host.apply(config="all-balanced")["applied"] == [], "what fails in passing is asked once more"


@pytest.mark.parametrize("options", [{"config": "all-1g.10gb"}, {"config": "all-balanced"},
                                     {"layout": [{"instances": [{"profile": "1g.10gb"}]}]}])
def test_a_profile_without_a_known_place_is_never_planned(gpus: Gpus, options: Dict[str, Any]) -> None:
    host = gpus(H100)
    host.apply(config="all-1g.10gb")
    host.fault("call", call="nvmlDeviceGetGpuInstancePossiblePlacements_v2", code=NO_PERMISSION, times=0)
    assert set(codes(host.apply(**options))) == {"mig.places_untold"}
    host.clear_faults()
    assert len(host.layout()) == 7


def test_a_compute_instance_that_others_make_by_a_newer_profile_is_seen_and_changed(gpus: Gpus) -> None:
    """NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE_NVL."""
    host = gpus("b200-hgx")
    host.set(mig__nvl=1)
    host.apply(layout=layout("7g.180gb"))
    host.apply(layout=[{"instances": []}])
    assert host.smi("mig", "-i", "0", "-cgi", "0").returncode == 0
    assert host.smi("mig", "-i", "0", "-gi", "0", "-cci", "8").returncode == 0
    found = host.migs()[0]
    assert [each["slices"] for instance in found["instances"] for each in instance["compute"]] == [7]
    assert [instance["compute"][0]["uuid"] for instance in found["instances"]] == found["devices"]
    assert "applied" in host.apply(layout=layout("7g.180gb"))
    assert list(host.uuids().values()) == found["devices"], "by slices it is what is wanted"
    host.apply(config="all-balanced")
    assert host.layout() == ["2g.45gb@0", "1g.23gb@2", "1g.23gb@3", "3g.90gb@4"]


def test_a_number_that_the_driver_does_not_know_hides_no_profile_behind_it(gpus: Gpus) -> None:
    host = gpus(H100)
    before = host.migs()[0]["profiles"]
    host.fault("call", call="nvmlDeviceGetGpuInstanceProfileInfoV", code=INVALID_ARGUMENT, nth=2, times=1)
    assert len(host.migs()[0]["profiles"]) == len(before) - 1


def test_a_driver_without_the_newer_forms_of_calls_is_read(gpus: Gpus) -> None:
    """Before branch 510: the binding has an error of another kind for a plain name whose newest form is missing."""
    host = gpus("a100-40gb-sxm")
    host.lack("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGpuInstanceProfileInfoV",
              "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
              "nvmlGpuInstanceCreateComputeInstanceWithPlacement", "nvmlDeviceGetGpuFabricInfo",
              "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetMemoryInfo_v2")
    host.apply(config="all-balanced")
    assert [(each["start"], each["size"]) for each in host.migs()[0]["instances"]] == [(0, 2), (2, 1), (3, 1), (4, 4)]
    assert host.apply(config="all-balanced")["applied"] == []


def test_a_lost_gpu_is_refused_before_another_is_divided(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.fault("lost", 1)
    assert codes(host.apply(config="all-balanced")) == ["mig.silent"]
    assert not any("SetMigMode" in call for call in host.calls())
