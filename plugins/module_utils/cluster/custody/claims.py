# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who has cordoned a Node, and what a run says of it: read from the API server's book of fields. Pure.

Server-side apply keeps for each field of an object the managers that say it, and removes it with the last of them:
https://kubernetes.io/docs/reference/using-api/server-side-apply/. An update of the same value does not make anybody a
manager, and `kubectl cordon` of a cordoned node sends nothing at all: hence the hold mark. When somebody uncordons, the
field is gone from every manager's entry; one that has its annotations yet was uncordoned on purpose.

An apply that says nothing below a field any more takes the field itself away where no other manager says anything below
it, with all in it that nobody says, as taints by which admission marks a new Node (sigs.k8s.io/structured-merge-diff,
merge/update.go). There, what is ours alone is taken away by name.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ..labels import CORDON_REASON, CORDONED_BY, FORMERLY, HOLD, cordoned_by_managers
from .run import HOLDER, MANAGER, Run

# What a node offered before it was first taken, for whoever takes it over: it offers nothing once its plugin has left
OFFERS = "gpuops.nvidia.com/offers"
# Whose field it is of which the API server has not kept book
UNKNOWN = "others, of whom the API server has no record"
# Of the machine managers that remove or repair a node which is empty or NotReady.
# https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md; https://karpenter.sh/docs/concepts/disruption/
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
OF_KARPENTER = "karpenter.sh/nodepool"

Object = Dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """What a run has said of an object and nobody has undone since.

    cordons:     whether its cordon is there.
    annotations: with their values.
    """

    cordons: bool
    annotations: Mapping[str, str]


@dataclass(frozen=True)
class Apply:
    """One request: what a manager says from then on; with nothing but a name in the body he says nothing any more.

    by_name: whether it is a merge patch that takes away what he alone has said.
    """

    manager: str
    body: Object
    by_name: bool = False


def claims(item: Mapping[str, Any], managers: str = MANAGER) -> Dict[str, Claim]:
    """{manager: claim} of every run that says something of an object. managers: how those begin that are looked for."""
    there = (item.get("metadata") or {}).get("annotations") or {}
    found = {}
    for entry in _entries(item):
        manager, fields = str(entry.get("manager") or ""), entry.get("fieldsV1") or {}
        if manager.startswith(managers) and entry.get("operation") == "Apply":
            said = (fields.get("f:metadata") or {}).get("f:annotations") or {}
            found[manager] = Claim(_cordons(fields), {
                key[2:]: str(there[key[2:]]) for key in said if key.startswith("f:") and key[2:] in there})
    return found


def claimed_at(item: Mapping[str, Any], run: Run) -> Tuple[str, ...]:
    """When other runs that say something of an object have said it last, by the clock of the API server."""
    others = claims(item).keys() - {run.manager}
    return tuple(str(entry["time"]) for entry in _entries(item) if entry.get("manager") in others
                 and entry.get("operation") == "Apply" and entry.get("time"))


def cordoned_by_others(node: Mapping[str, Any]) -> Tuple[str, ...]:
    """The managers beside our runs that say the cordon of a node; () where it has none, or none but ours.

    A manager is a program: 'kubectl-cordon' is a person's kubectl, 'before-first-apply' whoever it was. A hold mark's
    cordon is that of whoever has set the mark, and ours to lift once that was let go.
    """
    if not (node.get("spec") or {}).get("unschedulable"):
        return ()
    managers = cordoned_by_managers(node)
    others = tuple(dict.fromkeys(each for each in managers if not each.startswith(MANAGER) and not (
        each == HOLDER and is_let_go(node))))
    return others if managers else (UNKNOWN,)


def was_cordoned_without_claim(node: Mapping[str, Any]) -> bool:
    """Whether a release that knew of no claims has cordoned it: all its runs had one name, in the annotation alone."""
    return bool((node.get("spec") or {}).get("unschedulable")) and _annotations(node).get(
        CORDONED_BY) == FORMERLY


def is_held(node: Mapping[str, Any]) -> bool:
    """Whether an admin's hold mark keeps it cordoned."""
    return HOLD in _annotations(node) and bool((node.get("spec") or {}).get("unschedulable"))


def is_let_go(node: Mapping[str, Any]) -> bool:
    """Whether a cordon is there for the sake of a hold mark that is there no more."""
    return HOLD not in _annotations(node) and HOLDER in cordoned_by_managers(node)


def was_uncordoned(node: Mapping[str, Any], run: Run, had_claimed: bool = False) -> bool:
    """Whether somebody has uncordoned it after this run had cordoned it.

    had_claimed: whether it is known that this run has: of a claim all of whose fields somebody has taken away nothing
    is left.
    """
    mine = claims(node).get(run.manager)
    return had_claimed if mine is None else not mine.cordons


def offers_before(node: Mapping[str, Any]) -> Dict[str, int]:
    """What it offered when the first of the runs that claim it had it, by resource; {} where that is not known."""
    try:
        kept = json.loads(_annotations(node).get(OFFERS, "{}"))
    except ValueError:
        return {}
    return {str(name): count for name, count in (kept.items() if isinstance(kept, dict) else ())
            if isinstance(count, int) and not isinstance(count, bool)}


def reason_text(name: str, run: Run, reason: str) -> str:
    """What stands in the annotation of the reason."""
    why = "%s. " % reason.rstrip(". ") if reason else ""
    return "%sHeld by run %s. To keep it cordoned afterwards: kubectl annotate node %s %s=WHY" % (
        why, run.identity, name, HOLD)


