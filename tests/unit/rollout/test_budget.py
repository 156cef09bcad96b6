# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What all controllers share: who may begin, what becomes of slots, and what no order of events brings about."""
from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout import budget
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    BEAT,
    CLAIM,
    CONFIRMING,
    DEFAULT_POOL,
    DONE,
    FAILED,
    FREED,
    LEFT,
    OUTCOMES,
    STATES,
    WORKING,
    Answer,
    Asking,
    Claim,
    Left,
    NodeState,
    OpenRollout,
    Pool,
    Proof,
    Record,
    Run,
    Slot,
    asked,
    begun,
    beside,
    checked_pool,
    closed,
    confirmed,
    ended,
    given_back,
    is_held,
    read_record,
    settled,
    without_the_gone,
    written,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.change import REPAIR
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.hosts import (
    Known,
    aim_of,
    allowed_later,
    host_of,
    job_groups,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import (
    Cause,
    Host,
    Kind,
    Rollout,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import Policy, policy_of

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)
H100 = Kind("8 x 10de:2330", "ubuntu-24.04", "containerd", "570.1", "580.2")
POOL = DEFAULT_POOL


def host(name: str, **more: Any) -> Host:
    return Host(**dict({"name": name, "node": "n-" + name, "plan": "p1", "policy": "q1", "kind": H100,
                        "disruption": Disruption.driver_reload, "seconds": 600}, **more))


def policy(**options: Any) -> Policy:
    return policy_of({"limit": 2, "canaries": "none", "max_failures": 9, **options})


def rollout_of(*hosts: Host, **options: Any) -> Rollout:
    return plan(hosts, policy(**options), NOW)


def fleet(number: int, **more: Any) -> List[Host]:
    return [host("h%d" % each, **more) for each in range(1, number + 1)]


def nodes_of(rollout: Rollout, **changes: Dict[str, Any]) -> Dict[str, NodeState]:
    """The Nodes of its hosts. changes: {host: what its Node is beside ready and in service}."""
    return {each.node: NodeState(each.node, domain=each.domain, **changes.get(each.name, {}))
            for each in rollout.of_run.values()}


class Room:
    """A record, Nodes, and runs that are alive, with one rollout. Answers are written, unless they are not to be."""

    def __init__(self, rollout: Rollout, record: Optional[Record] = None) -> None:
        self.rollout = rollout
        self.record = record or Record()
        self.nodes = nodes_of(rollout)
        self.dead: Set[str] = set()
        self.now = NOW

    @property
    def pool(self) -> Pool:
        return self.record.pool(POOL)

    def is_alive(self, run: str) -> bool:
        return run not in self.dead

    def asking(self, name: str, run: str = "a", **more: Any) -> Asking:
        return Asking(**dict({"host": name, "run": run, "controller": "controller-" + run, "aim": "x",
                              "now": self.now}, **more))

    def ask(self, name: str, run: str = "a", **more: Any) -> Answer:
        answer = asked(self.record, POOL, self.asking(name, run, **more), self.rollout, self.nodes, self.is_alive)
        self.record = answer.record or self.record
        return answer

    def begin(self, name: str, run: str = "a") -> Answer:
        """With what follows where the Nodes are as they were."""
        answer = self.ask(name, run)
        if answer.may_start and answer.before:
            assert self.confirm(answer, name, run).may_start
            self.record = begun(self.record, POOL, run, "n-" + name, answer.before)
        return answer

    def confirm(self, answer: Answer, name: str, run: str = "a") -> Answer:
        return confirmed(answer, POOL, self.asking(name, run), self.rollout, self.nodes, self.is_alive)

    def end(self, name: str, outcome: str = DONE, run: str = "a", reason: str = "Xid 79") -> None:
        self.record = ended(self.record, POOL, "n-" + name, run, outcome, reason, self.now, self.rollout.hosts[name])

    def close(self, run: str = "a") -> None:
        self.record = closed(self.record, POOL, run)

    def held(self, state: str = WORKING) -> Set[str]:
        return {slot.host for slot in self.pool.slots.values() if slot.state == state}


class TestRecord:
    def test_none_at_all_is_an_empty_one(self) -> None:
        assert read_record("") == Record() == read_record(written(Record()))

    @pytest.mark.parametrize("text", [
        "{", "[]", "{}", '{"schema": "gpuops.nvidia/budget/v2", "pools": {}}',
        '{"schema": "gpuops.nvidia/budget/v1", "pools": {"gpus": {}}}'])
    def test_what_cannot_be_understood_is_refused(self, text: str) -> None:
        with pytest.raises(GpuOpsError) as refused:
            read_record(text)
        assert refused.value.code == "rollout.record_unreadable"

    def test_one_of_an_earlier_release_is_read(self) -> None:
        opened = OpenRollout("x", NOW, {"a": Run("c", NOW, NOW)}, left={"m": Left()})
        record = Record({POOL: Pool(rollout=opened, slots={"n": Slot("h", "a", NOW, FAILED)},
                                    claims={"all": Claim("x", "a", NOW)})})
        data = json.loads(written(record))
        del data["pools"][POOL]["canaries"], data["pools"][POOL]["last"], data["pools"][POOL]["rollout"]["before"]
        del data["pools"][POOL]["rollout"]["runs"]["a"]["seconds"]
        data["pools"][POOL]["rollout"]["left"] = ["m"]
        for name in ("before", "aim", "joined", "domain"):
            del data["pools"][POOL]["slots"]["n"][name]
        assert read_record(json.dumps(data)) == record
        # What repairs had given back was told by another name
        data["pools"][POOL]["repaired"] = {"m": data["pools"][POOL]["slots"]["n"]["since"]}
        del data["pools"][POOL]["returned"]
        assert read_record(json.dumps(data)).pool(POOL).returned == {"m": NOW}
        # One that was tried anew kept what had failed by another name
        slot = data["pools"][POOL]["slots"]["n"]
        slot.update(state="working", failure=dict(slot, failure=None))
        assert read_record(json.dumps(data)).pool(POOL).slots == {
            "n": Slot("h", "a", NOW, before=Slot("h", "a", NOW, FAILED))}

    @pytest.mark.parametrize("change", [{"state": "lost"}, {"since": "yesterday"}, {"colour": "red"}])
    def test_a_slot_of_another_form_too(self, change: Dict[str, str]) -> None:
        data = json.loads(written(Record({POOL: Pool(slots={"n": Slot("h", "a", NOW)})})))
        data["pools"][POOL]["slots"]["n"].update(change)
        with pytest.raises(GpuOpsError, match="rollout.record_unreadable"):
            read_record(json.dumps(data))

    @pytest.mark.parametrize("place", ["", "pools/gpus", "pools/gpus/rollout", "pools/gpus/last",
                                       "pools/gpus/rollout/runs/a", "pools/gpus/rollout/left/m", "pools/gpus/slots/n",
                                       "pools/gpus/proofs/p", "pools/gpus/claims/all", "pools/gpus/canaries/u"])
    def test_what_a_newer_release_says_beside_is_not_written_over(self, place: str) -> None:
        opened = OpenRollout("x", NOW, {"a": Run("c", NOW, NOW)}, left={"m": Left("a", "why")})
        claim = Claim("u", "a", NOW)
        data = json.loads(written(Record({POOL: Pool(
            rollout=opened, last=opened, slots={"n": Slot("h", "a", NOW)}, proofs={"p": Proof("n", NOW)},
            claims={"all": claim}, canaries={"u": claim})})))
        inner = data
        for name in filter(None, place.split("/")):
            inner = inner[name]
        inner["paused"] = "by Ann"
        with pytest.raises(GpuOpsError, match="rollout.record_unreadable"):
            read_record(json.dumps(data))

    @pytest.mark.parametrize("torn", [{"limit": "abc"}, {"limit": "1", "domain_limit": "0"}])
    def test_limits_with_a_slip_are_the_records_and_nobodys_option(self, torn: Dict[str, str]) -> None:
        data = json.loads(written(Record({POOL: Pool(limit="1")})))
        data["pools"][POOL].update(torn)
        with pytest.raises(GpuOpsError) as refused:
            read_record(json.dumps(data))
        assert refused.value.code == "rollout.record_unreadable" and not refused.value.refusals[0].option
        assert "limit` is" in refused.value.found and "`caps` stay" in refused.value.remedy

    @pytest.mark.parametrize("caps", [
        "no", "[1]", '{"gpus": {"limit": "0"}}', '{"gpus": {"limit": ""}}', '{"gpus": {"most": "1"}}', '{"gpus": 3}'])
    def test_caps_with_a_slip_are_refused(self, caps: str) -> None:
        with pytest.raises(GpuOpsError, match="rollout.caps_unreadable"):
            read_record("", caps)

    @pytest.mark.parametrize("name", ["", "-a", "a b", "a" * 64, "a/b"])
    def test_a_pool_has_a_name(self, name: str) -> None:
        with pytest.raises(GpuOpsError, match="rollout.pool_malformed"):
            checked_pool(name)
        assert checked_pool("training.a_1") == "training.a_1"


class TestOpen:
    def test_the_first_that_begins_opens_it_with_its_limits(self) -> None:
        room = Room(rollout_of(*fleet(3), limit="50%", domain_limit=2))
        assert room.ask("h1").may_start
        assert (room.pool.limit, room.pool.domain_limit) == ("50%", "2")
        assert room.pool.rollout == OpenRollout("x", NOW, {"a": Run("controller-a", NOW, NOW)})

    def test_another_one_waits_and_is_told_for_whom_and_since_when(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        answer = room.ask("h2", "b", aim="y")
        assert answer.waiting is not None and answer.record is None and answer.waiting.cause is Cause.rollout
        assert answer.waiting.why == ("run a of controller-a has another rollout open in this pool since "
                                      "Wed 2026-07-01 12:00 UTC")
        assert (answer.waiting.since, answer.is_final) == (NOW, False)

    def test_it_ends_with_its_last_run(self) -> None:
        room = Room(rollout_of(*fleet(4)))
        room.ask("h1")
        room.ask("h2", "b")
        room.end("h1")
        room.close()
        assert room.ask("h3", "c", aim="y").waiting is not None
        room.end("h2", run="b")
        room.close("b")
        assert room.ask("h3", "c", aim="y").may_start
        assert room.pool.rollout == OpenRollout("y", NOW, {"c": Run("controller-c", NOW, NOW)})

    def test_nobody_waits_for_a_run_that_is_no_more(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        room.dead = {"a"}
        assert room.ask("h2", "b", aim="y").may_start
        assert room.pool.rollout is not None and set(room.pool.rollout.runs) == {"b"} and room.held() == {"h1", "h2"}

    def test_a_run_that_waits_writes_down_now_and_then_that_it_is_at_work(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.begin("h1")
        assert room.ask("h2").record is None, "it has just said so"
        room.now += BEAT
        assert room.ask("h2").waiting is not None and room.pool.rollout is not None
        assert room.pool.rollout.runs == {"a": Run("controller-a", NOW, room.now)}
        assert room.ask("h2").record is None
        assert room.ask("h2", "b").record is None, "one that holds nothing is waited for by nobody"
        room.now -= 2 * BEAT
        assert room.ask("h2").record is not None, "its clock was set back"

    def test_runs_of_one_aim_share_it_and_its_limits(self) -> None:
        room = Room(rollout_of(*fleet(4)))
        room.ask("h1")
        room.rollout = rollout_of(*fleet(4), limit=4)
        answer = room.ask("h2", "b")
        assert answer.may_start and answer.notes == (
            "the limits of the open rollout count, 2 in all, and not those of this run",)
        assert room.ask("h3", "b").waiting is not None

    def test_a_cap_of_the_cluster_holds_for_every_run(self) -> None:
        caps = {POOL: {"limit": "3", "domain_limit": "2"}}
        room = Room(rollout_of(*fleet(9, domain="r1"), limit=9), Record(caps=caps))
        assert [room.ask("h%d" % each).may_start for each in (1, 2, 3)] == [True, True, False]
        other = Room(rollout_of(*fleet(9), limit=9), Record(caps={"others": {"limit": "1"}}))
        assert [other.ask("h%d" % each).may_start for each in (1, 2)] == [True, True]

    def test_pools_have_nothing_to_do_with_each_other(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.ask("h1")
        answer = asked(room.record, "other", room.asking("h2", "b", aim="y"), room.rollout, room.nodes, room.is_alive)
        assert answer.may_start and answer.record is not None
        assert set(answer.record.pools) == {POOL, "other"} and answer.record.pool(POOL) == room.pool


class TestSlots:
    def test_so_many_begin_as_there_are_places(self) -> None:
        room = Room(rollout_of(*fleet(4)))
        assert [room.ask(name).may_start for name in ("h3", "h1", "h2")] == [True, True, False]
        assert room.ask("h2").waiting.why == "needs 1, and in all there are 0 of 2 free; 2 in progress (h1, h3)"
        room.end("h3")
        assert room.ask("h2").may_start and room.held() == {"h1", "h2"}

    def test_who_has_begun_is_told_so_again(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.ask("h1")
        again = room.ask("h1")
        assert again.may_start and again.record is None and not again.before

    def test_a_host_that_disturbs_nobody_takes_no_slot(self) -> None:
        room = Room(rollout_of(host("h1", disruption=Disruption.service_restart), *fleet(1)[1:]))
        assert room.ask("h1") == Answer() and room.record == Record()

    def test_a_refused_one_is_told_why(self) -> None:
        room = Room(rollout_of(host("h1", marks=("kured",))))
        answer = room.ask("h1")
        assert not answer.may_start and answer.is_final
        assert [each.code for each in answer.refusals] == ["rollout.managed_by_others"]

    def test_a_clique_begins_whole_and_its_hosts_one_after_another(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3")))
        assert room.begin("h2").may_start and room.held() == {"h1", "h2"}
        assert {slot.host: slot.begun for slot in room.pool.slots.values()} == {"h1": False, "h2": True}
        assert room.ask("h3").waiting is not None
        assert room.ask("h1").may_start and all(slot.begun for slot in room.pool.slots.values())

    def test_none_of_it_begins_before_its_places_are_confirmed(self) -> None:
        """They may have to be given back, and a host that has begun cannot give back."""
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3")))
        answer = room.ask("h2")
        waiting = room.ask("h1").waiting
        assert waiting is not None and (waiting.cause, waiting.why) == (
            Cause.run, "its places were reserved, and are not confirmed yet")
        room.record = given_back(room.record, POOL, "a", answer.before)
        assert room.held() == set()

    def test_a_half_done_host_of_it_stays_so_where_the_next_run_ends_before_it_begins(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), limit=3))
        room.begin("h1")
        room.dead = {"a"}
        assert room.ask("h2", "b").may_start
        room.close("b")
        assert room.held() == {"h1"}

    def test_what_a_run_has_not_begun_is_free_with_its_end_and_the_rest_is_to_be_taken_over(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3")))
        room.begin("h2")
        room.close()
        assert room.held() == {"h2"} and room.pool.rollout is None
        assert [room.ask("h3", "b").may_start, room.ask("h2", "b").may_start] == [True, False]
        room.end("h3", run="b")
        assert room.begin("h2", "b").may_start and {slot.run for slot in room.pool.slots.values()} == {"b"}

    def test_a_dead_runs_node_is_taken_over_without_a_further_place(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        room.ask("h2")
        room.dead = {"a"}
        assert room.ask("h3", "b").waiting.why.endswith("0 of 2 free; 2 half done (h1, h2)")
        answer = room.ask("h1", "b")
        assert answer.may_start and answer.before["n-h1"].run == "a" and room.pool.slots["n-h1"].run == "b"
        with pytest.raises(GpuOpsError, match="rollout.held_by_another"):
            room.end("h1")

    def test_a_node_that_another_run_works_on_is_waited_for(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        waiting = room.ask("h1", "b").waiting
        assert waiting is not None and (waiting.cause, waiting.why) == (Cause.run, "h1 is at work by run a")

    def test_what_failed_keeps_its_place_until_a_person_frees_it(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.ask("h1")
        room.end("h1", FAILED)
        assert room.held(FAILED) == {"h1"} and room.pool.slots["n-h1"].reason == "Xid 79"
        answer = room.ask("h2")
        assert answer.is_final and answer.waiting is not None and answer.waiting.cause is Cause.person
        assert answer.waiting.why.endswith("1 failed (h1); a person has to see to h1")
        assert [each.code for each in room.ask("h1").refusals] == ["rollout.failed_before"]
        room.end("h1", FREED, run="")
        assert room.ask("h2").may_start

    def test_or_until_another_policy_goes_well_there(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1, max_failures=0))
        room.ask("h1")
        room.end("h1", FAILED)
        room.close()
        stopped = room.ask("h2", "b")
        assert [each.code for each in stopped.refusals] == ["rollout.too_many_failures"] and stopped.is_final
        room.rollout = rollout_of(*fleet(3, policy="q2"), limit=1, max_failures=0)
        assert room.ask("h1", "c", aim="y").may_start and room.held() == {"h1"}
        room.end("h1", run="c")
        assert room.pool.slots == {}

    def test_a_run_that_leaves_it_as_it_is_frees_it_not(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.ask("h1")
        room.end("h1", FAILED)
        failed = room.pool.slots
        room.close()
        room.end("h1", LEFT, run="b")
        assert room.pool.slots == failed

    @pytest.mark.parametrize("ends", ["left", "closed", "dies", "given back"])
    def test_nor_does_one_of_another_policy_that_does_nothing_to_it(self, ends: str) -> None:
        """It has taken the slot over, that of its clique is only reserved."""
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3"), limit=3))
        room.begin("h2")
        room.begin("h1")
        room.end("h1", FAILED)
        room.end("h2")
        room.close()
        failed = room.pool.slots
        room.rollout = rollout_of(*fleet(2, clique="x", policy="q2"), host("h3", policy="q2"), limit=3)
        answer = room.ask("h2", "b")
        assert answer.may_start and room.pool.slots["n-h1"].before == failed["n-h1"]
        if ends == "left":
            for name in ("h1", "h2"):
                room.end(name, LEFT, run="b")
        elif ends == "closed":
            room.close("b")
        elif ends == "given back":
            room.record = given_back(room.record, POOL, "b", answer.before)
        else:
            room.dead = {"b"}
            waiting = room.ask("h3", "c")
            assert waiting.slots is not None and waiting.slots.failed == ("h1",)
        assert room.held(FAILED) == {"h1"} or ends == "dies"
        assert room.pool.slots == failed or ends == "dies"

    @pytest.mark.parametrize("ends", ["left", "given up", "given back", "needs nothing"])
    @pytest.mark.parametrize("more", [{}, {"clique": "x"}], ids=["one", "two"])
    def test_what_a_dead_run_had_begun_is_half_done_still_where_another_one_left_it(
        self, ends: str, more: Dict[str, str]
    ) -> None:
        """Its node may have lost what others would know it by, and what was begun tells what is to come."""
        failed = Slot("h1", "a", NOW, FAILED, policy="repair=0", reason="x")
        half = Slot("h1", "r", NOW, policy="repair=1", aim="repair", domain="rack-1", before=failed)
        left = {"n-h1": replace(half, run="")}
        room = Room(rollout_of(replace(host("h1", policy="repair=2", **more), half_done=True),
                               *([host("h2", policy="repair=2", **more)] if more else []), limit=3),
                    Record({POOL: Pool(slots={"n-h1": half})}))
        room.dead = {"r"}
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
        answer = room.ask("h1", "s")
        assert answer.may_start
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=ends != "given up")
        if ends == "given back":
            room.record, left = given_back(room.record, POOL, "s", answer.before), {"n-h1": half}
        elif ends == "given up":
            room.record = begun(room.record, POOL, "s", "n-h1", answer.before)
            room.nodes["n-h1"] = replace(room.nodes["n-h1"], cordoned_by="ada")
            assert room.ask("h1", "s").waiting.cause is Cause.others
        else:
            for name in room.rollout.order:
                room.end(name, LEFT, "s", "" if ends == "needs nothing" else "its plan is refused by now")
            left = {"n-h1": failed} if ends == "needs nothing" else left
        assert room.pool.slots == left

    def test_however_often_it_is_taken_over_the_record_grows_no_longer(self) -> None:
        room = Room(rollout_of(replace(host("h1"), half_done=True)))
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
        for number in range(9):
            assert room.ask("h1", "s%d" % number).may_start
            room.dead.add("s%d" % number)
        slot = room.pool.slots["n-h1"]
        assert slot.run == "s8" and slot.before is not None and slot.before.before is None

    def test_what_another_run_says_that_never_had_it_takes_nothing_from_who_left_it(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), limit=3))
        room.begin("h1")
        room.end("h1", LEFT, reason="the package is gone")
        room.begin("h1", "b")
        room.end("h1", LEFT, "b", reason="nobody has answered")
        assert room.pool.rollout is not None and room.pool.rollout.left["n-h1"].run == "a"
        assert [each.code for each in room.ask("h2").refusals] == ["rollout.unit_incomplete"]

    @pytest.mark.parametrize("outcome, left", [(DONE, {}), (FAILED, {"q2": ["q2", "q1"]})])
    def test_but_what_comes_of_its_own_change_counts(self, outcome: str, left: Dict[str, List[str]]) -> None:
        room = Room(rollout_of(*fleet(1)))
        room.ask("h1")
        room.end("h1", FAILED)
        room.close()
        room.rollout = rollout_of(*fleet(1, policy="q2"))
        assert room.begin("h1", "b").may_start
        room.end("h1", outcome, run="b")
        assert {slot.policy: [each.policy for each in slot.failures] for slot in room.pool.slots.values()} == left

    def test_what_failed_by_several_policies_is_tried_by_none_of_them_again(self) -> None:
        room = Room(rollout_of(*fleet(2), limit=9, max_failures=9))
        tried = ["driver=%d" % number for number in range(6)]
        for policy_tried in tried:
            room.rollout = rollout_of(*fleet(2, policy=policy_tried), limit=9, max_failures=9)
            assert room.begin("h1", policy_tried).may_start
            room.end("h1", FAILED, policy_tried, reason=policy_tried)
            room.close(policy_tried)
        failures = room.pool.slots["n-h1"].failures
        assert [each.policy for each in failures] == tried[:1:-1] == [each.reason for each in failures]
        room.rollout = rollout_of(*fleet(2, policy="driver=3"), limit=9, max_failures=0)
        assert [each.code for each in room.ask("h2", "z").refusals] == ["rollout.too_many_failures"]
        assert not room.ask("h1", "z").may_start

    @pytest.mark.parametrize("killed", [False, True], ids=["not begun", "begun and killed"])
    def test_what_failed_by_the_change_of_others_keeps_no_host_from_its_own(self, killed: bool) -> None:
        """As of repairs, each of which has its own next rung."""
        room = Room(rollout_of(*fleet(2, policy="repair=reset"), limit=3, max_failures=9))
        room.begin("h1")
        room.end("h1", FAILED)
        room.close()
        own = host("h1", policy="repair=reboot", half_done=killed)
        if killed:
            room.rollout = rollout_of(own, limit=3)
            assert room.begin("h1", "b").may_start
            room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
            room.dead = {"b"}
        room.rollout = rollout_of(own, host("h2", policy="repair=reset"), limit=3, max_failures=9)
        assert room.ask("h1", "c").may_start and room.ask("h2", "c").may_start
        room.rollout = rollout_of(own, host("h2", policy="repair=reset"), limit=3, max_failures=0)
        room.close("c")
        room.dead.add("c")
        assert [each.code for each in room.ask("h2", "d").refusals] == ["rollout.too_many_failures"]

    @pytest.mark.parametrize("cured", [False, True], ids=["failed", "its cure was killed"])
    def test_what_failed_keeps_its_place_where_its_host_is_not_of_the_run(self, cured: bool) -> None:
        room = Room(rollout_of(*fleet(2), limit=1, max_failures=9))
        room.begin("h1")
        room.end("h1", FAILED)
        room.close()
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True, kept=True)
        if cured:
            room.rollout = rollout_of(host("h1", policy="q2"), limit=1, max_failures=9)
            assert room.begin("h1", "b").may_start
            room.dead = {"b"}
        room.rollout = rollout_of(host("h2"), limit=1, max_failures=9)
        waiting = room.ask("h2", "c").waiting
        assert waiting is not None and waiting.cause is Cause.person, "nothing that ends by itself is waited for"
        room.nodes["n-h2"] = replace(room.nodes["n-h2"], ready=False)
        room.rollout = rollout_of(host("h2", ready=False), limit=1, max_failures=9)
        assert not room.ask("h2", "c").may_start

    def test_one_that_failed_for_others_is_no_failed_canary_of_its_own_change(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind", limit=3, max_failures=9))
        (canary,), failed = room.rollout.units[0].hosts, room.rollout.units[1].hosts[0]
        for name, outcome in ((canary, DONE), (failed, FAILED)):
            assert room.begin(name).may_start
            room.end(name, outcome)
        room.close()
        rest = [each for each in fleet(3) if each.name not in (canary, failed)]
        own = host(failed, policy="q2", kind=replace(H100, driver_to="590.1"))
        room.rollout = rollout_of(own, *rest, canaries="every_kind", limit=3, max_failures=9)
        assert room.begin(failed, "b").may_start
        room.end(failed, FAILED, "b")
        assert [each.code for each in room.ask(rest[0].name, "b").refusals] == ["rollout.canary_failed"]

    def test_one_of_a_clique_that_has_its_own_change_now_keeps_the_others_waiting_all_the_same(self) -> None:
        options: Dict[str, Any] = {"unit_mode": "rolling", "limit": 5, "max_failures": 5}
        room = Room(rollout_of(*fleet(3, clique="x"), **options))
        room.begin("h1")
        room.end("h1", FAILED)
        room.close()
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
        room.rollout = rollout_of(host("h1", clique="x", policy="q2", plan="p2"), *fleet(3, clique="x")[1:], **options)
        assert not room.ask("h2", "b").may_start and not room.ask("h3", "b").may_start
        assert room.begin("h1", "b").may_start
        room.end("h1", DONE, "b")
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=False)
        assert room.begin("h2", "b").may_start and not room.ask("h3", "b").may_start

    def test_of_a_clique_that_failed_for_others_one_is_tried_anew_at_a_time(self) -> None:
        options: Dict[str, Any] = {"unit_mode": "rolling", "limit": 5, "max_failures": 5}
        room = Room(rollout_of(*fleet(3), **options))
        for name in ("h1", "h2"):
            room.begin(name)
            room.end(name, FAILED)
            room.nodes["n-" + name] = replace(room.nodes["n-" + name], ours=True, kept=True)
        room.close()
        room.rollout = rollout_of(*fleet(2, clique="x", policy="q2"), host("h3"), **options)
        assert room.begin("h1", "b").may_start
        waiting = room.ask("h2", "b").waiting
        assert waiting is not None and waiting.cause is Cause.group and "h1 is in progress" in waiting.why
        room.end("h1", DONE, "b")
        room.nodes["n-h1"] = NodeState("n-h1")
        assert room.begin("h2", "b").may_start

    @pytest.mark.parametrize("ours", [False, True], ids=["in service", "out of service"])
    @pytest.mark.parametrize("left", [{"plan": ""}, {"disruption": Disruption.none}], ids=["nothing", "little"])
    def test_what_a_dead_run_holds_of_one_that_needs_nothing_keeps_nobody_once_it_is_back(
        self, ours: bool, left: Dict[str, Any]
    ) -> None:
        room = Room(rollout_of(*fleet(2), limit=1))
        assert room.begin("h1").may_start
        room.dead = {"a"}
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=ours)
        room.rollout = rollout_of(host("h1", **left), host("h2"), limit=1)
        assert room.ask("h2", "b").may_start != ours
        assert room.held() == ({"h1"} if ours else {"h2"}), "who is only silent does not find it any more"

    @pytest.mark.parametrize("more, repairs", [
        ({"reachable": False}, False), ({"refusal": Refusal("driver.held", "it is held", "none", "free it")}, False),
        ({}, True)], ids=["out of reach", "refused", "a repair"])
    def test_it_keeps_its_place_where_nobody_knows_that_it_needs_nothing(
        self, more: Dict[str, Any], repairs: bool
    ) -> None:
        room = Room(rollout_of(*fleet(2), limit=1))
        assert room.begin("h1").may_start
        room.dead = {"a"}
        room.rollout = rollout_of(host("h1", plan="", **more), host("h2"), limit=1)
        assert not room.ask("h2", "b", **({"aim": REPAIR} if repairs else {})).may_start and room.held() == {"h1"}

    def test_a_word_that_a_host_was_left_may_be_said_twice(self) -> None:
        """As where its answer was lost; the second time what was there before counts already."""
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.dead = {"a"}
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
        room.rollout = rollout_of(host("h1", half_done=True), host("h2"))
        assert room.begin("h1", "b").may_start
        room.end("h1", LEFT, "b")
        told = room.record
        room.end("h1", LEFT, "b")
        assert room.record == told and room.held() == {"h1"}
        with pytest.raises(GpuOpsError, match="rollout.held_by_another"):
            room.end("h1", LEFT, "c")

    @pytest.mark.parametrize("begins", [False, True], ids=["it was killed before it began", "in the middle"])
    def test_a_cure_that_was_killed_makes_up_for_no_failure(self, begins: bool) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind"))
        (canary,) = room.rollout.units[0].hosts
        room.begin(canary)
        room.end(canary, FAILED, reason="no container has a GPU")
        room.close()
        room.rollout = rollout_of(host(canary, policy="q2"))
        assert room.begin(canary, "b").may_start
        if begins:
            room.nodes["n-" + canary] = replace(room.nodes["n-" + canary], ours=True)
        room.dead = {"b"}
        room.rollout = rollout_of(*fleet(3), canaries="every_kind")
        for name in room.rollout.hosts:
            assert not room.ask(name, "c").may_start
            assert {"rollout.canary_failed", "rollout.failed_before"}.intersection(
                each.code for each in room.ask(name, "c").refusals)

    def test_a_failed_canary_stops_every_run(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind"))
        (canary,) = room.rollout.units[0].hosts
        room.ask(canary)
        room.end(canary, FAILED)
        room.rollout = rollout_of(*(each for each in fleet(3) if each.name != canary), canaries="every_kind")
        for name in room.rollout.hosts:
            assert [each.code for each in room.ask(name, "b").refusals] == ["rollout.canary_failed"]

    def test_a_node_at_work_is_freed_by_nobody_while_its_run_is_there(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.ask("h1")
        with pytest.raises(GpuOpsError, match="rollout.held_by_another"):
            room.end("h1", FREED, run="")
        room.close()
        room.end("h1", FREED, run="")
        assert room.pool.slots == {}

    def test_a_failure_without_a_slot_takes_one(self) -> None:
        room = Room(rollout_of(host("h1", disruption=Disruption.none), host("h2")))
        room.end("h1", FAILED)
        assert room.pool.slots["n-h1"] == Slot("h1", "a", NOW, FAILED, policy="q1", kind=str(H100), reason="Xid 79")

    def test_new_nodes_take_none_and_keep_none(self) -> None:
        room = Room(rollout_of(*fleet(3), host("new"), host("unborn"), limit=1))
        room.nodes["n-new"] = NodeState("n-new", ready=False, in_service=False)
        del room.nodes["n-unborn"]
        assert [room.ask(name).may_start for name in ("new", "unborn", "h1", "h2")] == [True, True, True, False]
        # It joins, or loses its taint, before its end is told
        room.nodes["n-unborn"] = NodeState("n-unborn")
        room.end("h1")
        room.end("new", FAILED)
        assert room.ask("h2").may_start

    @pytest.mark.parametrize("was", [{"in_service": False}, {"ready": False}], ids=str)
    def test_what_a_dead_run_began_with_and_is_at_work_again_needs_room_beside_what_is_out(
        self, was: Dict[str, Any]
    ) -> None:
        hosts = fleet(6)
        room = Room(rollout_of(*(replace(each, **was) if each.name in ("h3", "h4") else each for each in hosts)))
        room.nodes.update({"n-" + name: NodeState("n-" + name, **was) for name in ("h3", "h4")})
        for name in ("h1", "h2") if "ready" not in was else ("h3",):
            room.begin(name)
        for name in ("h3", "h4") if "ready" not in was else ("h1",):
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-" + name: NodeState("n-" + name, ours=name in ("h1", "h2")) for name in (
            "h1", "h2", "h3", "h4")})
        room.rollout = rollout_of(*hosts)
        assert [room.ask(name, "b").may_start for name in ("h3", "h4")] == [False, False]
        # What is out goes on all the same, and they come after it
        for name in ("h1", "h2"):
            assert not room.ask("h3", "b").may_start and room.begin(name, "b").may_start
        assert not room.ask("h3", "b").may_start
        for name, then in (("h1", "h3"), ("h2", "h4")):
            room.nodes["n-" + name] = NodeState("n-" + name)
            room.end(name, run="b")
            assert room.begin(then, "b").may_start

    def test_half_done_nodes_in_service_that_lack_a_gpu_need_room_as_any_other(self) -> None:
        room = Room(rollout_of(*fleet(4)))
        for name in ("h1", "h2"):
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-" + name: NodeState("n-" + name, unhealthy="7 of 8") for name in ("h1", "h2")})
        room.nodes.update({"n-" + name: NodeState("n-" + name, ready=False) for name in ("h3", "h4")})
        assert [room.ask(name, "b").may_start for name in ("h1", "h2")] == [False, False]

    @pytest.mark.parametrize("third", [{"cordoned_by": "ada"}, {"ready": False}], ids=str)
    def test_what_is_out_already_goes_on_whoever_else_is_out_for_long(self, third: Dict[str, Any]) -> None:
        room = Room(rollout_of(*fleet(2), limit=1))
        room.begin("h1")
        room.dead.add("a")
        room.nodes.update({"n-h1": NodeState("n-h1", ours=True), "n-h5": NodeState("n-h5", **third)})
        assert room.begin("h1", "b").may_start
        waiting = room.ask("h2", "b").waiting
        assert waiting is not None and waiting.cause is (Cause.person if "cordoned_by" in third else Cause.slots)

    def test_what_stays_half_done_is_no_persons_matter_for_others_while_it_may_be_in_service_again(self) -> None:
        room = Room(rollout_of(*fleet(2), limit=2))
        for name in ("h1", "h2"):
            room.begin(name)
        room.rollout, stays = rollout_of(*fleet(2), limit=1), frozenset({"h1"})
        room.dead.add("a")
        room.nodes.update({"n-h1": NodeState("n-h1", ready=False), "n-h2": NodeState("n-h2")})
        assert not room.ask("h2", "b", unwell=stays).is_final
        room.nodes["n-h1"] = NodeState("n-h1")
        assert room.ask("h2", "b", unwell=stays).may_start

    @pytest.mark.parametrize("when_planned", [False, True])
    def test_what_another_manager_has_of_it_keeps_nobody_waiting_for_a_person(self, when_planned: bool) -> None:
        marked: Dict[str, Any] = {"cordoned_by": "kured", "marks": ("kured",)}
        hosts = fleet(2)
        room = Room(rollout_of(*hosts, limit=2))
        for name in ("h1", "h2"):
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-h1": NodeState("n-h1", **marked), "n-h2": NodeState("n-h2")})
        seen = marked if when_planned else {}
        room.rollout = rollout_of(replace(hosts[0], half_done=True, **seen), replace(hosts[1], half_done=True), limit=1)
        assert ("h1" in room.rollout.refused) == when_planned
        answer = room.ask("h2", "b")
        assert not answer.may_start and not answer.is_final, answer.waiting
        room.nodes["n-h1"] = NodeState("n-h1")
        assert room.ask("h2", "b").may_start

    @pytest.mark.parametrize("failed, is_final", [(("h2",), False), (("h2", "h3"), True)], ids=["one", "two"])
    def test_the_cure_of_a_failure_is_waited_for_where_there_is_room_for_it(
        self, failed: Sequence[str], is_final: bool
    ) -> None:
        hosts = fleet(4)
        room = Room(rollout_of(*hosts, limit=2))
        assert all(room.begin(name).may_start for name in failed)
        for name in failed:
            room.end(name, FAILED)
            room.nodes["n-" + name] = NodeState("n-" + name, ours=True, kept=True)
        room.close()
        room.rollout = rollout_of(*(replace(each, policy="driver=2", ours=each.name in failed) for each in hosts),
                                  limit=1, canaries="every_kind")
        assert room.rollout.order[0] in failed
        assert [room.ask(name, "b").is_final for name in ("h1", "h4")] == [is_final] * 2
        assert room.begin(room.rollout.order[0], "b").may_start != is_final

    @pytest.mark.parametrize("window, is_ours", [(True, True), (False, False)], ids=["closed", "in service"])
    def test_a_cure_that_does_not_begin_first_is_waited_for_by_nobody(self, window: bool, is_ours: bool) -> None:
        hosts = [host("h1", groups=("late",)), *(host("h%d" % each, groups=("early",)) for each in (2, 3))]
        room = Room(rollout_of(*hosts, limit=1))
        room.begin("h1")
        room.end("h1", FAILED)
        room.close()
        room.nodes["n-h1"] = NodeState("n-h1", ours=is_ours, kept=is_ours)
        days = [(room.now + timedelta(days=each)).strftime("%A").lower() for each in (0, 3)]
        windows = [{"days": [day], "start": "02:00", "duration": "20h", "zone": "UTC", "groups": [group]}
                   for day, group in zip(days, ("early", "late"))]
        room.rollout = rollout_of(*(replace(each, policy="driver=2", ours=is_ours and each.name == "h1")
                                    for each in hosts), limit=1, **({"windows": windows} if window else {}))
        for name in ("h2", "h3"):
            waiting = room.ask(name, "b").waiting
            assert waiting is not None and waiting.cause is Cause.person and "see to h1" in waiting.why, waiting

    @pytest.mark.parametrize("gives_up", ["left", "its clique is cordoned"])
    def test_a_cure_that_does_not_come_is_waited_for_by_nobody(self, gives_up: str) -> None:
        hosts = [host("x1", clique="x"), host("x2", clique="x"), host("h3")] if gives_up != "left" else fleet(3)
        first, limit = hosts[0].name, 1 if gives_up == "left" else 2
        room = Room(rollout_of(*hosts, limit=2))
        room.begin(first)
        room.end(first, FAILED)
        room.close()
        room.nodes["n-" + first] = NodeState("n-" + first, ours=True, kept=True)
        room.rollout = rollout_of(*(replace(each, policy="driver=2", ours=each.name == first) for each in hosts),
                                  limit=limit)
        if gives_up == "left":
            assert not room.ask("h3", "b").is_final and room.begin(first, "b").may_start
            room.end(first, LEFT, run="b")
        else:
            room.nodes["n-x2"] = NodeState("n-x2", cordoned_by="ada")
        assert room.ask("h3", "b").is_final

    @staticmethod
    def joined_since(hosts: Sequence[Host], old: Sequence[str], new: Sequence[str]) -> Room:
        """A run that is dead has begun with old hosts and with new ones, which are at work since."""
        room = Room(rollout_of(*(replace(each, in_service=each.name not in new) for each in hosts)))
        room.nodes.update({"n-" + name: NodeState("n-" + name, in_service=False) for name in new})
        for name in (*old, *new):
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-" + name: NodeState("n-" + name) for name in new})
        return room

    @pytest.mark.parametrize("first, is_reached", [
        ({}, False), ({"in_service": False}, True), ({"ready": False}, True)], ids=str)
    def test_what_is_half_done_and_serves_nobody_is_counted_beside_them(
        self, first: Dict[str, Any], is_reached: bool
    ) -> None:
        hosts, new = fleet(7), ("h2", "h3")
        room = self.joined_since(hosts, ("h1",), new)
        room.nodes["n-h1"] = NodeState("n-h1", **first)
        room.rollout = rollout_of(*(replace(each, reachable=is_reached or each.name != "h1") for each in hosts),
                                  max_unreachable="100%")
        begins = []
        for name in new:
            begins.append(room.ask(name, "b", unreachable=frozenset() if is_reached else frozenset({"h1"})).may_start)
            room.nodes["n-" + name] = NodeState("n-" + name, ours=begins[-1])
        assert begins == [True, False]

    def test_those_of_a_slice_wait_for_others_that_are_out_and_for_no_person(self) -> None:
        hosts = fleet(6)
        room = self.joined_since(hosts, ("h1", "h2"), ("h3", "h4"))
        room.nodes.update({"n-" + name: NodeState("n-" + name, ours=True) for name in ("h1", "h2")})
        room.rollout = rollout_of(*hosts[2:4])
        for name in ("h3", "h4"):
            waiting = room.ask(name, "b").waiting
            assert waiting is not None and (waiting.cause, waiting.lasts) == (Cause.slots, True), waiting

    def test_a_node_that_was_in_service_keeps_its_place_with_a_taint(self) -> None:
        room = Room(rollout_of(*fleet(2), limit=1))
        room.ask("h1")
        room.nodes["n-h1"] = NodeState("n-h1", in_service=False)
        assert room.ask("h2").waiting is not None

    def test_a_node_that_is_deleted_gives_its_place_back(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.ask("h1")
        del room.nodes["n-h1"]
        assert set(without_the_gone(room.pool, room.nodes).slots) == set()
        assert room.ask("h2").may_start

    def test_a_new_one_too_once_it_was_seen(self) -> None:
        room = Room(rollout_of(host("new"), host("h2"), max_failures=0))
        del room.nodes["n-new"]
        room.begin("new")
        room.end("new", FAILED)
        assert set(without_the_gone(room.pool, room.nodes).slots) == {"n-new"}, "it has not joined yet"
        pool = without_the_gone(room.pool, {**room.nodes, "n-new": NodeState("n-new")})
        assert set(pool.slots) == {"n-new"} and without_the_gone(pool, room.nodes).slots == {}
        room.record = room.record.but(POOL, without_the_gone(pool, room.nodes))
        assert room.ask("h2").may_start

    def test_nodes_that_are_no_hosts_of_the_run_count(self) -> None:
        room = Room(rollout_of(*fleet(2), limit=2))
        room.nodes["x"] = NodeState("x", cordoned_by="somebody else")
        room.nodes["y"] = NodeState("y", ready=False)
        assert room.ask("h1").waiting.why.endswith(
            "0 of 2 free; 1 cordoned by others (node x); 1 not Ready (node y)")

    def test_percentages_are_of_all_nodes_of_the_pool(self) -> None:
        room = Room(rollout_of(*fleet(3), limit="20%"))
        room.nodes.update(("x%d" % each, NodeState("x%d" % each)) for each in range(7))
        assert [room.ask(name).may_start for name in ("h1", "h2", "h3")] == [True, True, False]

    def test_our_own_cordon_without_a_slot_is_half_done(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.nodes["n-h2"] = NodeState("n-h2", ours=True)
        assert room.ask("h1").waiting.why.endswith("1 half done (h2)")
        assert room.ask("h2").may_start

    def test_one_that_nobody_goes_on_with_is_a_persons_to_see_to(self) -> None:
        """It has failed its checks and needs nothing, was refused, or is kept and no host of the run, while no other
        run is at work that may have it."""
        refusal = Refusal("driver.held", "it is held", "none", "free it")

        def cause(*others: Host, state: NodeState, run: str = "", **asked: Any) -> Cause:
            room = Room(rollout_of(host("h1"), *others, limit=1))
            room.nodes[state.name] = state
            if run:
                room.record = Record(pools={POOL: Pool(limit="1", rollout=OpenRollout("x", NOW, {
                    run: Run("c", NOW, NOW)}))})
            answer = room.ask("h1", **asked)
            assert answer.waiting is not None
            return answer.waiting.cause

        kept, half_done = NodeState("n-h2", ours=True, kept=True), NodeState("n-h2", ours=True)
        assert cause(host("h2", plan=""), state=kept) is Cause.slots, "it may be opened yet"
        assert cause(host("h2", plan=""), state=kept, unwell=frozenset(["h2"])) is Cause.person
        assert cause(host("h2"), state=kept) is Cause.slots, "it has its turn"
        assert cause(host("h2", half_done=True, refusal=refusal), state=half_done) is Cause.person
        assert cause(state=kept) is Cause.person and cause(state=kept, run="b") is Cause.slots
        assert cause(state=half_done) is Cause.slots

    def test_a_node_that_was_cordoned_since_the_plan_is_left(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.nodes["n-h1"] = NodeState("n-h1", cordoned_by="somebody else")
        answer = room.ask("h1")
        assert answer.is_final and answer.waiting is not None and answer.waiting.cause is Cause.others

    def test_only_hosts_of_its_own_rollout_are_out_of_reach(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        assert room.ask("h1", unreachable=frozenset(["of-another-cluster", "of-no-cluster"])).may_start

    def test_a_host_that_another_run_changes_is_in_progress_though_it_cannot_be_reached(self) -> None:
        """As while it reboots."""
        room = Room(rollout_of(*fleet(3), limit=1))
        room.begin("h1", "b")
        waiting = room.ask("h2", unreachable=frozenset(["h1"])).waiting
        assert waiting is not None and waiting.cause is Cause.slots
        room.dead.add("b")
        waiting = room.ask("h2", unreachable=frozenset(["h1"])).waiting
        assert waiting is not None and waiting.cause is Cause.person

    def test_a_changed_node_that_is_not_well_shrinks_what_may_go_next(self) -> None:
        room = Room(rollout_of(*fleet(4), limit=1))
        room.ask("h1")
        room.end("h1")
        room.nodes["n-h1"] = NodeState("n-h1", unhealthy="7 of 8 GPUs")
        assert room.ask("h2").waiting.why.endswith("1 changed and not healthy (h1)")
        room.nodes["n-h1"] = NodeState("n-h1")
        assert room.ask("h2", signs={"h1": ["Xid 63"]}).waiting is not None
        assert room.ask("h2", signs={"h1": ["Xid 63"], "h2": ["Xid 63"], "h3": ["Xid 63"], "h4": ["Xid 63"]}).may_start


WEDNESDAYS = {"windows": [{"days": ["wed"], "start": "10:00", "duration": "4h", "zone": "UTC"}]}


class TestBeforeItBegins:
    """A host that has its place is prepared, for long, and asks once more before its node is taken."""

    def lasts(self, room: Room, name: str = "h1") -> Answer:
        """What it is told after hours."""
        room.now = NOW.replace(hour=19)
        return room.ask(name)

    def test_its_window_is_open_still(self) -> None:
        room = Room(rollout_of(*fleet(2), **WEDNESDAYS))
        assert room.begin("h1").may_start and room.ask("h1").may_start
        answer = self.lasts(room)
        assert answer.waiting is not None and answer.waiting.cause is Cause.window and answer.waiting.until
        assert room.held() == set(), "its place is given up"

    def test_the_rollout_goes_on_still(self) -> None:
        room = Room(rollout_of(*fleet(3), max_failures=0))
        room.begin("h1")
        room.begin("h2")
        room.end("h1", FAILED)
        answer = room.ask("h2")
        assert [each.code for each in answer.refusals] == ["rollout.too_many_failures"] and answer.is_final
        assert room.held() == set() and room.held(FAILED) == {"h1"}

    @pytest.mark.parametrize("state", [{"cordoned_by": "ada"}, {"marks": ("kured",)}])
    def test_nobody_else_has_come_to_its_node(self, state: Dict[str, Any]) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.nodes["n-h1"] = NodeState("n-h1", **state)
        waiting = room.ask("h1").waiting
        assert waiting is not None and waiting.cause is Cause.others and room.held() == set()

    def test_no_other_rollout_was_opened_while_it_was_silent(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.begin("h1")
        room.dead = {"a"}
        assert room.ask("h2", "b", aim="y").may_start
        room.dead = set()
        waiting = room.ask("h1").waiting
        assert waiting is not None and waiting.cause is Cause.rollout and room.held() == {"h2"}

    def test_what_others_wait_for_it_does_not(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.begin("h1")
        room.nodes["n-h2"] = NodeState("n-h2", cordoned_by="ada")
        assert room.ask("h1").may_start and room.held() == {"h1"}

    def test_once_its_node_is_out_of_service_it_goes_on_to_its_end(self) -> None:
        room = Room(rollout_of(*fleet(3), max_failures=0, **WEDNESDAYS))
        room.begin("h1")
        room.begin("h2")
        room.end("h2", FAILED)
        room.nodes["n-h1"] = NodeState("n-h1", ours=True)
        assert self.lasts(room).may_start and room.held() == {"h1"}

    def test_one_that_is_out_of_service_for_its_checks_has_not_begun(self) -> None:
        room = Room(rollout_of(*fleet(1), **WEDNESDAYS))
        room.begin("h1")
        room.nodes["n-h1"] = NodeState("n-h1", ours=True, kept=True)
        assert self.lasts(room).waiting is not None and room.held() == set()

    def test_and_so_does_a_clique_of_which_one_host_is(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), **WEDNESDAYS))
        room.begin("h1")
        room.begin("h2")
        room.nodes["n-h1"] = NodeState("n-h1", ours=True)
        assert self.lasts(room, "h2").may_start
        room.nodes["n-h1"] = NodeState("n-h1")
        room.end("h1")
        assert self.lasts(room, "h2").may_start

    def test_a_clique_of_which_none_is_gives_all_its_places_up(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), **WEDNESDAYS))
        room.begin("h1")
        room.begin("h2")
        assert self.lasts(room, "h2").waiting is not None and room.pool.slots == {}

    def test_what_a_dead_run_had_begun_there_is_half_done_as_before(self) -> None:
        room = Room(rollout_of(*fleet(2), **WEDNESDAYS))
        room.begin("h1")
        room.close()
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True, kept=True)
        room.rollout = rollout_of(host("h1", half_done=True), host("h2"), **WEDNESDAYS)
        assert room.begin("h1", "b").may_start
        room.now = NOW.replace(hour=19)
        assert room.ask("h1", "b").waiting is not None
        assert {name: (slot.run, slot.begun) for name, slot in room.pool.slots.items()} == {"n-h1": ("", True)}

    def test_where_it_had_not_taken_the_node_nobody_waits_for_that(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.close()
        room.rollout = rollout_of(host("h1", half_done=True), host("h2"))
        assert room.begin("h1", "b").may_start
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], cordoned_by="somebody else")
        assert room.ask("h1", "b").waiting is not None and room.pool.slots == {}


class TestReserve:
    def test_where_others_were_faster_to_take_nodes_the_places_are_given_back(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        answer = room.ask("h2")
        assert room.confirm(answer, "h2").may_start
        room.nodes["n-h3"] = NodeState("n-h3", cordoned_by="somebody else")
        again = room.confirm(answer, "h2")
        assert again.waiting is not None and again.waiting.cause is Cause.slots
        room.record = given_back(room.record, POOL, "a", answer.before)
        assert room.held() == {"h1"}

    def test_what_was_there_before_is_there_again(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.ask("h1")
        room.dead = {"a"}
        before = room.pool.slots
        answer = room.ask("h1", "b")
        assert given_back(room.record, POOL, "b", answer.before).pool(POOL).slots == before

    def test_what_another_run_has_taken_since_is_left_to_it(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        answer = room.ask("h1")
        room.dead = {"a"}
        room.ask("h1", "b")
        assert given_back(room.record, POOL, "a", answer.before) == room.record

    def test_nobody_waits_for_ever_for_one_that_ended_before_it_confirmed_them(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), limit=2))
        late = room.ask("h1")
        room.now += CONFIRMING
        answer = room.ask("h2")
        assert answer.may_start and set(answer.before) == {"n-h1", "n-h2"}
        room.record = begun(room.record, POOL, "a", "n-h2", answer.before)
        # The first one was only slow
        room.record = given_back(room.record, POOL, "a", late.before)
        assert room.held() == {"h1", "h2"} and room.ask("h1").may_start

    def test_what_a_dead_run_began_is_taken_over_again_where_nobody_confirmed_it(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), limit=2))
        room.begin("h1")
        room.dead = {"a"}
        assert room.ask("h1", "b").may_start
        room.now += CONFIRMING
        assert room.begin("h1", "b").may_start and room.ask("h2", "b").may_start
        assert {slot.run for slot in room.pool.slots.values()} == {"b"}


class TestLateRuns:
    """Runs that counted as dead, and were only slow."""

    def test_what_it_had_only_reserved_it_asks_for_anew(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h8"), host("h9"), limit=2))
        room.begin("h1")
        room.dead = {"a"}
        assert room.begin("h8", "b").may_start
        room.dead = set()
        room.ask("h9")
        waiting = room.ask("h2").waiting
        assert waiting is not None and waiting.cause is Cause.run and room.held() == {"h1", "h8"}
        room.end("h1")
        assert room.begin("h2").may_start

    def test_it_does_not_begin_with_what_was_taken_from_it_meanwhile(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h8"), limit=2))
        answer = room.ask("h1")
        room.dead = {"a"}
        assert room.begin("h8", "b").may_start
        room.record = begun(room.record, POOL, "a", "n-h1", answer.before)
        assert not is_held(room.pool, "n-h1", "a")

    def test_what_it_ends_proves_nothing_of_another_rollout(self) -> None:
        other = Kind("4 x 10de:2336", "ubuntu-24.04", "containerd", "570.1", "580.2")
        room = Room(rollout_of(host("h5", kind=other)))
        room.begin("h5")
        room.dead = {"a"}
        room.rollout = rollout_of(*fleet(2, policy="q2"), *(
            host(name, kind=other, policy="q2", half_done=name == "h5") for name in ("h3", "h4", "h5")),
            canaries="every_kind", limit=4)
        room.nodes = nodes_of(room.rollout)
        canaries = [unit.hosts[0] for unit in room.rollout.units if unit.place.name == "canary"]
        (first,) = [name for name in canaries if name in ("h1", "h2")]
        assert room.ask(first, "b", aim="y").may_start
        room.dead = set()
        room.end("h5")
        room.end(first, run="b")
        (rest,) = {"h3", "h4"}.difference(canaries)
        waiting = room.ask(rest, "b", aim="y").waiting
        assert waiting is not None and waiting.cause is Cause.canary
        assert room.pool.rollout is not None and set(room.pool.rollout.done) == {"n-" + first}

    def test_that_it_is_done_is_no_word_on_what_another_has_found_broken_since(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.dead = {"a"}
        assert room.begin("h1", "b").may_start
        room.end("h1", FAILED, "b")
        failed = room.record
        room.end("h1")
        assert room.record == failed and room.held(FAILED) == {"h1"}
        room.end("h1", run="b")
        assert room.pool.slots == {}, "who has found it may take it back"

    def test_that_it_failed_is_none_on_what_another_has_done_since(self) -> None:
        room = Room(rollout_of(*fleet(2), max_failures=0))
        room.begin("h1")
        room.dead = {"a"}
        room.begin("h1", "b")
        room.end("h1", run="b")
        done = room.record
        room.end("h1", FAILED)
        assert room.record == done and room.ask("h2", "b").may_start

    def test_but_a_run_that_takes_part_may_find_its_own_work_broken(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.end("h1")
        room.end("h1", FAILED)
        assert room.held(FAILED) == {"h1"}

    def test_one_of_this_rollout_counts(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.begin("h1")
        room.dead = {"a"}
        room.begin("h2", "b")
        room.end("h1")
        assert room.pool.rollout is not None and set(room.pool.rollout.done) == {"n-h1"}

    def test_what_it_waited_for_is_kept_for_it_no_longer(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h8"), host("h9"), limit=2))
        room.ask("h9", "b")
        room.now += timedelta(hours=1)
        assert room.ask("h1").waiting is not None and room.pool.claims
        room.now -= timedelta(hours=1)
        room.dead = {"a"}
        assert room.ask("h8", "b").may_start and not room.pool.claims


class TestUnits:
    """What restarts together never runs two drivers for long."""

    def test_where_one_is_refused_at_its_turn_the_others_are_left_too(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3")))
        room.begin("h1")
        room.record = ended(room.record, POOL, "n-h1", "a", LEFT, "a bare pod", room.now)
        for _ in range(2):
            answer = room.ask("h2")
            assert answer.is_final and [each.code for each in answer.refusals] == ["rollout.unit_incomplete"]
            assert "h1 cannot be changed: a bare pod" in answer.refusals[0].found
            assert room.held() == set()
        assert room.ask("h3").may_start

    @pytest.mark.parametrize("others_ask", [False, True])
    def test_nor_do_they_begin_where_nobody_could_tell_it_whether_it_may(self, others_ask: bool) -> None:
        """Of which nothing is written down, where no rollout was open yet."""
        room = Room(rollout_of(*fleet(2, clique="x"), host("h3", jobs=frozenset({"j"})), canaries="every_kind",
                               limit=3))
        if others_ask:
            room.record = Record({POOL: Pool(rollout=OpenRollout("x", NOW, {"a": Run("controller-a", NOW, NOW)}))})
        room.record = ended(room.record, POOL, "n-h1", "a", LEFT, "no answer", room.now)
        untold = frozenset(["h1"])
        answer = room.ask("h2", untold=untold)
        assert answer.is_final and [each.code for each in answer.refusals] == ["rollout.unit_incomplete"]
        assert room.held() == set() and room.ask("h3", untold=untold | {"h2"}).may_start

    def test_but_not_where_it_needed_nothing_any_more(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x")))
        room.begin("h1")
        room.record = ended(room.record, POOL, "n-h1", "a", LEFT, "", room.now)
        assert room.ask("h2").may_start

    def test_then_the_others_are_asked_about_anew(self) -> None:
        room = Room(rollout_of(*fleet(3, clique="x"), host("h8"), max_failures=0, limit=4))
        room.begin("h1")
        room.begin("h8")
        room.record = ended(room.record, POOL, "n-h1", "a", LEFT, "", room.now)
        room.end("h8", FAILED)
        assert [each.code for each in room.ask("h2").refusals] == ["rollout.too_many_failures"]
        room.end("h8", FREED)
        answer = room.begin("h2")
        assert answer.may_start and set(answer.before) == {"n-h2", "n-h3"} and room.ask("h3").may_start

    def test_but_what_is_under_way_goes_on_to_its_end(self) -> None:
        room = Room(rollout_of(*fleet(3, clique="x"), host("h8"), max_failures=0, limit=4))
        room.begin("h1")
        room.begin("h8")
        room.end("h8", FAILED)
        assert room.ask("h2").may_start
        room.end("h1")
        room.end("h2")
        assert room.ask("h3").may_start

    def test_where_one_has_failed_no_other_begins(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x"), max_failures=0, canaries="every_kind"))
        room.begin("h1")
        room.end("h1", FAILED)
        answer = room.ask("h2")
        assert answer.is_final and not answer.may_start and room.held() == set()

    def test_what_has_begun_goes_on(self) -> None:
        room = Room(rollout_of(*fleet(2, clique="x")))
        room.begin("h1")
        room.begin("h2")
        room.end("h1", FAILED)
        assert room.ask("h2").may_start

    def test_another_run_may_do_what_one_has_left(self) -> None:
        room = Room(rollout_of(*fleet(3)))
        room.begin("h1")
        room.begin("h2")
        room.record = ended(room.record, POOL, "n-h1", "a", LEFT, "a bare pod", room.now)
        room.rollout = rollout_of(host("h1"))
        assert room.ask("h1", "b").may_start
        room.end("h1", run="b")
        assert room.pool.rollout is not None and not room.pool.rollout.left


class TestDeadlock:
    def two(self, limit: int, mode: str = "parallel") -> Room:
        """Two cliques, each of which a dead run has begun with, and a limit that was lowered since."""
        hosts = [host(name, clique=name[0]) for name in ("x1", "x2", "y1", "y2")]
        room = Room(rollout_of(*hosts, limit=4))
        room.begin("x1")
        room.begin("y1")
        room.dead = {"a"}
        room.nodes.update({"n-" + name: NodeState("n-" + name, ours=True) for name in ("x1", "y1")})
        room.rollout = rollout_of(*(replace(each, half_done=each.name in ("x1", "y1")) for each in hosts), limit=limit,
                                  unit_mode=mode)
        return room

    def test_who_waits_for_each_other_is_told_what_a_person_does(self) -> None:
        room = self.two(2)
        for name in ("x1", "y2"):
            waiting = room.ask(name, "b").waiting
            assert waiting is not None and waiting.cause is Cause.person and "`rolling`" in waiting.why

    @pytest.mark.parametrize("limit, cause", [(2, Cause.person), (3, Cause.slots)])
    @pytest.mark.parametrize("third", [{"ready": False}, {"cordoned_by": "kured", "marks": ("kured",)}], ids=str)
    def test_what_else_is_out_for_a_while_is_not_what_keeps_them(
        self, limit: int, cause: Cause, third: Dict[str, Any]
    ) -> None:
        room = self.two(limit)
        room.nodes["n-h5"] = NodeState("n-h5", **third)
        rollout = room.rollout
        room.rollout = rollout_of(*rollout.of_run.values(), host("h5"), limit=limit, unit_mode="parallel")
        waiting = room.ask("x1", "b").waiting
        assert waiting is not None and waiting.cause is cause, waiting
        room.nodes["n-h5"] = NodeState("n-h5")
        assert room.begin("x1", "b").may_start == (limit == 3)

    @pytest.mark.parametrize("has_failed", [False, True])
    def test_they_are_told_beside_what_only_a_person_ends(self, has_failed: bool) -> None:
        room = self.two(3)
        room.rollout = rollout_of(*room.rollout.of_run.values(), host("h5"), limit=3, unit_mode="parallel")
        room.nodes["n-h5"] = NodeState("n-h5", ours=has_failed, kept=has_failed,
                                       cordoned_by="" if has_failed else "ada")
        if has_failed:
            room.record = ended(room.record, POOL, "n-h5", "z", FAILED, "Xid 79", room.now, room.rollout.hosts["h5"])
        assert all(answer.is_final and "`rolling`" in str(answer.waiting) for answer in (
            room.ask(name, "b") for name in ("x1", "y2")))

    def test_a_third_one_that_is_done_by_then_is_none_of_them(self) -> None:
        room = self.two(4)
        hosts = [*room.rollout.of_run.values(), host("z1", half_done=True)]
        room.nodes["n-z1"] = NodeState("n-z1", ours=True)
        room.rollout = rollout_of(*hosts, limit=2, unit_mode="parallel")
        assert not room.ask("x1", "b").is_final and room.begin("z1", "b").may_start
        room.end("z1", run="b")
        room.nodes["n-z1"] = NodeState("n-z1")
        assert room.ask("x1", "b").is_final

    def test_they_are_told_in_each_failure_domain(self) -> None:
        hosts = [host(name, clique=name[0], domain="d1" if name[0] in "xy" else "d2") for name in (
            "x1", "x2", "y1", "y2", "u1", "u2", "v1", "v2")]
        begun = ("x1", "y1", "u1", "v1")
        room = Room(rollout_of(*hosts, limit=8, domain_limit=4))
        for name in begun:
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-" + name: NodeState("n-" + name, ours=True, domain=room.rollout.hosts[name].domain)
                           for name in begun})
        room.rollout = rollout_of(*(replace(each, half_done=each.name in begun) for each in hosts), limit=8,
                                  domain_limit=2, unit_mode="parallel")
        assert [room.ask(name, "b").is_final for name in begun] == [True] * 4

    @pytest.mark.parametrize("size", [2, 3])
    def test_what_may_come_back_is_waited_for(self, size: int) -> None:
        """Of two, the half done node of one has been opened since; of three, others of their cliques are not Ready."""
        hosts = [host(name + str(number), clique=name) for name in "xy" for number in range(1, size + 1)]
        room = Room(rollout_of(*hosts, limit=6))
        for name in ("x1", "y1"):
            room.begin(name)
        room.dead.add("a")
        room.nodes.update({"n-" + name: NodeState("n-" + name, ours=True) for name in ("x1", "y1")})
        away = ("x1",) if size == 2 else ("x3", "y3")
        room.nodes.update({"n-" + name: NodeState("n-" + name, ready=False) for name in away})
        room.rollout = rollout_of(*(replace(each, half_done=each.name in ("x1", "y1")) for each in hosts),
                                  limit=2 if size == 2 else 4, unit_mode="parallel")
        answer = room.ask("y1", "b")
        assert answer.waiting is not None and answer.waiting.cause is Cause.slots and not answer.is_final
        room.nodes.update({"n-" + name: NodeState("n-" + name) for name in away})
        assert room.ask("y1", "b").may_start

    def test_one_that_is_out_whole_goes_on(self) -> None:
        room = self.two(2)
        room.nodes["n-x2"] = NodeState("n-x2", ready=False)
        assert not room.ask("y1", "b").is_final and room.ask("x1", "b").may_start

    def test_what_its_own_host_opens_again_is_waited_for(self) -> None:
        room = self.two(2)
        room.nodes.update({"n-y1": NodeState("n-y1", by_itself=True), "n-x1": NodeState("n-x1", ours=True)})
        assert not room.ask("x1", "b").is_final
        room.nodes["n-y1"] = NodeState("n-y1")
        assert room.ask("x1", "b").may_start

    def test_one_of_which_the_rest_is_under_way_is_none_of_them(self) -> None:
        room = self.two(2)
        room.nodes.update({"n-x2": NodeState("n-x2", ours=True), "n-x1": NodeState("n-x1"),
                           "n-y2": NodeState("n-y2", ours=True)})
        for name in ("y1", "y2"):
            assert room.begin(name, "c").may_start
        room.end("y2", LEFT, run="c")
        answer = room.ask("x1", "b")
        assert not answer.may_start and not answer.is_final, answer.waiting

    def test_a_clique_goes_on_beside_another_one_that_is_at_work_again(self) -> None:
        hosts = [host(name, clique=name[0]) for name in ("x1", "x2", "y1", "y2")]
        room = Room(rollout_of(*(replace(each, in_service=each.clique == "x") for each in hosts), host("h5")))
        room.nodes.update({"n-" + name: NodeState("n-" + name, in_service=False) for name in ("y1", "y2")})
        for name in ("x2", "y1", "y2"):
            assert room.begin(name).may_start
        room.dead.add("a")
        room.nodes.update({"n-" + each.name: NodeState("n-" + each.name, ours=each.name == "x2") for each in hosts})
        room.rollout = rollout_of(*(replace(each, half_done=each.name != "x1") for each in hosts), host("h5"))
        assert not room.ask("y1", "b").may_start
        for name in ("x1", "x2"):
            assert room.begin(name, "b").may_start
        assert not room.ask("y1", "b").may_start
        for name in ("x1", "x2"):
            room.nodes["n-" + name] = NodeState("n-" + name)
            room.end(name, run="b")
        assert room.begin("y1", "b").may_start

    @pytest.mark.parametrize("limit, mode", [(2, "rolling"), (3, "parallel")])
    def test_which_lets_them_go_on(self, limit: int, mode: str) -> None:
        room = self.two(limit, mode)
        assert room.begin("x1", "b").may_start
        waiting = room.ask("y2", "b").waiting
        assert waiting is not None and waiting.cause is not Cause.person


class TestSettled:
    def test_what_a_run_that_is_over_holds_of_a_node_that_needs_nothing_is_free(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=3))
        for name, run in (("h1", "a"), ("h2", "a"), ("h3", "b")):
            room.begin(name, run)
        slots = room.pool.slots
        record = settled(room.record, POOL, {"n-h1": slots["n-h1"], "n-h9": slots["n-h1"]})
        assert {slot.host for slot in record.pool(POOL).slots.values()} == {"h2", "h3"}

    def test_what_another_run_has_taken_over_since_that_was_seen_is_its_own(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        over = room.pool.slots
        room.dead = {"a"}
        room.now += timedelta(seconds=1)
        assert room.begin("h1", "b").may_start
        assert settled(room.record, POOL, over) == room.record

    def test_what_has_failed_there_stays_so(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.end("h1", FAILED)
        failed = room.record
        assert settled(failed, POOL, room.pool.slots) == failed
        room.rollout = rollout_of(*fleet(2, policy="q2"))
        room.begin("h1", "b")
        assert settled(room.record, POOL, room.pool.slots).pool(POOL).slots == failed.pool(POOL).slots


class TestCanaries:
    def test_what_went_well_is_remembered_for_the_policy(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind", soak="10m"))
        (canary,) = room.rollout.units[0].hosts
        others = [each.name for each in fleet(3) if each.name != canary]
        assert room.ask(others[0]).waiting is not None and room.ask(canary).may_start
        assert room.pool.slots["n-" + canary].proofs == (host("h1").proof,)
        room.now += timedelta(minutes=20)
        room.end(canary)
        assert room.pool.proofs == {host("h1").proof: Proof("n-" + canary, room.now)}
        waiting = room.ask(others[0]).waiting
        assert waiting is not None and waiting.why.endswith("watched until Wed 2026-07-01 12:30 UTC")
        room.now += timedelta(minutes=10)
        assert room.ask(others[0]).may_start
        room.close()
        again = plan([each for each in fleet(3) if each.name != canary], policy(canaries="every_kind"), NOW,
                     room.pool.proofs)
        assert all(unit.place.name == "in_order" for unit in again.units)
        later = Room(again, room.record)
        later.now = room.now
        assert later.ask(others[1], "b").may_start

    @pytest.mark.parametrize("canaries", ["every_kind", "none"])
    def test_one_that_is_ill_holds_others_back_in_later_runs_too(self, canaries: str) -> None:
        room = Room(rollout_of(*fleet(4), canaries=canaries, limit=1))
        canary = room.rollout.units[0].hosts[0]
        others = [each for each in fleet(4) if each.name != canary]
        room.ask(canary)
        room.end(canary)
        room.close()
        room.nodes["n-" + canary] = NodeState("n-" + canary, unhealthy="7 of 8 GPUs")
        again = plan(others, policy(canaries=canaries, limit=1), room.now, room.pool.proofs)
        later = Room(again, room.record)
        later.nodes = room.nodes
        waiting = later.ask(others[0].name, "b").waiting
        assert waiting is not None and waiting.cause is (Cause.canary if canaries != "none" else Cause.slots)
        later.nodes = {**room.nodes, "n-" + canary: NodeState("n-" + canary)}
        assert later.ask(others[0].name, "b").may_start

    @pytest.mark.parametrize("canaries", ["every_kind", "none"])
    def test_what_checks_have_found_of_it_holds_back_whoever_has_not_seen_it(self, canaries: str) -> None:
        """Another controller, and a later run, until it is changed again or a person has looked at it."""
        room = Room(rollout_of(*fleet(4), canaries=canaries, limit=1))
        canary = room.rollout.units[0].hosts[0]
        other = next(each for each in fleet(4) if each.name != canary)
        room.ask(canary)
        room.record = ended(room.record, POOL, "n-" + canary, "a", DONE, "", NOW, signs=["Xid 63"])
        assert read_record(written(room.record)) == room.record
        waiting = room.ask(other.name, "b").waiting
        assert waiting is not None and waiting.cause is Cause.person
        room.close()
        room.close("b")
        later = Room(plan([each for each in fleet(4) if each.name != canary], policy(
            canaries=canaries, limit=1), room.now, ()), room.record)
        later.nodes = room.nodes
        waiting = later.ask(other.name, "c").waiting
        assert waiting is not None and waiting.cause is Cause.person
        # All that wait have it, too
        assert later.ask(other.name, "c", signs={each: ["Xid 63"] for each in later.rollout.hosts}).may_start
        later = Room(later.rollout, ended(room.record, POOL, "n-" + canary, "me", FREED, "", NOW))
        later.nodes = room.nodes
        assert not later.pool.signs and later.ask(other.name, "c").may_start

    def test_but_not_where_it_is_to_be_changed_anew(self) -> None:
        room = Room(rollout_of(*fleet(2), canaries="every_kind", limit=2))
        canary, other = (unit.hosts[0] for unit in room.rollout.units)
        room.ask(canary)
        room.end(canary)
        room.close()
        room.nodes["n-" + canary] = NodeState("n-" + canary, unhealthy="7 of 8 GPUs")
        assert room.ask(other, "b").may_start and room.ask(canary, "b").may_start

    def test_one_canary_of_a_kind_in_all_runs(self) -> None:
        room = Room(rollout_of(*fleet(2), canaries="every_kind"))
        (canary,) = room.rollout.units[0].hosts
        room.ask(canary)
        slice_of = rollout_of(host("h8"), host("h9"), canaries="every_kind")
        room.rollout, room.nodes = slice_of, {**room.nodes, **nodes_of(slice_of)}
        (theirs,) = slice_of.units[0].hosts
        waiting = room.ask(theirs, "b").waiting
        assert waiting is not None and waiting.why == (
            "waits for another canary of its kind, node n-%s, which is in progress" % canary)
        room.record = ended(room.record, POOL, "n-" + canary, "a", DONE, "", NOW)
        assert room.ask(theirs, "b").may_start and room.pool.slots["n-" + theirs].proofs == ()

    def test_one_that_falls_ill_proves_nothing(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind"))
        (canary,) = room.rollout.units[0].hosts
        room.ask(canary)
        room.end(canary)
        room.nodes["n-" + canary] = NodeState("n-" + canary, ready=False)
        other = next(each.name for each in fleet(3) if each.name != canary)
        assert room.ask(other).waiting.why.endswith("changed and not healthy: its Node is not Ready")

    def two_kinds(self, **options: Any) -> Tuple[Room, List[str], List[str]]:
        """(the room, its canaries in their order, the others)."""
        other = replace(H100, board="4 x 10de:26b9")
        room = Room(rollout_of(*fleet(3), *(host("k%d" % each, kind=other) for each in range(2)),
                               canaries="every_kind", **options))
        names = [unit.hosts[0] for unit in room.rollout.units]
        return room, names[:2], names[2:]

    def test_nobody_begins_before_one_that_waits_for_its_place_however_long(self) -> None:
        """The default, one host at a time: the second canary waits until the first one is back."""
        room, (first, second), others = self.two_kinds(limit=1)
        assert room.begin(first).may_start
        for _ in range(90):
            room.now += timedelta(seconds=10)
            assert room.ask(second).waiting is not None
        assert set(room.pool.canaries) == {"host " + second}
        room.end(first)
        for name in others:
            waiting = room.ask(name, patience=timedelta(0)).waiting
            assert waiting is not None and (waiting.cause, waiting.why) == (
                Cause.canary, "waits for the canary host %s, which is not changed yet" % second)
        assert room.ask(second).may_start and room.pool.canaries == {}

    def test_who_comes_later_in_a_run_does_not_wait_anew_for_one_that_does_not_ask(self) -> None:
        room, (first, second), others = self.two_kinds(limit=1)
        patience = timedelta(minutes=5)
        room.begin(first)
        room.now += timedelta(minutes=4)
        room.end(first)
        assert room.ask(others[0], patience=patience).waiting is not None
        room.now += timedelta(minutes=1)
        assert room.ask(others[0], patience=patience).may_start
        room.end(others[0])
        assert room.ask(others[1], patience=patience).may_start
        # Another run has not waited yet
        assert room.ask(others[2], "b", patience=patience).waiting is not None

    def test_that_it_asks_is_told_once_a_while_and_forgotten_where_it_does_not(self) -> None:
        room, (first, second), others = self.two_kinds(limit=1)
        room.begin(first)
        assert room.ask(second).record is not None and room.ask(second).record is None
        room.now += CLAIM / 4
        assert room.ask(second).record is not None and room.pool.canaries["host " + second].asked == room.now
        room.end(first)
        room.now += CLAIM - timedelta(seconds=1)
        assert room.ask(others[0], patience=timedelta(0)).waiting is not None
        room.now += timedelta(seconds=1)
        assert room.ask(others[0], patience=timedelta(0)).may_start
        room.close()
        assert room.pool.canaries == {}

    @pytest.mark.parametrize("state", [{"cordoned_by": "ada"}, {"ready": False}])
    def test_one_that_waits_for_what_may_never_end_is_not_waited_for(self, state: Dict[str, Any]) -> None:
        """In its failure domain somebody else has a node, or one is down; in the other one nothing is."""
        room = Room(rollout_of(host("h1", domain="a"), *(host("k%d" % each, domain="b", jobs=frozenset("j"))
                                                         for each in range(2)),
                               canaries="every_kind", limit=3, domain_limit=1))
        assert room.rollout.units[0].hosts == ("h1",)
        room.nodes["x"] = NodeState("x", domain="a", **state)
        answer = room.ask("h1")
        assert answer.waiting is not None and answer.is_final == ("cordoned_by" in state) and room.pool.canaries == {}
        assert room.ask("k0").waiting is not None
        assert room.ask("k0", patience=timedelta(0)).may_start

    def test_until_when_it_is_watched_is_told(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind", soak="4h"))
        (canary,) = room.rollout.units[0].hosts
        room.ask(canary)
        room.end(canary)
        other = next(each.name for each in fleet(3) if each.name != canary)
        waiting = room.ask(other).waiting
        assert waiting is not None and (waiting.cause, waiting.until) == (Cause.canary, NOW + timedelta(hours=4))
        # In another slice of the job, whose own canary waits for it
        slice_of = rollout_of(host("h8"), host("h9"), canaries="every_kind", soak="4h")
        room.rollout, room.nodes = slice_of, {**room.nodes, **nodes_of(slice_of)}
        theirs = room.ask(slice_of.units[0].hosts[0], "b").waiting
        assert theirs is not None and (theirs.cause, theirs.until) == (Cause.canary, NOW + timedelta(hours=4))

    def test_one_that_was_left_leaves_it_to_the_next(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind"))
        (canary,) = room.rollout.units[0].hosts
        room.ask(canary)
        room.end(canary, LEFT)
        other = next(each.name for each in fleet(3) if each.name != canary)
        assert room.ask(other).may_start and room.pool.slots["n-" + other].proofs == (host("h1").proof,)
        assert room.ask(canary).is_final


def test_how_long_a_kind_takes_is_told_by_those_that_were_changed() -> None:
    room = Room(rollout_of(*fleet(30), limit=1))
    assert room.pool.expected(str(H100)) is None
    for each in range(1, 26):
        room.ask("h%d" % each)
        room.now += timedelta(minutes=each)
        room.end("h%d" % each)
    # Nine of ten of the twenty, of 6 to 25 minutes
    assert len(room.pool.seconds[str(H100)]) == 20 and room.pool.expected(str(H100)) == 23 * 60
    told = {"converged": False, "disruption": "driver_reload", "change": {
        "digest": "p1", "policy": "q1", "board": H100.board, "system": H100.system, "runtime": H100.runtime,
        "driver_from": "570.1", "driver_to": "580.2"}}
    known = Known("h30", "n-h30", told)
    assert host_of(known, None, room.pool, policy(), room.is_alive).seconds == 23 * 60
    assert host_of(known, None, room.pool, policy(expected_duration="20m"), room.is_alive).seconds == 20 * 60
    assert host_of(known, None, Pool(), policy(expected_duration="2h"), room.is_alive).seconds == 7200


@pytest.mark.parametrize("known, expected", [
    ((14460,), 14460), ((600,) * 4 + (14460,), 14460), ((600,) * 9 + (14460,), 600), ((600,) * 8 + (14460,) * 2, 14460),
    ((600,) * 18 + (14460,) * 2, 600), ((), None)])
def test_nine_of_ten_were_over_by_then(known: Tuple[int, ...], expected: Optional[int]) -> None:
    assert Pool(seconds={"kind": known}).expected("kind") == expected


class TestRepairs:
    """Repairs share the budget with the rollouts of changes, and say nothing of these."""

    def room(self, number: int = 3, record: Optional[Record] = None, **options: Any) -> Room:
        hosts = [host("h%d" % each, policy="repair=%d" % each) for each in range(1, number + 1)]
        return Room(rollout_of(*hosts, **options), record)

    def repair(self, room: Room, name: str, run: str = "r") -> Answer:
        answer = room.ask(name, run, aim="repair")
        if answer.may_start:
            room.record = begun(room.record, POOL, run, "n-" + name, answer.before)
        return answer

    def test_nodes_that_their_own_hosts_took_out_count_and_need_no_place(self) -> None:
        room = self.room(limit=1)
        room.nodes.update((name, replace(room.nodes[name], by_itself=True)) for name in ("n-h2", "n-h3"))
        answer = self.repair(room, "h1")
        assert answer.waiting is not None and answer.waiting.cause is Cause.slots and answer.waiting.lasts
        assert "0 of 1 free; 2 cordoned by their own hosts (h2, h3)" in answer.waiting.why
        assert self.repair(room, "h2").may_start
        assert not self.repair(room, "h3").may_start

    def test_one_that_is_out_already_is_repaired_beside_others_that_are(self) -> None:
        room = self.room(limit=2, record=Record({POOL: Pool(slots={
            "n-h3": Slot("h3", "s", NOW, FAILED, policy="driver=q", reason="x")})}))
        room.nodes["n-x"] = NodeState("n-x", ready=False)
        assert not self.repair(room, "h1").may_start
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], by_itself=True)
        assert self.repair(room, "h1").may_start

    @pytest.mark.parametrize("name", ["h1", "h5"])
    def test_what_was_found_of_changed_hosts_counts_still_when_they_or_others_were_repaired_since(
        self, name: str
    ) -> None:
        room = Room(rollout_of(*fleet(3), limit=1))
        room.begin("h1")
        room.record = ended(room.record, POOL, "n-h1", "a", DONE, "", NOW, signs=["health: xid 63"])
        room.close()
        repairs = self.room(5, room.record)
        assert self.repair(repairs, name).may_start
        repairs.end(name, run="r")
        repairs.close("r")
        room = Room(rollout_of(host("h1", plan=""), *fleet(3)[1:], limit=1), repairs.record)
        answer = room.ask("h2", "b")
        assert answer.waiting is not None and answer.waiting.cause is Cause.person and "xid 63" in answer.waiting.why

    def test_a_run_of_changes_that_was_killed_is_known_after_a_repair(self) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.end("h1")
        repairs = self.room(5, room.record)
        repairs.dead.add("a")
        assert self.repair(repairs, "h5").may_start
        repairs.close("r")
        room.record = repairs.record
        room.ask("h2", "b")
        assert room.pool.rollout is not None and set(room.pool.rollout.before) == {"n-h1"}

    def test_one_that_was_repaired_long_ago_is_no_measure_of_repairs(self) -> None:
        room = self.room(limit=1, record=Record({POOL: Pool(last=OpenRollout("repair", NOW, before={"n-x": NOW}))}))
        room.nodes["n-x"] = NodeState("n-x", unhealthy="7 of 8")
        assert self.repair(room, "h1").may_start

    def test_one_that_is_sick_again_is_repaired_again_by_who_has_found_that(self) -> None:
        room = self.room(limit=2)
        assert self.repair(room, "h1", "a").may_start
        room.now += timedelta(minutes=1)
        assert self.repair(room, "h2", "b").may_start
        room.now += timedelta(minutes=1)
        room.end("h1", run="a")
        # Who had planned before that has found what is mended
        assert self.repair(room, "h1", "b").is_final
        room.now += timedelta(minutes=30)
        room.end("h2", run="b")
        assert self.repair(room, "h3", "c").may_start
        assert self.repair(room, "h1", "c").may_start

    def sick_again(self, room: Room) -> None:
        """A first run has repaired h1 and goes on; a second one, that has found it sick again, has its place."""
        assert self.repair(room, "h1", "a").may_start
        room.now += timedelta(minutes=15)
        room.end("h1", run="a")
        room.now += timedelta(minutes=15)
        assert self.repair(room, "h1", "b").may_start

    def test_one_that_is_sick_again_counts_though_its_second_repair_was_killed(self) -> None:
        room = self.room(limit=1)
        self.sick_again(room)
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], ours=True)
        room.dead = {"b"}
        answer = room.ask("h2", "a", aim="repair")
        assert answer.waiting is not None and "1 half done (h1)" in answer.waiting.why

    @pytest.mark.parametrize("change, cause", [
        ({"cordoned_by": "ada"}, Cause.others), ({"marks": ("kured",)}, Cause.others), ({}, Cause.window)])
    def test_before_it_is_taken_others_are_seen_though_it_was_repaired_before(
        self, change: Dict[str, Any], cause: Cause
    ) -> None:
        room = self.room(limit=2, **WEDNESDAYS)
        self.sick_again(room)
        room.nodes["n-h1"] = replace(room.nodes["n-h1"], **change)
        room.now += timedelta(0) if change else timedelta(days=1)
        answer = room.ask("h1", "b", aim="repair")
        assert answer.waiting is not None and answer.waiting.cause is cause

    def test_what_a_repair_has_left_sick_since_it_was_planned_is_not_changed(self) -> None:
        room = self.room(limit=1)
        assert self.repair(room, "h1").may_start
        changes = Room(rollout_of(*fleet(3), limit=1), room.record)
        assert changes.ask("h1").waiting.cause is Cause.rollout
        room.record = changes.record
        room.end("h1", FAILED, "r", "a part is to go")
        room.close("r")
        changes.record = room.record
        answer = changes.ask("h1")
        assert [each.code for each in answer.refusals] == ["rollout.failed_before"] and answer.is_final
        assert "a part is to go" in answer.refusals[0].found and changes.pool.slots == room.pool.slots

    def test_nor_is_a_canary_repaired_that_has_failed_since(self) -> None:
        room = Room(rollout_of(*fleet(3), canaries="every_kind", max_failures=0))
        (canary,) = room.rollout.units[0].hosts
        assert room.ask(canary).may_start
        room.end(canary, FAILED, reason="no container has a GPU")
        room.close()
        repairs = self.room(limit=3, record=room.record)
        answer = self.repair(repairs, canary)
        assert [each.code for each in answer.refusals] == ["rollout.failed_before"] and answer.is_final
        repairs.close("r")
        room.record = repairs.record
        assert room.ask(next(unit.hosts[0] for unit in room.rollout.units[1:]), "b").refusals

    def test_of_a_clique_none_begins_beside_one_that_another_kind_of_run_has_failed_with(self) -> None:
        slot = Slot("h1", "r", NOW, FAILED, policy="repair=1", reason="a part is to go")
        room = Room(rollout_of(*fleet(2, clique="x"), limit=3), Record({POOL: Pool(slots={"n-h1": slot})}))
        answer = room.ask("h2")
        assert [each.code for each in answer.refusals] == ["rollout.unit_incomplete"] and room.held() == set()

    def test_one_in_the_middle_of_a_change_is_not_repaired(self) -> None:
        """Neither where it was planned before that, nor where it is planned then."""
        room = Room(rollout_of(*fleet(3), limit=1))
        assert room.ask("h1").may_start
        room.dead = {"a"}
        slots = room.pool.slots
        repairs = self.room(limit=1, record=room.record)
        repairs.dead = {"a"}
        answer = self.repair(repairs, "h1")
        assert [each.code for each in answer.refusals] == ["rollout.change_unfinished"] and answer.is_final
        assert repairs.pool.slots == slots
        # One that was repaired is changed all the same
        room.record = Record({POOL: Pool(slots={"n-h1": Slot("h1", "a", NOW, policy="repair=1")})})
        assert room.ask("h1", "b").may_start

    def test_how_long_one_takes_is_not_expected_of_changes(self) -> None:
        room = self.room(record=Record({POOL: Pool(seconds={str(H100): (1800,)})}))
        assert self.repair(room, "h1").may_start
        room.now += timedelta(seconds=70)
        room.end("h1", run="r")
        assert room.pool.seconds == {str(H100): (1800,)}

    @pytest.mark.parametrize("policy, at_once", [("repair=r", 1), ("q1", 3)])
    def test_one_of_the_nodes_of_killed_repairs_proves_the_change_for_the_others(
        self, policy: str, at_once: int
    ) -> None:
        slots = {"n-h%d" % each: Slot("h%d" % each, "r", NOW, policy=policy) for each in (1, 2, 3)}
        hosts = [replace(each, half_done=number < 3) for number, each in enumerate(fleet(6))]
        room = Room(rollout_of(*hosts, limit=3, canaries="every_kind"), Record({POOL: Pool(slots=slots)}))
        room.dead.add("r")
        started: List[str] = []
        for expected in (at_once, 4, 6):
            started += [unit.hosts[0] for unit in room.rollout.units
                        if unit.hosts[0] not in started and room.begin(unit.hosts[0]).may_start]
            assert len(started) == expected
            for name in room.held().intersection(started):
                room.end(name)


class TestReturned:
    def test_what_was_given_back_is_remembered_when_the_rollout_is_over(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(budget, "RETURNED", 2)
        room = Room(rollout_of(*fleet(3)))
        for number, (name, aim) in enumerate((("h3", "x"), ("h2", REPAIR), ("h1", "y"))):
            room.now = NOW + timedelta(hours=number)
            room.ask(name, aim=aim)
            room.end(name)
            room.close()
        assert room.pool.returned == {"n-h2": NOW + timedelta(hours=1), "n-h1": NOW + timedelta(hours=2)}
        assert read_record(written(room.record)).pool(POOL) == room.pool
        room.now += timedelta(hours=1)
        # What opens another rollout in its place closes it as well
        room.ask("h3", aim=REPAIR)
        room.end("h3")
        room.dead.add("a")
        room.ask("h1", "b", aim="x")
        assert set(room.pool.returned) == {"n-h1", "n-h3"}

    def test_so_is_what_comes_late_of_a_rollout_that_another_one_has_taken_the_place_of(self) -> None:
        room = Room(rollout_of(*fleet(3), limit=3))
        room.begin("h1")
        room.dead.add("a")
        room.now += timedelta(minutes=15)
        assert room.ask("h2", "b", aim="y").may_start
        room.end("h1")
        assert room.pool.returned == {"n-h1": room.now} and "n-h1" not in room.pool.rollout.done  # type: ignore[union-attr]


class TestSharedWords:
    def test_a_domain_that_only_the_inventory_knows_counts_for_other_runs_too(self) -> None:
        record = Record()
        for outcome in (None, FAILED):
            one = Room(rollout_of(host("a0", domain="rack-1"), limit=5, domain_limit=1), record)
            other = Room(rollout_of(host("b0", domain="rack-1"), limit=5, domain_limit=1))
            for room in (one, other):
                room.nodes = {node: NodeState(node) for node in ("n-a0", "n-b0")}
            assert outcome or one.begin("a0", "a").may_start
            if outcome:
                one.end("a0", outcome)
            other.record = record = one.record
            answer = other.ask("b0", "b")
            assert answer.waiting is not None and "failure domain rack-1 has 0 of 1 free" in answer.waiting.why

    @pytest.mark.parametrize("outcome", [FAILED, LEFT])
    def test_a_reason_of_any_length_is_written_down(self, outcome: str) -> None:
        room = Room(rollout_of(*fleet(2)))
        room.begin("h1")
        room.end("h1", outcome, reason="x" * 10 ** 6)
        assert len(written(room.record)) < 3000 and "xxx ..." in written(room.record)


@pytest.mark.parametrize("node, state, most", [
    ("n", None, Disruption.reboot),
    ("n", NodeState("n", in_service=False, had_gpus=True), Disruption.reboot),
    ("n", NodeState("n"), Disruption.driver_reload),
    ("n", NodeState("n", ours=True), Disruption.service_restart),
    ("n", NodeState("n", had_gpus=True), Disruption.service_restart),
    ("", None, Disruption.driver_reload),
])
def test_what_the_loaded_driver_tells_harms_nobody(node: str, state: Optional[NodeState], most: Disruption) -> None:
    assert allowed_later(node, state, is_loaded=False) is most
    assert allowed_later(node, state, is_loaded=True) is (
        Disruption.service_restart if most is Disruption.driver_reload else most)


@pytest.mark.parametrize("counts, state, in_service", [
    (True, None, True), (False, None, False), (True, NodeState("n", in_service=False), True),
    (False, NodeState("n", in_service=False), False), (False, NodeState("n", ours=True), False),
    (False, NodeState("n"), True),
])
def test_a_node_that_was_new_takes_a_place_as_soon_as_it_is_at_work(
    counts: bool, state: Optional[NodeState], in_service: bool
) -> None:
    """Whatever became of the change by which it came."""
    slot = Slot("h1", "dead", NOW, counts=counts)
    for there in (slot, replace(slot, state=FAILED)):
        pool = Pool(slots={"n": there})
        known = host_of(Known("h1", "n"), state, pool, policy(), lambda run: False)
        assert known.in_service == in_service
        assert state is None or beside(state, pool).in_service == in_service
    if state is not None:
        there = without_the_gone(Pool(slots={"n": slot}), {"n": state}).slots["n"]
        assert there.joined == (not counts) and there.counts == in_service, "it is known from then on"
    # Its own run has it join
    pool = Pool(slots={"n": slot}, rollout=OpenRollout("x", NOW, {"dead": Run("c", NOW, NOW)}))
    assert host_of(Known("h1", "n"), state, pool, policy(), lambda run: True).in_service == counts


class TestHosts:
    TOLD = {"converged": False, "disruption": "reboot", "refusals": [], "unfinished": [], "change": {
        "digest": "p1", "policy": "q1", "board": "b", "system": "s", "runtime": "r", "driver_from": "1",
        "driver_to": "2", "clique": "c.1"}}

    def of(self, slot: Optional[Slot] = None, state: Optional[NodeState] = None, told: Any = TOLD,
           dead: FrozenSet[str] = frozenset(), **pool: Any) -> Host:
        slots = {} if slot is None else {"n": slot}
        return host_of(Known("h", "n", told), state, Pool(slots=slots, **pool), policy(), lambda run: run not in dead)

    @pytest.mark.parametrize("told, seen, takes_out", [
        ({"drain": "pods", "disruption": "none"}, {}, True), ({"drain": "none", "may_disturb": "none"}, {}, False),
        ({"may_disturb": "driver_reload"}, {}, False), ({"may_disturb": "driver_reload"}, {"had_gpus": True}, True),
        ({"may_disturb": "service_restart"}, {"had_gpus": True}, False), ({"may_disturb": "reboot"}, {}, True),
        ({"may_disturb": "reboot"}, {"in_service": False}, False),
    ])
    def test_whether_its_node_is_taken_out_of_service_for_it(
        self, told: Dict[str, str], seen: Dict[str, bool], takes_out: bool
    ) -> None:
        assert self.of(told={**self.TOLD, **told}, state=NodeState("n", **seen)).takes_out == takes_out
        alone = host_of(Known("h", "", {**self.TOLD, **told}), None, Pool(), policy(), lambda run: True)
        assert alone.takes_out == (told.get("may_disturb") == "reboot"), "in no cluster it waits for its window"

    def test_what_was_planned_is_in_it(self) -> None:
        made = self.of()
        assert (made.plan, made.policy, made.kind, made.clique, made.disruption) == (
            "p1", "q1", Kind("b", "s", "r", "1", "2"), "c.1", Disruption.reboot)
        assert made.reachable and not made.in_service and made.ready

    def test_one_that_could_not_be_asked_is_in_it_too_and_of_its_clique(self) -> None:
        state = NodeState("n", clique="c.1")
        for told in (None, {"failed": True}):
            assert self.of(told=told, state=state).clique == "c.1"
        assert not self.of(told=None).reachable and not self.of(told=None).clique
        assert self.of(told={**self.TOLD, "change": {**self.TOLD["change"], "clique": ""}}, state=state).clique == ""

    def test_its_own_refusal_is_the_rollouts(self) -> None:
        refusal = {"code": "driver.x", "found": "a", "wanted": "b", "remedy": "c", "option": ""}
        made = self.of(told={**self.TOLD, "refusals": [refusal]})
        assert made.refusal is not None and made.refusal.code == "driver.x"

    @pytest.mark.parametrize("stood, asked, counts", [
        ("driver=a", "driver=a", True), ("driver=a", "driver=b", False), ("driver=a", "-driver=a", True),
        ("repair=a", "driver=b -repair=c", True), ("repair=a", "-driver=b -repair=c", True),
        ("repair=a", "repair=b", False), ("repair=a", "repair=a", True), ("driver=a", "-activation=a repair=b", True),
    ])
    def test_what_a_repair_has_left_sick_counts_for_every_other_change_and_the_other_way_round(
        self, stood: str, asked: str, counts: bool
    ) -> None:
        """Else a node that waits for a part is given back by the next upgrade, and one whose upgrade has failed by a
        repair; another remedy is tried all the same."""
        slot = Slot("h", "a", NOW, FAILED, policy=stood, reason="a part is to go")
        made = self.of(slot, told={**self.TOLD, "change": {**self.TOLD["change"], "policy": asked}})
        assert made.failed == ("a part is to go" if counts else "")

    @pytest.mark.parametrize("began, aim, asked, refused", [
        ("driver=a", "x", "-driver=a repair=c", True), ("repair=a", "repair", "-driver=a repair=c", False),
        # Nothing was sick any more, and a repair ended what one had begun
        ("-driver=a -repair=c", "repair", "-driver=a repair=c", False), ("driver=a", "x", "driver=b", False),
    ])
    def test_a_repair_leaves_what_is_in_the_middle_of_another_change(
        self, began: str, aim: str, asked: str, refused: bool
    ) -> None:
        told = {**self.TOLD, "change": {**self.TOLD["change"], "policy": asked}}
        made = self.of(Slot("h", "b", NOW, policy=began, aim=aim), told=told, dead=frozenset("b"))
        assert made.half_done
        assert rollout_of(made).refused.keys() == ({"h"} if refused else set())

    @pytest.mark.parametrize("kept", [False, True])
    def test_nor_does_it_go_on_with_what_no_record_knows_of(self, kept: bool) -> None:
        told = {**self.TOLD, "change": {**self.TOLD["change"], "policy": "-driver=a repair=c"}}
        made = self.of(state=NodeState("n", ours=True, kept=kept), told=told)
        assert made.half_done and (made.refusal is None) == kept
        assert self.of(state=NodeState("n", ours=True)).refusal is None, "site does"

    @pytest.mark.parametrize("stood, began, asked, counts", [
        ("repair=a", "repair=b", "driver=b -repair=c", True), ("repair=a", "repair=b", "-driver=b -repair=c", True),
        ("repair=a", "repair=b", "repair=b", False), ("driver=a", "driver=b", "driver=b", False),
        ("driver=a", "driver=b", "repair=c", True),
    ])
    def test_what_has_failed_counts_though_another_try_was_killed_since(
        self, stood: str, began: str, asked: str, counts: bool
    ) -> None:
        failure = Slot("h", "a", NOW, FAILED, policy=stood, reason="a part is to go")
        slot = Slot("h", "b", NOW, policy=began, before=failure)
        told = {**self.TOLD, "change": {**self.TOLD["change"], "policy": asked}}
        for dead in (frozenset("b"), frozenset()):
            assert self.of(slot, told=told, dead=dead).failed == ("a part is to go" if counts else "")

    def test_what_no_run_has_closed_is_something_to_do(self) -> None:
        told = {"converged": False, "disruption": "none", "unfinished": ["driver/module.load/nvidia"], "change": {}}
        assert self.of(told=told).plan and not self.of(told={**told, "unfinished": []}).plan

    @pytest.mark.parametrize("slot, state, runs, half_done", [
        (None, None, (), False),
        (None, NodeState("n", ours=True), (), True),
        (None, NodeState("n", cordoned_by="ada"), (), False),
        (Slot("h", "a", NOW), None, ("a",), False),
        (Slot("h", "a", NOW), None, (), True),
        (Slot("h", "b", NOW), None, ("b",), True),
        (Slot("h", "a", NOW, begun=False), None, (), False),
        (Slot("h", "a", NOW, FAILED), NodeState("n", ours=True), (), False),
    ])
    def test_what_a_run_began_and_did_not_end(
        self, slot: Optional[Slot], state: Optional[NodeState], runs: Sequence[str], half_done: bool
    ) -> None:
        opened = OpenRollout("x", NOW, {run: Run("c", NOW, NOW) for run in runs})
        assert self.of(slot, state, dead=frozenset("b"), rollout=opened).half_done == half_done

    @pytest.mark.parametrize("asked_for, failed", [("q1", "Xid"), ("q2", "")])
    def test_what_failed_by_this_policy(self, asked_for: str, failed: str) -> None:
        assert self.of(Slot("h", "a", NOW, FAILED, policy=asked_for, reason="Xid")).failed == failed

    @pytest.mark.parametrize("asked_for, failed", [
        ("activation=a -driver=d -mig=m toolkit=t", "Xid"),
        # A part is done, or done and taken back; what could not be planned before is to be done now
        ("activation=a -driver=d -mig=m -toolkit=t", "Xid"),
        ("activation=a driver=d -mig=m -toolkit=t", "Xid"),
        ("-activation=a -driver=d mig=m -toolkit=t", "Xid"),
        # The cure, and another wish for what had nothing to do
        ("activation=a driver=d2 -mig=m -toolkit=t", ""),
        ("activation=a driver=d mig=m2 -toolkit=t", ""),
        # What is asked of a capability that had and has nothing to do is no part of it
        ("activation=a driver=d -mig=m2 toolkit=t", "Xid"),
    ])
    def test_what_is_left_of_a_change_that_failed_half_way_is_of_its_policy(self, asked_for: str, failed: str) -> None:
        told = {**self.TOLD, "change": {**self.TOLD["change"], "policy": asked_for}}  # type: ignore[dict-item]
        slot = Slot("h", "a", NOW, FAILED, policy="activation=a driver=d -mig=m toolkit=t", reason="Xid")
        assert self.of(slot, told=told).failed == failed
        room = Room(rollout_of(host("h1", policy=asked_for), host("h2", policy=asked_for), max_failures=0))
        room.record = Record({POOL: Pool(slots={"n-h1": slot})})
        assert bool(room.ask("h2").refusals) == bool(failed)

    @pytest.mark.parametrize("told", [
        {"converged": True, "disruption": "none", "change": {}},
        {"converged": False, "disruption": "none", "unfinished": ["driver/module.load/nvidia"], "change": {}}])
    def test_what_failed_is_not_well_where_nothing_is_left_to_do(self, told: Dict[str, Any]) -> None:
        made = self.of(Slot("h", "a", NOW, FAILED, policy="q1", reason="Xid"), NodeState("n", ours=True), told)
        assert made.failed == "Xid" and not made.half_done
        rollout = rollout_of(made)
        assert rollout.beside == rollout.units == ()
        assert rollout.refused["h"].code == "rollout.failed_before"
        assert rollout.refused["h"].found == "the change of node n has failed before: Xid"

    @pytest.mark.parametrize("told", [None, {"refusals": [
        {"code": "driver.x", "found": "a", "wanted": "b", "remedy": "c", "option": ""}]}])
    def test_one_of_which_nothing_could_be_planned_says_so_itself(self, told: Any) -> None:
        assert not self.of(Slot("h", "a", NOW, FAILED, policy="q1", reason="Xid"), told=told).failed

    def test_the_aim_is_the_same_until_all_is_done(self) -> None:
        whole = [host("h1", policy="driver=d -mig=m"), host("h2", policy="driver=d mig=m")]
        half = [host("h1", policy="-driver=d -mig=m", plan=""), host("h2", policy="-driver=d mig=m")]
        none = [host("h1", policy="-driver=d -mig=m", plan=""), host("h2", policy="-driver=d -mig=m", plan="")]
        assert aim_of(whole) == aim_of(half) == aim_of(none)
        assert aim_of(whole) != aim_of([host("h1", policy="driver=d2 -mig=m"), whole[1]])
        # The same wish comes to another version
        assert aim_of(whole) != aim_of([replace(each, kind=replace(H100, driver_to="590.1")) for each in whole])

    def test_what_a_run_has_only_reserved_is_as_it_was_before(self) -> None:
        before = Slot("h", "a", NOW, FAILED, policy="q1", reason="Xid")
        assert self.of(Slot("h", "b", NOW, begun=False, policy="q2", before=before)).failed == "Xid"
        assert self.of(Slot("h", "b", NOW, policy="q2", before=before)).failed == "Xid"

    def test_jobs_that_share_a_node_restart_together(self) -> None:
        assert job_groups({"a": ["n1", "n2"], "b": ["n3", "n2"], "c": ["n4"], "d": ["n5", "n5", "n6"]}) == {
            "n1": "a", "n2": "a", "n3": "a", "n5": "d", "n6": "d"}
        assert job_groups({"a": ["n1", "n2"], "b": ["n3", "n4"], "c": ["n2", "n3"]}) == dict.fromkeys(
            ["n1", "n2", "n3", "n4"], "a")


TIMES = st.integers(0, 10 ** 9).map(lambda seconds: NOW + timedelta(seconds=seconds))
WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.sampled_from(["n1", "n2", "n3", "a", "b"])
SLOTS = st.builds(Slot, host=NAMES, run=NAMES, since=TIMES, state=st.sampled_from(STATES), begun=st.booleans(),
                  confirmed=st.booleans(), counts=st.booleans(), aim=WORDS, joined=st.booleans(),
                  proofs=st.lists(WORDS, max_size=2).map(tuple),
                  policy=WORDS, kind=WORDS, reason=WORDS, before=st.one_of(st.none(), st.builds(
                      Slot, host=NAMES, run=NAMES, since=TIMES, state=st.just(FAILED), reason=WORDS)))
ROLLOUTS = st.one_of(st.none(), st.builds(
    OpenRollout, WORDS, TIMES, st.dictionaries(NAMES, st.builds(Run, WORDS, TIMES, TIMES, st.integers(0, 9999))),
    st.dictionaries(NAMES, TIMES), st.dictionaries(NAMES, st.builds(Left, NAMES, WORDS)),
    st.dictionaries(NAMES, TIMES)))
POOLS = st.builds(
    Pool, limit=st.sampled_from(["", "1", "5%"]), domain_limit=st.sampled_from(["", "1"]),
    rollout=ROLLOUTS, last=ROLLOUTS,
    slots=st.dictionaries(NAMES, SLOTS), proofs=st.dictionaries(WORDS, st.builds(Proof, NAMES, TIMES)),
    claims=st.dictionaries(WORDS, st.builds(Claim, WORDS, NAMES, TIMES)),
    canaries=st.dictionaries(WORDS, st.builds(Claim, WORDS, NAMES, TIMES)),
    seconds=st.dictionaries(WORDS, st.lists(st.integers(0, 9999), max_size=3).map(tuple)),
    signs=st.dictionaries(NAMES, st.lists(WORDS, min_size=1, max_size=2).map(tuple)))


@settings(max_examples=150)
@given(pools=st.dictionaries(NAMES, POOLS, max_size=2))
def test_a_record_is_read_as_it_was_written(pools: Dict[str, Pool]) -> None:
    record = Record(pools)
    assert read_record(written(record)) == record and written(read_record(written(record))) == written(record)


class Cluster:
    """Several runs that ask, begin, end and die, administrators, and Nodes that come and go; all counted beside.

    Each question is asked of the Nodes as they were a while ago, and confirmed with those of now, as over a network.
    """

    def __init__(self, hosts: Sequence[Host], options: Dict[str, Any], runs: int) -> None:
        self.names = ["r%d" % each for each in range(runs)]
        self.hosts = {each.name: each for each in hosts}
        self.options = options
        self.text = ""
        self.nodes = {each.node: NodeState(each.node, domain=each.domain) for each in hosts
                      if each.in_service or len(each.name) % 2}
        self.nodes = {name: replace(state, in_service=self.hosts[name[2:]].in_service)
                      for name, state in self.nodes.items()}
        self.seen = dict(self.nodes)
        self.dead: Set[str] = set()
        self.killed: Set[str] = set()
        self.now = NOW
        # Nodes that a run has begun with and not ended, those of them that another one had begun with, those that are
        # reserved for it, and which of them for sure, and those that failed
        self.begun: Dict[str, str] = {}
        self.taken_over: Set[str] = set()
        self.reserved: Dict[str, str] = {}
        self.sure: Set[str] = set()
        self.pending: List[Tuple[str, str, Answer]] = []
        self.failed: Set[str] = set()
        self.changed: Set[str] = set()
        self.new: Set[str] = {each.node for each in hosts if not each.in_service}
        self.rollouts = {name: self.planned(name) for name in self.names}

    @property
    def record(self) -> Record:
        return read_record(self.text)

    def planned(self, name: str) -> Rollout:
        """A slice, as AWX makes them."""
        number = self.names.index(name)
        return plan([each for place, each in enumerate(self.hosts.values())
                     if place % len(self.names) == number and each.node not in self.changed],
                    policy_of(self.options), self.now, self.record.pool(POOL).proofs)

    def out(self, domain: Optional[str] = None) -> Set[str]:
        of_nodes = {state.name for state in self.nodes.values() if state.cordoned_by or not state.ready}
        begun_with = {node for node in self.begun if not self._serves(node)}
        held = {*of_nodes, *begun_with, *self.failed, *self.sure.intersection(self.reserved)} - self.new
        gone = {node for node in held if node not in self.nodes}
        return {node for node in held - gone if domain is None or self.hosts[node[2:]].domain == domain}

    def _serves(self, node: str) -> bool:
        """Whether it is at work, though a run that is no more has begun with it."""
        state = self.nodes.get(node)
        return state is not None and state.in_service and not state.ours and not self.is_alive(self.begun[node])

    def is_past_asking(self, run: str, name: str) -> bool:
        """Whether it is changed, or this run is at work with it where no Node says so."""
        node = self.hosts[name].node
        return node in self.changed or (
            self.begun.get(node) == run and (node not in self.nodes or not self.nodes[node].ours))

    def joins(self, node: str) -> None:
        """A new one is at work, which only the run that changes it does not count, or has just asked for it."""
        if node in self.new and node not in self.reserved:
            self.nodes[node] = self.seen[node] = NodeState(node, domain=self.hosts[node[2:]].domain)
            if node not in self.begun or not self.is_alive(self.begun[node]):
                self.new.discard(node)

    def had_no_time(self, node: str) -> None:
        """Its run was killed before it could take it out of service."""
        if node in self.begun and not self.is_alive(self.begun[node]) and node not in self.taken_over:
            self._is_ours(node, False)
            self.killed.add(self.begun[node])

    def ask(self, run: str, name: str) -> bool:
        """Whether it begins at once; one whose places are reserved begins when they are confirmed."""
        asking = Asking(name, run, "c", "x", self.now, patience=timedelta(0))
        # A run knows whether it has taken a node, and looks at those that have places behind the record
        held = {*self.begun, *self.record.pool(POOL).slots}
        nodes = {**self.seen, **{node: state for node, state in self.nodes.items() if node in held}}
        answer = asked(self.record, POOL, asking, self.rollouts[run], nodes, self.is_alive)
        if answer.record is not None:
            self.text = written(answer.record)
        self.reserved = {node: each for node, each in self.reserved.items() if node in self.record.pool(POOL).slots}
        if answer.may_start and answer.before:
            self.pending.append((run, name, answer))
            self.reserved.update((node, run) for node in answer.before if node not in self.begun)
        elif answer.may_start:
            return self._begins(run, name)
        return False

    def conclude(self) -> bool:
        """The oldest of those that wait for it is confirmed, or gives back what it had."""
        run, name, answer = self.pending.pop(0)
        if run in self.dead:
            return False
        asking = Asking(name, run, "c", "x", self.now, patience=timedelta(0))
        for node in answer.before:
            self.reserved.pop(node, None)
        if not confirmed(answer, POOL, asking, self.rollouts[run], self.nodes, self.is_alive).may_start:
            self.text = written(given_back(self.record, POOL, run, answer.before))
            self._knows_what_it_has(run)
            return False
        if len(answer.before) > 1:
            self.text = written(begun(self.record, POOL, run, self.hosts[name].node, answer.before))
        if not is_held(self.record.pool(POOL), self.hosts[name].node, run):
            return False
        before = {domain: self.out(domain) for domain in (None, "a", "b")}
        self.reserved.update((node, run) for node in answer.before if node not in self.begun)
        self.sure.update(answer.before)
        self.failed.difference_update(answer.before)
        self._keeps_to_the_limits(before)
        return self._begins(run, name)

    def _keeps_to_the_limits(self, before: Dict[Optional[str], Set[str]]) -> None:
        for domain, limit in ((None, self.options["limit"]), *(
                (each, self.options["domain_limit"]) for each in ("a", "b") if self.options["domain_limit"])):
            assert len(self.out(domain)) <= max(limit, len(before[domain]))

    def _knows_what_it_has(self, run: str) -> None:
        for node, slot in self.record.pool(POOL).slots.items():
            if slot.run == run and node not in self.begun and slot.state == WORKING:
                self.reserved[node] = run
                self.sure.update([node] if slot.confirmed and not slot.begun else [])

    def dies(self, run: str) -> None:
        self.dead.add(run)
        joined = [node for node in self.new if self.begun.get(node) == run and self._serves(node)]
        self.new.difference_update(joined)
        # What it had not taken yet may be taken with others by then, so that it must not come back
        self.killed.update([run] if joined else [])
        self.reserved = {node: each for node, each in self.reserved.items() if each != run}

    def lives(self, run: str) -> None:
        """It was only slow."""
        self.dead.discard(run)
        self._knows_what_it_has(run)

    def _begins(self, run: str, name: str) -> bool:
        node = self.hosts[name].node
        before = {domain: self.out(domain) for domain in (None, "a", "b")}
        assert self.begun.get(node, run) == run or not self.is_alive(self.begun[node])
        is_out = node in self.nodes and self.nodes[node].ours
        self.taken_over.update([node] if is_out and self.begun.get(node, run) != run else [])
        self.reserved.pop(node, None)
        self.begun[node] = run
        self._is_ours(node, True)
        self.failed.discard(node)
        self._keeps_to_the_limits(before)
        return True

    def is_alive(self, run: str) -> bool:
        return run not in {"", *self.dead}

    def _is_ours(self, node: str, ours: bool) -> None:
        if node in self.nodes:
            self.nodes[node] = replace(self.nodes[node], ours=ours)

    def end(self, node: str, outcome: str, reason: str = "Xid") -> None:
        run = self.begun.pop(node)
        self.text = written(ended(self.record, POOL, node, run, outcome, reason, self.now, self.hosts[node[2:]]))
        if outcome == LEFT and reason and node in self.taken_over:
            self.begun[node] = ""
            return
        self.taken_over.discard(node)
        self._is_ours(node, outcome == FAILED)
        if outcome == FAILED:
            self.failed.add(node)
        elif outcome == DONE:
            self.changed.add(node)
            self.new.discard(node)
            if node not in self.nodes or not self.nodes[node].in_service:
                self.nodes[node] = NodeState(node, domain=self.hosts[node[2:]].domain)

    def check(self) -> None:
        """No slot is lost, and none is there that nobody holds."""
        slots = self.record.pool(POOL).slots
        kept = {node for node in {*self.begun, *self.failed} if node in self.nodes or node in self.new}
        assert kept <= set(slots)
        others = {node for node, slot in slots.items() if node in self.nodes or not slot.counts} - kept
        # What a run has reserved and not begun is forgotten with it
        assert others <= {*self.reserved, *(node for node in others if slots[node].run in self.dead)}
        failed = {node for node, slot in slots.items() if slot.state == FAILED}
        assert failed & kept <= self.failed and self.failed & kept - failed <= set(self.reserved)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_no_order_of_events_exceeds_a_limit_or_loses_a_slot(data: st.DataObject) -> None:
    number = data.draw(st.integers(2, 9))
    hosts = [host("h%d" % each, domain=data.draw(st.sampled_from("ab")),
                  in_service=data.draw(st.sampled_from([True] * 5 + [False])),
                  clique=data.draw(st.sampled_from(["", "x"]))) for each in range(number)]
    options = {"limit": data.draw(st.integers(1, 4)), "domain_limit": data.draw(st.sampled_from([None, 1, 2])),
               "canaries": data.draw(st.sampled_from(["none", "every_kind"])), "max_failures": 99}
    cluster = Cluster(hosts, options, data.draw(st.integers(1, 3)))
    for _ in range(data.draw(st.integers(1, 25))):
        cluster.now += timedelta(seconds=data.draw(st.sampled_from([0, 1, 300])))
        living = [run for run in cluster.names if run not in cluster.dead]
        what = data.draw(st.sampled_from(["ask"] * 6 + ["conclude"] * 4 + [
            "end", "end", "cordon", "uncordon", "not ready", "look", "die", "die", "live", "live", "delete", "free",
            "join", "bare"]))
        node = data.draw(st.sampled_from([each.node for each in hosts]))
        if what == "ask" and living:
            run = data.draw(st.sampled_from(living))
            own = [name for name in cluster.rollouts[run].of_run if not cluster.is_past_asking(run, name)]
            name = data.draw(st.sampled_from(own)) if own else ""
            if own and (run, name) not in [each[:2] for each in cluster.pending]:
                cluster.ask(run, name)
        elif what == "conclude" and cluster.pending:
            cluster.conclude()
        elif what == "end" and node in cluster.begun and cluster.is_alive(cluster.begun[node]):
            cluster.end(node, data.draw(st.sampled_from([DONE, DONE, FAILED, LEFT])), data.draw(
                st.sampled_from(["Xid", ""])))
        elif what in ("cordon", "uncordon", "not ready") and node in cluster.nodes:
            cluster.nodes[node] = replace(cluster.nodes[node], ready=what != "not ready",
                                          cordoned_by="ada" if what == "cordon" else "")
        elif what == "look":
            cluster.seen = dict(cluster.nodes)
        elif what == "die" and len(living) > 1:
            cluster.dies(living[0])
        elif what == "live" and cluster.dead - cluster.killed:
            cluster.lives(min(cluster.dead - cluster.killed))
        elif what == "join":
            cluster.joins(node)
        elif what == "bare":
            cluster.had_no_time(node)
        elif what == "delete" and node in cluster.nodes and node not in {
                *cluster.begun, *cluster.failed, *cluster.reserved}:
            del cluster.nodes[node]
            cluster.seen.pop(node, None)
            cluster.new.add(node)
        elif what == "free" and node in cluster.failed:
            cluster.text = written(ended(cluster.record, POOL, node, "", FREED, "", cluster.now))
            cluster.failed.discard(node)
            cluster._is_ours(node, False)
        cluster.check()
    _comes_to_its_end(cluster)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_run_that_is_late_exceeds_a_limit(data: st.DataObject) -> None:
    """Each of two runs has a clique and a host beside it, and counts as dead now and then while it is at work."""
    of_run = {run: [*(host(run + each, clique=run) for each in "12"), host(run + "3")] for run in "ab"}
    rollouts = {run: rollout_of(*hosts, limit=3) for run, hosts in of_run.items()}
    room = Room(rollouts["a"])
    room.nodes = {**nodes_of(rollouts["a"]), **nodes_of(rollouts["b"])}
    begun_with: Set[str] = set()
    for _ in range(data.draw(st.integers(1, 20))):
        run = data.draw(st.sampled_from("ab"))
        name = data.draw(st.sampled_from([each.name for each in of_run[run]]))
        what = data.draw(st.sampled_from(["begin", "begin", "begin", "end", "die", "live"]))
        room.rollout = rollouts[run]
        if what == "begin" and room.begin(name, run).may_start:
            begun_with.add(name)
        elif what == "end" and name in begun_with:
            room.end(name, data.draw(st.sampled_from([DONE, LEFT])), run)
            begun_with.discard(name)
        elif what in ("die", "live"):
            room.dead = {run} if what == "die" else set()
        assert len(begun_with) <= 3 and begun_with <= room.held()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_order_of_events_forgets_a_failure(data: st.DataObject) -> None:
    """Two policies, and runs that take over, give back, leave, end and die. A person, or a success, ends it."""
    rollouts = [rollout_of(*fleet(2, clique="x", policy=name)) for name in ("q1", "q2")]
    room = Room(rollouts[0])
    room.end("h1", FAILED)
    failed = {"h1"}
    for _ in range(data.draw(st.integers(1, 20))):
        room.rollout = data.draw(st.sampled_from(rollouts))
        run, name = data.draw(st.sampled_from("ab")), data.draw(st.sampled_from(["h1", "h2"]))
        what = data.draw(st.sampled_from(["ask", "ask", "begin", "give back", "close", "die", "live", *OUTCOMES]))
        if what == "begin":
            room.begin(name, run)
        elif what in ("ask", "give back"):
            answer = room.ask(name, run)
            if what == "give back":
                room.record = given_back(room.record, POOL, run, answer.before)
        elif what == "close":
            room.close(run)
        elif what in ("die", "live"):
            room.dead = {run} if what == "die" else set()
        else:
            slot, opened = room.pool.slots.get("n-" + name), room.pool.rollout
            is_anothers = slot is not None and slot.state == FAILED and slot.run != run
            is_done = slot is None and opened is not None and "n-" + name in opened.done and run not in opened.runs
            try:
                room.end(name, what, run)
            except GpuOpsError as refused:
                assert refused.code == "rollout.held_by_another"
                continue
            if what == FREED or (what == DONE and not is_anothers):
                failed.discard(name)
            failed.update([name] if what == FAILED and not is_done else [])
        assert {slot.host for slot in room.pool.slots.values() if slot.earlier_failure} == failed


def _comes_to_its_end(cluster: Cluster) -> None:
    """Once nobody disturbs it any more, one run that is alone brings all of it to its end."""
    cluster.pending.clear()
    for node in sorted(cluster.failed):
        cluster.text = written(ended(cluster.record, POOL, node, "", FREED, "", cluster.now))
    cluster.failed.clear()
    for run in cluster.names:
        cluster.dies(run)
    cluster.nodes = {name: replace(state, ready=True, cordoned_by="", ours=state.ours and name in cluster.begun)
                     for name, state in cluster.nodes.items()}
    cluster.seen = dict(cluster.nodes)
    cluster.names = ["last"]
    pool = cluster.record.pool(POOL)
    hosts = [replace(each, half_done=each.node in pool.slots) for each in cluster.hosts.values()]
    # One that was changed with its clique only in part, or that is larger than a limit, is a person's
    cluster.options["unit_mode"] = "rolling"
    cluster.rollouts = {"last": plan([each for each in hosts if each.node not in cluster.changed],
                                     policy_of(cluster.options), cluster.now, pool.proofs)}
    waiting = list(cluster.rollouts["last"].order)
    for _ in range(len(waiting) + 1):
        for name in list(waiting):
            if cluster.ask("last", name) or (cluster.pending and cluster.conclude()):
                cluster.end(cluster.hosts[name].node, DONE)
                cluster.seen = dict(cluster.nodes)
                waiting.remove(name)
    assert waiting == [] and cluster.changed == {each.node for each in hosts}
    assert cluster.record.pool(POOL).slots == {}


def test_a_claim_is_told_once_a_while_and_forgotten_where_nobody_asks() -> None:
    room = Room(rollout_of(*fleet(2, clique="x"), host("h8"), host("h9"), limit=2))
    room.ask("h9")
    first = room.ask("h1")
    assert first.record is not None and room.pool.claims == {"all": Claim("clique x", "a", NOW)}
    assert room.ask("h1").record is None
    assert room.ask("h8").waiting.cause is Cause.turn
    room.now += CLAIM / 2
    assert room.ask("h1").record is not None and room.pool.claims["all"].asked == room.now
    room.now += CLAIM
    assert room.ask("h8").may_start
