# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In which order a fleet is changed, what may begin at an instant, what the rest waits for, and what never happens."""
from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Optional, Sequence, Set

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import (
    Cause,
    Decision,
    Host,
    Kind,
    Place,
    Present,
    Rollout,
    part_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.planner import closed_now, decide, plan, renewed
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import (
    NO_CANARY,
    PARALLEL,
    ROLLING,
    Limit,
    Policy,
    policy_of,
)

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)
LATER = NOW + timedelta(minutes=7)
H100 = Kind("H100", "ubuntu-24.04", "containerd", "570.1", "580.2")
A100 = Kind("A100", "ubuntu-24.04", "containerd", "570.1", "580.2")
FREE = Policy(limit=Limit(100), canaries=NO_CANARY)


def host(name: str, **more: Any) -> Host:
    return Host(**dict({"name": name, "node": name, "plan": "p1", "disruption": Disruption.driver_reload, "kind": H100,
                        "seconds": 600}, **more))


def hosts(number: int, **more: Any) -> List[Host]:
    return [host("h%d" % each, **more) for each in range(1, number + 1)]


def test_a_clique_of_hosts_of_no_cluster_has_no_limit() -> None:
    """They have no record that counts them; one of a cluster has."""
    assert not plan(hosts(3, node="", clique="x"), Policy(limit=Limit(1), domain_limit=Limit(1)), NOW).refused
    refused = plan(hosts(3, clique="x"), Policy(limit=Limit(1)), NOW).refused
    assert {refusal.code for refusal in refused.values()} == {"rollout.unit_above_limit"}


def jobs(number: int) -> Any:
    return frozenset("job-%d" % each for each in range(number))


def rollout_of(fleet: Sequence[Host], policy: Policy = FREE, passed: Any = ()) -> Rollout:
    return plan(fleet, policy, NOW, passed)


def present(now: datetime = NOW, **seen: Any) -> Present:
    return Present(now, **{name: frozenset(each) if isinstance(each, set) else each for name, each in seen.items()})


def order(rollout: Rollout) -> List[str]:
    return [unit.name for unit in rollout.units]


def starting(decision: Decision) -> List[str]:
    return [unit.name for unit in decision.may_start]


def waits(decision: Decision) -> Dict[str, Any]:
    return {each.unit.name: (each.cause.value, each.why) for each in decision.waiting}


