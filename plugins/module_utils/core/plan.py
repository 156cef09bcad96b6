# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Step, Requirement and Plan: what will change, why, and what it disturbs. One dataclass, one JSON form, one renderer.

Everything here is pure data: planners build it, the engine carries it out, the journal records it, people read it.
"""
from __future__ import annotations

import difflib
import enum
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Collection, Dict, Iterable, List, Mapping, Sequence, Set, Tuple, Union

from .refusal import Refusal

# v1: one digest of all policies, a reboot as a step
# v2: requirements, policies and foretold
# v3: refusals have a code and an option, and no capability; what is kept is apart from notes
SCHEMA = "gpuops.nvidia/plan/v3"

# Bytes of a file that are no UTF-8, as Host reads them
_NO_TEXT = re.compile("[\udc80-\udcff]")

REBOOT = "reboot"
DRIVER = "driver"
CONFIRMATION = "confirmation"
POWER_CYCLE = "power_cycle"
REPLACEMENT = "replacement"
# What is reported and met from outside once the steps are done; the steps do not need it
AFTERWARDS = (REBOOT, CONFIRMATION, POWER_CYCLE, REPLACEMENT)


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
    depends_on: ids of the steps that must be done first.

    All but why is what an approver relies on: see promise().
    """

    capability: str
    action: str
    subject: str
    why: str
    disruption: Disruption = Disruption.none
    change: Mapping[str, Any] = field(default_factory=lambda: {"before": None, "after": None})
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reversible: bool = True
    depends_on: Tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The same on the host and in a plan that has left it, whatever bytes the subject has."""
        return str(readable("%s/%s/%s" % (self.capability, self.action, self.subject)))

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
            "depends_on": list(self.depends_on),
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
            # A record of the release before has it as 'after'
            depends_on=tuple(data["depends_on"] if "depends_on" in data else data["after"]),
        )

    def promise(self) -> Dict[str, Any]:
        """What an approval of this step is an approval of: everything that is said of it but the reason."""
        promised: Dict[str, Any] = readable(self.to_dict())
        del promised["why"]
        return promised

    def diff(self) -> Dict[str, str]:
        """The step as an entry of Ansible's diff list."""
        return _diff(self.id, self.change)


