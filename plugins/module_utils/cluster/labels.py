# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What we write on a Node: labels, together with the record that they are ours, and one taint. Whether it is in service
is custody's (custody/claims.py).

A value that somebody else set is never replaced, and what we did not set is never taken away. The record travels in
the same patch as the change, so that a run that dies in between leaves neither without the other. The start-up taint
alone is taken away whoever has set it, as it is named to be.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.features import is_feature
from .custody.run import HOLDER, MANAGER
from .startup_taint import Taint, with_taint, without_taint

CORDONED_BY = "gpuops.nvidia.com/cordoned-by"
CORDON_REASON = "gpuops.nvidia.com/cordon-reason"
# How the reason begins on a node that is kept out of service for checks that have failed
KEPT = "Failed: "
# What a host says of its own Node, as this field manager, where it cordons that for its GPUs (agent/node.py)
HEALTH_MANAGER = "gpuops-health"
HEALTH_CORDON = "gpuops.nvidia.com/health-cordon"
HEALTH_FINDINGS = "gpuops.nvidia.com/health-findings"
# Set by an admin for the node to stay cordoned
HOLD = "gpuops.nvidia.com/hold"
# Who had cordoned it, to releases that knew of no custody
FORMERLY = "gpuops"
OUR_LABELS = "gpuops.nvidia.com/labels"
# The key of a taint that was not there before
TAINTED = "gpuops.nvidia.com/tainted"
# In which Node Feature Discovery keeps the names of the labels that it has set; before it, the name of its instance
NFD_LABELS = "nfd.node.kubernetes.io/feature-labels"


@dataclass(frozen=True)
class NodePolicy:
    """What a caller wants of one node; None and empty mean 'leave as it is'.

    features:   all labels of GPU feature discovery that are to be there; those of ours beside them go.
    uncordoned: whether the cordon of a release that knew of no custody goes, which custody alone asks for.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    unset_labels: Sequence[str] = ()
    purge_labels: bool = False
    keep_labels: Sequence[str] = ()
    take_over: bool = False
    features: Optional[Mapping[str, str]] = None
    startup_taint: str = ""
    tainted: Optional[bool] = None
    uncordoned: bool = False


@dataclass(frozen=True)
class NodeChange:
    """The way from the node as it is to the policy."""

    before: Dict[str, Any]
    after: Dict[str, Any]
    patch: Dict[str, Any]
    notes: Tuple[str, ...] = ()


def cordoned_by(node: Mapping[str, Any]) -> Optional[str]:
    """Who of ours cordoned this node, if it is still cordoned.

    By the API server's book of fields, where that was read: the annotation outlives a cordon that others have lifted,
    and is lost to whoever writes it. Ours is as well the cordon of a hold that was let go.
    """
    if not (node.get("spec") or {}).get("unschedulable"):
        return None
    named = _annotations(node).get(CORDONED_BY)
    if named == FORMERLY:
        return named
    managers = cordoned_by_managers(node)
    ours = [each for each in managers if each.startswith(MANAGER)]
    if ours:
        return named or ours[0][len(MANAGER):]
    if HOLDER in managers and HOLD not in _annotations(node):
        return HOLDER
    return None if managers else named


def is_kept(node: Mapping[str, Any]) -> bool:
    """Whether one of our runs has ended with a node for checks that have failed: no change is under way there."""
    return cordoned_by(node) is not None and _annotations(node).get(CORDON_REASON, "").startswith(KEPT)


def cordoned_by_managers(node: Mapping[str, Any]) -> List[str]:
    """The field managers that say the cordon of a node; none where the API server has kept no book."""
    return [str(entry.get("manager") or "") for entry in (node.get("metadata") or {}).get("managedFields") or []
            if "f:unschedulable" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})]


def cordoned_by_its_host(node: Mapping[str, Any]) -> str:
    """Why its own host has cordoned a node, '' where it has not."""
    if HEALTH_MANAGER not in cordoned_by_managers(node) or not (node.get("spec") or {}).get("unschedulable"):
        return ""
    return _annotations(node).get(HEALTH_CORDON) or "its GPUs"


def is_nvidias(key: str) -> bool:
    """Whether a label is of NVIDIA's domain, as ours are, and so may go with the components."""
    domain, _slash, name = key.partition("/")
    return bool(name) and ("." + domain).endswith(".nvidia.com")


def our_labels(node: Mapping[str, Any]) -> Dict[str, str]:
    """The labels that we set, as recorded on the node."""
    recorded = _annotations(node).get(OUR_LABELS)
    if not recorded:
        return {}
    try:
        labels = json.loads(recorded)
    except ValueError:
        labels = None
    if not isinstance(labels, dict):
        raise GpuOpsError(
            "cluster.label_record_unreadable",
            found="annotation %s of node %s holds %r" % (OUR_LABELS, _name(node), recorded),
            wanted="a JSON object of the labels that this collection set",
            remedy="remove the annotation with `kubectl annotate node %s %s-`; labels that are there then count as "
            "set by others" % (_name(node), OUR_LABELS),
        )
    return {str(key): str(value) for key, value in labels.items()}


def snapshot(node: Mapping[str, Any]) -> Dict[str, Any]:
    """What of a Node we may change: cordon, labels, our annotations, taints."""
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    return _snapshot(bool(spec.get("unschedulable")), dict(metadata.get("labels") or {}), _annotations(node),
                     spec.get("taints") or [])


