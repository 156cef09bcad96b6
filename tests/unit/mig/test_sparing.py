# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is somebody's stays: pods without a program, others' layouts, GPUs that fail."""
from __future__ import annotations

import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from mig_host import MigHost
from test_applying import A100, CREATE, H100, NO_ROOM, codes, error, layout

from gpulab import silicon

Gpus = Callable[..., MigHost]
POD = "11111111-2222-3333-4444-555555555555"


def given_to_a_pod(host: MigHost, *uuids: str) -> None:
    """The kubelet has given these devices to a pod of which no program uses one yet."""
    kubelet = host.directory / "var" / "lib" / "kubelet"
    (kubelet / "pods" / POD).mkdir(parents=True)
    (kubelet / "device-plugins").mkdir()
    (kubelet / "device-plugins" / "kubelet_internal_checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [{
        "PodUID": POD, "ContainerName": "c", "ResourceName": "nvidia.com/mig-1g.10gb",
        "DeviceIDs": {"0": list(uuids)}}]}}))


def devices(host: MigHost, gpu: int = 0) -> List[str]:
    return [each["uuid"] for instance in host.migs()[gpu]["instances"] for each in instance["compute"]]


def division(host: MigHost, profile: str) -> Dict[str, Any]:
    """The planned step that divides the GPU."""
    steps = host.plan(layout=layout(profile))["plan"]["steps"]
    return next(step for step in steps if step["action"] == "mig.divide")


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_of_compute_instances_that_are_alike_a_pods_stays(gpus: Gpus, kept: int) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "3g.40gb", "compute": ["1c", "1c", "1c"]}))
    held = devices(host)[kept]
    given_to_a_pod(host, held)
    assert "error" not in host.apply(layout=layout({"profile": "3g.40gb", "compute": ["1c"]}))
    assert devices(host) == [held]


def test_compute_instances_that_stay_leave_room_for_those_that_come(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "3g.40gb", "compute": ["1c", "1c", "1c"]}))
    before = devices(host)
    assert "error" not in host.apply(layout=layout({"profile": "3g.40gb", "compute": ["2c", "1c"]}))
    assert [each["slices"] for each in host.migs()[0]["instances"][0]["compute"]] == [2, 1]
    assert len(set(devices(host)) & set(before)) == 1
    assert host.apply(layout=layout({"profile": "3g.40gb", "compute": ["2c", "1c"]}))["applied"] == []


def test_a_pods_instance_that_would_go_is_refused(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 7}))
    given_to_a_pod(host, devices(host)[3])
    before = devices(host)
    assert codes(host.apply(layout=layout("7g.80gb"))) == ["mig.instance_in_use"]
    assert devices(host) == before


@pytest.mark.parametrize("change", [("mig", "-i", "0", "-dci", "-gi", "7"), ("mig", "-i", "0", "-cgi", "19", "-C")])
def test_what_another_program_changes_after_the_plan_is_seen_before_the_first_call(
    gpus: Gpus, change: Tuple[str, ...]
) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 4}))
    divide = division(host, "7g.80gb")
    host.smi(*change)
    calls, before = len(host.calls()), host.migs()[0]["instances"]
    assert codes(host.ask("step", step=divide)) == ["mig.changed_meanwhile"]
    assert host.migs()[0]["instances"] == before and len(host.calls()) == calls


def test_a_program_that_comes_after_the_plan_keeps_its_instance(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 4}))
    divide = division(host, "7g.80gb")
    before = host.migs()[0]["instances"]
    access = "proc/driver/nvidia/capabilities/gpu0/mig/gi%d/ci0/access" % before[1]["id"]
    (minor,) = re.findall(r"DeviceFileMinor: (\d+)", (host.directory / access).read_text())
    opened = host.directory / "proc" / "90" / "fd"
    opened.mkdir(parents=True)
    (opened / "3").symlink_to("/dev/nvidia-caps/nvidia-cap" + minor)
    refused = host.ask("step", step=divide)
    assert codes(refused) == ["mig.taken_meanwhile"] and before[1]["compute"][0]["uuid"] in error(refused)["found"]
    assert host.migs()[0]["instances"] == before