class TestPlaces:
    @pytest.mark.parametrize("more", [
        {"plan": "", "disruption": Disruption.none},
        {"plan": "", "cordoned_by": "ada", "marks": ("kured",)},
        {"disruption": Disruption.none},
        {"disruption": Disruption.service_restart},
        {"disruption": Disruption.service_restart, "cordoned_by": "ada"},
        {"disruption": Disruption.service_restart, "ready": False},
    ])
    def test_what_takes_no_work_away_waits_for_nobody(self, more: Any) -> None:
        rollout = rollout_of([host("h1", **more)])
        assert (rollout.beside, rollout.refused, rollout.units) == (("h1",), {}, ())

    @pytest.mark.parametrize("more, code", [
        ({"cordoned_by": "ada"}, "cordoned_by_others"),
        ({"cordoned_by": "ada", "half_done": True}, "cordoned_by_others"),
        ({"reachable": False, "plan": "", "disruption": Disruption.none}, "unreachable"),
        ({"reachable": False, "failed": "validation"}, "failed_before"),
        ({"marks": ("kured",)}, "managed_by_others"),
        ({"marks": ("kured",), "disruption": Disruption.service_restart}, "managed_by_others"),
        ({"failed": "validation"}, "failed_before"),
        ({"failed": "validation", "disruption": Disruption.service_restart}, "failed_before"),
        ({"failed": "validation", "half_done": True}, "failed_before"),
        ({"failed": "validation", "plan": "", "disruption": Disruption.none}, "failed_before"),
    ])
    def test_what_others_hold_and_what_has_failed_is_refused(self, more: Any, code: str) -> None:
        rollout = rollout_of([host("h1", **more), host("h2")])
        assert {name: refusal.code for name, refusal in rollout.refused.items()} == {"h1": "rollout." + code}
        assert order(rollout) == ["host h2"]
        assert all(word in rollout.refused["h1"].found for word in (*more.get("marks", ()), more.get("failed", "")))

    @pytest.mark.parametrize("disruption", list(Disruption)[2:])
    def test_what_disturbs_more_takes_its_turn(self, disruption: Disruption) -> None:
        assert order(rollout_of([host("h1", disruption=disruption)])) == ["host h1"]

    def test_what_is_half_done_has_its_turn_only_where_something_is_left_to_do(self) -> None:
        """Else there is nothing but to open it, whatever becomes of its clique and however large that is."""
        finished = {"plan": "", "disruption": Disruption.none, "half_done": True, "clique": "x"}
        rollout = plan([host("h1", **finished), host("h2", **finished), host("h3", clique="x", cordoned_by="ada"),
                        host("h4", half_done=True)], Policy(limit=Limit(1)), NOW)
        assert rollout.beside == ("h1", "h2") and list(rollout.refused) == ["h3"]
        (unit,) = rollout.units
        assert (unit.name, unit.place) == ("host h4", Place.half_done)

    def test_whoever_takes_pods_away_has_a_turn_however_little_it_does(self) -> None:
        """As who divides idle GPUs, which disturbs nobody but has everybody leave."""
        rollout = plan([host("h1", disruption=Disruption.none, takes_out=True), host("h2", disruption=Disruption.none),
                        host("h3", disruption=Disruption.none, takes_out=True, ours=True)], Policy(limit=Limit(1)), NOW)
        assert rollout.beside == ("h2",) and {unit.hosts for unit in rollout.units} == {("h1",), ("h3",)}
        assert not any(each.is_out_anyway for each in rollout.hosts.values())

    def test_a_small_change_of_a_node_that_is_out_of_service_by_us_has_its_turn(self) -> None:
        small = {"disruption": Disruption.service_restart}
        rollout = plan([host("h1", **small), host("h2", ours=True, **small), host("h3", ours=True, plan="")],
                       Policy(), NOW)
        assert rollout.beside == ("h1", "h3") and order(rollout) == ["host h2"]

    def test_it_waits_for_no_window_and_no_canary_and_is_none(self) -> None:
        """Nor for its clique, which runs on as it is."""
        window = {"days": "mon", "start": "02:00", "duration": "1h", "zone": "UTC"}
        closed = policy_of({"limit": 1, "windows": [window]})
        small = host("h1", ours=True, disruption=Disruption.service_restart, clique="x", seconds=7200)
        rollout = plan([small, host("h2", clique="x", cordoned_by="ada"), host("h3", clique="x", cordoned_by="ada")],
                       closed, NOW)
        assert order(rollout) == ["host h1"] and starting(decide(rollout, present(half_done={"h1"}))) == ["host h1"]
        kept = replace(small, half_done=True, kept=True)
        assert order(plan([kept, host("h2", clique="x", cordoned_by="ada")], closed, NOW)) == ["host h1"]
        held = Refusal("driver.held", "it is held", "none", "free it")
        refused = plan([replace(kept, refusal=held), host("h2", clique="x")], Policy(limit=Limit(2)), NOW).refused
        assert refused["h2"].code == "rollout.unit_incomplete", "one that is refused keeps its clique as it is"
        rollout = plan([small, *hosts(4)[1:]], Policy(limit=Limit(2)), NOW)
        assert rollout.units[0].hosts != ("h1",) and rollout.units[0].place is Place.canary
        begun = present(in_progress=set(rollout.units[0].hosts), failed_before={"h1": "Xid 79"})
        assert starting(decide(rollout, begun)) == ["host h1"]

    def test_a_clique_is_one_unit_and_so_is_a_job_group_beside_it(self) -> None:
        rollout = rollout_of([host("h1", clique="x"), host("h2", clique="x", job_group="y"), host("h3", job_group="x"),
                              host("h4", job_group="x"), host("h5")])
        assert {unit.name: unit.hosts for unit in rollout.units} == {
            "clique x": ("h1", "h2"), "job group x": ("h3", "h4"), "host h5": ("h5",)}

    def test_a_clique_with_a_host_that_cannot_be_changed_is_left_as_it_is(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", clique="x", cordoned_by="ada"),
                              host("h4", clique="x", plan=""), host("h5", clique="y")])
        assert {name: refusal.code for name, refusal in rollout.refused.items()} == {
            "h1": "rollout.unit_incomplete", "h2": "rollout.unit_incomplete", "h3": "rollout.cordoned_by_others"}
        assert "h3 cannot be changed: node h3 was taken out of service by ada" in rollout.refused["h1"].found
        assert (rollout.beside, order(rollout)) == (("h4",), ["clique y"])

    def test_a_clique_is_left_where_of_one_host_nothing_is_known(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", clique="x", plan="", reachable=False)])
        assert {name: refusal.code for name, refusal in rollout.refused.items()} == {
            "h1": "rollout.unit_incomplete", "h2": "rollout.unit_incomplete", "h3": "rollout.unreachable"}

    def test_a_host_has_one_name(self) -> None:
        with pytest.raises(ValueError, match="h1"):
            rollout_of([host("h1"), host("h2"), host("h1", plan="")])

    def test_host_by_host_it_goes_on_with_the_others(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", clique="x", cordoned_by="ada")],
                             Policy(limit=Limit(9), unit_modes={"x": ROLLING}, canaries=NO_CANARY))
        assert set(rollout.refused) == {"h3"} and sorted(order(rollout)) == ["host h1", "host h2"]

    @pytest.mark.parametrize("policy, told", [
        (Policy(limit=Limit(2)), "2 in all"),
        (Policy(limit=Limit(50, percent=True)), "1 in all"),
        (Policy(limit=Limit(9), domain_limit=Limit(1)), "1 of failure domain r1"),
        (Policy(limit=Limit(2), domain_limit=Limit(1)), "2 in all, 1 of failure domain r1"),
    ])
    def test_a_clique_above_a_limit_could_never_begin(self, policy: Policy, told: str) -> None:
        rollout = rollout_of([host("h1", clique="x", domain="r1"), host("h2", clique="x", domain="r1"),
                              host("h3", clique="x", domain="r2")], policy)
        assert {refusal.code for refusal in rollout.refused.values()} == {"rollout.unit_above_limit"}
        assert rollout.refused["h1"].found.endswith(told) and rollout.units == ()

    def test_its_new_nodes_count_for_nothing(self) -> None:
        fleet = [host("h1", clique="x"), *(host("n%d" % each, clique="x", in_service=False) for each in range(5))]
        assert order(rollout_of(fleet, Policy(limit=Limit(1)))) == ["clique x"]

    def test_what_no_window_is_long_enough_for_is_refused(self) -> None:
        policy = policy_of({"limit": 9, "windows": [
            {"days": "sat", "start": "22:00", "duration": "1h", "zone": "UTC"},
            {"days": "sun", "start": "22:00", "duration": "9h", "zone": "UTC", "groups": ["long"]}]})
        rollout = rollout_of([host("h1", seconds=3600), host("h2", seconds=3601),
                              host("h3", seconds=3601, groups=("long",)), host("h4", clique="x"),
                              host("h5", clique="x", seconds=3601, groups=("long",))], policy)
        assert {name: refusal.code for name, refusal in rollout.refused.items()} == dict.fromkeys(
            ["h2", "h4", "h5"], "rollout.no_window")
        assert rollout.refused["h2"].found == "host h2: no window of the next year is long enough for 1 h 0 min"

    def test_it_is_data_and_read_again(self) -> None:
        policy = policy_of({"domain_limit": 1, "soak": "5m", "windows": [
            {"days": "second saturday", "start": "22:00", "duration": "4h", "zone": "UTC"}]})
        own = Refusal("driver.version_not_offered", "a", "b", "c")
        rollout = rollout_of([host("h1", jobs=jobs(2), groups=("a",), seconds=660), host("h2", marks=("kured",)),
                              host("h3", plan=""), host("h4", refusal=own)], policy)
        told = json.loads(json.dumps(rollout.to_dict()))
        assert Rollout.from_dict(told) == rollout and set(told["refused"]) == {"h2", "h4"}
        assert told["units"] == [{"name": "host h1", "hosts": ["h1"], "place": "canary", "one_by_one": "",
                                  "why": "canary of H100, ubuntu-24.04, containerd, driver 570.1 to 580.2",
                                  "seconds": 660, "jobs": ["job-0", "job-1"]}]
        with pytest.raises(ValueError, match="schema"):
            Rollout.from_dict({**told, "schema": "gpuops.nvidia/plan/v3"})

    def test_a_host_that_its_own_plan_refuses_is_refused_so(self) -> None:
        own = Refusal("driver.version_not_offered", "a", "b", "c")
        assert rollout_of([host("h1", refusal=own), host("h2", plan="", refusal=own)]).refused == {"h1": own, "h2": own}

    def test_a_node_that_is_no_host_of_the_run_is_not_changed_and_counts(self) -> None:
        rollout = rollout_of([host("h1"), *(host("node n%d" % each, of_run=False) for each in range(9))],
                             Policy(limit=Limit(20, percent=True)))
        assert (rollout.order, rollout.limits.total) == (("h1",), 2)

    def test_a_clique_of_which_the_run_has_a_part_is_left_as_it_is(self) -> None:
        fleet = [host("h1", clique="x"), host("node n1", clique="x", of_run=False), host("h2")]
        refused = rollout_of(fleet).refused
        assert {name: refusal.code for name, refusal in refused.items()} == {"h1": "rollout.unit_incomplete"}
        assert "node n1 cannot be changed: it is no host of this run" in refused["h1"].found
        assert not rollout_of(fleet, Policy(limit=Limit(9), unit_mode=ROLLING)).refused


class TestLimits:
    def test_percentages_are_of_the_hosts_in_service(self) -> None:
        fleet = [*(host("a%d" % each, domain="a") for each in range(20)),
                 *(host("b%d" % each, domain="b") for each in range(9)),
                 *(host("n%d" % each, domain="a", in_service=False) for each in range(50)),
                 *(host("c%d" % each, domain="c", in_service=False) for each in range(5)), host("u")]
        limits = rollout_of(fleet, Policy(limit=Limit(10, True), domain_limit=Limit(20, True))).limits
        assert limits.total == 3 and limits.domains == {"": 1, "a": 4, "b": 1, "c": 1}

    def test_without_a_limit_of_domains_there_is_none(self) -> None:
        assert rollout_of(hosts(3)).limits.domains == {}


class TestOrder:
    def test_half_done_first_then_canaries_then_few_jobs_then_domain_by_domain(self) -> None:
        fleet = [
            host("a1", domain="r1", jobs=jobs(2)), host("a2", domain="r1", jobs=jobs(1)),
            host("b1", domain="r2", jobs=jobs(1)), host("b2", domain="r2", jobs=jobs(1)), host("b3", domain="r2"),
            host("c1", domain="r3", kind=A100, jobs=jobs(8)), host("d1", domain="r9", half_done=True, jobs=jobs(9))]
        rollout = rollout_of(fleet, Policy())
        found = order(rollout)
        assert [found[0], *found[1:3], found[3], sorted(found[4:6]), found[6]] == [
            "host d1", "host b3", "host c1", "host a2", ["host b1", "host b2"], "host a1"]
        assert {unit.name: unit.why for unit in rollout.units}["host d1"] == "a run began with it and did not end"
        assert {unit.name: unit.why for unit in rollout.units}["host a2"] == "1 job, failure domain r1"
        assert [unit.place for unit in rollout.units] == [0, 1, 1, 2, 2, 2, 2]

    def test_a_job_on_several_hosts_is_one(self) -> None:
        fleet = [*hosts(4, clique="x", jobs=frozenset(["training"])), host("h5", jobs=jobs(2))]
        assert order(rollout_of(fleet)) == ["clique x", "host h5"]
        assert [unit.jobs for unit in rollout_of(fleet).units] == [("training",), ("job-0", "job-1")]
        assert rollout_of(fleet).units[1].why == "2 jobs, failure domain unknown"

    def test_alike_hosts_are_shuffled_by_host_and_plan_and_not_by_run(self) -> None:
        fleet = hosts(12)
        first = order(rollout_of(fleet))
        assert first == order(rollout_of(fleet[::-1])) and first != sorted(first)
        assert first != order(rollout_of(hosts(12, plan="p2")))
        assert first != order(rollout_of(fleet, Policy(limit=Limit(100), canaries=NO_CANARY, seed="2")))
        assert set(first) == set(order(rollout_of(hosts(12, plan="p2"))))

    def test_one_canary_for_each_kind_that_is_ready_and_has_few_jobs(self) -> None:
        fleet = [host("h1", ready=False), host("h2", jobs=jobs(3)), host("h3", jobs=jobs(1)),
                 host("a1", kind=A100), host("a2", kind=A100, jobs=jobs(1))]
        rollout = rollout_of(fleet, Policy(limit=Limit(9)))
        assert [unit.name for unit in rollout.units if unit.place is Place.canary] == ["host a1", "host h3"]

    def test_a_canary_of_a_clique_is_the_whole_clique(self) -> None:
        fleet = [*hosts(3, clique="x"), host("h4", jobs=jobs(1))]
        assert [unit.place.name for unit in rollout_of(fleet, Policy(limit=Limit(9))).units] == ["canary", "in_order"]
        rolling = rollout_of(fleet, Policy(limit=Limit(9), unit_mode=ROLLING))
        assert [unit.place.name for unit in rolling.units] == ["canary", "canary", "canary", "in_order"]

    def test_a_clique_of_two_kinds_is_the_canary_of_both(self) -> None:
        fleet = [host("h1", clique="x"), host("h2", clique="x", kind=A100), host("h3", jobs=jobs(1)),
                 host("h4", kind=A100, jobs=jobs(1))]
        rollout = rollout_of(fleet, Policy(limit=Limit(9)))
        assert [unit.name for unit in rollout.units if unit.place is Place.canary] == ["clique x"]
        assert rollout.units[0].why.count("driver 570.1 to 580.2") == 2

    def test_what_a_canary_has_proved_needs_none(self) -> None:
        fleet = [host("h1"), host("h2", policy="q2", jobs=jobs(1)), host("a1", kind=A100)]
        policy = Policy(limit=Limit(9))
        proofs = [each.proof for each in fleet]
        assert [unit.name for unit in rollout_of(fleet, policy, proofs[:1]).units if unit.place is Place.canary] == [
            "host a1", "host h2"]
        assert all(unit.place is Place.in_order for unit in rollout_of(fleet, policy, proofs).units)

    def test_host_by_host_a_group_follows_itself(self) -> None:
        fleet = [host("x1", clique="x", jobs=jobs(1)), host("x2", clique="x", jobs=jobs(4)), host("y1", jobs=jobs(2)),
                 host("y2", jobs=jobs(9))]
        assert order(rollout_of(fleet, Policy(limit=Limit(9), canaries=NO_CANARY, unit_mode=ROLLING))) == [
            "host y1", "host x1", "host x2", "host y2"]

    def test_a_unit_takes_as_long_as_its_slowest_host(self) -> None:
        fleet = [host("h1", clique="x", seconds=60), host("h2", clique="x", seconds=90), host("h3", seconds=30)]
        assert {unit.name: unit.seconds for unit in rollout_of(fleet).units} == {"clique x": 90, "host h3": 30}

    def test_a_new_node_says_so(self) -> None:
        assert rollout_of([host("h1", in_service=False, domain="r1")]).units[0].why == (
            "no jobs, failure domain r1; not in service yet")


class TestNow:
    def test_so_many_as_there_are_places(self) -> None:
        rollout = rollout_of(hosts(5), Policy(limit=Limit(2), canaries=NO_CANARY))
        decision = decide(rollout, present())
        assert starting(decision) == order(rollout)[:2] and decision.slots.free == 2
        first, second, third = decision.waiting
        assert (first.cause, second.cause, third.cause) == (Cause.slots, Cause.turn, Cause.turn)
        assert second.why == "%s is before it, and waits for places" % first.unit.name

    @pytest.mark.parametrize("seen, told", [
        ({"in_progress": {"h1"}}, "1 in progress (h1)"),
        ({"failed": {"h1": "x"}}, "1 failed (h1)"),
        ({"unhealthy": {"h1": "x"}, "done": {"h1"}}, "1 changed and not healthy (h1)"),
        ({"cordoned": {"h1": "ada"}}, "1 cordoned by others (h1)"),
        ({"cordoned": {"no-host-of-ours": "ada"}}, "1 cordoned by others (no-host-of-ours)"),
        ({"not_ready": {"h1"}}, "1 not Ready (h1)"),
        ({"unreachable": {"h1"}}, "1 unreachable (h1)"),
        ({"in_progress": {"h1"}, "failed": {"h1": "x"}, "cordoned": {"h1": "ada"}, "not_ready": {"h1"}},
         "1 in progress (h1)"),
    ])
    def test_whatever_is_out_of_service_takes_a_place_once(self, seen: Any, told: str) -> None:
        rollout = rollout_of([host("h1", plan=""), host("h2"), host("h3")],
                             Policy(limit=Limit(2), canaries=NO_CANARY, max_failures=1))
        decision = decide(rollout, present(**seen))
        assert starting(decision) == order(rollout)[:1]
        assert decision.slots.free == 1 and str(decision.slots) == "1 of 2 free; " + told
        assert told in decision.waiting[0].why and decision.waiting[0].cause is Cause.slots

    def test_half_done_and_failed_hosts_of_an_earlier_run_hold_their_places(self) -> None:
        fleet = [host("h1", failed="x"), host("h2", half_done=True), host("h3")]
        rollout = rollout_of(fleet, Policy(limit=Limit(2), canaries=NO_CANARY, max_failures=1))
        decision = decide(rollout, present(failed={"h1": "x"}, half_done={"h2"}))
        assert starting(decision) == ["host h2"]
        assert str(decision.slots) == "0 of 2 free; 1 failed (h1); 1 half done (h2)"
        assert starting(decide(rollout, present(failed={"h1": "x"}, done={"h2"}))) == ["host h3"]
        # Out again, by a run that is no more
        assert not starting(decide(rollout, present(failed={"h1": "x"}, half_done={"h2"}, done={"h2"})))

    @pytest.mark.parametrize("number", [0, 2])
    def test_what_turns_out_to_be_half_done_waits_for_no_canary_that_waits_for_its_place(self, number: int) -> None:
        """The run that had begun with it was at work still when the order was made."""
        rollout = rollout_of(hosts(3), Policy(limit=Limit(1)))
        name = order(rollout)[number]
        decision = decide(rollout, present(half_done={name.partition(" ")[2]}))
        assert starting(decision) == [name] and set(waits(decision)) == set(order(rollout)) - {name}

    @pytest.mark.parametrize("known", [True, False], ids=["with the plan", "since"])
    def test_a_clique_of_which_one_is_kept_for_its_checks_goes_before_no_canary(self, known: bool) -> None:
        """A host of its own that is kept takes nothing out of service, and has a place that canaries may wait for."""
        fleet = [host("h1", clique="x", half_done=known, kept=known), host("h2", clique="x", jobs=jobs(2)),
                 host("h3", half_done=known, kept=known), host("h4")]
        rollout = rollout_of(fleet, Policy(limit=Limit(4)))
        decision = decide(rollout, present(half_done={"h1", "h3"}, kept={"h1", "h3"}))
        assert "host h3" in starting(decision) and waits(decision)["clique x"][0] == "canary"
        assert "clique x" in starting(decide(rollout, present(half_done={"h1", "h2"}, kept={"h1"})))

    def test_what_failed_by_another_policy_keeps_its_place_and_may_be_tried_by_this_one(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(1), canaries=NO_CANARY))
        decision = decide(rollout, present(failed_before={"h2": "x"}))
        assert (decision.stopped, starting(decision)) == ((), ["host h2"])
        assert str(decision.slots) == "0 of 1 free; 1 failed (h2)"

    def test_to_begin_with_a_node_that_is_down_takes_no_further_place(self) -> None:
        rollout = rollout_of([host("h1", ready=False), host("h2")], Policy(limit=Limit(1), canaries=NO_CANARY))
        assert starting(decide(rollout, present(not_ready={"h1"}))) == ["host h1"]

    @pytest.mark.parametrize("seen, cause", [
        ({"failed": {"h1": "x"}}, "person"),
        ({"failed_before": {"h1": "x"}}, "person"),
        ({"cordoned": {"h1": "ada"}}, "person"),
        ({"cordoned": {"h1": "ada"}, "not_ready": {"h1"}}, "person"),
        ({"cordoned": {"h1": "Karpenter"}, "marked": {"h1": "Karpenter"}}, "slots"),
        ({"unreachable": {"h1"}}, "person"),
        ({"half_done": {"h1"}, "unreachable": {"h1"}}, "person"),
        ({"half_done": {"h1"}}, "slots"),
        ({"not_ready": {"h1"}}, "slots"),
        ({"unhealthy": {"h1": "x"}, "done": {"h1"}}, "slots"),
        ({"in_progress": {"h1"}}, "slots"),
        ({"in_progress": {"h1"}, "cordoned": {"h1": "ada"}}, "slots"),
    ])
    def test_it_is_told_whether_a_person_has_to_free_the_places(self, seen: Any, cause: str) -> None:
        rollout = rollout_of([host("h1", plan=""), host("h2"), host("h3")],
                             Policy(limit=Limit(1), canaries=NO_CANARY, max_failures=1))
        (waiting,) = decide(rollout, present(**seen), ["host h3"]).waiting
        assert waiting.cause.value == cause
        assert waiting.why.endswith("; a person has to see to h1") == (cause == "person")
        assert waiting.lasts == (cause == "slots" and "in_progress" not in seen)

    def test_where_other_places_are_left_it_is_waited_for_those(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(2), canaries=NO_CANARY, max_failures=1))
        (waiting,) = decide(rollout, present(failed={"h1": "x"}, in_progress={"h2"})).waiting
        assert waiting.cause is Cause.slots and not waiting.lasts

    def test_a_failure_domain_has_places_of_its_own_that_a_person_frees(self) -> None:
        rollout = rollout_of([host("h1", domain="a"), host("h2", domain="a"), host("h3", domain="b", jobs=jobs(1))],
                             Policy(limit=Limit(2), domain_limit=Limit(1), canaries=NO_CANARY))
        decision = decide(rollout, present(cordoned={"h1": "ada"}, in_progress={"h3"}))
        assert waits(decision)["host h2"] == ("person", (
            "needs 1, and failure domain a has 0 of 1 free; out of service: h1; a person has to see to h1"))

    def test_a_unit_above_a_limit_that_was_lowered_since_is_a_persons(self) -> None:
        rollout = rollout_of(hosts(3, clique="x"), Policy(limit=Limit(3), canaries=NO_CANARY))
        lowered = renewed(rollout, dict(rollout.hosts), Policy(limit=Limit(2)), (None, None))
        assert waits(decide(lowered, present())) == {"clique x": (
            "person", "needs 3, and in all there are 2 of 2 free; it is larger than that limit")}

    def test_half_done_hosts_above_a_lowered_limit_end_one_after_another(self) -> None:
        rollout = rollout_of(hosts(3, half_done=True), Policy(limit=Limit(1)))
        assert len(starting(decide(rollout, present(half_done={"h1", "h2", "h3"})))) == 1

    def test_a_domain_has_a_limit_of_its_own_and_does_not_keep_others_waiting(self) -> None:
        fleet = [*(host("a%d" % each, domain="a") for each in range(3)), host("b1", domain="b", jobs=jobs(1))]
        rollout = rollout_of(fleet, Policy(limit=Limit(3), domain_limit=Limit(1), canaries=NO_CANARY))
        decision = decide(rollout, present())
        assert starting(decision) == [order(rollout)[0], "host b1"]
        assert decision.waiting[0].why == "needs 1, and failure domain a has 0 of 1 free; out of service: %s" % (
            order(rollout)[0].partition(" ")[2])

    def test_new_nodes_take_no_place(self) -> None:
        fleet = [*(host("n%d" % each, in_service=False, ready=False, domain="a") for each in range(4)),
                 host("h1", jobs=jobs(1), domain="a")]
        rollout = rollout_of(fleet, Policy(limit=Limit(1), domain_limit=Limit(1), canaries=NO_CANARY))
        decision = decide(rollout, present(not_ready={"n0", "n1", "n2", "n3"}))
        assert len(starting(decision)) == 5 and decision.slots.free == 1

    def test_nobody_overtakes_a_clique_that_waits_for_places(self) -> None:
        fleet = [*hosts(3, clique="x"), host("h8", jobs=jobs(1)), host("h9", jobs=jobs(2))]
        rollout = rollout_of(fleet, Policy(limit=Limit(3), canaries=NO_CANARY, max_failures=1))
        decision = decide(rollout, present(in_progress={"h9"}))
        assert starting(decision) == [] and waits(decision)["host h8"][0] == "turn"
        # What it waits for does not become free by itself
        lasting = decide(rollout, present(failed={"h9": "x"}))
        assert starting(lasting) == ["host h8"] and lasting.waiting[0].cause is Cause.person

    def test_a_clique_of_a_full_domain_keeps_that_domain_alone(self) -> None:
        fleet = [host("h1", clique="x", domain="a"), host("h2", clique="x", domain="a"),
                 host("a3", domain="a", jobs=jobs(1)), host("a4", domain="a", jobs=jobs(2)),
                 host("b1", domain="b", jobs=jobs(3))]
        rollout = rollout_of(fleet, Policy(limit=Limit(9), domain_limit=Limit(2), canaries=NO_CANARY))
        decision = decide(rollout, present(in_progress={"a4"}))
        assert starting(decision) == ["host b1"]
        assert waits(decision)["host a3"] == ("turn", "clique x is before it, and waits for places")

    def test_everything_waits_for_the_canaries_of_all_kinds(self) -> None:
        rollout = rollout_of([*hosts(3), host("a1", kind=A100), host("a2", kind=A100, jobs=jobs(1))],
                             Policy(limit=Limit(9)))
        canary = next(unit.name for unit in rollout.units if unit.name.startswith("host h"))
        before = decide(rollout, present())
        assert set(starting(before)) == {"host a1", canary}
        assert {each.cause for each in before.waiting} == {Cause.canary}
        name = canary.partition(" ")[2]
        during = decide(rollout, present(done={"a1"}, in_progress={name}))
        assert starting(during) == []
        assert during.waiting[0].why == "waits for the canary %s, which is in progress" % canary
        ill = decide(rollout, present(done={"a1", name}, unhealthy={name: "Xid 79"}))
        assert starting(ill) == [] and ill.waiting[0].why.endswith("which is changed and not healthy: Xid 79")
        assert len(starting(decide(rollout, present(done={"a1", name})))) == 3

    def test_one_that_could_not_begin_after_it_does_not_wait_for_the_canary(self) -> None:
        """It is told at once what keeps it in the end: a window, with its time, or a place that only a person frees."""
        closed = rollout_of(hosts(3), policy_of({"limit": 1, "freezes": [
            {"from": "2026-06-30", "to": "2026-07-05", "reason": "end of quarter", "zone": "UTC"}]}))
        assert {(each.cause, each.until is None) for each in decide(closed, present()).waiting} == {
            (Cause.window, False)}
        rollout = rollout_of([*hosts(3), host("x", plan="")], Policy(limit=Limit(1)))
        told = waits(decide(rollout, present(cordoned={"x": "ada"})))
        assert len(told) == 3 and {cause for cause, _why in told.values()} == {"person"}
        assert all(why.endswith("a person has to see to x") for _cause, why in told.values())
        found = waits(decide(rollout, present(done={"h1"}, unhealthy={"h1": "4 GB/s"}, found={"h1"})))
        assert found and all(why.endswith("a person has to see to h1 (4 GB/s)") for _cause, why in found.values())

    def test_a_canary_that_goes_out_of_reach_in_mid_change_is_for_a_person_to_see_to(self) -> None:
        rollout = rollout_of(hosts(10), Policy(limit=Limit(5)))
        (name,) = rollout.units[0].hosts
        lost = decide(rollout, present(in_progress={name}, unreachable={name}))
        assert {each.cause for each in lost.waiting} == {Cause.person}
        assert lost.waiting[0].why == (
            "waits for the canary host %s, which is in progress, and cannot be reached any more" % name)

    def test_a_place_of_a_host_that_is_lost_in_mid_change_is_not_waited_for(self) -> None:
        rollout = rollout_of(hosts(10), Policy(limit=Limit(1), canaries=NO_CANARY))
        lost = waits(decide(rollout, present(in_progress={"h1"}, unreachable={"h1"})))
        assert len(lost) == 9 and set(lost.values()) == {("person", (
            "needs 1, and in all there are 0 of 1 free; 1 in progress (h1); a person has to see to h1"))}

    def test_what_checks_have_found_of_a_canary_does_not_end_by_itself(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(9)))
        (name,) = rollout.units[0].hosts
        ill = decide(rollout, present(done={name}, unhealthy={name: "Xid 63"}, found={name}))
        assert {each.cause for each in ill.waiting} == {Cause.person}

    def test_a_canary_is_watched_before_others_follow_it(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(9)))
        (name,) = rollout.units[0].hosts
        soaks = decide(rollout, present(done={name}, soaking={name: LATER}))
        assert starting(soaks) == [] and soaks.waiting[0].why == (
            "waits for the canary host %s, which is changed, and watched until Wed 2026-07-01 12:07 UTC" % name)
        assert {each.until for each in soaks.waiting} == {LATER}
        assert len(starting(decide(rollout, present(done={name})))) == 2

    def test_of_one_kind_there_is_one_canary_whoever_has_it(self) -> None:
        rollout = rollout_of(hosts(2), Policy(limit=Limit(9)))
        decision = decide(rollout, present(proving={host("h1").proof: "node n7, which is in progress"}))
        assert starting(decision) == [] and decision.waiting[0].why == (
            "waits for another canary of its kind, node n7, which is in progress")
        assert decision.waiting[0].until is None
        soaks = decide(rollout, present(proving={host("h1").proof: "x"}, watched={host("h1").proof: LATER}))
        assert soaks.waiting[0].until == LATER
        assert len(starting(decide(rollout, present(passed={host("h1").proof})))) == 2

    def test_who_has_waited_long_goes_in_the_place_of_a_canary_that_does_not_begin(self) -> None:
        rollout = rollout_of([*hosts(3), host("a1", kind=A100, jobs=jobs(1))], Policy(limit=Limit(9)))
        other = next(unit.name for unit in rollout.units if unit.place is Place.in_order)
        asked = decide(rollout, present(), [other])
        assert (starting(asked), asked.waiting[0].cause) == ([], Cause.canary)
        assert starting(decide(rollout, present(patience_is_over=True), [other])) == [other]
        # One of them, and nobody in the place of one that has begun
        (canary,) = rollout.units[0].hosts
        assert starting(decide(rollout, present(patience_is_over=True, in_progress={canary}), [other])) == []
        assert len(starting(decide(rollout, present(patience_is_over=True), [
            unit.name for unit in rollout.units if unit.place is Place.in_order]))) == 1

    def test_a_canary_whose_window_is_closed_keeps_no_others_waiting(self) -> None:
        freeze = {"from": "2026-06-30", "to": "2026-07-05", "reason": "an exam", "zone": "UTC", "groups": ["lab"]}
        rollout = rollout_of([*hosts(3), host("a1", kind=A100, groups=("lab",)), host("a2", kind=A100, jobs=jobs(1))],
                             policy_of({"limit": 9, "freezes": [freeze]}))
        well, frozen = sorted((unit for unit in rollout.units if unit.place is Place.canary), key=lambda each:
                              each.name == "host a1")
        assert frozen.name == "host a1" and starting(decide(rollout, present())) == [well.name]
        done, of_kind = {*well.hosts, "h1", "h2", "h3"}, host("a2", kind=A100).proof
        assert starting(decide(rollout, present(done=done))) == ["host a2"]
        # Of its kind there is one canary still
        assert starting(decide(rollout, present(done=done, proving={of_kind: "node n7, which is in progress"}))) == []
        # And one that began before its window closed is waited for
        waits = decide(rollout, present(done=set(well.hosts), in_progress={"a1"})).waiting
        assert {each.why for each in waits} >= {"waits for the canary host a1, which is in progress"}

    def test_of_several_canaries_that_are_watched_the_last_one_counts(self) -> None:
        rollout = rollout_of([*hosts(2), *(host("a%d" % each, kind=A100) for each in range(2))], Policy(limit=Limit(9)))
        canaries = [unit.hosts[0] for unit in rollout.units[:2]]
        decision = decide(rollout, present(done=set(canaries), soaking={canaries[0]: NOW + timedelta(minutes=1),
                                                                        canaries[1]: LATER}))
        assert {each.until for each in decision.waiting} == {LATER}

    def test_a_canary_that_asks_is_waited_for_however_long(self) -> None:
        rollout = rollout_of([*hosts(3), host("a1", kind=A100, jobs=jobs(1)), host("a2", kind=A100, jobs=jobs(2))],
                             Policy(limit=Limit(9)))
        first, second = [unit for unit in rollout.units if unit.place is Place.canary]
        others = [unit.name for unit in rollout.units if unit.place is Place.in_order]
        decision = decide(rollout, present(patience_is_over=True, done=set(first.hosts), canaries={second.name}),
                          others)
        assert starting(decision) == [] and decision.waiting[0].why == (
            "waits for the canary %s, which is not changed yet" % second.name)

    def test_a_canary_that_was_left_as_it_is_keeps_nobody_waiting(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(9)))
        decision = decide(rollout, present(left=set(rollout.units[0].hosts)))
        assert len(starting(decision)) == 1 and [unit.name for unit in decision.over] == [rollout.units[0].name]

    def test_who_does_not_ask_keeps_no_place(self) -> None:
        rollout = rollout_of(hosts(5), Policy(limit=Limit(1), canaries=NO_CANARY))
        last = rollout.units[-1].name
        assert starting(decide(rollout, present())) != [last]
        assert starting(decide(rollout, present(), [last])) == [last]

    def test_a_clique_that_waits_for_places_claims_those_that_become_free(self) -> None:
        rollout = rollout_of([*hosts(3, clique="x"), host("h8", jobs=jobs(1)), host("h9", jobs=jobs(2))],
                             Policy(limit=Limit(3), domain_limit=Limit(3), canaries=NO_CANARY))
        (waiting,) = decide(rollout, present(in_progress={"h9"}), ["clique x"]).waiting
        assert waiting.claims == "all"
        for part in ("all", part_of("")):
            (turn,) = decide(rollout, present(in_progress={"h9"}, claims={part: "clique x"}), ["host h8"]).waiting
            assert (turn.cause, turn.why) == (Cause.turn, "clique x is before it, and waits for places")
        assert starting(decide(rollout, present(claims={"all": "clique x"}), ["clique x"])) == ["clique x"]

    def test_the_limits_that_count_may_be_others_than_those_of_the_plan(self) -> None:
        rollout = rollout_of(hosts(9))
        fleet = dict(rollout.hosts)
        assert renewed(rollout, fleet, Policy(limit=Limit(5)), (None, None)).limits.total == 5
        capped = renewed(rollout, fleet, Policy(limit=Limit(5)), (Limit(2), Limit(34, percent=True)))
        assert (capped.limits.total, capped.limits.domains) == (2, {"": 3})

    def test_a_clique_that_is_changed_host_by_host_has_one_at_a_time(self) -> None:
        rollout = rollout_of([*hosts(3, clique="x"), host("y", jobs=jobs(1))],
                             Policy(limit=Limit(9), unit_mode=ROLLING, canaries=NO_CANARY, max_failures=3))
        first, second, third = [unit.hosts[0] for unit in rollout.units[:3]]
        assert starting(decide(rollout, present())) == ["host " + first, "host y"]
        for seen, cause, told in [
            ({"in_progress": {first}}, "group", "%s is in progress" % first),
            ({"done": {first}, "unhealthy": {first: "Xid"}}, "group", "%s is changed and not healthy: Xid" % first),
            ({"done": {first}, "unhealthy": {first: "Xid"}, "found": {first}}, "person",
             "%s is changed and not healthy: Xid" % first),
            ({"in_progress": {first}, "unreachable": {first}}, "person",
             "%s is in progress, and cannot be reached any more" % first),
            ({"failed": {first: "Xid"}}, "person", "%s failed: Xid" % first),
        ]:
            decision = decide(rollout, present(**seen))
            assert starting(decision) == ["host y"]
            assert waits(decision)["host " + second] == (cause, "clique x is changed host by host, and " + told)
        assert starting(decide(rollout, present(done={first}))) == ["host " + second, "host y"]
        assert third in {unit.hosts[0] for unit in rollout.units}

    def test_of_those_of_it_that_failed_otherwise_one_at_a_time_is_tried_anew(self) -> None:
        rollout = rollout_of(hosts(3, clique="x"),
                             Policy(limit=Limit(9), unit_mode=ROLLING, canaries=NO_CANARY, max_failures=3))
        first, second, third = [unit.hosts[0] for unit in rollout.units]
        failed: Dict[str, Any] = {"failed": {first: "Xid", second: "Xid"}, "otherwise": {first, second}}
        decision = decide(rollout, present(**failed))
        assert starting(decision) == ["host " + first]
        assert waits(decision)["host " + second] == (
            "group", "clique x is changed host by host, and host %s is about to begin" % first)
        for seen in ({"in_progress": {third}}, {"in_progress": {third}, "unreachable": {third}},
                     {"done": {third}, "unhealthy": {third: "Xid"}}):
            assert starting(decide(rollout, present(**failed, **seen))) == []

    def test_a_host_of_it_that_failed_in_an_earlier_run_stops_it_too(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", clique="x", failed="Xid")],
                             Policy(limit=Limit(9), unit_mode=ROLLING, canaries=NO_CANARY, max_failures=3))
        assert starting(decide(rollout, present(failed={"h3": "Xid"}))) == []

    def test_a_host_of_it_that_is_not_well_since_an_earlier_run_stops_it_too(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", clique="x", plan="")],
                             Policy(limit=Limit(9), unit_mode=ROLLING, canaries=NO_CANARY))
        assert starting(decide(rollout, present(unhealthy={"h3": "Xid"}))) == []
        assert len(starting(decide(rollout, present()))) == 1

    def test_a_host_of_no_cluster_has_its_window(self) -> None:
        freeze = {"from": "2026-06-30", "to": "2026-07-05", "reason": "end of quarter", "zone": "UTC"}
        fleet = [host("h1", node="", disruption=Disruption.service_restart), host("h2", node="")]
        for name in ("h1", "h2"):
            waiting = closed_now(rollout_of(fleet, policy_of({"freezes": [freeze]})), name, NOW)
            assert waiting is not None and waiting.cause is Cause.window and waiting.unit.hosts == (name,)
            assert closed_now(rollout_of(fleet), name, NOW) is None

    def test_the_window_is_asked_at_each_start_with_the_expected_end(self) -> None:
        policy = policy_of({"limit": 9, "canaries": "none", "windows": [
            {"days": "wed", "start": "12:00", "duration": "1h", "zone": "UTC"}]})
        rollout = rollout_of([host("h1", seconds=600), host("h2", seconds=3600)], policy)
        assert sorted(starting(decide(rollout, present()))) == ["host h1", "host h2"]
        decision = decide(rollout, present(NOW + timedelta(minutes=1)))
        assert starting(decision) == ["host h1"]
        assert decision.waiting[0].until == NOW + timedelta(days=7)
        assert waits(decision)["host h2"] == ("window", (
            "it is expected to last until Wed 2026-07-01 13:01 UTC, and the window closes at Wed 2026-07-01 13:00 UTC; "
            "the next that is long enough opens at Wed 2026-07-08 12:00 UTC"))

    def test_a_unit_outside_its_window_keeps_nobody_waiting(self) -> None:
        policy = policy_of({"limit": 1, "canaries": "none", "windows": [
            {"days": "wed", "start": "12:00", "duration": "1h", "zone": "UTC", "groups": ["day"]},
            {"days": "sat", "start": "12:00", "duration": "1h", "zone": "UTC"}]})
        rollout = rollout_of([host("h1"), host("h2", jobs=jobs(1), groups=("day",))], policy)
        assert starting(decide(rollout, present())) == ["host h2"]

    @pytest.mark.parametrize("seen, cause, why", [
        ({"cordoned": {"h1": "ada"}}, "others", "h1 was taken out of service by ada"),
        ({"marked": {"h1": "kured"}}, "others", "another manager is at work on h1: kured"),
        ({"unreachable": {"h1"}}, "unreachable", "h1 cannot be reached"),
    ])
    def test_what_has_come_since_the_plan_is_seen(self, seen: Any, cause: str, why: str) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3", jobs=jobs(1))])
        decision = decide(rollout, present(**seen))
        assert starting(decision) == ["host h3"] and waits(decision) == {"clique x": (cause, why)}

    def test_units_that_are_begun_and_ended_are_not_begun_again(self) -> None:
        rollout = rollout_of([*hosts(2, clique="x"), host("h3"), host("h4"), host("h5", jobs=jobs(1))],
                             Policy(limit=Limit(9), canaries=NO_CANARY, max_failures=9))
        decision = decide(rollout, present(done={"h1", "h3"}, in_progress={"h2"}, failed={"h4": "x"}))
        assert [unit.name for unit in decision.under_way] == ["clique x"]
        assert {unit.name for unit in decision.over} == {"host h3", "host h4"}
        assert starting(decision) == ["host h5"]

    def test_a_wait_says_since_when(self) -> None:
        rollout = rollout_of(hosts(2), Policy(canaries=NO_CANARY, max_failures=9))
        first, second = (unit.hosts[0] for unit in rollout.units)
        before = decide(rollout, present(in_progress={first}))
        assert before.since == {"host " + second: ("slots", NOW)}
        after = decide(rollout, present(LATER, not_ready={first}, since=before.since))
        assert after.waiting[0].since == NOW
        other = decide(rollout, present(
            LATER, in_progress={first}, unreachable={second}, since=before.since))
        assert (other.waiting[0].cause, other.waiting[0].since) == (Cause.unreachable, LATER)

    def test_it_is_data(self) -> None:
        rollout = rollout_of(hosts(2), Policy(canaries=NO_CANARY))
        first, second = order(rollout)
        assert json.loads(json.dumps(decide(rollout, present()).to_dict())) == {
            "stopped": [], "may_start": [first], "under_way": [], "over": [], "slots": "1 of 1 free",
            "waiting": [{"unit": second, "cause": "slots", "since": "2026-07-01T12:00:00+00:00", "until": "", "why": (
                "needs 1, and in all there are 1 of 1 free; 1 about to begin (%s)" % first.partition(" ")[2])}]}

    def test_of_two_that_are_half_done_and_in_service_as_many_begin_as_may(self) -> None:
        fleet = [*(host("h%d" % each, half_done=True) for each in (1, 2)), host("h3", cordoned_by="ada")]
        seen = present(half_done={"h1", "h2"}, uncordoned={"h1", "h2"}, cordoned={"h3": "ada"})
        rollout = rollout_of(fleet, replace(FREE, limit=Limit(2)))
        decision = decide(rollout, seen)
        assert len(starting(decision)) == 1
        (why,) = (why for name, (cause, why) in waits(decision).items() if cause == "slots")
        assert why.startswith("needs 1, and in all there are 0 of 2 free"), why


