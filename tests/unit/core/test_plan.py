# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    Disruption,
    Kept,
    Plan,
    Requirement,
    Step,
    digest,
    render,
    split_by_disruption,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import MANAGED, managed

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
changes = st.one_of(
    st.fixed_dictionaries({"before": st.none() | words, "after": st.none() | words}),
    st.fixed_dictionaries({"before": st.dictionaries(words, words | st.none(), max_size=3),
                           "after": st.dictionaries(words, words | st.none(), max_size=3)}),
)
steps = st.builds(
    Step,
    capability=words,
    action=words,
    subject=words,
    why=words,
    disruption=st.sampled_from(Disruption),
    change=changes,
    parameters=st.dictionaries(words, words, max_size=2),
    reversible=st.booleans(),
    depends_on=st.lists(words, max_size=2).map(tuple),
)
plans = st.builds(
    Plan,
    host=words,
    policy=words,
    policies=st.dictionaries(words, words, max_size=2),
    observation=words,
    foretold=st.dictionaries(words, st.dictionaries(words, changes, max_size=2), max_size=2),
    steps=st.lists(steps, max_size=4).map(tuple),
    requirements=st.lists(st.builds(Requirement, words, words, words, words, st.sampled_from(Disruption), changes),
                          max_size=2).map(tuple),
    refusals=st.lists(st.builds(Refusal, words, words, words, words, words), max_size=2).map(tuple),
    kept=st.lists(st.builds(Kept, words, words), max_size=2).map(tuple),
    notes=st.lists(words, max_size=2).map(tuple),
    complete=st.booleans(),
)


@given(plans)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@given(plans)
def test_every_plan_can_be_shown(plan: Plan) -> None:
    text = render(plan)
    assert all(part.why in text for part in (*plan.steps, *plan.requirements))


@given(st.lists(steps, max_size=6, unique_by=lambda step: step.id), st.sampled_from(Disruption))
def test_nothing_above_the_allowed_level_is_done(many: list[Step], allowed: Disruption) -> None:
    to_do, deferred = split_by_disruption(many, allowed)
    assert sorted(step.id for step in to_do + deferred) == sorted(step.id for step in many)
    assert all(step.disruption <= allowed for step in to_do)


def test_a_step_waits_with_the_one_it_comes_after() -> None:
    first = Step("driver", "module.load", "nvidia", "", Disruption.reboot)
    second = Step("driver", "service.start", "persistenced", "", depends_on=(first.id,))
    third = Step("driver", "file.write", "/etc/x", "")
    assert split_by_disruption([first, second, third], Disruption.gpu_reset) == ((third,), (first, second))


def test_a_plan_is_as_disruptive_as_its_worst_step() -> None:
    plan = Plan(steps=(Step("a", "b", "c", "", Disruption.gpu_reset), Step("a", "b", "d", "")))
    assert plan.disruption is Disruption.gpu_reset
    ending = Plan(requirements=(Requirement("a", "reboot", "x", "", Disruption.reboot),))
    assert (ending.disruption, ending.reboot_required, plan.reboot_required) == (Disruption.reboot, True, False)
    assert Plan().disruption is Disruption.none


def test_a_plan_of_another_schema_is_not_read() -> None:
    with pytest.raises(ValueError, match="v0"):
        Plan.from_dict({"schema": "gpuops.nvidia/plan/v0"})


def test_digests_follow_content_not_order() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


def test_the_rendering_shows_the_change() -> None:
    step = Step("nouveau", "file.write", "/etc/modprobe.d/x.conf", "Nouveau would take the GPUs.",
                change={"before": "a\n", "after": "a\nb\n"})
    assert render(Plan(host="h", steps=(step,))).splitlines() == [
        "h: 1 step, disruption none",
        "  1. [none] file.write /etc/modprobe.d/x.conf",
        "     Nouveau would take the GPUs.",
        "        a",
        "       +b",
    ]


def test_the_rendering_ends_with_what_must_come_from_outside() -> None:
    reboot = Requirement("nouveau", "reboot", "nouveau", "nouveau is in use.", Disruption.reboot,
                         {"before": {"nouveau": "loaded"}, "after": {"nouveau": None}})
    step = Step("nouveau", "file.write", "/etc/x", "It is wanted.", change={"before": None, "after": "a\n"})
    assert render(Plan(host="h", steps=(step,), requirements=(reboot,))).splitlines() == [
        "h: 1 step and a reboot, disruption reboot",
        "  1. [none] file.write /etc/x",
        "     It is wanted.",
        "       +a",
        "  then: [reboot] a reboot for nouveau",
        "     nouveau is in use.",
        "       nouveau: loaded -> absent",
    ]
    assert render(Plan(host="h", requirements=(reboot,))).startswith("h: a reboot, disruption reboot")


def test_what_two_capabilities_require_alike_is_told_once() -> None:
    """Each is a promise of its own capability, so the data keeps both."""
    change = {"before": {"kernel": "6.1"}, "after": {"kernel": "6.8"}}
    more = {"before": {"kernel": "6.1", "nvidia": None}, "after": {"kernel": "6.8", "nvidia": "580.1"}}
    plan = Plan(host="h", requirements=(
        Requirement("driver", "reboot", "kernel 6.8", "Kernel 6.1 runs and is gone.", Disruption.reboot, change),
        Requirement("nouveau", "reboot", "nouveau", "nouveau is in use.", Disruption.reboot),
        Requirement("activation", "reboot", "kernel 6.8", "Kernel 6.1 runs.", Disruption.reboot, more),
    ))
    assert render(plan).splitlines() == [
        "h: a reboot, disruption reboot",
        "  then: [reboot] a reboot for kernel 6.8",
        "     Kernel 6.1 runs and is gone.",
        "       kernel: 6.1 -> 6.8",
        "       nvidia: absent -> 580.1",
        "  then: [reboot] a reboot for nouveau",
        "     nouveau is in use.",
    ]
    assert len(plan.to_dict()["requirements"]) == 3


def test_the_line_that_says_a_file_is_ours() -> None:
    assert managed("a=b\n", "//") == "// %s\na=b\n" % MANAGED
