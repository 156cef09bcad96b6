# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who has a node: taken and given back by runs that live, die and meet, beside an admin and other managers.

Held against the double of the API server (tests/unit) and against the real one (tests/integration), each of which has
a fixture `bed`: a node with our labels that nobody has.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, Optional

import pytest
from custody_bed import (
    ADMITTING,
    LEASE_SECONDS,
    NAMESPACE,
    NODE,
    NOT_READY,
    PATH,
    Bed,
    Blocked,
    Drained,
    refused,
    returning,
    taking,
)

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims, leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Met
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.holding import PAUSE_SECONDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    CORDON_REASON,
    CORDONED_BY,
    FORMERLY,
    NodePolicy,
    cordoned_by,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.node_changes import change_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

# Longer than any Lease of these tests
STANDSTILL = 700.0
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
MIG_STATE = "nvidia.com/mig.config.state"


def out(bed: Bed) -> None:
    """The run b has taken the node over from one that stands still."""
    bed.time.now += STANDSTILL
    bed.take("b", wait=STANDSTILL)


def overtaken(bed: Bed, *failures: str) -> None:
    """The same, and has given it back, or found it broken."""
    out(bed)
    bed.give_back("b", *failures, was_taken=True)


class TestTaking:
    def test_a_node_is_leased_cordoned_drained_and_without_our_components(self, bed: Bed) -> None:
        before, drain = bed.end(), Drained()
        told = bed.take("a", drain)
        there = bed.node()
        assert told["custody"] == "taken" and told["changed"] and told["run"] == "a@ctrl-1"
        assert drain.asked == [True, False]
        assert there["spec"]["unschedulable"] and bed.holder() == "a@ctrl-1"
        assert there["metadata"]["annotations"][CORDONED_BY] == "a@ctrl-1"
        assert there["metadata"]["annotations"][claims.SCALE_DOWN_DISABLED] == "true"
        assert not ADMITTING.keys() & there["metadata"]["labels"].keys()
        bed.give_back("a")
        assert bed.end() == before

    def test_what_comes_to_its_gpus_meanwhile_goes_once_our_components_have(self, bed: Bed) -> None:
        seen = []

        def follow(done: Dict[str, Any], proof: Callable[[], None]) -> Dict[str, Any]:
            proof()
            seen.append((bed.is_open(), bool(ADMITTING.keys() & bed.node()["metadata"]["labels"].keys())))
            return {**done, "evicted": ["b"]}

        told = bed.custody("a").take(NODE, replace(taking(), follow=follow))
        assert told["evicted"] == ["b"] and seen == [(False, False)]

    def test_the_reason_names_the_mark_that_keeps_it_cordoned(self, bed: Bed) -> None:
        bed.take("a")
        assert bed.node()["metadata"]["annotations"][CORDON_REASON] == (
            "driver upgrade. Held by run a@ctrl-1. To keep it cordoned afterwards: "
            "kubectl annotate node gpu-1 gpuops.nvidia.com/hold=WHY")

    def test_a_second_time_changes_nothing_but_the_lease(self, bed: Bed) -> None:
        bed.take("a")
        before, first = bed.end(), bed.lease()
        bed.time.now += 100
        quiet = Drained()
        told = bed.custody("a").take(NODE, taking(quiet))
        assert bed.end() == before and told["node"]["unschedulable"]
        second = bed.lease()
        assert first and second and second["spec"]["renewTime"] > first["spec"]["renewTime"]
        assert second["spec"]["acquireTime"] == first["spec"]["acquireTime"]

    def test_the_lease_goes_with_its_node(self, bed: Bed) -> None:
        bed.take("a")
        lease = bed.lease()
        assert lease and lease["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": bed.node()["metadata"]["uid"]}]


