# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pods a node's labels admit."""
from __future__ import annotations

from typing import Any, Dict

import pytest
from cluster_objects import node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.placement import admits

NODE = node("gpu-1", labels={"deploy": "true", "gpus": "8", "empty": ""})


def affinity(*terms: Dict[str, Any]) -> Dict[str, Any]:
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": list(terms)}}}}


def term(key: str, operator: str, *values: str, of: str = "matchExpressions") -> Dict[str, Any]:
    return {of: [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


@pytest.mark.parametrize("spec, expected", [
    ({}, True),
    ({"nodeSelector": {"deploy": "true", "gpus": "8"}}, True),
    ({"nodeSelector": {"deploy": "true", "gpus": "4"}}, False),
    ({"nodeSelector": {"absent": "true"}}, False),
    (affinity(term("deploy", "In", "false", "true")), True),
    (affinity(term("absent", "In", "true")), False),
    (affinity(term("deploy", "NotIn", "true")), False),
    (affinity(term("absent", "NotIn", "true")), True),
    (affinity(term("empty", "Exists")), True),
    (affinity(term("absent", "Exists")), False),
    (affinity(term("absent", "DoesNotExist")), True),
    (affinity(term("deploy", "DoesNotExist")), False),
    (affinity(term("gpus", "Gt", "7")), True),
    (affinity(term("gpus", "Gt", "8")), False),
    (affinity(term("gpus", "Lt", "9")), True),
    (affinity(term("deploy", "Lt", "9")), False),
    (affinity(term("metadata.name", "In", "gpu-1", of="matchFields")), True),
    (affinity(term("metadata.name", "In", "gpu-2", of="matchFields")), False),
    (affinity({**term("deploy", "Exists"), **term("metadata.name", "In", "gpu-2", of="matchFields")}), False),
    (affinity(term("absent", "Exists"), term("deploy", "Exists")), True),
    (affinity({}), False),
    (affinity(), False),
    ({"nodeSelector": {"absent": "true"}, **affinity(term("deploy", "Exists"))}, False),
    ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": term("absent", "Exists")}]}}}, True),
])
def test_what_a_pod_requires_of_its_node(spec: Dict[str, Any], expected: bool) -> None:
    assert admits(NODE, spec) is expected


def test_a_node_without_labels_is_left_out_by_any_selector() -> None:
    assert not admits({"metadata": {"name": "gpu-1"}}, {"nodeSelector": {"deploy": "true"}})
    assert not admits({}, {"nodeSelector": {"deploy": "true"}})