def claim(node: Mapping[str, Any], run: Run, reason: str, offers: Mapping[str, int],
          insists: bool = False) -> Optional[Apply]:
    """What this run is to say of a node that it has, with this reason; None where it says so already.

    What it has said before and somebody has undone is not said again. An annotation of others that says the opposite
    of an opt-out stays.

    offers:  what the node offered before, for its first claim.
    insists: whether the reason is said again where it was lost to somebody who wrote over it.
    """
    mine = claims(node).get(run.manager)
    text = reason_text(str(node["metadata"]["name"]), run, reason)
    why = {CORDONED_BY: run.identity, CORDON_REASON: text}
    if mine is None:
        kept = {OFFERS: json.dumps(dict(offers), sort_keys=True, separators=(",", ":"))} if offers else {}
        return Apply(run.manager, _said(node, True, {**why, **kept, **_opt_outs(node)}))
    if mine.annotations.get(CORDON_REASON, "" if insists else text) == text:
        return None
    return Apply(run.manager, _said(node, mine.cordons, {**mine.annotations, **why}))


def next_withdrawal(node: Mapping[str, Any]) -> Optional[Apply]:
    """The next thing to say for a node to be given back by all our runs; None where there is none."""
    there = claims(node)
    if any(each.cordons for each in there.values()) and _is_to_hold(node):
        return _hold(node)
    if there:
        return withdrawal(node, min(there))
    return withdrawal(node, HOLDER) if is_let_go(node) else None


def next_step_back(node: Mapping[str, Any], run: Run, before: Mapping[str, Claim]) -> Optional[Apply]:
    """The next thing to say until a node is claimed as before this run came: by runs that have died, or by none."""
    there = claims(node)
    if run.manager not in there:
        return None
    if [manager for manager, each in there.items() if each.cordons] == [run.manager] and _is_to_hold(node):
        return _hold(node)
    for manager, claim_before in before.items():
        now = there.get(manager)
        if manager != run.manager and now is not None and not claim_before.annotations.keys() <= now.annotations.keys():
            return Apply(manager, _said(node, now.cordons, claim_before.annotations))
    return withdrawal(node, run.manager)


def next_of_others(node: Mapping[str, Any], run: Run) -> Optional[Apply]:
    """The next thing to say until no run but this one says anything of a node."""
    others = sorted(claims(node).keys() - {run.manager})
    return withdrawal(node, others[0]) if others else None


def withdrawal(item: Mapping[str, Any], manager: str) -> Apply:
    """The next request by which a manager of ours that has a claim says less, or nothing any more."""
    item = {"apiVersion": "v1", "kind": "Node", **item}
    mine, body = claims(item, manager)[manager], said_of(item, {}, {})
    beside = [entry.get("fieldsV1") or {} for entry in _entries(item)
              if (entry.get("manager"), entry.get("operation")) != (manager, "Apply")]
    by_name = False
    if mine.cordons and item["spec"].keys() - {"unschedulable"} and not any(each.get("f:spec") for each in beside):
        body["spec"], by_name = {"unschedulable": None}, True
    if mine.annotations and _annotations(item).keys() - mine.annotations.keys() and not any(
            (each.get("f:metadata") or {}).get("f:annotations") for each in beside):
        body["metadata"]["annotations"], by_name = dict.fromkeys(mine.annotations), True
    return Apply(manager, body, by_name)


def opposite_opt_outs(node: Mapping[str, Any]) -> Tuple[str, ...]:
    """'key=value' of annotations of others that let a machine manager have the node."""
    there = _annotations(node)
    return tuple("%s=%s" % (key, there[key]) for key, value in _wanted_opt_outs(node).items()
                 if there.get(key, value) != value)


def _opt_outs(node: Mapping[str, Any]) -> Dict[str, str]:
    there = _annotations(node)
    return {key: value for key, value in _wanted_opt_outs(node).items() if there.get(key, value) == value}


def _wanted_opt_outs(node: Mapping[str, Any]) -> Dict[str, str]:
    """That of the cluster autoscaler on every node: nobody can see from a node whether there is one."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return {SCALE_DOWN_DISABLED: "true", **({DO_NOT_DISRUPT: "true"} if OF_KARPENTER in labels else {})}


def said_of(item: Mapping[str, Any], annotations: Mapping[str, str], spec: Mapping[str, Any]) -> Object:
    """An object with what one manager says of it. With its UID and its version it can make no new one, and is refused
    where somebody has changed it since."""
    metadata = item["metadata"]
    body: Object = {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": {
        key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata}}
    if annotations:
        body["metadata"]["annotations"] = dict(annotations)
    if spec:
        body["spec"] = dict(spec)
    return body


def _is_to_hold(node: Mapping[str, Any]) -> bool:
    """Whether the cordon of a hold mark is to be said before the last claim that cordons goes: the node is at no moment
    open then."""
    return is_held(node) and HOLDER not in cordoned_by_others(node)


def _hold(node: Mapping[str, Any]) -> Apply:
    return Apply(HOLDER, _said(node, True, {}))


def _said(node: Mapping[str, Any], cordons: bool, annotations: Mapping[str, str]) -> Object:
    return said_of({"apiVersion": "v1", "kind": "Node", **node}, annotations,
                   {"unschedulable": True} if cordons else {})


def _entries(item: Mapping[str, Any]) -> Any:
    return (item.get("metadata") or {}).get("managedFields") or []


def _cordons(fields: Mapping[str, Any]) -> bool:
    return "f:unschedulable" in (fields.get("f:spec") or {})


def _annotations(item: Mapping[str, Any]) -> Dict[str, str]:
    return dict((item.get("metadata") or {}).get("annotations") or {})