class TestUnwinding:
    @pytest.mark.parametrize("drain", [
        Drained(preview=GpuOpsError("cluster.pods_without_controller", "a bare pod", "none", "delete it")),
        Drained(fails=GpuOpsError("cluster.pods_not_evicted", "a budget blocks", "none", "wait")),
        Drained(fails=Blocked("a slip of ours"))], ids=["preview", "drain", "unforeseen"])
    def test_what_fails_on_the_way_puts_back_all_that_was_done(self, bed: Bed, drain: Drained) -> None:
        before = bed.end()
        with pytest.raises((GpuOpsError, Blocked)) as error:
            bed.take("a", drain)
        assert bed.end() == before
        if isinstance(error.value, GpuOpsError):
            assert error.value.details["remains"] == []
            assert "Lease of node gpu-1 released" in error.value.details["put_back"]

    def test_so_does_what_comes_to_its_gpus_and_does_not_go(self, bed: Bed) -> None:
        before = bed.end()

        def follow(_done: Dict[str, Any], _proof: Callable[[], None]) -> Dict[str, Any]:
            raise GpuOpsError("cluster.pods_not_evicted", "a", "b", "c")

        error = refused("cluster.pods_not_evicted", bed.custody("a").take, NODE, replace(taking(), follow=follow))
        assert bed.end() == before and error.details["remains"] == []

    def test_a_node_of_a_dead_run_is_left_as_that_run_left_it(self, bed: Bed) -> None:
        bed.take("dead")
        left = bed.end()
        error = GpuOpsError("cluster.pods_not_evicted", "a", "b", "c")
        refused("cluster.pods_not_evicted", bed.take, "b", Drained(fails=error))
        assert {**bed.end(), "lease": True} == left
        assert not bed.is_open() and "dead@ctrl-1" in bed.node()["metadata"]["annotations"][CORDON_REASON]


class TestTwoRuns:
    def test_one_proceeds_and_the_other_names_it(self, bed: Bed) -> None:
        bed.take("a")
        before = bed.end()
        bed.time.meanwhile = [lambda: bed.custody("a").renew(NODE)] * 100
        error = refused("cluster.node_held", bed.take, "b", wait=30.0)
        assert "a@ctrl-1" in str(error) and error.details["holder"] == "a@ctrl-1"
        assert "kubectl delete lease custody-gpu-1 --namespace gpuops" in error.remedy
        assert bed.end() == before
        assert any("held by run a@ctrl-1" in line for line in bed.told)

    def test_a_converged_run_does_not_open_the_node_that_another_has(self, bed: Bed) -> None:
        bed.take("a")
        before = bed.end()
        bed.time.meanwhile = [lambda: bed.custody("a").renew(NODE)] * 100
        refused("cluster.node_held", bed.give_back, "b", wait=30.0)
        assert bed.end() == before

    def test_one_that_renews_is_never_taken_over(self, bed: Bed) -> None:
        bed.take("a")
        bed.time.meanwhile = [lambda: bed.custody("a").renew(NODE)] * 10 ** 4
        refused("cluster.node_held", bed.take, "b", wait=LEASE_SECONDS * 5.0)
        assert bed.holder() == "a@ctrl-1"

    def test_a_dead_run_is_taken_over_after_one_full_duration_by_ones_own_clock(self, bed: Bed) -> None:
        bed.take("dead")
        lease = bed.lease()
        assert lease
        # Whatever the dead one's clock has said
        bed.client.patch(leases.path_of(NAMESPACE, NODE), {"spec": {"renewTime": "1999-01-01T00:00:00.000000Z"}})
        began = bed.time.now
        told = bed.take("b")
        assert LEASE_SECONDS < bed.time.now - began < LEASE_SECONDS + 60
        after = bed.lease()
        assert after and after["spec"]["holderIdentity"] == "b@ctrl-1" and after["spec"]["leaseTransitions"] == 1
        assert told["custody"] == "taken"
        bed.give_back("b")
        assert bed.is_open() and bed.end()["claims"] == [] and not bed.end()["lease"]

    @pytest.mark.parametrize("wait", [1.0, LEASE_SECONDS / 2, LEASE_SECONDS - 1.0])
    def test_a_dead_run_is_whose_lease_counts_for_longer_than_anybody_waits(self, bed: Bed, wait: float) -> None:
        """Each run watches anew: none that goes away before would see the end of it."""
        bed.take("dead")
        began = bed.time.now
        assert bed.take("b", wait=wait)["custody"] == "taken"
        assert LEASE_SECONDS < bed.time.now - began <= LEASE_SECONDS + PAUSE_SECONDS

    def test_one_that_renews_it_after_all_is_waited_for_no_longer(self, bed: Bed) -> None:
        bed.take("a")
        began, wait = bed.time.now, LEASE_SECONDS / 2

        def renew() -> None:
            if bed.time.now - began > wait + PAUSE_SECONDS:
                bed.custody("a").renew(NODE)

        bed.time.meanwhile = [renew] * 100
        error = refused("cluster.node_held", bed.take, "b", wait=wait)
        assert wait < bed.time.now - began < LEASE_SECONDS and bed.holder() == "a@ctrl-1"
        assert "a `wait_timeout` above 0, which waits until its Lease has run out" in error.remedy

    def test_who_does_not_want_to_wait_does_not(self, bed: Bed) -> None:
        bed.take("dead")
        began = bed.time.now
        refused("cluster.node_held", bed.take, "b", wait=0.0)
        assert bed.time.now == began

    def test_the_one_that_lost_its_lease_stops_and_takes_nothing_with_it(self, bed: Bed) -> None:
        bed.take("slow")
        bed.take("b")
        before = bed.end()
        assert refused("cluster.custody_lost", bed.custody("slow").renew, NODE).details["holder"] == "b@ctrl-1"
        refused("cluster.custody_lost", bed.give_back, "slow", was_taken=True)
        refused("cluster.node_held", bed.give_back, "slow", wait=0.0)
        assert bed.end() == before and not bed.is_open()

    def test_a_run_that_lost_it_during_its_drain_leaves_the_other_its_node(self, bed: Bed) -> None:
        """Its own cordon it withdraws; the labels are the other's affair."""
        def overtake() -> None:
            bed.time.now += LEASE_SECONDS * 2
            bed.client.delete(leases.path_of(NAMESPACE, NODE))
            bed.take("b")

        refused("cluster.custody_lost", bed.take, "slow", Drained(meanwhile=overtake))
        assert bed.holder() == "b@ctrl-1" and not bed.is_open()
        assert bed.end()["claims"] == ["gpuops-custody-b"]
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys()


