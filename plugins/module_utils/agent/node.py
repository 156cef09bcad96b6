# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host says of its GPUs on its own Node, where no node-problem-detector does, and what is left to say. Pure.

With the kubelet's credential a host may change its own Node alone, and of that neither taints nor ownerReferences, but
conditions, annotations and spec.unschedulable (kubernetes v1.34.4, plugin/pkg/admission/noderestriction/admission.go).

A condition is written when it changes, and again after HEARTBEAT_SECONDS, by which a reader sees that it is alive.
What is unknown is told as unknown.

The cordon is a claim as those of custody are (cluster/custody/claims.py): said by server-side apply as a field manager
of its own, so that it goes alone, and whatever others have cordoned stays so. It begins with what is sick, or
with a driver that asks for no new work (nvidia-smi(1), "GPU Recovery Action": "Drain P2P", "Drain and Reset"), and ends
when the host knows that nothing is so; what is unknown neither begins nor ends it. Who uncordons the node means it: it
is cordoned again only for what was not so by then. A hold mark keeps it cordoned.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

from ..cluster.custody.claims import Apply, claims, said_of, withdrawal
from ..cluster.labels import HEALTH_CORDON, HEALTH_FINDINGS, HEALTH_MANAGER, HOLD
from ..core import boot_record
from ..core.times import epoch, written
from ..health.catalogue import PENDING, SICK
from ..health.ledger import ACTION
from ..health.problems import CONDITIONS, PROBLEM, UNKNOWN, WELL, judged, plain
from ..health.summary import SCHEMA

# Less than the five minutes after which a kubelet writes a status that has not changed
HEARTBEAT_SECONDS = 240
_STATUSES = {WELL: "False", PROBLEM: "True", UNKNOWN: "Unknown"}
_OF_SICK, _OF_PENDING = "GpuSick", "GpuResetPending"
_UNKNOWN_REASON = "GpuHealthUnknown"
# Of a host that its boot has left as one that may take no work, and that is no fault of a GPU as far as anybody knows
_BOOT_REASON, _BOOT_KEY = "GpuHostNotValidated", "boot"
_SAME_CLOCK_SECONDS = 5.0

Object = Dict[str, Any]


@dataclass(frozen=True)
class Condition:
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """What there is to say.

    conditions: {type: condition}.
    sick:       keys of the findings for which the node should get no new work, and that of a boot that has failed.
    is_known:   whether nothing else may be so.
    """

    conditions: Mapping[str, Condition]
    sick: FrozenSet[str]
    is_known: bool

    @property
    def why(self) -> str:
        is_sick = self.conditions[_OF_SICK].status == _STATUSES[PROBLEM]
        return self.conditions[_OF_SICK if is_sick else _OF_PENDING].message


def report_of(data: Any, boot: str, of_boot: Mapping[str, Any], now: float, stale_seconds: float) -> Report:
    """data: the summary of the host's health, None without one. boot: id of this boot. of_boot: what became of it.
    now: seconds since the epoch."""
    try:
        trouble = _trouble(data, boot, now, stale_seconds)
        found = dict.fromkeys(CONDITIONS, (UNKNOWN, trouble)) if trouble else judged(data)
        findings = [] if trouble else data["findings"]
        sick = {str(each["key"]) for each in findings if each["kind"] == SICK}
        closed = {str(each["key"]) for each in findings if each["kind"] == PENDING and each["code"] == ACTION}
    except (KeyError, TypeError, AttributeError, ValueError):
        found, sick = dict.fromkeys(CONDITIONS, (UNKNOWN, "the host's health cannot be understood")), set()
        closed = set()
    conditions = {name: Condition(_STATUSES[code], _reason(name, code), message)
                  for name, (code, message) in found.items()}
    failed, is_known = _of_boot(of_boot), found[_OF_SICK][0] != UNKNOWN
    if of_boot.get("state") == boot_record.WORKING:
        # What the boot before it has left ends once this one has
        is_known = False
        if not sick:
            conditions[_OF_SICK] = Condition(_STATUSES[UNKNOWN], _UNKNOWN_REASON, "the host is being validated")
    if failed:
        message = "%s; %s" % (failed, found[_OF_SICK][1]) if sick else failed
        conditions[_OF_SICK] = Condition(_STATUSES[PROBLEM], _BOOT_REASON, plain(message))
        # Another boot that fails is another finding
        sick.add("%s %s" % (_BOOT_KEY, boot))
    return Report(conditions, frozenset(sick | closed), is_known)


