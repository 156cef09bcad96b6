# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Step and Plan: what will change, why, and what it disturbs. One dataclass, one JSON form, one renderer.

Everything here is pure data: planners build it, the engine carries it out, the journal records it, people read it.
"""
from __future__ import annotations

import difflib
import enum
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

SCHEMA = "gpuops.nvidia/plan/v1"


class Disruption(enum.IntEnum):
    """What a step disturbs, ordered: a host's plan is as disruptive as its worst step."""

    none = 0
    service_restart = 1
    runtime_restart = 2
    gpu_reset = 3
    driver_reload = 4
    reboot = 5

    @classmethod
    def names(cls) -> List[str]:
        return [member.name for member in cls]


@dataclass(frozen=True)
class Step:
    """One change.

    capability: who plans and applies it ('driver', 'runtime' ...).
    action:     what is done, as 'noun.verb' ('file.write', 'packages.install', 'module.load').
    subject:    what it is done to (a path, a package set, a unit).
    why:        the reason, as a sentence for a person.
    disruption: what it disturbs while it is done.
    change:     {'before': ..., 'after': ...}: text of a file or None, or {name: value} for sets.
    parameters: what the executor needs beyond the change (mode, argv); part of the plan, not of its diff.
    reversible: whether the state before can be restored.
    after:      ids of the steps that must be done first.
    """

    capability: str
    action: str
    subject: str
    why: str
    disruption: Disruption = Disruption.none
    change: Mapping[str, Any] = field(default_factory=lambda: {"before": None, "after": None})
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reversible: bool = True
    after: Tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return "%s/%s/%s" % (self.capability, self.action, self.subject)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "id": self.id,
            "capability": self.capability,
            "action": self.action,
            "subject": self.subject,
            "why": self.why,
            "disruption": self.disruption.name,
            "change": dict(self.change),
            "parameters": dict(self.parameters),
            "reversible": self.reversible,
            "after": list(self.after),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        return cls(
            capability=data["capability"],
            action=data["action"],
            subject=data["subject"],
            why=data["why"],
            disruption=Disruption[data["disruption"]],
            change=dict(data["change"]),
            parameters=dict(data.get("parameters", {})),
            reversible=bool(data["reversible"]),
            after=tuple(data["after"]),
        )

    def diff(self) -> Dict[str, str]:
        """The step as an entry of Ansible's diff list."""
        return {
            "before_header": self.id,
            "after_header": self.id,
            "before": _as_text(self.change.get("before")),
            "after": _as_text(self.change.get("after")),
        }


@dataclass(frozen=True)
class Refusal:
    """Why a policy cannot be carried out on this host; nothing is written while one stands."""

    capability: str
    found: str
    wanted: str
    remedy: str

    def to_dict(self) -> Dict[str, str]:
        return {"capability": self.capability, "found": self.found, "wanted": self.wanted, "remedy": self.remedy}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Refusal:
        return cls(data["capability"], data["found"], data["wanted"], data["remedy"])


@dataclass(frozen=True)
class Plan:
    """Ordered steps from an observation to a policy.

    policy and observation are digests of what the plan was made from (see digest()).
    """

    host: str = ""
    policy: str = ""
    observation: str = ""
    steps: Tuple[Step, ...] = ()
    refusals: Tuple[Refusal, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def disruption(self) -> Disruption:
        return max((step.disruption for step in self.steps), default=Disruption.none)

    def of(self, capability: str) -> Tuple[Step, ...]:
        """The steps of one capability, in order."""
        return tuple(step for step in self.steps if step.capability == capability)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "schema": SCHEMA,
            "host": self.host,
            "policy": self.policy,
            "observation": self.observation,
            "disruption": self.disruption.name,
            "steps": [step.to_dict() for step in self.steps],
            "refusals": [refusal.to_dict() for refusal in self.refusals],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        if data.get("schema") != SCHEMA:
            raise ValueError("not a plan of schema %s: %r" % (SCHEMA, data.get("schema")))
        return cls(
            host=data["host"],
            policy=data["policy"],
            observation=data["observation"],
            steps=tuple(Step.from_dict(step) for step in data["steps"]),
            refusals=tuple(Refusal.from_dict(refusal) for refusal in data["refusals"]),
            notes=tuple(data["notes"]),
        )

    def merged(self, other: Plan) -> Plan:
        """This plan followed by another one of the same host."""
        return Plan(
            host=self.host,
            policy=digest([self.policy, other.policy]),
            observation=digest([self.observation, other.observation]),
            steps=self.steps + other.steps,
            refusals=self.refusals + other.refusals,
            notes=self.notes + other.notes,
        )

    def diff(self) -> List[Dict[str, str]]:
        return [step.diff() for step in self.steps]


def digest(data: Any) -> str:
    """Short stable digest of JSON-able data: 16 hexadecimal digits."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def split_by_disruption(
    steps: Sequence[Step], allowed: Disruption
) -> Tuple[Tuple[Step, ...], Tuple[Step, ...]]:
    """(steps to do, steps put off): a step is put off when it, or one it comes after, disturbs more than allowed."""
    put_off: List[Step] = []
    ids: Set[str] = set()
    for step in steps:
        if step.disruption > allowed or ids.intersection(step.after):
            put_off.append(step)
            ids.add(step.id)
    return tuple(step for step in steps if step.id not in ids), tuple(put_off)


def render(plan: Plan) -> str:
    """The plan as text for a person."""
    lines = ["%s: %s" % (plan.host or "host", _headline(plan))]
    for number, step in enumerate(plan.steps, 1):
        lines.append("%3d. [%s] %s %s" % (number, step.disruption.name, step.action, step.subject))
        lines.append("     %s" % step.why)
        lines.extend("       " + line for line in _change_lines(step.change))
    for refusal in plan.refusals:
        lines.append("  refused (%s): found %s; wanted %s; do: %s"
                     % (refusal.capability, refusal.found, refusal.wanted, refusal.remedy))
    lines.extend("  note: " + note for note in plan.notes)
    return "\n".join(lines)


def _headline(plan: Plan) -> str:
    if plan.refusals:
        return "refused"
    if not plan.steps:
        return "nothing to do"
    count = len(plan.steps)
    return "%d step%s, disruption %s" % (count, "" if count == 1 else "s", plan.disruption.name)


def _change_lines(change: Mapping[str, Any]) -> Iterable[str]:
    before, after = change.get("before"), change.get("after")
    if isinstance(before, dict) or isinstance(after, dict):
        before, after = before or {}, after or {}
        for key in sorted(set(before) | set(after)):
            if before.get(key) != after.get(key):
                yield "%s: %s -> %s" % (key, _value(before.get(key)), _value(after.get(key)))
        return
    old, new = _as_text(before).splitlines(), _as_text(after).splitlines()
    for line in difflib.unified_diff(old, new, lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _value(value: Any) -> str:
    return "absent" if value is None else str(value)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