@dataclass(frozen=True)
class Requirement:
    """The end of a plan that no step can bring about: what must come from outside before the plan can go on.

    kind:       'reboot' (the host's, by the controller: no module can outlive it), 'driver' (an installed one),
                'confirmation' (by a person at the host's console), 'power_cycle' (the host's, by its management
                controller) or 'replacement' (of a part, by a person).
    subject:    what is in place once it is met.
    why:        the reason, as a sentence for a person.
    disruption: what it disturbs to meet it.
    change:     {'before': ..., 'after': ...}, as that of a step.
    """

    capability: str
    kind: str
    subject: str
    why: str
    disruption: Disruption = Disruption.none
    change: Mapping[str, Any] = field(default_factory=lambda: {"before": None, "after": None})

    @property
    def id(self) -> str:
        return "%s/%s/%s" % (self.capability, self.kind, self.subject)

    def to_dict(self) -> Dict[str, Any]:
        return {
            "id": self.id,
            "capability": self.capability,
            "kind": self.kind,
            "subject": self.subject,
            "why": self.why,
            "disruption": self.disruption.name,
            "change": dict(self.change),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Requirement:
        return cls(
            capability=data["capability"],
            kind=data["kind"],
            subject=data["subject"],
            why=data["why"],
            disruption=Disruption[data["disruption"]],
            change=dict(data["change"]),
        )

    def promise(self) -> Dict[str, Any]:
        """As Step.promise()."""
        promised = self.to_dict()
        del promised["why"]
        return promised

    def diff(self) -> Dict[str, str]:
        """The requirement as an entry of Ansible's diff list."""
        return _diff(self.id, self.change)


@dataclass(frozen=True)
class Kept:
    """What was looked at and stays as it is, though the policy might make one expect otherwise. why: as a clause."""

    subject: str
    why: str

    def __str__(self) -> str:
        return "%s: %s" % (self.subject, self.why)


@dataclass(frozen=True)
class Plan:
    """Ordered steps from an observation to a policy.

    policy and observation are digests of what the plan was made from (see digest()).

    policies:   {capability: digest of its options} of every capability that was planned, one without steps included:
                that it needs nothing is a promise too.
    foretold:   {capability: {fact: {'before', 'after'}}}: what the capabilities before it will have made of the facts
                that it was planned with. Facts that they leave alone are not in it.
    kept:       what is left alone on purpose.
    notes:      warnings: what should be known of this host beside the plan.
    waiting:    capabilities whose part of it is not complete.
    complete:   whether all that is wanted is planned. What waits for something that no step brings is told in notes,
                and a step that is missing then does not mean that its effect is there.
    may_come:   classes of what may be missing because a driver of this plan cannot be asked yet. runtime_restart stands
                for what has pods leave and disturbs no others, which is done whatever is allowed.
    leaving:    {id of a step that changes single devices: pods, 'namespace/name', that have to be off the node before};
                of other steps the disruption says all. Not promised: pods come and go.
    returns_to: {id of a step that takes one driver for another: the way back from it}: 'version', 'kernel_module',
                'source', 'how' ('archive', 'repository' or 'none') and 'why' there is none. Not promised: it is checked
                before the step, and what a repository still has then is nobody's promise.
    """

    host: str = ""
    policy: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)
    observation: str = ""
    foretold: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    steps: Tuple[Step, ...] = ()
    requirements: Tuple[Requirement, ...] = ()
    refusals: Tuple[Refusal, ...] = ()
    kept: Tuple[Kept, ...] = ()
    notes: Tuple[str, ...] = ()
    complete: bool = True
    may_come: Tuple[Disruption, ...] = ()
    waiting: Tuple[str, ...] = ()
    leaving: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    returns_to: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def disruption(self) -> Disruption:
        return max((part.disruption for part in self._parts()), default=Disruption.none)

    @property
    def reboot_required(self) -> bool:
        return any(requirement.kind == REBOOT for requirement in self.requirements)

    def promise(self) -> Dict[str, Any]:
        """What an approval of this plan is an approval of."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "policies": dict(self.policies),
            "steps": [step.promise() for step in self.steps],
            "requirements": [requirement.promise() for requirement in self.requirements],
        }

    def to_dict(self) -> Dict[str, Any]:
        return {
            "schema": SCHEMA,
            "host": self.host,
            "policy": self.policy,
            "policies": dict(self.policies),
            "observation": self.observation,
            "foretold": {name: {fact: dict(change) for fact, change in facts.items()}
                         for name, facts in self.foretold.items()},
            "disruption": self.disruption.name,
            "steps": [step.to_dict() for step in self.steps],
            "requirements": [requirement.to_dict() for requirement in self.requirements],
            "refusals": [refusal.to_dict() for refusal in self.refusals],
            "kept": [asdict(kept) for kept in self.kept],
            "notes": list(self.notes),
            "complete": self.complete,
            "may_come": [each.name for each in self.may_come],
            "waiting": list(self.waiting),
            "leaving": {step: list(pods) for step, pods in self.leaving.items()},
            "returns_to": {step: dict(way) for step, way in self.returns_to.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        if data.get("schema") != SCHEMA:
            raise ValueError("not a plan of schema %s: %r" % (SCHEMA, data.get("schema")))
        return cls(
            host=data["host"],
            policy=data["policy"],
            policies=dict(data["policies"]),
            observation=data["observation"],
            foretold={name: {fact: dict(change) for fact, change in facts.items()}
                      for name, facts in data["foretold"].items()},
            steps=tuple(Step.from_dict(step) for step in data["steps"]),
            requirements=tuple(Requirement.from_dict(requirement) for requirement in data["requirements"]),
            refusals=tuple(Refusal.from_dict(refusal) for refusal in data["refusals"]),
            kept=tuple(Kept(**kept) for kept in data["kept"]),
            notes=tuple(data["notes"]),
            complete=bool(data["complete"]),
            # A plan of the release before tells none of these
            may_come=tuple(Disruption[name] for name in data.get("may_come", ())),
            waiting=tuple(data.get("waiting", ())),
            leaving={step: tuple(pods) for step, pods in data.get("leaving", {}).items()},
            returns_to={step: dict(way) for step, way in data.get("returns_to", {}).items()},
        )

    def merged(self, other: Plan) -> Plan:
        """This plan followed by another one of the same host."""
        return Plan(
            host=self.host,
            policy=digest([self.policy, other.policy]),
            policies={**self.policies, **other.policies},
            observation=digest([self.observation, other.observation]),
            foretold={**self.foretold, **other.foretold},
            steps=self.steps + other.steps,
            requirements=self.requirements + other.requirements,
            refusals=self.refusals + other.refusals,
            kept=self.kept + other.kept,
            notes=self.notes + other.notes,
            complete=self.complete and other.complete,
            may_come=tuple(sorted({*self.may_come, *other.may_come})),
            waiting=self.waiting + other.waiting,
            leaving={**self.leaving, **other.leaving},
            returns_to={**self.returns_to, **other.returns_to},
        )

    def diff(self) -> List[Dict[str, str]]:
        return [part.diff() for part in self._parts()]

    def _parts(self) -> Tuple[Union[Step, Requirement], ...]:
        return (*self.steps, *self.requirements)


def part_of(plan: Mapping[str, Any], capability: str) -> Dict[str, Any]:
    """Of a plan as data what concerns one capability: its module needs no more, and gets no more.

    Of what is no plan of our schema, only the schema is left, to be refused by.
    """
    if plan.get("schema") != SCHEMA:
        return {"schema": plan.get("schema")}
    part = {name: plan.get(name) for name in ("schema", "host", "policy", "observation", "refusals", "complete")}
    part["kept"], part["notes"] = [], []
    part["waiting"] = [name for name in plan.get("waiting") or () if name == capability]
    for name in ("steps", "requirements"):
        listed = plan.get(name)
        part[name] = [each for each in (listed if isinstance(listed, list) else ())
                      if isinstance(each, dict) and each.get("capability") == capability]
    for name in ("policies", "foretold"):
        known = plan.get(name)
        part[name] = {capability: known[capability]} if isinstance(known, dict) and capability in known else {}
    return part


def digest(data: Any) -> str:
    """Short stable digest of JSON-able data: 16 hexadecimal digits."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()[:16]


