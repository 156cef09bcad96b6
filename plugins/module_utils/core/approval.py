# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What somebody approved, and whether what is needed now is that or less. Pure.

Approved is a plan as a whole: its host, each capability's policy, and of every step and requirement all that promise()
names. What may differ later: a step is gone because its effect is there, with it the order after it; of a set of things
(packages, device nodes) those are gone that are as they should be; and a step disturbs less. Everything else needs a
new approval. A capability that had no steps was approved to have none, but for waiting for what has begun without it: a
daemon that starts with its host, GPUs that register once their driver is loaded.
"""
from __future__ import annotations

from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Sequence, Set, Tuple, Union

from .errors import GpuOpsError
from .facts import NEVER_READ, HostFacts
from .plan import SCHEMA, Disruption, Plan, Requirement, Step, canonical, part_of
from .refusal import Refusal

REMEDY = "make a new plan, read it and approve that one"
AS_IT_WAS = "a host that is as it was when the plan was approved"

# Parameters that go with the things of a set, each of which is a promise of its own (see steps.packages_step)
OF_EACH = ("request", "automatic")
# Those that say where packages come from and what takes them away: what comes and goes is what was approved, whether a
# repository has it or the host, so that one which is gone meanwhile stops no approved plan
OF_THE_WAY = ("files", "without", "by_dpkg")

# The actions of such steps end so
WAITS = ".wait"

Foretold = Mapping[str, Mapping[str, Any]]


def read_approved(data: Mapping[str, Any], capability: str = "") -> Plan:
    """The approved plan of its JSON form, or the part of one capability. GpuOpsError when it is none of ours."""
    if data.get("schema") != SCHEMA:
        raise GpuOpsError(
            "approval.other_schema",
            found="an approved plan of schema %s" % (data.get("schema") or "unknown"), wanted=SCHEMA, remedy=REMEDY)
    try:
        return Plan.from_dict(part_of(data, capability) if capability else data)
    except (KeyError, TypeError, ValueError, AttributeError) as broken:
        raise GpuOpsError(
            "approval.unreadable",
            found="an approved plan that cannot be read (%s: %s)" % (type(broken).__name__, broken),
            wanted="a plan as `gpu_plan` returned it, whole", remedy=REMEDY) from broken


def differences(plan: Plan, approved: Plan) -> Tuple[Refusal, ...]:
    """Why the plan that is needed now is not covered by the approved one; empty when it is."""
    if approved.refusals:
        first = approved.refusals[0]
        return (Refusal("approval.of_a_refusal", "the approved plan was a refusal: %s" % first.found,
                        "a plan that can be carried out", first.remedy, first.option),)
    if plan.host != approved.host:
        return (Refusal("approval.of_another_host",
                        "the approved plan is that of host '%s', and this is '%s'" % (approved.host, plan.host),
                        "the plan of this host", REMEDY),)
    others = tuple(_policies(plan, approved))
    if others:
        return others
    return (*_of_parts(plan.steps, approved.steps), *_of_parts(plan.requirements, approved.requirements),
            *_order(plan.steps, approved.steps))


def facts_foretold(before: HostFacts, after: HostFacts) -> Dict[str, Dict[str, Any]]:
    """{fact: {'before', 'after'}} of the facts that differ."""
    old, new = before.to_dict(), after.to_dict()
    return {name: {"before": old[name], "after": new[name]} for name in sorted(new) if old[name] != new[name]}


def foretold_facts(facts: HostFacts, foretold: Foretold) -> HostFacts:
    """The facts as they will be once those who foretold a change have acted; what has changed otherwise stays."""
    now = facts.to_dict()
    return facts.but(**{name: change["after"] for name, change in foretold.items()
                        if name in now and canonical(now[name]) == canonical(change["before"])})


def as_foretold(facts: HostFacts, foretold: Foretold) -> bool:
    """Whether the facts are those that the plan was made with, as far as a host can be read for them."""
    now = facts.to_dict()
    return all(name in now and canonical(now[name]) == canonical(change["after"])
               for name, change in foretold.items() if name not in NEVER_READ)


def _policies(plan: Plan, approved: Plan) -> Iterator[Refusal]:
    for capability in sorted({*plan.policies, *approved.policies}):
        if capability not in approved.policies:
            yield Refusal("approval.capability_missing", "the approved plan says nothing of %s" % capability,
                          "a plan with everything that is to be done", REMEDY)
        elif capability not in plan.policies:
            yield Refusal("approval.capability_not_wanted",
                          "the approved plan has %s too, which is not wanted now" % capability,
                          "a plan of what is to be done, and of nothing else", REMEDY)
        elif plan.policies[capability] != approved.policies[capability]:
            yield Refusal("approval.of_other_options",
                          "the options of %s are others than those of the approved plan" % capability,
                          "the policy that the plan was approved for", REMEDY)


def _of_parts(
    needed: Sequence[Union[Step, Requirement]], approved: Sequence[Union[Step, Requirement]]
) -> Iterator[Refusal]:
    known = {part.id: part for part in approved}
    pending = {part.id for part in needed}
    earlier = _earlier(approved)
    for part in needed:
        what = "requirement" if isinstance(part, Requirement) else "step"
        if part.id not in known:
            if isinstance(part, Step) and part.action.endswith(WAITS) and part.disruption is Disruption.none:
                continue
            yield Refusal("approval.step_not_approved", "%s %s is needed now, and the approved plan has no such %s"
                          % (what, part.id, what), AS_IT_WAS, REMEDY)
            continue
        broken = _broken(part.promise(), known[part.id].promise(), pending, earlier[part.id])
        if broken:
            yield Refusal("approval.step_differs",
                          "%s %s is needed now, and differs from that of the approved plan in its %s"
                          % (what, part.id, ", ".join(broken)), AS_IT_WAS, REMEDY)


def _earlier(approved: Sequence[Union[Step, Requirement]]) -> Dict[str, Set[str]]:
    """{id: ids of all that is done before it}: what it depends on, and what those depend on."""
    earlier: Dict[str, Set[str]] = {}
    for part in approved:
        direct = part.depends_on if isinstance(part, Step) else ()
        earlier[part.id] = {*direct, *(name for each in direct for name in earlier.get(each, ()))}
    return earlier


def _broken(
    now: Mapping[str, Any], approved: Mapping[str, Any], pending: AbstractSet[str], earlier: AbstractSet[str]
) -> List[str]:
    """Names of what was promised and is not kept, as 'parameters.record.ours'.

    pending: ids of what is needed now. earlier: of what the approved plan has before this one; where a step in between
    is gone, it depends on them itself.
    """
    broken = []
    now, approved = ({**each, "parameters": _of_things(each["parameters"], approved["change"].get("after"))}
                     if "parameters" in each else each for each in (now, approved))
    for name in now:
        if name == "disruption":
            kept = Disruption[now[name]] <= Disruption[approved[name]]
        elif name == "depends_on":
            kept = set(now[name]) <= earlier and set(approved[name]) & pending <= set(now[name])
        elif name in ("change", "parameters"):
            kept = set(now[name]) == set(approved[name]) and all(
                _same_or_less(now[name][key], approved[name][key]) if name == "change" or key in OF_EACH
                else canonical(now[name][key]) == canonical(approved[name][key]) for key in now[name])
        else:
            kept = canonical(now[name]) == canonical(approved[name])
        if not kept:
            broken += ["%s (%s -> %s)" % (name, approved[name], now[name])] if name == "disruption" else _where(
                approved[name], now[name], name)
    return broken


def _where(approved: Any, now: Any, place: str) -> List[str]:
    """The places in which two values differ. Their contents may be long, or nobody's to read."""
    if isinstance(approved, Mapping) and isinstance(now, Mapping):
        return [each for name in sorted({*approved, *now}) if canonical(approved.get(name)) != canonical(now.get(name))
                for each in _where(approved.get(name), now.get(name), "%s.%s" % (place, name))]
    return [place]


