# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""When a workload is rolled out, and what is said when it is not."""
from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.readiness import pod_troubles, rolled_out


def daemonset(**status: int) -> Dict[str, Any]:
    return {"kind": "DaemonSet", "metadata": {"generation": 3}, "status": {"observedGeneration": 3, **status}}


def deployment(wanted: int, **status: int) -> Dict[str, Any]:
    return {"kind": "Deployment", "metadata": {"generation": 1}, "spec": {"replicas": wanted},
            "status": {"observedGeneration": 1, **status}}


@pytest.mark.parametrize("workload, expected", [
    ({}, False),
    (daemonset(desiredNumberScheduled=0), True),
    (daemonset(desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=2), True),
    (daemonset(desiredNumberScheduled=2, updatedNumberScheduled=1, numberReady=2), False),
    (daemonset(desiredNumberScheduled=2, updatedNumberScheduled=2, numberReady=1), False),
    (daemonset(observedGeneration=2, desiredNumberScheduled=0), False),
    (deployment(1, replicas=1, updatedReplicas=1, availableReplicas=1), True),
    (deployment(1, replicas=2, updatedReplicas=1, availableReplicas=2), False),
    (deployment(0), True),
])
def test_rolled_out(workload: Dict[str, Any], expected: bool) -> None:
    assert rolled_out(workload) is expected


def a_pod(status: Dict[str, Any]) -> Dict[str, Any]:
    return {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {"nodeName": "n"}, "status": status}


@pytest.mark.parametrize("status, words", [
    ({"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]},
     "ErrImagePull: not found"),
    ({"containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 1}}}]}, "Error, exit code 1"),
    ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}, "not scheduled, 0/1 nodes"),
    ({"containerStatuses": [{"state": {"running": {}}}]}, "not ready yet"),
])
def test_what_keeps_a_pod(status: Dict[str, Any], words: str) -> None:
    assert pod_troubles([a_pod(status)], {"app": "x"}) == ["pod p on node n: " + words]


def test_ready_and_foreign_pods_are_no_trouble() -> None:
    ready = a_pod({"conditions": [{"type": "Ready", "status": "True"}]})
    assert pod_troubles([ready], {"app": "x"}) == [] and pod_troubles([a_pod({})], {"app": "y"}) == []
