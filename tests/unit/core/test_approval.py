# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An approval covers exactly what was approved, or less of it: for random plans and random changes of them."""
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Dict, List, Tuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import (
    as_foretold,
    differences,
    facts_foretold,
    foretold_facts,
    read_approved,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    SCHEMA,
    Disruption,
    Plan,
    Requirement,
    Step,
    digest,
    part_of,
    readable,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step

CAPABILITIES = ("nouveau", "driver", "cdi")
words = st.text("abcdé/. ", min_size=1, max_size=6)
texts = st.none() | words
changes = st.fixed_dictionaries({"before": texts, "after": texts}) | st.fixed_dictionaries(
    {"before": st.dictionaries(words, texts, max_size=3), "after": st.dictionaries(words, texts, max_size=3)})


@st.composite
def plans(draw: Any) -> Plan:
    """A plan as planners make it: ids are unique, and a step comes after steps before it."""
    steps: List[Step] = []
    for number in range(draw(st.integers(1, 5))):
        after = draw(st.lists(st.sampled_from([step.id for step in steps]), unique=True)) if steps else []
        steps.append(Step(
            draw(st.sampled_from(CAPABILITIES)), draw(words), "%d %s" % (number, draw(words)), draw(words),
            draw(st.sampled_from(Disruption)), draw(changes), draw(st.dictionaries(words, words, max_size=2)),
            draw(st.booleans()), tuple(after)))
    requirements = tuple(Requirement(draw(st.sampled_from(CAPABILITIES)), "reboot", "%d" % number, draw(words),
                                     draw(st.sampled_from(Disruption)), draw(changes))
                         for number in range(draw(st.integers(0, 2))))
    return Plan(host=draw(words), policy=draw(words), policies={name: draw(words) for name in CAPABILITIES},
                steps=tuple(steps), requirements=requirements, notes=tuple(draw(st.lists(words, max_size=1))))


def other(value: Any) -> Any:
    return "another" if value is None else value + "x"


def with_step(plan: Plan, index: int, **fields: Any) -> Plan:
    steps = list(plan.steps)
    steps[index] = replace(steps[index], **fields)
    return replace(plan, steps=tuple(steps))


def with_requirement(plan: Plan, index: int, **fields: Any) -> Plan:
    parts = list(plan.requirements)
    parts[index] = replace(parts[index], **fields)
    return replace(plan, requirements=tuple(parts))


def mutations(plan: Plan) -> Dict[str, Callable[[], Plan]]:
    """Every single change of something promised that asks for something else, or for more, than was promised."""
    found: Dict[str, Callable[[], Plan]] = {
        "host": lambda: replace(plan, host=other(plan.host)),
        "a further step": lambda: replace(plan, steps=(*plan.steps, Step("driver", "new", "new", ""))),
        "a further requirement": lambda: replace(plan, requirements=(
            *plan.requirements, Requirement("driver", "reboot", "new", ""))),
        "a further policy": lambda: replace(plan, policies={**plan.policies, "runtime": "x"}),
    }
    for name in plan.policies:
        found["policy of " + name] = lambda name=name: replace(
            plan, policies={**plan.policies, name: other(plan.policies[name])})
        found["no policy of " + name] = lambda name=name: replace(
            plan, policies={key: value for key, value in plan.policies.items() if key != name})
    for number, step in enumerate(plan.steps):
        for field in ("capability", "action", "subject"):
            found["%d %s" % (number, field)] = lambda number=number, step=step, field=field: with_step(
                plan, number, **{field: other(getattr(step, field))})
        found["%d change" % number] = lambda number=number, step=step: with_step(
            plan, number, change={**step.change, "after": {"one": "more"}})
        for side, value in step.change.items():
            for key in value if isinstance(value, dict) else ():
                found["%d %s of %s" % (number, side, key)] = lambda number=number, step=step, side=side, key=key: (
                    with_step(plan, number, change={
                        **step.change, side: {**step.change[side], key: other(step.change[side][key])}}))
        found["%d parameters" % number] = lambda number=number, step=step: with_step(
            plan, number, parameters={**step.parameters, "one": "more"})
        found["%d reversible" % number] = lambda number=number, step=step: with_step(
            plan, number, reversible=not step.reversible)
        found["%d after, more" % number] = lambda number=number, step=step: with_step(
            plan, number, depends_on=(*step.depends_on, "another"))
        for level in Disruption:
            if level > step.disruption:
                found["%d %s" % (number, level.name)] = lambda number=number, level=level: with_step(
                    plan, number, disruption=level)
        for gone in step.depends_on:
            found["%d not after %s" % (number, gone)] = lambda number=number, step=step, gone=gone: with_step(
                plan, number, depends_on=tuple(each for each in step.depends_on if each != gone))
        if number:
            order = (*plan.steps[:number - 1], step, plan.steps[number - 1], *plan.steps[number + 1:])
            found["%d earlier" % number] = lambda order=order: replace(plan, steps=order)
    for number, requirement in enumerate(plan.requirements):
        for field in ("capability", "kind", "subject"):
            found["requirement %d %s" % (number, field)] = lambda number=number, part=requirement, field=field: (
                with_requirement(plan, number, **{field: other(getattr(part, field))}))
        found["requirement %d change" % number] = lambda number=number, part=requirement: with_requirement(
            plan, number, change={**part.change, "after": {"one": "more"}})
        for level in Disruption:
            if level > requirement.disruption:
                found["requirement %d %s" % (number, level.name)] = lambda number=number, level=level: (
                    with_requirement(plan, number, disruption=level))
    return found


def fewer(value: Any, draw: Any) -> Any:
    """Some of a set of things; a text is one thing."""
    return {key: each for key, each in value.items() if draw(st.booleans())} if isinstance(value, dict) else value


def through_json(plan: Plan) -> Plan:
    return read_approved(json.loads(json.dumps(plan.to_dict())))


@given(plans())
def test_a_plan_covers_itself_whatever_its_reasons_and_notes(plan: Plan) -> None:
    told = replace(plan, notes=("another",), observation="another", policy="another",
                   steps=tuple(replace(step, why="in other words") for step in plan.steps))
    assert differences(told, through_json(plan)) == ()
    assert digest(told.promise()) == digest(plan.promise())


def test_bytes_that_are_no_text_are_covered_where_the_plan_has_left_the_host() -> None:
    first = Step("runtime", "file.edit", "/etc/containerd/conf.d/caf\udce9.toml", "", change={
        "before": {"caf\udce9": "a\udce9"}, "after": {"caf\udce9": "b\udce9"}})
    second = Step("runtime", "service.restart", "containerd.service", "", depends_on=(first.id,))
    plan = Plan(host="h", steps=(first, second))
    approved = through_json(Plan.from_dict(readable(plan.to_dict())))
    assert "\udce9" not in str(approved.to_dict()) and digest(approved.promise()) == digest(plan.promise())
    assert differences(plan, approved) == ()
    assert differences(replace(plan, steps=(first, replace(second, depends_on=()))), approved)


def test_what_is_gone_in_between_leaves_the_order_after_it() -> None:
    first = Step("driver", "module.load", "a", "")
    second = Step("driver", "module.load", "b", "", depends_on=(first.id,))
    third = Step("driver", "module.load", "c", "", depends_on=(second.id,))
    approved = Plan(host="h", steps=(first, second, third))
    assert differences(replace(approved, steps=(first, replace(third, depends_on=(first.id,)))), approved) == ()
    assert differences(replace(approved, steps=(first, replace(second, depends_on=(third.id,)))), approved)


@given(plans())
def test_every_single_change_of_what_was_promised_is_refused(plan: Plan) -> None:
    approved = through_json(plan)
    for name, mutated in mutations(plan).items():
        assert differences(mutated(), approved), name
        assert digest(mutated().promise()) != digest(plan.promise()), name


@given(plans(), st.data())
def test_what_is_done_already_may_be_missing(plan: Plan, data: Any) -> None:
    left = [step for step in plan.steps if data.draw(st.booleans())]
    ids = {step.id for step in left}
    now = tuple(replace(
        step, depends_on=tuple(name for name in step.depends_on if name in ids or data.draw(st.booleans())),
        change={side: fewer(value, data.draw) for side, value in step.change.items()},
        disruption=Disruption(data.draw(st.integers(0, step.disruption)))) for step in left)
    requirements = tuple(each for each in plan.requirements if data.draw(st.booleans()))
    assert differences(replace(plan, steps=now, requirements=requirements), through_json(plan)) == ()


@given(plans(), st.sampled_from(CAPABILITIES))
def test_the_part_of_a_capability_holds_it_and_tells_nothing_else(plan: Plan, name: str) -> None:
    mine = replace(plan, policies={name: plan.policies[name]},
                   steps=tuple(step for step in plan.steps if step.capability == name),
                   requirements=tuple(each for each in plan.requirements if each.capability == name))
    part = part_of(json.loads(json.dumps(plan.to_dict())), name)
    assert differences(mine, read_approved(part, name)) == ()
    assert {each["capability"] for each in part["steps"] + part["requirements"]} <= {name}
    assert set(part["policies"]) == {name}
    other_steps = [step for step in plan.steps if step.capability != name]
    assume(other_steps)
    assert differences(replace(mine, steps=mine.steps + (other_steps[0],)), read_approved(part, name))


def test_packages_that_came_meanwhile_are_not_asked_for_again_and_others_are_no_part_of_it() -> None:
    def packages(**versions: str) -> Plan:
        step = packages_step("toolkit", "toolkit 1", dict.fromkeys(versions), versions, "", request=versions,
                             automatic=sorted(versions), manager="apt", allow_downgrade=False)
        return Plan(host="h", policies={"toolkit": "p"}, steps=(step,))

    approved = through_json(packages(toolkit="1", dependency="2"))
    assert differences(packages(toolkit="1"), approved) == ()
    for now in (packages(toolkit="1", kernel="6"), packages(toolkit="2")):
        assert "in its change" in differences(now, approved)[0].found
    step = packages(toolkit="1").steps[0]
    for name, value in (("allow_downgrade", True), ("automatic", ["kernel"]), ("request", {"kernel": "6"})):
        worse = replace(step, parameters={**step.parameters, name: value})
        assert "in its parameters" in differences(replace(approved, steps=(worse,)), approved)[0].found


@pytest.mark.parametrize("name, now, said", [
    ("disruption", {"disruption": Disruption.driver_reload}, "in its disruption (none -> driver_reload)"),
    ("change", {"change": {"before": None, "after": "y"}}, "in its change.after"),
    ("subject", {"subject": "/z"}, "no such step"),
])
def test_the_difference_is_named(name: str, now: Dict[str, Any], said: str) -> None:
    step = Step("driver", "file.write", "/x", "", change={"before": None, "after": "x"})
    approved = Plan(host="h", policies={"driver": "p"}, steps=(step,))
    (refusal,) = differences(replace(approved, steps=(replace(step, **now),)), approved)
    assert said in refusal.found and "driver/file.write/" in refusal.found
    assert "make a new plan" in refusal.remedy


def test_an_approved_empty_plan_allows_nothing() -> None:
    empty = Plan(host="h", policies={"driver": "p"})
    assert differences(empty, empty) == ()
    assert differences(replace(empty, steps=(Step("driver", "a", "b", ""),)), empty)


def test_a_refusal_cannot_be_approved() -> None:
    refused = Plan(host="h", refusals=(Refusal("driver.no_gpu", "no GPU", "a GPU", "add one"),))
    assert "no GPU" in differences(Plan(host="h"), refused)[0].found


@pytest.mark.parametrize("data", [
    {}, {"schema": "gpuops.nvidia/plan/v1", "steps": []}, {"schema": SCHEMA}, {"schema": SCHEMA, "steps": 7},
    dict(Plan(host="h").to_dict(), steps=[{"capability": "driver"}]), dict(Plan().to_dict(), policies=["driver"]),
    dict(Plan().to_dict(), foretold="x"),
])
@pytest.mark.parametrize("capability", ["", "driver"])
def test_what_is_no_plan_is_refused_or_covers_nothing(data: Dict[str, Any], capability: str) -> None:
    try:
        approved = read_approved(part_of(data, capability) if capability else data, capability)
    except GpuOpsError as error:
        assert "make a new plan" in error.remedy
    else:
        assert differences(Plan(host="h", policies={"driver": "p"}), approved)


def test_a_plan_that_the_release_before_saved_is_refused_by_its_schema() -> None:
    saved = dict(Plan(host="h").to_dict(), schema="gpuops.nvidia/plan/v2")
    with pytest.raises(GpuOpsError, match="an approved plan of schema gpuops.nvidia/plan.v2.*make a new plan") as told:
        read_approved(saved)
    assert told.value.code == "approval.other_schema"


facts: st.SearchStrategy[Tuple[str, str, bool]] = st.tuples(words, words, st.booleans())


def made(values: Tuple[str, str, bool]) -> HostFacts:
    return HostFacts(driver_installed=values[0], kernel=values[1], nouveau_loaded=values[2])


@given(facts, facts, facts)
def test_what_is_foretold_is_taken_where_nothing_else_has_changed(
    before: Tuple[str, str, bool], after: Tuple[str, str, bool], now: Tuple[str, str, bool]
) -> None:
    foretold = json.loads(json.dumps(facts_foretold(made(before), made(after))))
    assert foretold_facts(made(before), foretold) == made(after)
    assert foretold_facts(made(after), foretold) == made(after)
    merged = foretold_facts(made(now), foretold).to_dict()
    for name, value in made(now).to_dict().items():
        untouched = value == made(before).to_dict()[name]
        assert merged[name] == (made(after).to_dict()[name] if untouched else value)


def test_a_host_is_as_foretold_though_nobody_can_read_that_packages_were_to_change() -> None:
    foretold = facts_foretold(HostFacts(), HostFacts(driver_installed="595", driver_changes=True))
    assert as_foretold(HostFacts(driver_installed="595"), foretold)
    assert not as_foretold(HostFacts(driver_installed="580"), foretold)
    assert not as_foretold(HostFacts(), foretold)


def test_packages_that_were_approved_may_come_from_files_of_the_host_in_the_place_of_repositories() -> None:
    after = {"driver": "2", "dkms": "3"}

    def planned(**parameters: Any) -> Plan:
        return Plan(host="a", steps=(packages_step("driver", "driver 2", dict.fromkeys(after), after, "", **{
            "request": {"driver": "2"}, "manager": "dnf", "automatic": [], **parameters}),))

    files = {"files": {name: "/srv/%s.rpm" % name for name in after}, "without": ["*"], "automatic": ["dkms"]}
    assert differences(planned(request=after, **files), planned()) == ()
    assert differences(planned(), planned(request=after, **files)) == ()
    for others in ({"request": {**after, "dkms": "4"}}, {"request": {**after, "tool": "1"}},
                   {"request": after, "automatic": ["tool"]}, {"request": after, "allow_downgrade": True}):
        (refusal,) = differences(planned(**{**files, **others}), planned())
        assert refusal.code == "approval.step_differs", others
