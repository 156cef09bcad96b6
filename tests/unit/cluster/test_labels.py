# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cordon and labels: what is ours is recorded, what is not ours stays."""
from __future__ import annotations

import copy
import json
from typing import Any, Dict

import pytest
from cluster_objects import node
from object_store import merged_patch

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    CORDON_REASON,
    CORDONED_BY,
    FORMERLY,
    OUR_LABELS,
    NodePolicy,
    plan_node_change,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.startup_taint import tolerations
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
PRESENT = "nvidia.com/gpu.present"
NOT_READY = "gpuops.nvidia.com/not-ready"


def after(before: Dict[str, Any], policy: NodePolicy) -> Dict[str, Any]:
    """The node that the patch makes; a second plan must be empty."""
    patched = merged_patch(copy.deepcopy(before), plan_node_change(before, policy).patch)
    assert plan_node_change(patched, policy).patch == {}
    return patched


@pytest.mark.parametrize("unschedulable", [True, False])
def test_the_cordon_of_a_release_that_knew_of_no_custody_goes_with_its_record(unschedulable: bool) -> None:
    there = node(annotations={CORDONED_BY: FORMERLY, CORDON_REASON: "x"}, **(
        {"unschedulable": True} if unschedulable else {}))
    gone = after(there, NodePolicy(uncordoned=True))
    assert gone["spec"] == node()["spec"] and gone["metadata"]["annotations"] == {}


@pytest.mark.parametrize("annotations", [{}, {CORDONED_BY: "another run"}])
def test_a_cordon_of_others_is_left_to_them(annotations: Dict[str, str]) -> None:
    there = node(unschedulable=True, annotations=annotations)
    assert plan_node_change(there, NodePolicy(uncordoned=True)).patch == {}


def test_labels_are_set_recorded_and_taken_away() -> None:
    policy = NodePolicy(labels={PLUGIN: "true", PRESENT: "true"})
    labelled = after(node(), policy)
    assert json.loads(labelled["metadata"]["annotations"][OUR_LABELS]) == {PLUGIN: "true", PRESENT: "true"}
    part = after(labelled, NodePolicy(unset_labels=[PLUGIN]))
    assert PLUGIN not in part["metadata"]["labels"] and part["metadata"]["labels"][PRESENT] == "true"
    assert plan_node_change(part, NodePolicy(purge_labels=True, keep_labels=[PRESENT])).patch == {}
    assert after(part, NodePolicy(purge_labels=True))["metadata"]["labels"] == node()["metadata"]["labels"]


JOINED = {"key": NOT_READY, "value": "true", "effect": "NoExecute"}
THEIRS = {"key": "example.com/theirs", "effect": "NoSchedule"}


def test_a_startup_taint_goes_with_every_effect_and_no_other_taint_does() -> None:
    joined = node(taints=[JOINED, THEIRS, {"key": NOT_READY, "effect": "NoSchedule"}])
    policy = NodePolicy(startup_taint=NOT_READY, tainted=False)
    change = plan_node_change(joined, policy)
    assert change.patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [THEIRS]}}
    assert change.after["taints"] == [THEIRS]
    assert after(joined, policy)["spec"]["taints"] == [THEIRS]
    assert "taints" not in after(node(taints=[JOINED]), policy)["spec"]


def test_a_startup_taint_is_set_once_in_whatever_form_it_is_there() -> None:
    policy = NodePolicy(startup_taint=NOT_READY, tainted=True)
    tainted = after(node(taints=[THEIRS]), policy)
    assert tainted["spec"]["taints"] == [THEIRS, {"key": NOT_READY, "effect": "NoSchedule"}]
    assert plan_node_change(node(taints=[JOINED]), policy).patch == {}
    assert plan_node_change(tainted, policy).patch == {}


