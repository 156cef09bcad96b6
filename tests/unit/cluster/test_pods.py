# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pods as the API has them, and the GPUs that they ask for."""
from __future__ import annotations

from typing import Any, Dict

import pytest
from cluster_objects import pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import (
    gpu_pods,
    gpu_resources,
    pod_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.quantities import is_gpu


def container(gpus: int, **more: Any) -> Dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}, **more}


@pytest.mark.parametrize("spec, expected", [
    ({"containers": [container(1), container(2)]}, 3),
    ({"containers": [container(1)], "initContainers": [container(4)]}, 4),
    ({"containers": [container(1)], "initContainers": [container(1, restartPolicy="Always")]}, 2),
    ({"containers": [container(1)], "initContainers": [container(1, restartPolicy="Always"), container(2)]}, 3),
    ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}, 2),
])
def test_resources_count_as_the_scheduler_counts(spec: Dict[str, Any], expected: int) -> None:
    assert gpu_resources(spec) == {"nvidia.com/gpu": expected}


def test_other_resources_and_zero_are_none() -> None:
    others = {"resources": {"limits": {"cpu": "1", "amd.com/gpu": 1}}}
    assert gpu_resources({"containers": [others, container(0)]}) == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_nothing(phase: str) -> None:
    assert gpu_pods([pod(phase=phase)]) == []


def test_mig_devices_and_shared_gpus_count() -> None:
    holders = gpu_pods([pod("b", resource="nvidia.com/mig-1g.10gb"), pod("a", resource="nvidia.com/gpu.shared"),
                        pod("c", gpus=0)])
    assert [(holder.name, holder.resources) for holder in holders] == [
        ("a", {"nvidia.com/gpu.shared": 1}), ("b", {"nvidia.com/mig-1g.10gb": 1})]


@pytest.mark.parametrize("name, gpu", [
    ("nvidia.com/gpu", True), ("nvidia.com/gpu.shared", True), ("nvidia.com/gpu-a100", True),
    ("nvidia.com/mig-1g.10gb", True), ("nvidia.com/a100.shared", True),
    ("nvidia.com/hostdev", False), ("nvidia.com/rdma_shared_device_a", False), ("nvidia.com/mlnxnics", False),
    ("nvidia.com/GA100_A100_PCIE_40GB", False), ("amd.com/gpu", False), ("example.com/x.shared", False), ("cpu", False),
])
def test_which_resources_are_gpus(name: str, gpu: bool) -> None:
    assert is_gpu(name) is gpu
    assert bool(gpu_pods([pod(resource=name)])) is gpu


def test_what_decides_about_a_pod_is_read() -> None:
    made = pod(annotations={"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "hash"},
               volumes=[{"name": "a", "emptyDir": {"medium": "Memory"}}, {"name": "b", "emptyDir": None}],
               deletionTimestamp="2026-01-01T00:00:00Z", owner="DaemonSet")
    found = pod_of(made)
    assert (found.mirror, found.local_data, found.in_memory, found.daemonset) == (True, True, False, True)
    assert found.known_as == {"team/trainer", "uid-trainer", "hash"} and found.terminating == "2026-01-01T00:00:00Z"
    assert pod_of(pod(volumes=[{"name": "a", "emptyDir": {"medium": "Memory"}}])).in_memory
    assert not pod_of(pod()).in_memory and pod_of(pod()).ready and not pod_of(pod(ready=False)).ready