class TestAStoppedRun:
    """One that stands still for longer than its Lease, and does not know it: another run has had its node meanwhile."""

    def test_it_does_not_cordon_what_another_has_completed(self, bed: Bed) -> None:
        bed.take("slow")
        overtaken(bed)
        before = bed.end()
        assert refused("cluster.custody_lost", bed.custody("slow").renew, NODE)
        refused("cluster.custody_lost", bed.give_back, "slow", "it was lost", was_taken=True)
        assert bed.end() == before and bed.is_open()

    def test_it_does_not_open_what_another_has_found_broken(self, bed: Bed) -> None:
        bed.take("slow")
        overtaken(bed, "xid 79")
        before = bed.end()
        refused("cluster.custody_lost", bed.give_back, "slow", was_taken=True)
        assert bed.end() == before and not bed.is_open()

    @pytest.mark.parametrize("ends", [True, False], ids=["completed", "at work"])
    def test_stopped_in_its_preview_it_neither_cordons_nor_drains(self, bed: Bed, ends: bool) -> None:
        drain = Drained(previewing=lambda: overtaken(bed) if ends else out(bed))
        refused("cluster.custody_lost", bed.take, "slow", drain)
        assert drain.asked == [True]
        assert bed.end()["claims"] == ([] if ends else ["gpuops-custody-b"]) and bed.is_open() == ends
        assert (bed.holder() == "") == ends

    def test_stopped_while_it_looks_for_marks_it_does_not_drain(self, bed: Bed) -> None:
        drain, real = Drained(), bed.client.apply

        def apply(*arguments: Any, **options: Any) -> Any:
            answer = real(*arguments, **options)
            bed.client.apply = real  # type: ignore[method-assign]
            out(bed)
            return answer

        bed.client.apply = apply  # type: ignore[method-assign]
        refused("cluster.custody_lost", bed.take, "slow", drain)
        assert drain.asked == [True] and bed.end()["claims"] == ["gpuops-custody-b"] and not bed.is_open()

    def test_stopped_between_two_evictions_it_asks_whether_it_has_the_node(self, bed: Bed) -> None:
        evicted = []

        def drain(dry_run: bool, proof: Callable[[], None]) -> Dict[str, Any]:
            if not dry_run:
                for pod in ("one", "another"):
                    proof()
                    evicted.append(pod)
                    out(bed)
            return {"changed": True}

        refused("cluster.custody_lost", bed.custody("slow").take, NODE, replace(taking(), drain=drain))
        assert evicted == ["one"] and bed.holder() == "b@ctrl-1"

    def test_stepping_back_it_leaves_the_words_of_the_run_that_has_the_node(self, bed: Bed) -> None:
        bed.take("dead")
        refused("cluster.custody_lost", bed.take, "slow", Drained(meanwhile=lambda: out(bed)))
        annotations = bed.node()["metadata"]["annotations"]
        assert annotations[CORDONED_BY] == "b@ctrl-1" and "run b@ctrl-1" in annotations[CORDON_REASON]
        bed.give_back("b", "xid 79", was_taken=True)
        there = bed.node()
        assert there["metadata"]["annotations"][CORDON_REASON].startswith("Failed: xid 79. Held by run b@ctrl-1")
        assert cordoned_by(there) == "b@ctrl-1"

    def test_a_failure_that_another_wrote_over_is_said_all_the_same(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("another", annotations={CORDON_REASON: "something else", CORDONED_BY: None})
        bed.give_back("a", "xid 79", was_taken=True)
        there = bed.node()
        assert there["metadata"]["annotations"][CORDON_REASON].startswith("Failed: xid 79. Held by run a@ctrl-1")
        assert cordoned_by(there) == "a@ctrl-1"

    def test_one_that_could_not_open_its_node_has_it_still_to_say_why(self, bed: Bed) -> None:
        bed.take("a")
        back = replace(returning(), was_taken=True, offers={"nvidia.com/gpu": 800}, timeout=0)
        refused("cluster.gpus_not_offered", bed.custody("a").give_back, NODE, back)
        assert bed.holder() == "a@ctrl-1"
        assert bed.give_back("a", "no GPUs", was_taken=True)["custody"] == "kept" and bed.lease() is None


class TestWhoseCordon:
    def test_a_cordon_that_was_there_before_stays(self, bed: Bed) -> None:
        bed.cordon()
        told = bed.take("a")
        assert told["cordoned_by_others"] == ["kubectl-cordon"]
        assert told["notes"] == ["node gpu-1 is cordoned by kubectl-cordon, and stays so"]
        bed.give_back("a")
        assert not bed.is_open() and bed.end()["claims"] == []

    def test_one_that_another_program_applied_meanwhile_stays(self, bed: Bed) -> None:
        bed.take("a")
        bed.applied_cordon("another")
        bed.give_back("a")
        assert not bed.is_open()
        bed.applied_cordon("another", False)
        assert bed.is_open()

    def test_a_later_cordon_leaves_no_trace_but_the_hold_mark_keeps_it(self, bed: Bed) -> None:
        bed.take("a")
        bed.cordon()
        bed.write("kubectl-annotate", annotations={claims.HOLD: "I look at it"})
        told = bed.give_back("a")
        assert told["held"] and not bed.is_open() and bed.end()["claims"] == []
        assert bed.node()["metadata"]["labels"].items() >= ADMITTING.items()
        bed.uncordon()
        bed.take("b")
        bed.write("kubectl-annotate", annotations={claims.HOLD: None})
        bed.give_back("b")
        assert bed.is_open()

    def test_an_admin_who_uncordons_stops_us(self, bed: Bed) -> None:
        bed.take("a")
        bed.uncordon()
        refused("cluster.uncordoned_by_others", bed.custody("a").renew, NODE)
        refused("cluster.uncordoned_by_others", bed.take, "a")
        assert bed.is_open()
        told = bed.give_back("a")
        assert bed.is_open() and "uncordoned" in told["notes"][0] and bed.end()["claims"] == []

    def test_one_who_uncordons_during_the_drain_finds_it_as_it_was(self, bed: Bed) -> None:
        before = bed.end()
        refused("cluster.uncordoned_by_others", bed.take, "a", Drained(meanwhile=bed.uncordon))
        assert bed.end() == before

    def test_one_who_uncordons_and_cordons_again_keeps_his_cordon(self, bed: Bed) -> None:
        bed.take("a")
        bed.uncordon()
        bed.cordon()
        bed.give_back("a")
        assert not bed.is_open() and bed.end()["claims"] == []

    @pytest.mark.parametrize("in_drain", [True, False], ids=["during the drain", "after it"])
    def test_a_node_that_an_admin_has_freed_altogether_is_not_cordoned_again(self, bed: Bed, in_drain: bool) -> None:
        """Of the claim nothing is left."""
        def free() -> None:
            bed.free()
            assert bed.end()["claims"] == []

        if in_drain:
            refused("cluster.uncordoned_by_others", bed.take, "a", Drained(meanwhile=free))
            assert bed.lease() is None
        else:
            bed.take("a")
            free()
            refused("cluster.uncordoned_by_others", bed.custody("a").renew, NODE)
            assert bed.give_back("a", "xid 79", was_taken=True)["custody"] == "uncordoned"
        assert bed.is_open() and bed.end()["claims"] == [] and bed.lease() is None

    def test_nor_is_one_whose_lease_he_has_deleted_too(self, bed: Bed) -> None:
        bed.take("a")
        bed.free()
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        before = bed.end()
        refused("cluster.custody_lost", bed.custody("a").renew, NODE)
        refused("cluster.custody_lost", bed.give_back, "a", "xid 79", was_taken=True)
        assert bed.end() == before and bed.is_open()

    def test_a_hold_that_is_let_go_is_opened_by_the_next_run(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("kubectl-annotate", annotations={claims.HOLD: "firmware"})
        bed.give_back("a")
        assert not bed.is_open() and cordoned_by(bed.node()) is None
        assert bed.give_back("b")["cordoned_by_others"] == [claims.HOLDER] and not bed.is_open()
        bed.write("kubectl-annotate", annotations={claims.HOLD: None})
        assert cordoned_by(bed.node()) == claims.HOLDER
        assert bed.take("b")["notes"] == []
        bed.custody("b").renew(NODE)
        bed.give_back("b", was_taken=True)
        assert bed.is_open()

    @pytest.mark.parametrize("after", [None, "dead"])
    def test_it_holds_a_node_whose_drain_fails(self, bed: Bed, after: Optional[str]) -> None:
        """A claim of a run that has died cordons it all the same."""
        if after:
            bed.take(after)
        error = refused("cluster.pods_not_evicted", bed.take, "a", Drained(
            fails=GpuOpsError("cluster.pods_not_evicted", "a", "b", "c"),
            meanwhile=lambda: bed.write("kubectl-annotate", annotations={claims.HOLD: "firmware"})))
        assert not bed.is_open() and bed.lease() is None and error.details["remains"] == []
        if after:
            assert cordoned_by(bed.node()) == "dead@ctrl-1"
        else:
            assert error.details["put_back"][0] == (
                "cordon of node gpu-1 withdrawn; node gpu-1 is cordoned by gpuops-hold, and stays so")
            assert bed.end()["claims"] == []
        assert bed.give_back("b")["held"] and not bed.is_open()
        bed.write("kubectl-annotate", annotations={claims.HOLD: None})
        bed.give_back("c")
        assert bed.is_open()

    def test_it_holds_a_node_that_was_cordoned_without_a_claim(self, bed: Bed) -> None:
        bed.merge(PATH, {"spec": {"unschedulable": True}, "metadata": {"annotations": {
            CORDONED_BY: FORMERLY, claims.HOLD: "firmware"}}}, "gpuops")
        told = bed.give_back("a")
        assert told["held"] and told["cordoned_by_others"] == ["gpuops"] and not bed.is_open()
        bed.write("kubectl-annotate", annotations={claims.HOLD: None})
        bed.give_back("b")
        assert bed.is_open()

    def test_nor_need_a_run_take_the_node_for_that(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("kubectl-annotate", annotations={claims.HOLD: "firmware"})
        bed.give_back("a")
        bed.write("kubectl-annotate", annotations={claims.HOLD: None})
        assert bed.give_back("c")["custody"] == "returned" and bed.is_open() and bed.lease() is None

    def test_a_cordon_that_an_admin_sets_after_he_lifted_that_of_a_dead_run_is_his(self, bed: Bed) -> None:
        bed.take("dead")
        assert cordoned_by(bed.node()) == "dead@ctrl-1"
        bed.uncordon()
        bed.cordon()
        assert bed.node()["metadata"]["annotations"][CORDONED_BY] and cordoned_by(bed.node()) is None

    def test_a_failed_node_that_was_uncordoned_is_not_cordoned_again(self, bed: Bed) -> None:
        bed.take("a")
        bed.uncordon()
        told = bed.give_back("a", "xid 79")
        assert told["custody"] == "uncordoned" and bed.is_open() and bed.end()["claims"] == []


class TestAdmitting:
    def test_a_node_has_its_components_again_and_stays_cordoned(self, bed: Bed) -> None:
        bed.write("admin", annotations={"example.com/theirs": "x"})
        before = bed.end()
        bed.take("a")
        told = bed.admit("a")
        assert told["custody"] == "admitted" and told["changed"] and told["node"]["unschedulable"]
        assert bed.node()["metadata"]["labels"].items() >= ADMITTING.items()
        assert not bed.is_open() and bed.holder() == "a@ctrl-1"
        assert not bed.admit("a")["changed"]
        bed.give_back("a", was_taken=True)
        assert bed.end() == before

    def test_what_it_was_looked_at_with_leaves_it_again_where_it_stays_out(self, bed: Bed) -> None:
        bed.take("a")
        cordoned = bed.end()
        bed.admit("a")
        bed.retake("a")
        assert bed.end() == cordoned and bed.holder() == "a@ctrl-1"
        bed.admit("a")
        bed.give_back("a", "no container has a GPU", was_taken=True)
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys() and not bed.is_open()

    def test_one_that_this_run_has_not_or_has_no_more_is_left_alone(self, bed: Bed) -> None:
        before = bed.end()
        refused("cluster.custody_lost", bed.admit, "a")
        assert bed.end() == before
        bed.take("slow")
        out(bed)
        before = bed.end()
        refused("cluster.custody_lost", bed.admit, "slow")
        assert bed.end() == before and bed.holder() == "b@ctrl-1"

    def test_one_that_a_dead_run_has_left_is_this_runs_then(self, bed: Bed) -> None:
        bed.take("dead")
        refused("cluster.node_held", bed.admit, "a", wait=0, was_taken=False)
        assert bed.holder() == "dead@ctrl-1"
        told = bed.admit("a", wait=STANDSTILL, was_taken=False)
        assert told["custody"] == "admitted" and not bed.is_open() and bed.holder() == "a@ctrl-1"
        bed.give_back("a")
        assert bed.is_open() and bed.lease() is None

    def test_one_that_an_admin_has_opened_since_is_looked_at_as_it_is(self, bed: Bed) -> None:
        bed.take("dead")
        bed.uncordon()
        assert bed.admit("a", wait=STANDSTILL, was_taken=False)["custody"] == "admitted" and bed.is_open()

    def test_an_admin_who_uncordons_stops_the_look_at_it(self, bed: Bed) -> None:
        bed.take("a")
        bed.uncordon()
        before = bed.end()
        refused("cluster.uncordoned_by_others", bed.admit, "a")
        assert bed.end() == before

    def test_it_is_waited_for_until_no_other_manager_is_at_work_there(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": "2026-01-01"})
        refused("cluster.node_of_others", bed.admit, "a", wait=30.0)
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys() and bed.holder() == "a@ctrl-1"


class TestHolding:
    def test_what_a_dead_run_has_left_is_had_as_it_is_and_can_be_left_so(self, bed: Bed) -> None:
        bed.take("dead")
        before = bed.end()
        refused("cluster.node_held", bed.hold, "a", wait=0)
        told = bed.hold("a", wait=STANDSTILL)
        assert told["custody"] == "held" and not told["changed"] and told["node"]["unschedulable"]
        assert bed.end() == before and bed.holder() == "a@ctrl-1"
        refused("cluster.node_held", bed.take, "b", wait=0)
        told = bed.custody("a").release(NODE)
        assert told["custody"] == "released" and not told["changed"]
        assert bed.end() == {**before, "lease": False}

    def test_who_has_it_goes_on_with_it_and_waits_for_nobody(self, bed: Bed) -> None:
        bed.take("dead")
        bed.hold("a", wait=STANDSTILL)
        bed.admit("a", wait=0, was_taken=False)
        bed.give_back("a", wait=0)
        assert bed.is_open() and bed.lease() is None
        bed.custody("a").release(NODE)
        assert bed.lease() is None

    def test_nobody_lets_go_what_another_has(self, bed: Bed) -> None:
        bed.take("b")
        bed.custody("a").release(NODE)
        assert bed.holder() == "b@ctrl-1"

    def test_under_another_manager_it_is_let_go_again(self, bed: Bed) -> None:
        bed.take("dead")
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": "2026-01-01"})
        refused("cluster.node_of_others", bed.hold, "a", wait=STANDSTILL)
        assert bed.lease() is None and not bed.is_open()


class TestReturning:
    def test_who_opens_nothing_labels_a_node_in_service_and_leaves_one_that_is_out_of_it(self, bed: Bed) -> None:
        bed.write("admin", labels=dict.fromkeys(ADMITTING))
        assert bed.give_back("a", opens=False)["custody"] == "returned"
        assert bed.node()["metadata"]["labels"].items() >= ADMITTING.items()
        bed.take("b")
        before = bed.end()
        told = bed.give_back("a", opens=False, wait=0)
        assert told["custody"] == "left" and not told["changed"] and "another run has it" in told["notes"][0]
        bed.give_back("b", "xid 79", was_taken=True)
        assert bed.end() != before
        before = bed.end()
        assert bed.give_back("a", opens=False)["custody"] == "left" and bed.end() == before

    def test_nor_does_it_wait_for_whoever_has_the_lease_of_one_in_service(self, bed: Bed) -> None:
        """Be it of a run that is about to take it, or of one that has died."""
        bed.write("admin", labels=dict.fromkeys(ADMITTING))
        bed.hold("b")
        assert bed.give_back("a", opens=False)["custody"] == "returned" and bed.holder() == "b@ctrl-1"
        assert bed.node()["metadata"]["labels"].items() >= ADMITTING.items()

    def test_what_somebody_has_opened_since_a_run_has_died_is_in_service(self, bed: Bed) -> None:
        bed.take("dead")
        bed.uncordon()
        # Of that run nobody knows yet that it is no more
        assert bed.give_back("a", opens=False)["custody"] == "left"
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        told = bed.give_back("a", opens=False)
        assert (told["custody"], told["changed"]) == ("returned", True) and bed.lease() is None
        assert bed.is_open() and bed.node()["metadata"]["labels"].items() >= ADMITTING.items()
        # Nothing is left of that run
        assert not claims.claims(bed.node()) and CORDON_REASON not in bed.node()["metadata"]["annotations"]
        assert not bed.give_back("a", opens=False)["changed"]

    def test_failed_checks_keep_it_out_of_service_with_their_words(self, bed: Bed) -> None:
        bed.take("a")
        told = bed.give_back("a", "GPU 3 fell off the bus", "no allocatable GPU")
        there = bed.node()
        assert told["custody"] == "kept" and not bed.is_open() and bed.lease() is None
        assert there["metadata"]["annotations"][CORDON_REASON].startswith(
            "Failed: GPU 3 fell off the bus; no allocatable GPU. Held by run a@ctrl-1.")
        assert NOT_READY in bed.taints()
        assert not ADMITTING.keys() & there["metadata"]["labels"].keys()
        bed.take("b")
        bed.give_back("b")
        assert bed.is_open() and bed.end()["claims"] == [] and NOT_READY not in bed.taints()

    def test_a_converged_node_that_fails_is_taken_out_of_service(self, bed: Bed) -> None:
        told = bed.give_back("a", "DCGM level 1")
        assert told["custody"] == "kept" and not bed.is_open()
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys()

    def test_one_that_somebody_has_uncordoned_since_is_not_kept_for_its_checks(self, bed: Bed) -> None:
        bed.take("dead")
        bed.time.meanwhile.append(bed.uncordon)
        assert bed.give_back("a", "xid 79")["custody"] == "uncordoned" and bed.is_open() and bed.lease() is None
        before = bed.end()
        assert bed.give_back("a", "xid 79")["custody"] == "uncordoned" and bed.end() == before

    @pytest.mark.parametrize("is_over", [True, False])
    def test_who_keeps_one_is_told_whether_another_was_at_work_there(self, bed: Bed, is_over: bool) -> None:
        """That was when its checks failed, and one that has given it back since is no reason to keep it."""
        bed.take("b")
        if is_over:
            bed.time.meanwhile.append(lambda: bed.give_back("b", was_taken=True))

        def proves(met: Met) -> None:
            assert met.ended == is_over and not met.had
            if met.ended:
                raise Blocked

        if is_over:
            with pytest.raises(Blocked):
                bed.give_back("a", "no driver is loaded", unchanged=proves)
        else:
            bed.give_back("a", "no driver is loaded", unchanged=proves)
        assert bed.is_open() == is_over

    def test_who_held_it_while_its_checks_failed_knows_that_nobody_else_was(self, bed: Bed) -> None:
        bed.take("dead")
        bed.hold("a")

        def proves(met: Met) -> None:
            assert met.had and not met.ended

        assert bed.give_back("a", "xid 79", unchanged=proves)["custody"] == "kept" and not bed.is_open()

    def test_cordons_of_runs_that_are_gone_are_cleared_without_a_run_of_their_own(self, bed: Bed) -> None:
        bed.take("dead")
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        bed.give_back("b")
        assert bed.is_open() and bed.end()["claims"] == []

    def test_a_lease_that_is_all_that_is_left_goes(self, bed: Bed) -> None:
        before = bed.end()
        bed.take("dead")
        lease = bed.lease()
        assert lease
        bed.give_back("dead")
        bed.client.create(leases.path_of(NAMESPACE), {**lease, "metadata": {
            "name": lease["metadata"]["name"], "namespace": NAMESPACE}})
        bed.give_back("b")
        assert bed.end() == before


class TestOthersAtWork:
    def test_a_mark_that_goes_in_time_is_waited_for(self, bed: Bed) -> None:
        bed.write("operator", labels={UPGRADE: "drain-required"})
        bed.time.meanwhile = [lambda: None] * 3 + [lambda: bed.write("operator", labels={UPGRADE: "upgrade-done"})]
        assert bed.take("a")["custody"] == "taken"
        assert "Waiting for 0 s: node gpu-1 is in the hands of NVIDIA's upgrade controller" in bed.told[0]

    def test_a_node_is_not_opened_under_a_reboot_of_others(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": "2026-01-01"})
        refused("cluster.node_of_others", bed.give_back, "a", wait=LEASE_SECONDS * 2.0)
        assert not bed.is_open() and bed.lease() is None
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": None})
        bed.give_back("b")
        assert bed.is_open()

    def test_what_a_run_of_ours_says_of_its_layout_is_no_mark_and_what_nvidias_mig_manager_says_is(
        self, bed: Bed
    ) -> None:
        bed.write("nvidia-mig-manager", labels={MIG_STATE: "pending"})
        refused("cluster.node_of_others", bed.take, "a", wait=0.0)
        bed.write("nvidia-mig-manager", labels={MIG_STATE: "success"})
        bed.take("a")
        # As playbooks/tasks/mig_state.yml asks
        change_node(bed.client, NODE, NodePolicy(labels={MIG_STATE: "pending"}, take_over=True), False)
        bed.admit("a")
        bed.retake("a")
        assert MIG_STATE not in bed.node()["metadata"]["labels"]
        change_node(bed.client, NODE, NodePolicy(labels={MIG_STATE: "pending"}, take_over=True), False)
        bed.write("nvidia-mig-manager", labels={MIG_STATE: "rebooting"})
        refused("cluster.node_of_others", bed.give_back, "a", wait=0.0, was_taken=True)
        bed.write("nvidia-mig-manager", labels={MIG_STATE: "pending"})
        assert bed.give_back("a", was_taken=True)["custody"] == "returned"


class TestOptOuts:
    def test_one_of_others_stays_and_is_ours_no_more(self, bed: Bed) -> None:
        bed.write("admin", annotations={claims.SCALE_DOWN_DISABLED: "true"})
        bed.take("a")
        bed.give_back("a")
        assert bed.node()["metadata"]["annotations"][claims.SCALE_DOWN_DISABLED] == "true"

    def test_one_that_says_the_opposite_is_told(self, bed: Bed) -> None:
        bed.write("admin", annotations={claims.SCALE_DOWN_DISABLED: "false"})
        told = bed.take("a")
        assert any("=false" in note for note in told["notes"])
        assert bed.node()["metadata"]["annotations"][claims.SCALE_DOWN_DISABLED] == "false"

    def test_karpenter_is_asked_only_for_its_own_nodes(self, bed: Bed) -> None:
        bed.take("a")
        assert claims.DO_NOT_DISRUPT not in bed.node()["metadata"]["annotations"]
        bed.give_back("a")
        bed.write("karpenter", labels={"karpenter.sh/nodepool": "gpus"})
        bed.take("a")
        assert bed.node()["metadata"]["annotations"][claims.DO_NOT_DISRUPT] == "true"