class TestStop:
    @pytest.mark.parametrize("failed, most, stops", [(0, 0, False), (1, 0, True), (1, 1, False), (3, 2, True)])
    def test_beyond_so_many_failures_nothing_is_begun(self, failed: int, most: int, stops: bool) -> None:
        rollout = rollout_of(hosts(9), Policy(limit=Limit(9), canaries=NO_CANARY, max_failures=most))
        decision = decide(rollout, present(failed={"h%d" % each: "Xid" for each in range(1, failed + 1)}))
        assert bool(decision.stopped) == stops and bool(decision.may_start) != stops
        assert [each.code for each in decision.stopped] == ["rollout.too_many_failures"] * stops
        assert {each.cause for each in decision.waiting} <= {Cause.stopped}

    def test_failures_of_an_earlier_run_are_failures_of_the_plan(self) -> None:
        rollout = rollout_of([host("h1", failed="Xid"), host("h2")], Policy(limit=Limit(9)))
        assert decide(rollout, present(failed={"h1": "Xid"})).stopped[0].found == "1 failed: h1 (Xid)"

    def test_a_canary_that_fails_ends_it_whatever_else_may_fail(self) -> None:
        rollout = rollout_of(hosts(4), Policy(limit=Limit(9), max_failures=9))
        decision = decide(rollout, present(failed={rollout.units[0].hosts[0]: "Xid"}))
        assert [each.code for each in decision.stopped] == ["rollout.canary_failed"]
        other = decide(rollout, present(done={rollout.units[0].hosts[0]}, failed={rollout.units[1].hosts[0]: "Xid"}))
        assert other.stopped == () and len(other.may_start) == 2
        # That of another run, on a node that is none of ours
        theirs = decide(rollout, present(failed={"node n7": "Xid"}, failed_canaries={"node n7"}))
        assert [each.code for each in theirs.stopped] == ["rollout.canary_failed"]

    @pytest.mark.parametrize("unreachable, stops", [(2, False), (3, True)])
    def test_many_that_are_out_of_reach_at_once_stop_it(self, unreachable: int, stops: bool) -> None:
        rollout = rollout_of(hosts(14), Policy(limit=Limit(9), canaries=NO_CANARY))
        decision = decide(rollout, present(unreachable={"h%d" % each for each in range(1, unreachable + 1)}))
        assert [each.code for each in decision.stopped] == ["rollout.too_many_unreachable"] * stops
        assert bool(decision.may_start) != stops

    def test_where_none_may_be_out_of_reach_the_first_one_stops_it(self) -> None:
        rollout = rollout_of(hosts(14), Policy(limit=Limit(9), canaries=NO_CANARY, max_unreachable=Limit(0)))
        assert decide(rollout, present(unreachable={"h1"})).stopped[0].wanted.startswith("not more than 0")
        assert decide(rollout, present()).stopped == ()

    def test_what_is_in_progress_goes_on(self) -> None:
        rollout = rollout_of(hosts(3), Policy(limit=Limit(9), canaries=NO_CANARY))
        decision = decide(rollout, present(in_progress={"h1"}, failed={"h2": "x"}))
        assert [unit.name for unit in decision.under_way] == ["host h1"] and decision.may_start == ()