def _of_things(parameters: Mapping[str, Any], coming: Any) -> Mapping[str, Any]:
    """What is promised of packages wherever they come from. What only follows from others is asked for by name where it
    comes from a file; it is promised by the change itself.

    coming: {package: version} that was approved.
    """
    if "manager" not in parameters:
        return parameters
    files = parameters.get("files", {})
    follows = {name for name in parameters.get("automatic", ()) if name in files
               and coming.get(name) == parameters["request"].get(name)}
    told = {name: value for name, value in parameters.items() if name not in OF_THE_WAY}
    return {**told, "request": {name: version for name, version in told["request"].items() if name not in follows},
            "automatic": [name for name in told["automatic"] if name not in follows]} if follows else told


def _same_or_less(now: Any, approved: Any) -> bool:
    """Whether a set has nothing that the approved one has not, or anything else is the same."""
    if isinstance(now, Mapping) and isinstance(approved, Mapping):
        return all(key in approved and canonical(value) == canonical(approved[key]) for key, value in now.items())
    if isinstance(now, (list, tuple)) and isinstance(approved, (list, tuple)):
        return {canonical(each) for each in now} <= {canonical(each) for each in approved}
    return canonical(now) == canonical(approved)


def _order(needed: Sequence[Step], approved: Sequence[Step]) -> Iterator[Refusal]:
    place = {step.id: number for number, step in enumerate(approved)}
    known = [step for step in needed if step.id in place]
    for first, second in zip(known, known[1:]):
        if place[first.id] > place[second.id]:
            yield Refusal("approval.order_differs", "step %s comes before %s now, and after it in the approved plan"
                          % (first.id, second.id), AS_IT_WAS, REMEDY)