def test_whose_a_startup_taint_is_stays_on_record_while_it_is_there() -> None:
    ours = after(node(), NodePolicy(startup_taint=NOT_READY, tainted=True))
    assert ours["metadata"]["annotations"] == {"gpuops.nvidia.com/tainted": NOT_READY}
    labelled = after(ours, NodePolicy(labels={PLUGIN: "true"}))
    assert labelled["metadata"]["annotations"]["gpuops.nvidia.com/tainted"] == NOT_READY
    other = after(ours, NodePolicy(startup_taint="example.com/other", tainted=False))
    assert other["metadata"]["annotations"] == {"gpuops.nvidia.com/tainted": NOT_READY}
    gone = after(ours, NodePolicy(startup_taint=NOT_READY, tainted=False))
    assert gone["metadata"]["annotations"] == {} and "taints" not in gone["spec"]
    assert after(node(taints=[JOINED]), NodePolicy(startup_taint=NOT_READY, tainted=True))["metadata"].get(
        "annotations", {}) == {}


@pytest.mark.parametrize("policy", [
    NodePolicy(startup_taint=NOT_READY), NodePolicy(tainted=False),
    NodePolicy(labels={PLUGIN: "x"}, startup_taint=NOT_READY)])
def test_taints_stay_unless_one_is_named_and_something_said_of_it(policy: NodePolicy) -> None:
    change = plan_node_change(node(taints=[JOINED, {"key": "", "effect": "NoSchedule"}]), policy)
    assert "taints" not in change.patch.get("spec", {}) and len(change.after["taints"]) == 2


@pytest.mark.parametrize("key", ["not-ready=:NoSchedule", "not-ready:NoSchedule", "/x", "a/b/c", "x" * 64])
def test_a_startup_taint_that_is_no_key_is_refused(key: str) -> None:
    for act in (lambda: plan_node_change(node(taints=[JOINED]), NodePolicy(startup_taint=key, tainted=False)),
                lambda: tolerations(key)):
        with pytest.raises(GpuOpsError) as refused:
            act()
        (refusal,) = refused.value.refusals
        assert (refusal.code, refusal.option) == ("cluster.startup_taint_malformed", "startup_taint")


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


FOUND = {"nvidia.com/gpu.count": "8", "nvidia.com/mig-1g.10gb.count": "7"}


def test_features_are_labels_as_long_as_they_are_found() -> None:
    labelled = after(after(node(), NodePolicy(labels={PRESENT: "true"})), NodePolicy(features=FOUND))
    assert {**FOUND, PRESENT: "true"}.items() <= labelled["metadata"]["labels"].items()
    fewer = after(labelled, NodePolicy(features={"nvidia.com/gpu.count": "4"}))
    assert fewer["metadata"]["labels"] == {
        **node()["metadata"]["labels"], PRESENT: "true", "nvidia.com/gpu.count": "4"}
    gone = after(fewer, NodePolicy(features={}))
    assert gone["metadata"]["labels"] == {**node()["metadata"]["labels"], PRESENT: "true"}


def test_features_stay_where_nothing_is_said_of_them() -> None:
    labelled = after(node(), NodePolicy(features=FOUND))
    assert plan_node_change(labelled, NodePolicy(purge_labels=True)).patch == {}
    assert plan_node_change(labelled, NodePolicy(unset_labels=[PLUGIN])).patch == {}


def test_a_feature_that_others_published_stays_theirs() -> None:
    theirs = node(labels={"nvidia.com/gpu.count": "2"})
    change = plan_node_change(theirs, NodePolicy(features=FOUND))
    assert change.after["labels"]["nvidia.com/gpu.count"] == "2" and "set by others" in change.notes[0]
    assert plan_node_change(theirs, NodePolicy(features={})).patch == {}


@pytest.mark.parametrize("instance", ["", "gpu."])
def test_a_feature_that_nfd_has_taken_over_is_its_own(instance: str) -> None:
    labelled = after(node(), NodePolicy(features={"nvidia.com/gpu.count": "8", "nvidia.com/gpu.family": "hopper"}))
    labelled["metadata"]["annotations"][instance + "nfd.node.kubernetes.io/feature-labels"] = (
        "cpu-cpuid.AVX,nvidia.com/gpu.count")
    change = plan_node_change(labelled, NodePolicy(features={}))
    assert change.after["labels"] == {**node()["metadata"]["labels"], "nvidia.com/gpu.count": "8"}
    assert OUR_LABELS not in change.after["annotations"]


def test_a_file_can_say_nothing_but_features() -> None:
    change = plan_node_change(node(), NodePolicy(features={
        PLUGIN: "true", "node-role.kubernetes.io/control-plane": "", "nvidia.com/mig.config": "all-balanced"}))
    assert change.patch == {}
