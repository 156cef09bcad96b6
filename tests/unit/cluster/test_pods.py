# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pods hold GPUs, and which of them go."""
from __future__ import annotations

from typing import Any, Dict

import pytest
from cluster_objects import pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import (
    gpu_pod,
    gpu_pods,
    gpu_resources,
    plan_eviction,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


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
    assert gpu_pod(pod(phase=phase)) is None


def test_mig_devices_and_shared_gpus_count() -> None:
    holders = gpu_pods([pod("b", resource="nvidia.com/mig-1g.10gb"), pod("a", resource="nvidia.com/gpu.shared"),
                        pod("c", gpus=0)])
    assert [(holder.name, holder.resources) for holder in holders] == [
        ("a", {"nvidia.com/gpu.shared": 1}), ("b", {"nvidia.com/mig-1g.10gb": 1})]


def test_daemonset_and_static_pods_stay() -> None:
    plan = plan_eviction(gpu_pods([
        pod("agent", owner="DaemonSet"),
        pod("static", annotations={"kubernetes.io/config.mirror": "x"}),
        pod("trainer"),
    ]), force=False, delete_emptydir_data=False)
    assert [each.name for each in plan.evict] == ["trainer"]
    assert [each.name for each, _reason in plan.stay] == ["agent", "static"]


@pytest.mark.parametrize("options, permission", [
    ({"owner": None}, "force"),
    ({"volumes": [{"name": "scratch", "emptyDir": {}}]}, "delete_emptydir_data"),
])
def test_what_would_be_lost_is_refused_as_a_whole(options: Dict[str, Any], permission: str) -> None:
    holders = gpu_pods([pod("trainer"), pod("precious", **options)])
    switches = {"force": False, "delete_emptydir_data": False}
    with pytest.raises(GpuOpsError, match=permission) as refusal:
        plan_eviction(holders, **switches)
    assert "precious" in refusal.value.found
    assert len(plan_eviction(holders, **{**switches, permission: True}).evict) == 2


def test_a_terminating_pod_is_waited_for_not_evicted() -> None:
    leaving = pod("leaving", owner=None)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    plan = plan_eviction(gpu_pods([leaving]), force=False, delete_emptydir_data=False)
    assert plan.evict == () and [each.name for each in plan.leaving] == ["leaving"]