LIMITS = st.one_of(st.integers(1, 6).map(Limit), st.integers(1, 100).map(lambda number: Limit(number, percent=True)))
POLICIES = st.builds(
    Policy, limit=LIMITS, domain_limit=st.one_of(st.none(), LIMITS), canaries=st.sampled_from(["every_kind", "none"]),
    unit_mode=st.sampled_from([PARALLEL, ROLLING]),
    unit_modes=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from([PARALLEL, ROLLING])),
    max_failures=st.integers(0, 3), max_unreachable=st.just(Limit(2)), seed=st.sampled_from(["", "1"]))


@st.composite
def fleets(draw: st.DrawFn, undisturbed: bool = False) -> List[Host]:
    def rarely(value: Any, otherwise: Any) -> Any:
        return otherwise if undisturbed else draw(st.sampled_from([otherwise] * 7 + [value]))

    return [
        host("h%d" % number,
             plan=draw(st.sampled_from(["p1", "p1", "p2", ""])), policy=draw(st.sampled_from(["q1", "q1", "q2"])),
             disruption=draw(st.sampled_from([Disruption.driver_reload, Disruption.reboot,
                                              Disruption.service_restart])),
             kind=draw(st.sampled_from([H100, H100, A100])), domain=draw(st.sampled_from(["", "a", "b"])),
             clique=draw(st.sampled_from(["", "", "x", "y"])), job_group=draw(st.sampled_from(["", "", "y"])),
             half_done=draw(st.sampled_from([False] * 6 + [True])),
             in_service=draw(st.sampled_from([True] * 4 + [False])),
             jobs=jobs(draw(st.integers(0, 2))), ready=rarely(False, True), cordoned_by=rarely("ada", ""),
             marks=rarely(("kured",), ()), failed=rarely("Xid", ""), reachable=rarely(False, True))
        for number in range(draw(st.integers(1, 12)))]