def test_a_removal_leaves_what_others_have_made(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.smi("-i", "1", "-mig", "1")
    host.smi("mig", "-i", "1", "-cgi", "9,9", "-C")
    host.apply(layout=layout("7g.80gb", gpus=["0"]))
    host.apply(state="absent")
    assert [mig["current"] for mig in host.migs()] == [False, True] and host.layout(1) == ["3g.40gb@0", "3g.40gb@4"]
    assert host.apply(state="absent")["applied"] == []


def test_a_pod_that_ends_while_it_is_waited_for_is_no_stranger(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 4}))
    held = host.migs()[0]["instances"][1]
    given_to_a_pod(host, held["compute"][0]["uuid"])
    program = host.directory / "proc" / "4711"
    (program / "fd").mkdir(parents=True)
    (program / "cgroup").write_text("0::/kubepods.slice/kubepods-pod%s.slice/c.scope\n" % POD.replace("-", "_"))
    (program / "comm").write_text("python\n")
    (program / "fd" / "3").symlink_to("/dev/nvidia0")
    host.set(process__1__gpu=0, process__1__pid=4711, process__1__gi=held["id"], process__1__ci=0)

    def end() -> None:
        # As a kernel does it: the driver hears of it first, the process is gone at once, its pod at last
        with silicon.board_file.opened(host.directory) as board:
            board.remove("process")
        program.rename(host.directory / "ended")
        shutil.rmtree(host.directory / "var" / "lib" / "kubelet")

    ending = threading.Timer(1.5, end)
    ending.start()
    answer = host.apply(layout=layout("7g.80gb"), assume_pods_evicted=True)
    ending.join()
    assert "error" not in answer and host.layout() == ["7g.80gb@0"]