def readable(data: Any) -> Any:
    """The data with bytes that are no UTF-8 as \\xe9: they cannot leave a host, since Ansible refuses such a result."""
    if isinstance(data, Mapping):
        return {readable(name): readable(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [readable(value) for value in data]
    if isinstance(data, str):
        return _NO_TEXT.sub(lambda found: "\\x%02x" % (ord(found.group()) - 0xDC00), data)
    return data


def canonical(data: Any) -> str:
    """One text for equal data, whether it has been JSON in between or not."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


def split_by_disruption(
    steps: Sequence[Step], allowed: Disruption
) -> Tuple[Tuple[Step, ...], Tuple[Step, ...]]:
    """(steps to do, steps put off): a step is put off when it, or one it comes after, disturbs more than allowed."""
    deferred: List[Step] = []
    ids: Set[str] = set()
    for step in steps:
        if step.disruption > allowed or ids.intersection(step.depends_on):
            deferred.append(step)
            ids.add(step.id)
    return tuple(step for step in steps if step.id not in ids), tuple(deferred)


def render(plan: Plan, put_off: Collection[str] = ()) -> str:
    """The plan as text for a person. put_off: ids of what is known not to be done: no pod leaves for it."""
    return "\n".join(["%s: %s" % (plan.host or "host", headline(plan)), *lines(plan, put_off)])


def lines(plan: Plan, put_off: Collection[str] = ()) -> List[str]:
    """What render() says below the headline."""
    told: List[str] = []
    for number, step in enumerate(plan.steps, 1):
        told.append(step_line(number, step))
        told.append("     %s" % step.why)
        told.extend("       " + line for line in change_lines(step.change))
        told.extend("     %s" % way_back(plan.returns_to[each]) for each in (step.id,) if each in plan.returns_to)
    for same in alike(plan.requirements):
        told.append("  then: " + requirement_line(same[0]))
        told.append("     %s" % same[0].why)
        changes = [line for requirement in same for line in change_lines(requirement.change)]
        told.extend("       " + line for line in dict.fromkeys(changes))
    pods = sorted({pod for step, each in plan.leaving.items() if step not in put_off for pod in each})
    if pods:
        told.append("  pods that leave before: %s" % ", ".join(pods))
    told.extend("  refused: " + refusal_line(refusal) for refusal in plan.refusals)
    told.extend("  kept: %s" % kept for kept in plan.kept)
    told.extend("  note: " + note for note in plan.notes)
    return told


def step_line(number: int, step: Step) -> str:
    return "%3d. [%s] %s %s" % (number, step.disruption.name, step.action, step.subject)


def requirement_line(requirement: Requirement) -> str:
    return "[%s] a %s for %s" % (requirement.disruption.name, requirement.kind, requirement.subject)


def refusal_line(refusal: Refusal) -> str:
    return "found %s; wanted %s; do: %s [%s]" % (refusal.found, refusal.wanted, refusal.remedy, refusal.code)


_WAYS = {"archive": "from package files on this host", "repository": "from the configured repository"}


def way_back(way: Mapping[str, Any]) -> str:
    """One of Plan.returns_to, for people."""
    if way["how"] not in _WAYS:
        return "no way back: %s" % way["why"]
    module = " with the %s kernel module" % way["kernel_module"] if way["kernel_module"] else ""
    return "returns to: driver %s%s of %s, %s" % (way["version"], module, way["source"], _WAYS[way["how"]])


def alike(requirements: Sequence[Requirement]) -> Iterable[Sequence[Requirement]]:
    """Those that one act from outside meets, together: driver and activation wait for the same reboot."""
    groups: Dict[Tuple[str, str, Disruption], List[Requirement]] = {}
    for each in requirements:
        groups.setdefault((each.kind, each.subject, each.disruption), []).append(each)
    return groups.values()


def headline(plan: Plan) -> str:
    """What a plan comes to, in a few words."""
    if plan.refusals:
        return "refused"
    count = len(plan.steps)
    parts = ["%d step%s" % (count, "" if count == 1 else "s")] if count else []
    parts += ["a " + kind for kind in sorted({requirement.kind for requirement in plan.requirements})]
    if not parts:
        return "nothing to do" if plan.complete else "nothing to do yet"
    return "%s, disruption %s" % (" and ".join(parts), plan.disruption.name)


def _diff(name: str, change: Mapping[str, Any]) -> Dict[str, str]:
    return {
        "before_header": name,
        "after_header": name,
        "before": _as_text(change.get("before")),
        "after": _as_text(change.get("after")),
    }


def change_lines(change: Mapping[str, Any]) -> Iterable[str]:
    """What differs between before and after, a line each."""
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
