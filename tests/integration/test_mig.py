# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MIG layouts on booted nodes: from bare to divided GPUs in one run, offered to pods, kept over changes and boots, and
taken back.

A GPU node of a generation whose mode a boot forgets, or of that whose mode takes a reset.
"""
from __future__ import annotations

import json
import time
from typing import Any, Dict, Iterator, List, Tuple

import gpu_pods
import pytest
from laboratory import Fleet, Played, new_lab

from gpulab.topology import parse

HOST = "gpu"
UNIT = "gpuops-nvidia-mig.service"
# Opens a device as a CUDA program does, as far as others see
HOLD = "import os, time; os.open(%r, os.O_PATH); time.sleep(3600)"

GPUS = 8
SINGLE = {"flags": {"migStrategy": "single"}}
SLICED = {**SINGLE, "sharing": {"timeSlicing": {
    "renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}}


@pytest.fixture(scope="module", params=[
    ("h100-sxm-hgx", "2.3"), pytest.param(("a100-80gb-sxm", "debian"), marks=pytest.mark.variation)], ids="/".join)
def fleet(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    board, containerd = request.param
    lab = new_lab("mig")
    lab.up(parse({"name": "mig", "control_plane": True, "hosts": [
        {"name": HOST, "board": board, "gpus": GPUS, "containerd": containerd}]}, "test_mig.py"))
    yield Fleet(lab, tmp_path_factory.mktemp("mig"))
    lab.down()


def site(fleet: Fleet, **variables: Any) -> Played:
    return fleet.play("gpuops.nvidia.site", **variables)


def offered(fleet: Fleet) -> Dict[str, int]:
    """What the real device plugin offers; the kubelet keeps what is offered no more as nothing."""
    told = fleet.node(HOST)["status"]["allocatable"]
    return {name.split("/")[1]: int(count) for name, count in told.items() if name.startswith("nvidia.com/") and
            int(count)}


def labels(fleet: Fleet) -> Dict[str, str]:
    told = fleet.node(HOST)["metadata"]["labels"]
    return {name.split("/")[1]: value for name, value in told.items() if name.startswith("nvidia.com/")}


def labelled(fleet: Fleet, **wanted: str) -> None:
    """Feature discovery writes its labels when it has looked, after its pod is ready."""
    names = {name.replace("__", "-").replace("_", "."): value for name, value in wanted.items()}
    deadline = time.monotonic() + 90
    while any(labels(fleet).get(name) != value for name, value in names.items()):
        assert time.monotonic() < deadline, (names, labels(fleet))
        time.sleep(1)


def shell(fleet: Fleet, words: str) -> str:
    return fleet.say(HOST, "sh", "-c", words)


def instances(fleet: Fleet) -> List[str]:
    """'PROFILE ID at START' of the GPU instances."""
    listed = shell(fleet, "nvidia-smi mig -lgi || true").splitlines()
    rows = [line.split() for line in listed if line.startswith("|") and "Instance" not in line]
    return ["%s:%s at %s" % (row[1], row[2], row[-2].split(":")[0]) for row in rows]


def mig_devices(fleet: Fleet) -> List[str]:
    return [word.rstrip(")") for word in fleet.say(HOST, "nvidia-smi", "-L").split() if word.startswith("MIG-")]


def in_specification(fleet: Fleet) -> List[str]:
    """Of ours: the device plugin has one of its own beside it."""
    names = fleet.say(HOST, "nvidia-ctk", "--quiet", "cdi", "list").split()
    return sorted(name.split("=")[1] for name in names
                  if name.startswith(("nvidia.com/gpu=MIG-", "nvidia.com/gpu=GPU-")))


def module(fleet: Fleet, name: str, **options: Any) -> Dict[str, Any]:
    return fleet.tasks(HOST, [{"gpuops.nvidia." + name: options}]).result(HOST, name)


BALANCED = {"mig-1g.10gb": 2 * GPUS, "mig-2g.20gb": GPUS, "mig-3g.40gb": GPUS}
# What the host may be when it boots, by how many instances it has: the policy, and what its node offers
LAYOUTS: Dict[int, Tuple[Dict[str, Any], Dict[str, int]]] = {
    4 * GPUS: ({"mig_config": "all-balanced"}, BALANCED),
    7 * GPUS: ({"mig_config": "all-1g.10gb", "device_plugin_config": SINGLE}, {"gpu": 7 * GPUS})}


def test_a_bare_host_is_divided_and_offered_in_the_run_that_brings_its_driver(fleet: Fleet) -> None:
    site(fleet, mig_config="all-balanced")
    assert len(mig_devices(fleet)) == 4 * GPUS
    assert in_specification(fleet) == sorted(mig_devices(fleet))
    assert offered(fleet) == BALANCED
    labelled(fleet, mig_strategy="mixed", mig__1g_10gb_count=str(2 * GPUS), mig__3g_40gb_count=str(GPUS))


def test_a_divided_host_needs_nothing(fleet: Fleet) -> None:
    again = site(fleet, mig_config="all-balanced")
    assert again.changes() == [] and again.calls == {HOST: ["gpu_plan"]}
    fleet.play("gpuops.nvidia.validate")
    drawn = module(fleet, "gpu_info")["observation"]["layouts"]
    assert len(drawn) == GPUS and all("|1g.10gb|1g.10gb|3g.40gb" in each for each in drawn.values())


def test_another_layout_goes_round_what_is_in_use(fleet: Fleet) -> None:
    before = mig_devices(fleet)
    used = shell(fleet, "sed -n 's/^DeviceFileMinor: //p' /proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access")
    hold = HOLD % ("/dev/nvidia-caps/nvidia-cap" + used.strip())
    shell(fleet, "setsid python3 -c \"%s\" >/dev/null 2>&1 &" % hold)
    refused = module(fleet, "mig", config="all-disabled")
    assert refused["failed"] and "python3 (pid" in refused["msg"] and refused["code"] == "mig.busy"
    assert mig_devices(fleet) == before
    shell(fleet, "pkill -f O_PATH")


@pytest.mark.variation
def test_pods_whose_devices_stay_go_on_over_another_layout_and_strategy(fleet: Fleet) -> None:
    """One pod has an instance that both layouts have, another one that goes."""
    keeper = gpu_pods.pod("keeper", HOST, 1, "nvidia.com/mig-1g.10gb")
    mover = gpu_pods.deployment(gpu_pods.pod("mover", HOST, 1, "nvidia.com/mig-3g.40gb"))
    stays, goes = gpu_pods.run(fleet, [keeper, mover])
    (held,) = gpu_pods.allocated(fleet, HOST, stays["metadata"]["uid"])
    assert held in mig_devices(fleet)
    planned = fleet.play("gpuops.nvidia.plan", mig_config="all-1g.10gb").result(HOST, "gpu_plan")
    assert planned["drain"] == "pods"
    assert planned["pods"] == ["default/" + goes["metadata"]["name"]]
    foretold = fleet.play("gpuops.nvidia.site", "--check", mig_config="all-1g.10gb", device_plugin_config=SINGLE)
    assert foretold.result(HOST, "mig")["changed"] and held in mig_devices(fleet)
    changed = site(fleet, mig_config="all-1g.10gb", device_plugin_config=SINGLE)
    _asked, eviction = (each for each in changed.results(HOST, "gpu_node_custody") if each.get("custody") == "taken")
    assert [pod["name"] for pod in eviction["evicted"]] == [goes["metadata"]["name"]]
    now = json.loads(fleet.lab.kubectl(["get", "pod", "keeper", "-o", "json"]).stdout)
    assert now["metadata"]["uid"] == stays["metadata"]["uid"]
    assert [each["restartCount"] for each in now["status"]["containerStatuses"]] == [0]
    assert held in mig_devices(fleet)
    assert offered(fleet) == {"gpu": 7 * GPUS}
    labelled(fleet, mig_strategy="single", gpu_count=str(7 * GPUS))
    assert "unschedulable" not in fleet.node(HOST)["spec"]
    fleet.lab.kubectl(["delete", "deployment,pod", "--now", "--ignore-not-found", "mover", "keeper"], check=False)


def test_a_boot_brings_layout_and_settings_back_before_containers_start(fleet: Fleet) -> None:
    before = instances(fleet)
    policy, offers = LAYOUTS[len(before)]
    settings = [{"match": ["all"], "power_limit": 500, "gpu_clocks": [1200, 1980]}]
    assert not fleet.tasks(HOST, [{"gpuops.nvidia.gpu_settings": {"gpus": settings}}]).result(
        HOST, "gpu_settings").get("failed")
    fleet.lab.reboot(HOST)
    shell(fleet, "systemctl is-system-running --wait || true")
    before_what = fleet.say(HOST, "systemctl", "show", UNIT, "--property", "Before", "--value").split()
    assert {"kubelet.service", "containerd.service", "gpuops-nvidia-cdi.service"} <= set(before_what)
    assert fleet.say(HOST, "systemctl", "is-active", UNIT) == "active"
    assert fleet.say(HOST, "nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader").split("\n") == [
        "500.00 W"] * GPUS
    assert instances(fleet) == before
    assert in_specification(fleet) == sorted(mig_devices(fleet))
    again = site(fleet, gpu_settings_gpus=settings, **policy)
    assert [task for _host, task in again.changes() if not task.endswith("Validate the host")] == [], "what is in /run"
    assert offered(fleet) == offers


@pytest.mark.variation
def test_sliced_devices_go_by_another_name_and_no_probe_waits_for_one_in_use(fleet: Fleet) -> None:
    shared = {"mig_config": "all-1g.10gb", "device_plugin_config": SLICED}
    devices = 2 * 7 * GPUS
    site(fleet, **shared)
    assert offered(fleet) == {"gpu.shared": devices}
    labelled(fleet, gpu_sharing__strategy="time-slicing", gpu_replicas="2")
    gpu_pods.run(fleet, [gpu_pods.pod("all", HOST, devices, "nvidia.com/gpu.shared")])
    validated = fleet.play("gpuops.nvidia.validate", **shared).of_many("gpu_validation")
    checks = {each["name"]: each["status"] for each in validated[HOST]["checks"]}
    assert checks == {"allocatable": "passed", "pod": "skipped"}
    fleet.lab.kubectl(["delete", "pod", "--now", "all"])


@pytest.mark.variation
def test_the_nodes_label_says_the_layout_and_gets_the_answer(fleet: Fleet) -> None:
    site(fleet, mig_config="all-balanced", gpu_mig_labels=True)
    assert offered(fleet) == BALANCED and "mig.config.state" not in labels(fleet)
    fleet.lab.kubectl(["label", "node", HOST, "nvidia.com/mig.config=all-disabled"])
    site(fleet, mig_config="all-balanced", gpu_mig_labels=True)
    assert offered(fleet) == {"gpu": GPUS} and labels(fleet)["mig.config.state"] == "success"
    fleet.lab.kubectl(["label", "node", HOST, "nvidia.com/mig.config-"])


def test_it_is_taken_back(fleet: Fleet) -> None:
    site(fleet, mig_state="absent")
    assert mig_devices(fleet) == []
    modes = shell(fleet, "nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv,noheader")
    assert modes.split() == ["Disabled,", "Disabled"] * GPUS
    assert shell(fleet, "ls /var/lib/gpuops/mig-restore /etc/systemd/system/*mig* 2>/dev/null || true") == ""
    assert len(in_specification(fleet)) == GPUS
    assert offered(fleet) == {"gpu": GPUS}
