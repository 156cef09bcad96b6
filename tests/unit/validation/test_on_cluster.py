# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the cluster must show of a node whose GPUs are divided, or at work."""
from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import (
    all_in_use,
    allocatable,
    free_resource,
    pod_got_its_device,
)

MIG = "nvidia.com/mig-1g.10gb"


def node(**offered: str) -> Dict[str, Any]:
    names = {name.replace("mig", "mig-1g.10gb"): count for name, count in offered.items()}
    return {"metadata": {"name": "gpu-1"}, "status": {"allocatable": {
        "cpu": "64", "memory": "1056762404Ki", **{"nvidia.com/" + name: count for name, count in names.items()}}}}


@pytest.mark.parametrize("offered, only, status", [
    ({"gpu": "6", "mig": "14"}, True, "passed"),
    ({"gpu": "6", "mig": "13"}, True, "failed"),
    ({"gpu": "6"}, True, "failed"),
    ({"gpu": "6", "mig": "14", "mig-2": "0"}, True, "passed"),
    ({"gpu": "6", "mig": "14", "gpu.shared": "4"}, False, "passed"),
    ({"gpu": "6", "mig": "14", "imex": "1"}, True, "passed"),
    ({"gpu": "6", "mig": "14", "gpu.shared": "2k"}, True, "failed"),
])
def test_a_node_offers_exactly_what_is_expected(offered: Dict[str, str], only: bool, status: str) -> None:
    assert allocatable(node(**offered), {"nvidia.com/gpu": 6, MIG: 14}, only).status == status


def test_what_is_offered_beside_it_is_named() -> None:
    seen = allocatable(node(gpu="8", mig="7"), {"nvidia.com/gpu": 8}, True)
    assert seen.status == "failed" and "delete" in seen.remedy
    assert "nvidia.com/mig-1g.10gb: 7 allocatable, 0 expected" in seen.evidence


@pytest.mark.parametrize("taken, free", [
    ({}, "nvidia.com/gpu"), ({"nvidia.com/gpu": 1}, MIG), ({"nvidia.com/gpu": 1, MIG: 7}, None)])
def test_the_probe_asks_for_what_is_free(taken: Dict[str, int], free: Any) -> None:
    assert free_resource(node(gpu="1", mig="7"), taken, {"nvidia.com/gpu": 1, MIG: 7}) == free


@pytest.mark.parametrize("message, divided, status", [
    ("nvidia3 ", False, "passed"),
    ("nvidia3 nvidia-cap3 nvidia-cap4", True, "passed"),
    ("nvidia3 ", True, "failed"),
    ("nvidia0 nvidia3 ", False, "failed"),
    ("", False, "failed"),
])
def test_a_pod_gets_one_device(message: str, divided: bool, status: str) -> None:
    pod = {"status": {"phase": "Succeeded", "containerStatuses": [
        {"name": "probe", "state": {"terminated": {"exitCode": 0, "message": message}}}]}}
    assert pod_got_its_device(pod, 1.0, divided).status == status


def test_a_node_whose_devices_are_all_at_work_is_told_so() -> None:
    check = all_in_use(node(gpu="1", mig="7"), {"nvidia.com/gpu": 1, MIG: 7}, ["ml/train", "ml/serve"], True)
    assert (check.status, check.evidence) == ("skipped", "not probed: all 8 in use by ml/train, ml/serve")
