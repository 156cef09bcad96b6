# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a user may say of a rollout, and what is refused of it."""
from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import (
    NO_CANARY,
    OPTIONS,
    PARALLEL,
    ROLLING,
    Limit,
    Policy,
    policy_of,
)


def test_without_a_word_it_is_one_host_after_another_with_canaries_and_no_failure() -> None:
    assert policy_of({}) == policy_of({"limit": None, "windows": None}) == Policy(
        limit=Limit(1), domain_limit=None, canaries="every_kind", unit_mode=PARALLEL, max_failures=0,
        max_unreachable=Limit(20, percent=True), seed="")


def test_all_of_it_may_be_said() -> None:
    policy = policy_of({
        "limit": "10%", "domain_limit": "2", "canaries": "none",
        "unit_mode": "rolling", "unit_modes": {"c.1": "parallel"},
        "max_failures": 3, "max_unreachable": 5, "seed": 7,
        "windows": [{"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC"}],
        "freezes": [{"from": "2026-12-20", "to": "2027-01-06", "reason": "year's end"}],
    })
    assert (policy.limit, policy.domain_limit, policy.canaries) == (Limit(10, percent=True), Limit(2), NO_CANARY)
    assert (policy.mode("c.1"), policy.mode("c.2")) == (PARALLEL, ROLLING)
    assert (policy.max_failures, policy.max_unreachable, policy.seed) == (3, Limit(5), "7")
    assert len(policy.windows.windows) == len(policy.windows.freezes) == 1


@pytest.mark.parametrize("limit, hosts, allowed", [
    ("10%", 100, 10), ("10%", 109, 10), ("10%", 9, 1), ("10%", 0, 1), ("100%", 7, 7), ("1%", 15000, 150),
    ("33%", 3, 1), ("34%", 3, 1), ("67%", 3, 2), (5, 100, 5), (5, 3, 5), ("5", 100, 5),
])
def test_a_percentage_is_rounded_down_and_at_least_one(limit: Any, hosts: int, allowed: int) -> None:
    assert policy_of({"limit": limit}).limit.of(hosts) == allowed


@pytest.mark.parametrize("option, value, code", [
    ("speed", 1, "option_unknown"),
    *[("limit", value, "limit_malformed") for value in (0, -1, "0", "0%", "101%", "10.5%", "ten", True, 1.5, [1])],
    ("domain_limit", "0%", "limit_malformed"),
    *[("max_unreachable", value, "limit_malformed") for value in (-1, False, "101%")],
    ("canaries", "all", "canaries_unknown"),
    ("canaries", ["every_kind"], "canaries_unknown"),
    ("unit_mode", "serial", "unit_mode_unknown"),
    ("unit_modes", {"c.1": "serial"}, "unit_mode_unknown"),
    ("unit_modes", ["c.1"], "unit_mode_unknown"),
    ("unit_modes", "rolling", "unit_mode_unknown"),
    *[("max_failures", value, "max_failures_malformed") for value in (-1, "10%", True, "many", 0.5)],
    *[(option, value, "duration_malformed") for option in ("soak", "expected_duration")
      for value in (5, "5", "soon", False, "8d", ["5m"])],
    *[("expected_duration", value, "duration_malformed") for value in (0, "0", "0m", "0h 0m")],
    *[(option, empty, code) for empty in ("", "  ") for option, code in (
        ("unit_modes", "unit_mode_unknown"), ("windows", "entries_no_list"), ("freezes", "entries_no_list"))],
])
def test_a_slip_is_refused(option: str, value: Any, code: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        policy_of({option: value})
    assert [each.code for each in refused.value.refusals] == ["rollout." + code]
    assert "`%s`" % option in refused.value.found
    assert refused.value.refusals[0].option == ("" if code == "option_unknown" else option)


@pytest.mark.parametrize("text, told", [
    ('[{"days": "sat"}]', "is text, '[{\"days\": \"sat\"}]'"), ("[" + 99 * "{}," + "]", "is text, '[{},"),
    (" ", "is empty")])
def test_a_text_in_the_place_of_a_list_is_told_to_be_one(text: str, told: str) -> None:
    """As a survey gives it, and -e without JSON."""
    with pytest.raises(GpuOpsError) as refused:
        policy_of({"windows": text})
    assert told in refused.value.found and len(refused.value.found) < 100
    assert "-e '{" in refused.value.remedy


@pytest.mark.parametrize("none", [0, "0", " 0 ", "0m"])
def test_a_soak_is_a_duration_and_may_be_none(none: Any) -> None:
    policy = policy_of({"soak": none, "expected_duration": "1h 30m"})
    assert (policy.soak, policy.expected_duration) == (timedelta(), timedelta(minutes=90))


@pytest.mark.parametrize("option", [option for option in OPTIONS if option not in ("unit_modes", "windows", "freezes")])
def test_an_answer_that_is_empty_is_none(option: str) -> None:
    assert policy_of({option: ""}) == policy_of({option: "  "}) == policy_of({}) == Policy()
    assert policy_of({option: ""}).given == {}


@pytest.mark.parametrize("none", [0, "0", "0%"])
def test_no_host_at_all_may_be_out_of_reach(none: Any) -> None:
    assert [policy_of({"max_unreachable": none}).max_unreachable.of(hosts) for hosts in (1, 500)] == [0, 0]


@pytest.mark.parametrize("groups", [["all"], ["inference", "all"]])
def test_a_time_for_the_group_of_all_holds_for_every_host(groups: Any) -> None:
    """Ansible does not name it among the groups of a host."""
    windows = policy_of({
        "windows": [{"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC", "groups": groups}],
        "freezes": [{"from": "2026-12-20", "to": "2027-01-06", "reason": "year's end", "groups": groups}]}).windows
    for groups_of_host in ((), ("training",), ("inference",)):
        calendar = windows.calendar(groups_of_host)
        assert (len(calendar.windows), len(calendar.freezes)) == (1, 1)


@pytest.mark.parametrize("option", ["windows", "freezes"])
@pytest.mark.parametrize("groups, strange", [
    (["inference"], ""), (["all"], ""), ([], ""), (["infrence", "inference", "racks"], "'infrence', 'racks'"),
    (["all", "infrence"], "'infrence'")])
def test_a_group_that_nobody_has_is_refused(option: str, groups: Any, strange: str) -> None:
    """A freeze of it would keep no host, without a word."""
    entry = {"days": "sat", "start": "22:00", "duration": "8h"} if option == "windows" else {
        "from": "2026-12-20", "to": "2027-01-06", "reason": "year's end"}
    options = {option: [{**entry, "zone": "UTC"}, {**entry, "zone": "UTC", "groups": groups}]}
    policy_of(options)
    if not strange:
        policy_of(options, {"inference"})
        return
    with pytest.raises(GpuOpsError) as refused:
        policy_of(options, {"inference"})
    assert refused.value.refusals[0].option == option and refused.value.code == "rollout.group_unknown"
    assert refused.value.found == "entry 2 of `%s`: the inventory has no group %s" % (option, strange)


def test_all_slips_are_told_at_once() -> None:
    with pytest.raises(GpuOpsError) as refused:
        policy_of({"limit": 0, "canaries": "all", "windows": "sat", "speed": 1})
    assert {each.code.partition(".")[2] for each in refused.value.refusals} == {
        "option_unknown", "limit_malformed", "canaries_unknown", "entries_no_list"}