def _trouble(data: Any, boot: str, now: float, stale_seconds: float) -> str:
    """Why a summary says nothing of now, '' where it does."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        return "gpuops has not looked at this host's GPUs since it booted"
    if data["boot"] != boot:
        return "gpuops has not looked at this host's GPUs since it booted"
    # A clock that was set back makes it of the future, and of any age
    if not -_SAME_CLOCK_SECONDS <= now - data["looked"] <= stale_seconds:
        return "stale: gpuops has not looked at this host's GPUs in time"
    return ""


def _reason(name: str, code: int) -> str:
    _kind, problem, reason, _message = CONDITIONS[name]
    return {WELL: reason, PROBLEM: problem}.get(code, _UNKNOWN_REASON)


def _of_boot(found: Mapping[str, Any]) -> str:
    """Why the host is not validated since its boot, '' where it is or nobody has asked."""
    if found.get("state") != boot_record.FAILED:
        return ""
    return plain("the boot has failed: %s" % " ".join(str(found.get("reason") or "no reason was told").split()))


# The conditions


def status_patch(node: Mapping[str, Any], report: Report, now: float) -> Optional[Object]:
    """A strategic merge patch of the Node's status; None where it says so already, and not long ago."""
    there = {each.get("type"): each for each in _conditions(node)}
    changed = [_changed(name, condition, there.get(name), now) for name, condition in report.conditions.items()]
    if not any(is_due for is_due, _written in changed):
        return None
    return {"status": {"conditions": [said for _is_due, said in changed]}}


def _changed(name: str, condition: Condition, before: Optional[Mapping[str, Any]], now: float) -> Tuple[bool, Object]:
    """(whether it has to be written, as it is then)."""
    said = {"status": condition.status, "reason": condition.reason, "message": condition.message}
    before = before or {}
    is_same = all(before.get(key) == value for key, value in said.items())
    since = before.get("lastTransitionTime") if before.get("status") == condition.status else None
    whole = {"type": name, **said, "lastHeartbeatTime": written(now), "lastTransitionTime": since or written(now)}
    return not (is_same and _is_alive(before, now)), whole


def _is_alive(condition: Mapping[str, Any], now: float) -> bool:
    try:
        return 0 <= now - epoch(str(condition.get("lastHeartbeatTime"))) < HEARTBEAT_SECONDS
    except ValueError:
        return False


def status_without(node: Mapping[str, Any]) -> Optional[Object]:
    """A strategic merge patch that takes the conditions away; None where there are none."""
    there = [each.get("type") for each in _conditions(node) if each.get("type") in CONDITIONS]
    return {"status": {"conditions": [{"type": name, "$patch": "delete"} for name in there]}} if there else None


def _conditions(node: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    return list((node.get("status") or {}).get("conditions") or [])


# The cordon


def next_claim(node: Mapping[str, Any], report: Report, cordons: bool) -> Optional[Apply]:
    """The next thing to say of the Node; None where it is said already. cordons: whether the host may cordon it."""
    mine = claims(node, HEALTH_MANAGER).get(HEALTH_MANAGER)
    if mine is None:
        return _claim(node, report, True) if cordons and report.sick else None
    if mine.cordons and _is_held(node) and not (cordons and report.sick):
        return None
    if not cordons:
        return withdrawal(node, HEALTH_MANAGER)
    if not report.sick:
        return withdrawal(node, HEALTH_MANAGER) if report.is_known else None
    recorded = _recorded(mine.annotations.get(HEALTH_FINDINGS, ""))
    new = report.sick - recorded
    # What may still be so is not new when it is seen again
    whole = report if report.is_known else replace(report, sick=report.sick | recorded)
    said = _claim(node, whole, mine.cordons or bool(new))
    wanted = dict(said.body["metadata"]["annotations"])
    return None if wanted == dict(mine.annotations) and mine.cordons == ("spec" in said.body) else said


def last_claim(node: Mapping[str, Any]) -> Optional[Apply]:
    """The next request by which a host that looks at its GPUs no more takes back what it has said. A cordon that is to
    stay, stays."""
    mine = claims(node, HEALTH_MANAGER).get(HEALTH_MANAGER)
    return None if mine is None or (mine.cordons and _is_held(node)) else withdrawal(node, HEALTH_MANAGER)


def is_ours(node: Mapping[str, Any]) -> bool:
    """Whether this host says the cordon that there is."""
    mine = claims(node, HEALTH_MANAGER).get(HEALTH_MANAGER)
    return mine is not None and mine.cordons


def _claim(node: Mapping[str, Any], report: Report, cordons: bool) -> Apply:
    why = "%s. The host itself cordons the node until that is mended." % report.why
    return Apply(HEALTH_MANAGER, said_of(
        {"apiVersion": "v1", "kind": "Node", **node},
        {HEALTH_CORDON: why, HEALTH_FINDINGS: json.dumps(sorted(report.sick))},
        {"unschedulable": True} if cordons else {}))


def _recorded(text: str) -> FrozenSet[str]:
    """For what it was cordoned; nothing where that cannot be read, so that it is cordoned again rather than not."""
    try:
        found = json.loads(text)
    except ValueError:
        return frozenset()
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def _is_held(node: Mapping[str, Any]) -> bool:
    return HOLD in ((node.get("metadata") or {}).get("annotations") or {})
