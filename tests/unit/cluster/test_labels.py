# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cordon and labels: what is ours is recorded, what is not ours stays."""
from __future__ import annotations

import copy
import json
from typing import Any, Dict

import pytest
from cluster_api import _merge
from cluster_objects import node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    CORDON_REASON,
    CORDONED_BY,
    OUR_LABELS,
    NodePolicy,
    plan_node_change,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
PRESENT = "nvidia.com/gpu.present"


def after(before: Dict[str, Any], policy: NodePolicy) -> Dict[str, Any]:
    """The node that the patch makes; a second plan must be empty."""
    patched = _merge(copy.deepcopy(before), plan_node_change(before, policy).patch)
    assert plan_node_change(patched, policy).patch == {}
    return patched


def test_a_cordon_is_one_patch_with_its_record() -> None:
    change = plan_node_change(node(), NodePolicy(cordoned=True, reason="driver upgrade"))
    assert change.patch == {
        "metadata": {"annotations": {CORDONED_BY: "gpuops", CORDON_REASON: "driver upgrade"}, "resourceVersion": "7"},
        "spec": {"unschedulable": True},
    }


def test_uncordon_takes_away_our_cordon_and_its_record() -> None:
    cordoned = after(node(), NodePolicy(cordoned=True, reason="driver upgrade"))
    back = after(cordoned, NodePolicy(cordoned=False))
    assert back["spec"] == node()["spec"]
    assert back["metadata"]["annotations"] == {}


@pytest.mark.parametrize("annotations", [{}, {CORDONED_BY: "another run"}])
@pytest.mark.parametrize("cordoned", [True, False])
def test_a_cordon_of_others_is_left_to_them(annotations: Dict[str, str], cordoned: bool) -> None:
    change = plan_node_change(node(unschedulable=True, annotations=annotations), NodePolicy(cordoned=cordoned))
    assert change.patch == {}
    assert "stays" in change.notes[0]


def test_a_record_without_its_cordon_is_cleared() -> None:
    left = node(annotations={CORDONED_BY: "gpuops", CORDON_REASON: "x"})
    assert after(left, NodePolicy(cordoned=False))["metadata"]["annotations"] == {}


def test_labels_are_set_recorded_and_taken_away() -> None:
    policy = NodePolicy(labels={PLUGIN: "true", PRESENT: "true"})
    labelled = after(node(), policy)
    assert json.loads(labelled["metadata"]["annotations"][OUR_LABELS]) == {PLUGIN: "true", PRESENT: "true"}
    part = after(labelled, NodePolicy(unset_labels=[PLUGIN]))
    assert PLUGIN not in part["metadata"]["labels"] and part["metadata"]["labels"][PRESENT] == "true"
    assert plan_node_change(part, NodePolicy(purge_labels=True, keep_labels=[PRESENT])).patch == {}
    assert after(part, NodePolicy(purge_labels=True))["metadata"]["labels"] == node()["metadata"]["labels"]


@pytest.mark.parametrize("value", ["false", "true"])
def test_a_label_of_others_is_neither_replaced_nor_taken_away(value: str) -> None:
    theirs = node(labels={PLUGIN: value})
    labelled = plan_node_change(theirs, NodePolicy(labels={PLUGIN: "true"}))
    assert labelled.patch == {}
    assert bool(labelled.notes) == (value == "false")
    assert plan_node_change(theirs, NodePolicy(unset_labels=[PLUGIN], purge_labels=True)).patch == {}


def test_a_label_of_ours_that_somebody_changed_is_theirs_now() -> None:
    labelled = after(node(), NodePolicy(labels={PLUGIN: "true"}))
    labelled["metadata"]["labels"][PLUGIN] = "false"
    change = plan_node_change(labelled, NodePolicy(purge_labels=True))
    assert change.after["labels"][PLUGIN] == "false"
    assert OUR_LABELS not in change.after["annotations"]


def test_a_value_of_ours_can_change() -> None:
    labelled = after(node(), NodePolicy(labels={PLUGIN: "true"}))
    assert after(labelled, NodePolicy(labels={PLUGIN: "paused"}))["metadata"]["labels"][PLUGIN] == "paused"


def test_a_spoilt_record_is_refused() -> None:
    with pytest.raises(GpuOpsError, match="kubectl annotate node gpu-1"):
        plan_node_change(node(annotations={OUR_LABELS: "{"}), NodePolicy(labels={PLUGIN: "true"}))