def test_an_instance_that_another_program_makes_in_our_place_stays_when_we_fail(gpus: Gpus) -> None:
    """It is of the profile and the place that are planned."""
    host = gpus(H100)
    host.apply(layout=layout({"profile": "1g.10gb", "count": 7}))
    steps = host.plan(layout=layout("3g.40gb", "3g.40gb"))["plan"]["steps"]
    divide = next(step for step in steps if step["action"] == "mig.divide")
    smi = str(host.built / "pkg" / "nvidia-smi")
    refused = host.ask("step", step=divide, meanwhile=[smi, "mig", "-i", "0", "-cgi", "9:4", "-C"])
    assert "somebody else's stay: profile 9 at 4" in error(refused)["found"]
    assert host.layout() == ["1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]


WATCHERS = {91: "dcgm-exporter.service", 92: "nvidia-dcgm.service"}


def watched(host: MigHost) -> None:
    """Both watchers run, and have the first GPU open."""
    for pid, unit in WATCHERS.items():
        program = host.directory / "proc" / str(pid)
        (program / "fd").mkdir(parents=True)
        (program / "fd" / "3").symlink_to("/dev/nvidia0")
        (program / "cgroup").write_text("0::/system.slice/%s\n" % unit)


def watching(host: MigHost) -> List[str]:
    return [unit for pid, unit in WATCHERS.items() if (host.directory / "proc" / str(pid)).is_dir()]


def test_a_watcher_that_does_not_stop_keeps_no_other_stopped(gpus: Gpus) -> None:
    host = gpus(H100)
    watched(host)
    (host.directory / "stuck-nvidia-dcgm.service").touch()
    for _time in range(2):
        assert codes(host.apply(config="all-balanced")) == ["host.command_failed"]
        assert watching(host) == list(WATCHERS.values()) and not host.migs()[0]["current"]


def test_a_file_that_cannot_be_written_keeps_no_watcher_stopped(gpus: Gpus) -> None:
    host = gpus(H100)
    watched(host)
    (host.directory / "var/lib/gpuops").mkdir(parents=True)
    (host.directory / "var/lib/gpuops/originals").touch()
    (host.directory / "var/lib/gpuops/mig-restore").touch()
    assert "error" in host.apply(config="all-balanced")
    assert len(host.layout()) == 4 and watching(host) == list(WATCHERS.values())


def divided_by_hand(host: MigHost, gpu: int, profiles: str = "9,9") -> List[str]:
    host.smi("-i", str(gpu), "-mig", "1")
    host.smi("mig", "-i", str(gpu), "-cgi", profiles, "-C")
    return devices(host, gpu)


def test_a_removal_of_the_unit_alone_leaves_every_layout(gpus: Gpus) -> None:
    """The first one was there as it is wanted, so that nothing of it is ours."""
    host = gpus(H100, 2)
    before = [divided_by_hand(host, gpu) for gpu in range(2)]
    host.apply(layout=layout("3g.40gb", "3g.40gb", gpus=["0"]))
    host.apply(state="absent")
    assert [devices(host, gpu) for gpu in range(2)] == before
    assert host.apply(state="absent")["applied"] == []


def test_a_removal_after_all_is_whole_again_leaves_the_others_layouts(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    before = divided_by_hand(host, 1)
    host.apply(layout=layout("7g.80gb", gpus=["0"]))
    host.apply(layout=[{"gpus": ["0"], "enabled": False}])
    host.apply(state="absent")
    assert devices(host, 1) == before


def test_a_removal_leaves_what_was_on_the_gpu_before_us(gpus: Gpus) -> None:
    host = gpus(H100)
    before = divided_by_hand(host, 0, "9")
    host.apply(layout=layout("3g.40gb", "3g.40gb"))
    host.apply(state="absent")
    assert devices(host) == before and host.migs()[0]["current"]
    assert host.apply(state="absent")["applied"] == []


def test_what_was_refused_makes_nothing_ours(gpus: Gpus) -> None:
    host = gpus(H100)
    divided_by_hand(host, 0, "19")
    divide = division(host, "7g.80gb")
    host.smi("mig", "-i", "0", "-cgi", "9", "-C")
    before = devices(host)
    assert codes(host.ask("step", step=divide)) == ["mig.changed_meanwhile"]
    assert host.apply(state="absent")["applied"] == [] and devices(host) == before


def test_what_is_made_on_a_gpu_after_its_removal_is_not_ours(gpus: Gpus) -> None:
    """A boot whose unit failed leaves nothing to remove, and a division that failed neither."""
    host = gpus(H100, 2)
    host.fault("call", 1, call=CREATE, code=NO_ROOM, nth=2, times=1)
    assert codes(host.apply(config="all-balanced")) == ["mig.does_not_fit"]
    host.clear_faults()
    for arguments in (("mig", "-dci"), ("mig", "-dgi"), ("-i", "0", "-mig", "0")):
        host.smi(*arguments)
    host.apply(state="absent")
    before = [divided_by_hand(host, gpu) for gpu in range(2)]
    assert host.apply(state="absent")["applied"] == []
    assert [devices(host, gpu) for gpu in range(2)] == before


def test_a_removal_that_was_killed_before_it_was_noted_ends_all_the_same(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(config="all-balanced")
    for step in host.plan(state="absent")["plan"]["steps"]:
        if step["action"] in ("mig.divide", "mig.mode"):
            assert host.ask("step", step=step) == {}
    host.apply(state="absent")
    before = divided_by_hand(host, 0)
    assert host.apply(state="absent")["applied"] == [] and devices(host) == before


def test_a_mode_that_was_on_before_a_division_stays_on_where_it_fails(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.apply(layout=[{"gpus": ["0"]}])
    host.smi("-i", "1", "-mig", "1")
    host.fault("call", 0, call=CREATE, code=NO_ROOM, nth=1, times=1)
    host.fault("call", 1, call=CREATE, code=NO_ROOM, nth=1, times=1)
    assert codes(host.apply(config="all-balanced")) == ["mig.does_not_fit"] * 2
    assert [mig["current"] for mig in host.migs()] == [True, True]


def test_a_gpu_that_is_gone_moves_no_layout_to_its_neighbour(gpus: Gpus) -> None:
    host = gpus(H100, 3)
    wanted = [*layout("7g.80gb", gpus=["0"]), *layout({"profile": "3g.40gb", "count": 2}, gpus=["1"])]
    host.apply(layout=wanted)
    before = devices(host, 1)
    host.fault("absent", 0)
    refused = host.apply(layout=wanted)
    assert codes(refused) == ["mig.silent"] and "NVML does not list it" in error(refused)["found"]
    assert devices(host, 0) == before, "the former second one"


def off_the_bus(host: MigHost, gpu: int, address: str) -> None:
    """Gone after a boot, for the kernel too."""
    host.close()
    host.fault("absent", gpu)
    device = host.directory / "sys/bus/pci/devices" / address
    device.unlink() if device.is_symlink() else shutil.rmtree(device)


def test_a_gpu_that_is_off_the_bus_moves_no_layout_to_its_neighbour(gpus: Gpus) -> None:
    host = gpus(H100, 3)
    host.apply(layout=[*layout("7g.80gb", gpus=["0"]), *layout({"profile": "3g.40gb", "count": 2}, gpus=["1"])])
    before = devices(host, 1)
    off_the_bus(host, 0, "0000:1b:00.0")
    wanted = [*layout("7g.80gb", gpus=["0"]), *layout({"profile": "3g.40gb", "count": 2}, gpus=["1"])]
    assert codes(host.apply(layout=wanted)) == ["mig.renumbered"] * 2
    assert [mig["current"] for mig in host.migs()] == [True, False] and devices(host, 0) == before
    by_address = layout({"profile": "3g.40gb", "count": 2}, gpus=["0000:43:00.0"])
    assert "error" not in host.apply(layout=by_address) and devices(host, 0) == before
    assert host.apply(layout=layout({"profile": "3g.40gb", "count": 2}, gpus=["0"]))["applied"] == []


def test_a_gpu_whose_first_division_fails_is_whole_again(gpus: Gpus) -> None:
    host = gpus(H100, 2)
    host.fault("call", 1, call=CREATE, code=NO_ROOM, nth=2, times=1)
    refused = host.apply(config="all-balanced")
    assert codes(refused) == ["mig.does_not_fit"] and "its MIG mode is off again" in error(refused)["found"]
    assert [mig["current"] for mig in host.migs()] == [True, False]
    assert "error" not in host.apply(config="all-balanced") and len(host.layout(1)) == 4


def test_where_a_mode_takes_a_reset_it_is_told_that_it_stays_on(gpus: Gpus) -> None:
    host = gpus(A100)
    host.fault("call", 0, call=CREATE, code=NO_ROOM, nth=1, times=1)
    assert "its MIG mode" in error(host.apply(config="all-balanced"))["found"]


def test_a_mode_that_could_not_be_set_back_hides_nothing(gpus: Gpus) -> None:
    host = gpus(A100)
    host.fault("mig-in-use", 0)
    host.fault("call", 0, call="nvmlDeviceSetMigMode", code=999, nth=2, times=1)
    refused = host.apply(config="all-balanced")
    assert codes(refused) == ["mig.in_use"] and "the mode stays pending" in error(refused)["found"]


def test_a_mode_that_takes_a_reset_of_ours_brings_back_what_was_set(gpus: Gpus) -> None:
    host = gpus(A100)
    host.fault("mig-pending", 0)
    host.set(gpu__0__persistence=1, gpu__0__power_limit_w=300)
    made = host.apply(config="all-balanced")
    assert "mig/mig.mode/0000:07:00.0" in made.get("applied", ()), made["error"]["msg"]
    assert host.migs()[0]["current"] and len(host.layout()) == 4
    now = silicon.board_file.read(host.directory)
    assert (now.gpu(0, "persistence"), now.gpu(0, "power_limit_w")) == ("1", "300")
    record = json.loads((host.directory / "var/lib/gpuops/resets.json").read_text())["resets"]
    assert [(each["who"], each["end"]) for each in record] == [("mig", "done")]


def test_a_mode_whose_reset_is_refused_is_set_back_and_says_why(gpus: Gpus) -> None:
    """ECC that somebody has set for the next reset would come with it."""
    host = gpus(A100)
    host.fault("mig-pending", 0)
    host.set(gpu__0__ecc_pending=0)
    refused = host.apply(config="all-balanced")
    assert codes(refused) == ["mig.reset_required"]
    assert "ECC of GPU 0 (0000:07:00.0) is set to be off from its next reset on" in error(refused)["found"]
    assert (host.migs()[0]["pending"], host.layout()) == (False, [])


def test_what_a_killed_reset_has_left_comes_back_before_the_layout(gpus: Gpus) -> None:
    host = gpus(H100)
    host.apply(config="all-balanced")
    path = host.directory / "var/lib/gpuops/state.json"
    state = json.loads(path.read_text())
    state["memory"]["reset"] = {"act": {
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "step": "repair", "gpus": [],
        "units": ["nvidia-dcgm.service"], "values": {}, "layouts": {}}}
    path.write_text(json.dumps(state))
    assert host.apply(config="all-balanced")["applied"] == ["mig/reset.finish/GPUs"]
    assert (host.directory / "proc/92").is_dir(), "DCGM runs again"
    assert host.apply(config="all-balanced")["applied"] == []


def told_of_a_boot(answer: Dict[str, Any]) -> List[str]:
    return [each["kind"] for each in answer["plan"]["requirements"]]


def test_a_mode_without_instances_that_only_a_boot_brings_is_asked_for(gpus: Gpus) -> None:
    host = gpus("a30")
    host.fault("mig-pending", 0)
    (host.directory / "sys/bus/pci/devices/0000:17:00.0/reset").unlink()
    for _time in range(2):
        assert told_of_a_boot(host.apply(layout=[{"gpus": ["all"]}])) == ["reboot"]