def plan_node_change(node: Mapping[str, Any], policy: NodePolicy) -> NodeChange:
    """The patch that fulfils the policy without touching what others set."""
    notes: List[str] = []
    labels = dict((node.get("metadata") or {}).get("labels") or {})
    annotations = _annotations(node)
    taints: Sequence[Taint] = (node.get("spec") or {}).get("taints") or []
    before = snapshot(node)
    recorded = our_labels(node)
    for key in _published(annotations):
        recorded.pop(key, None)
    labels, ours = _labels_after(_name(node), labels, recorded, policy, notes)
    unschedulable = before["unschedulable"]
    if policy.uncordoned and annotations.get(CORDONED_BY) == FORMERLY:
        unschedulable = False
        annotations = {key: value for key, value in annotations.items() if key not in (CORDONED_BY, CORDON_REASON)}
    annotations.pop(OUR_LABELS, None)
    if ours:
        annotations[OUR_LABELS] = json.dumps(ours, sort_keys=True, separators=(",", ":"))
    tainted, annotations = _taints_after(taints, annotations, policy)
    after = _snapshot(unschedulable, labels, annotations, tainted)
    return NodeChange(before, after, _patch(before, after, node), tuple(notes))


def _published(annotations: Mapping[str, str]) -> List[str]:
    """Features that Node Feature Discovery has set, or found as we had set them: where we took them away, it would not
    set them again before its next round, which is an hour later."""
    return [key for name, keys in annotations.items() if name == NFD_LABELS or name.endswith("." + NFD_LABELS)
            for key in keys.split(",") if is_feature(key)]


def _labels_after(
    name: str, labels: Dict[str, str], ours: Dict[str, str], policy: NodePolicy, notes: List[str]
) -> Tuple[Dict[str, str], Dict[str, str]]:
    ours = {key: value for key, value in ours.items() if labels.get(key) == value}
    wanted = {**{key: value for key, value in (policy.features or {}).items() if is_feature(key)}, **policy.labels}
    unwanted = set(policy.unset_labels)
    if policy.purge_labels:
        unwanted |= {key for key in ours if not is_feature(key)} - set(policy.keep_labels)
    if policy.features is not None:
        unwanted |= {key for key in ours if is_feature(key)}
    unwanted -= set(wanted) - set(policy.unset_labels)
    for key in sorted(unwanted):
        if key in ours:
            del ours[key], labels[key]
        elif key in labels:
            notes.append("label %s=%s of node %s was set by others and stays" % (key, labels[key], name))
    for key, value in sorted(wanted.items()):
        if key in labels and key not in ours and not policy.take_over:
            if labels[key] != value:
                notes.append("label %s=%s of node %s was set by others and stays" % (key, labels[key], name))
            continue
        labels[key] = ours[key] = value
    return labels, ours


def _taints_after(
    taints: Sequence[Taint], annotations: Dict[str, str], policy: NodePolicy
) -> Tuple[Sequence[Taint], Dict[str, str]]:
    key, annotations = policy.startup_taint, dict(annotations)
    if not key or policy.tainted is None:
        return taints, annotations
    if not policy.tainted:
        if annotations.get(TAINTED) == key:
            del annotations[TAINTED]
        return without_taint(taints, key), annotations
    after = with_taint(taints, key)
    if len(after) > len(taints):
        annotations[TAINTED] = key
    return after, annotations


def _snapshot(
    unschedulable: bool, labels: Mapping[str, str], annotations: Mapping[str, str], taints: Sequence[Taint]
) -> Dict[str, Any]:
    return {
        "unschedulable": unschedulable,
        "labels": dict(labels),
        "annotations": {
            key: annotations[key] for key in (CORDONED_BY, CORDON_REASON, OUR_LABELS, TAINTED) if key in annotations
        },
        "taints": [dict(taint) for taint in taints],
    }


def _patch(before: Dict[str, Any], after: Dict[str, Any], node: Mapping[str, Any]) -> Dict[str, Any]:
    metadata = {}
    for part in ("labels", "annotations"):
        changes = _map_changes(before[part], after[part])
        if changes:
            metadata[part] = changes
    patch: Dict[str, Any] = {"metadata": metadata} if metadata else {}
    if before["unschedulable"] != after["unschedulable"]:
        patch["spec"] = {"unschedulable": None}
    if before["taints"] != after["taints"]:
        # A merge patch has lists whole; what others have added since is kept by the version below
        patch.setdefault("spec", {})["taints"] = after["taints"] or None
    version = (node.get("metadata") or {}).get("resourceVersion")
    if patch and version:
        # The server refuses the patch when somebody changed the node since we read it.
        patch.setdefault("metadata", {})["resourceVersion"] = version
    return patch


def _map_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Dict[str, Optional[str]]:
    changes: Dict[str, Optional[str]] = {key: None for key in before if key not in after}
    changes.update({key: value for key, value in after.items() if before.get(key) != value})
    return changes


def _annotations(node: Mapping[str, Any]) -> Dict[str, str]:
    return dict((node.get("metadata") or {}).get("annotations") or {})


def _name(node: Mapping[str, Any]) -> str:
    return str((node.get("metadata") or {}).get("name") or "?")
