# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a fault to a node in service again, with nobody's hands: the simulated silicon is sick, all else is real."""
from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List

import gpu_pods
import pytest
from laboratory import Fleet, Played

from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import PATH
from gpulab import silicon
from gpulab.silicon import board_file

HOST, GPUS = "h100", "8"
REPAIR = "gpuops.nvidia.repair"


@pytest.fixture
def board(demo: Fleet, installed: Played) -> Iterator[Any]:
    host = demo.lab.host(HOST)
    yield host.silicon
    silicon.clear_faults(host.silicon)
    demo.say(HOST, "rm", "-f", PATH)


def attempts(demo: Fleet) -> List[Dict[str, Any]]:
    return list(json.loads(demo.say(HOST, "cat", PATH) or '{"attempts": []}')["attempts"])


@contextlib.contextmanager
def until_the_driver_goes(board: Path) -> Iterator[None]:
    """Faults that are the loaded driver's, and go with it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if not board_file.read(board).below("module.nvidia"):
                silicon.clear_faults(board)
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def in_service(demo: Fleet) -> bool:
    node = demo.node(HOST)
    return not node["spec"].get("unschedulable") and node["status"]["allocatable"]["nvidia.com/gpu"] == GPUS


@pytest.mark.variation
def test_a_gpu_that_wants_a_reset_gets_it_and_its_node_is_given_back(demo: Fleet, board: Any) -> None:
    """A pod that has GPUs leaves for it."""
    (before,) = gpu_pods.run(demo, [gpu_pods.deployment(gpu_pods.pod("work", HOST, 8))])
    silicon.inject_fault(board, "recovery", 3)
    found = demo.tasks(HOST, [{"gpuops.nvidia.gpu_health": {}}]).result(HOST, "gpu_health")
    assert (found["verdict"], found["rung"]) == ("sick", "reset")
    demo.play(REPAIR, "--check", gpu_hosts=HOST)
    assert attempts(demo) == [] and not demo.node(HOST)["spec"].get("unschedulable")
    played = demo.play(REPAIR, gpu_hosts=HOST)
    (attempt,) = attempts(demo)
    assert (attempt["rung"], attempt["end"], len(attempt["parts"])) == ("reset", "done", 1)
    assert in_service(demo)
    evicted = {pod["name"] for each in played.results(HOST, "gpu_node_custody") for pod in each.get("evicted", ())}
    assert evicted == {before["metadata"]["name"]}
    again = demo.play(REPAIR, gpu_hosts=HOST)
    assert len(attempts(demo)) == 1 and again.results(HOST, "gpu_repair") == []


@pytest.mark.variation
def test_a_driver_that_answers_nothing_is_loaded_anew_and_its_host_does_not_boot(demo: Fleet, board: Any) -> None:
    boot = demo.say(HOST, "cat", "/proc/sys/kernel/random/boot_id")
    silicon.inject_fault(board, "call", call="nvmlInit_v2", times=0)
    looked = demo.tasks(HOST, [{"gpuops.nvidia.gpu_health": {}}] * 3).results(HOST, "gpu_health")
    assert [each["rung"] for each in looked] == ["", "", "reload"], looked
    with until_the_driver_goes(board):
        played = demo.play(REPAIR, gpu_hosts=HOST)
    (attempt,) = attempts(demo)
    # What it comes to is seen by the driver's load, and written down with the next attempt
    assert (attempt["rung"], attempt["end"], attempt["parts"][0]["key"]) == ("reload", "begun", "host")
    assert any(each["applied"] for each in played.results(HOST, "gpu_driver_activation"))
    assert demo.say(HOST, "cat", "/proc/sys/kernel/random/boot_id") == boot and in_service(demo)
    assert demo.tasks(HOST, [{"gpuops.nvidia.gpu_health": {}}]).result(HOST, "gpu_health")["findings"] == []
    demo.play(REPAIR, gpu_hosts=HOST)
    assert len(attempts(demo)) == 1 and demo.play("gpuops.nvidia.site", "--check", gpu_hosts=HOST).changes() == []


def test_a_gpu_that_goes_on_to_be_sick_keeps_its_node_out(demo: Fleet, board: Any) -> None:
    """A row of memory that cannot be remapped is mended by nobody here."""
    silicon.inject_fault(board, "remap-failed", 3)
    failed = demo.run(REPAIR, gpu_hosts=HOST)
    assert failed.code != 0 and "playbook.part_to_be_taken_out" in failed.failures(), failed.failures()
    node = demo.node(HOST)
    assert node["spec"]["unschedulable"] and "could not be remapped" in json.dumps(node["metadata"]["annotations"])
    silicon.clear_faults(board)
    demo.say(HOST, "rm", "-f", "/var/lib/gpuops/health.json", "/run/gpuops/health.json")
    demo.free(HOST)
    demo.lab.kubectl(["uncordon", HOST])
    demo.play("gpuops.nvidia.site", gpu_hosts=HOST)
    assert in_service(demo)