class Fleet:
    """A fleet on which units begin, end and fail, counted without the planner's help."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        read = rollout.hosts.values()
        self.new = {each.name for each in read if not each.in_service}
        self.failed = {each.name: each.failed for each in read if each.failed}
        self.half_done = {each.name for each in read if each.half_done}
        self.cordoned = {each.name: each.cordoned_by for each in read if each.cordoned_by}
        self.not_ready = {each.name for each in read if not each.ready}
        self.in_progress: Set[str] = set()
        self.done: Set[str] = set()
        self.unhealthy: Dict[str, str] = {}
        self.unreachable = {each.name for each in read if not each.reachable}

    def present(self) -> Present:
        return present(in_progress=set(self.in_progress), done=set(self.done), failed=dict(self.failed),
                       half_done=set(self.half_done),
                       unhealthy=dict(self.unhealthy), cordoned=dict(self.cordoned), not_ready=set(self.not_ready),
                       unreachable=set(self.unreachable))

    def at_work(self, domain: Optional[str] = None) -> Set[str]:
        return self._of(domain, {*self.in_progress, *self.failed})

    def out(self, domain: Optional[str] = None) -> Set[str]:
        return self._of(domain, {*self.in_progress, *self.failed, *self.cordoned, *self.not_ready, *self.unhealthy,
                                 *self.unreachable, *self.half_done})

    def _of(self, domain: Optional[str], names: Set[str]) -> Set[str]:
        return {name for name in names - self.new if domain is None or self.rollout.hosts[name].domain == domain}

    def begin(self, names: Sequence[str]) -> None:
        self.in_progress.update(set(names) - self.done)

    def end(self, name: str, how: str) -> None:
        self.in_progress.discard(name)
        self.not_ready.discard(name)
        if how == "fails":
            self.failed[name] = "Xid"
        else:
            self.done.add(name)
            self.half_done.discard(name)
            self.unhealthy.update({name: "Xid"} if how == "is ill" else {})


@settings(max_examples=120)
@given(fleet=fleets(), policy=POLICIES, seed=st.integers(0, 1000), passed=st.sets(st.sampled_from(
    [host("h", policy=policy, kind=kind).proof for policy in ("q1", "q2") for kind in (H100, A100)])))
def test_every_host_has_one_place_and_the_same_input_the_same_order(
    fleet: List[Host], policy: Policy, seed: int, passed: Set[str]
) -> None:
    rollout = plan(fleet, policy, NOW, passed)
    placed = [*rollout.beside, *rollout.refused, *(name for unit in rollout.units for name in unit.hosts)]
    assert sorted(placed) == sorted(each.name for each in fleet)
    assert len(set(order(rollout))) == len(rollout.units)
    assert [unit.place for unit in rollout.units] == sorted(unit.place for unit in rollout.units)
    assert all(unit.why and unit.hosts == tuple(sorted(unit.hosts)) for unit in rollout.units)
    assert plan(random.Random(seed).sample(fleet, len(fleet)), policy, NOW, passed) == rollout


@settings(max_examples=120)
@given(fleet=fleets(), policy=POLICIES)
def test_a_clique_is_never_split_where_it_is_changed_as_a_whole(fleet: List[Host], policy: Policy) -> None:
    rollout = plan(fleet, policy, NOW)
    unit_of = {name: unit.name for unit in rollout.units for name in unit.hosts}
    whole = [each for each in fleet if each.group and policy.mode(each.group) == PARALLEL]
    for group in {(bool(each.clique), each.group) for each in whole}:
        members = [each.name for each in whole if (bool(each.clique), each.group) == group]
        places = {unit_of.get(name, "refused") for name in members if name not in rollout.beside}
        assert len(places) <= 1


@settings(max_examples=120)
@given(fleet=fleets(), policy=POLICIES)
def test_of_every_kind_a_canary_goes_before_all_others(fleet: List[Host], policy: Policy) -> None:
    rollout = plan(fleet, policy, NOW)
    canaries = {rollout.hosts[name].kind for unit in rollout.units if unit.place is Place.canary for name in unit.hosts}
    others = {rollout.hosts[name].kind for unit in rollout.units if unit.place is Place.in_order for name in unit.hosts}
    assert others <= canaries or policy.canaries == NO_CANARY
    assert not canaries or policy.canaries != NO_CANARY


@settings(max_examples=250)
@given(fleet=fleets(), policy=POLICIES, data=st.data())
def test_no_sequence_of_starts_ends_and_failures_exceeds_a_limit(
    fleet: List[Host], policy: Policy, data: st.DataObject
) -> None:
    rollout = plan(fleet, policy, NOW)
    world = Fleet(rollout)
    parts = [(None, rollout.limits.total), *rollout.limits.domains.items()]
    for _ in range(data.draw(st.integers(1, 12))):
        decision = decide(rollout, world.present())
        named = [*decision.may_start, *(each.unit for each in decision.waiting), *decision.under_way, *decision.over]
        assert sorted(unit.name for unit in named) == sorted(order(rollout))
        assert decision == decide(rollout, world.present())
        if decision.stopped or len(world.failed) > policy.max_failures or len(world.unreachable) > 2:
            assert decision.stopped and not decision.may_start
        assert decision.slots.taken == len(world.out())
        out = {domain: world.out(domain) for domain, _limit in parts}
        begun = data.draw(st.sets(st.sampled_from(decision.may_start))) if decision.may_start and data.draw(
            st.booleans()) else set(decision.may_start)
        for unit in begun:
            assert not set(unit.hosts) & {*world.in_progress, *world.done, *world.failed, *world.cordoned,
                                          *world.unreachable, *rollout.refused, *rollout.beside}
            world.begin(unit.hosts)
        for domain, limit in parts:
            starting_there = {name for unit in begun for name in unit.hosts} & world.at_work(domain)
            assert not starting_there or len(world.at_work(domain)) <= limit
            assert len(world.out(domain)) <= max(limit, len(out[domain]))
        for group in {unit.one_by_one for unit in rollout.units if unit.one_by_one}:
            assert len({unit.name for unit in rollout.units if unit.one_by_one == group}
                       & {"host " + name for name in world.in_progress}) <= 1
        for name in sorted(world.in_progress):
            how = data.draw(st.sampled_from(["goes on", "goes on", "goes well", "goes well", "fails", "is ill"]))
            if how != "goes on":
                world.end(name, how)
        event, name = data.draw(st.sampled_from(["", "", "", "cordoned", "not ready", "lost", "back", "cured"])), (
            data.draw(st.sampled_from(sorted(rollout.hosts))))
        world.cordoned.update({name: "ada"} if event == "cordoned" and name not in world.in_progress else {})
        world.not_ready.update({name} if event == "not ready" else ())
        world.unreachable.update({name} if event == "lost" and name not in world.in_progress else ())
        if event == "back":
            world.unreachable.discard(name)
        if event == "cured":
            world.unhealthy.pop(name, None)


@settings(max_examples=120)
@given(fleet=fleets(undisturbed=True), policy=POLICIES, data=st.data())
def test_an_undisturbed_rollout_comes_to_its_end(fleet: List[Host], policy: Policy, data: st.DataObject) -> None:
    """No unit waits for one that waits for it, whatever the limits are."""
    rollout = plan(fleet, policy, NOW)
    # A clique that was begun under a higher limit waits for a person, and keeps its places until then
    assume(not any(rollout.hosts[name].half_done for name in rollout.refused))
    world = Fleet(rollout)
    # Nothing but to open them is left to do, and none of them waits for anybody
    world.half_done.difference_update(rollout.beside)
    for _ in range(4 * len(rollout.units) + 1):
        decision = decide(rollout, world.present())
        for unit in decision.may_start:
            world.begin(unit.hosts)
        assert world.in_progress or len(decision.over) == len(rollout.units)
        if world.in_progress:
            world.end(data.draw(st.sampled_from(sorted(world.in_progress))), "goes well")
    assert set(world.done) >= {name for unit in rollout.units for name in unit.hosts}


def test_a_fleet_of_thousands_takes_seconds() -> None:
    """A comparison of each with each would take minutes."""
    began = time.process_time()
    fleet = [host("h%05d" % each, domain="r%03d" % (each // 40), clique="" if each % 3 else "c%04d" % (each // 36),
                  kind=H100 if each % 5 else A100, jobs=jobs(each % 4), seconds=600 + each % 7)
             for each in range(15000)]
    policy = policy_of({"limit": "5%", "domain_limit": "30%", "windows": [
        {"days": ["mon", "tue", "wed"], "start": "11:00", "duration": "8h", "zone": "Europe/Berlin"}]})
    rollout = plan(fleet, policy, NOW)
    canaries = {name for unit in rollout.units if unit.place is Place.canary for name in unit.hosts}
    decision = decide(rollout, present(done=canaries, in_progress={"h00001"}))
    assert 100 < sum(len(unit.hosts) for unit in decision.may_start) <= 749
    assert time.process_time() - began < 20
