# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a fault to a node in service again, with nobody's hands: the simulated silicon is sick, all else is real."""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List

import gpu_pods
import pytest
from laboratory import Fleet, Played

from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import PATH
from gpulab import silicon

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
