# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who has a node: taken and given back by runs that live, die and meet, beside an admin and other managers."""
from __future__ import annotations

import json
from typing import Any, Dict

import pytest
from cluster_api import Api
from cluster_objects import node
from custody_bed import ADMITTING, LEASE_SECONDS, NAMESPACE, NODE, NOT_READY, Bed, Blocked, Drained, returning, taking
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims, leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import CORDON_REASON, CORDONED_BY
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

NODES = {"Node": ("v1", "nodes", False), "Machine": ("cluster.x-k8s.io/v1beta1", "machines", True),
         "NodeMaintenance": ("maintenance.nvidia.com/v1alpha1", "nodemaintenances", True)}
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"


@pytest.fixture
def store(api: Api) -> Store:
    """With a node that has our labels, and the namespace of ours."""
    api.state.store = Store(more=NODES)
    api.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    api.state.store.put(node(NODE), "kubelet")
    return api.state.store


@pytest.fixture
def bed(api: Api, store: Store) -> Bed:
    made = Bed(Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None))
    made.give_back("earlier")
    assert made.end()["lease"] is False
    return made


def refused(code: str, act: Any, *arguments: Any, **options: Any) -> GpuOpsError:
    with pytest.raises(GpuOpsError) as error:
        act(*arguments, **options)
    assert error.value.code == code, str(error.value)
    return error.value


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

    def test_a_namespace_that_is_not_there_is_made_as_the_components_make_it(self, bed: Bed, store: Store) -> None:
        del store.objects["/api/v1/namespaces/" + NAMESPACE]
        bed.take("a")
        made = store.get("Namespace", "", NAMESPACE)
        assert made and made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuops"

    def test_check_mode_writes_nothing(self, bed: Bed, store: Store) -> None:
        before, drain = bed.end(), Drained()
        store.writes.clear()
        told = bed.custody("a").take(NODE, taking(drain), dry_run=True)
        assert told["changed"] and drain.asked == [True]
        assert bed.end() == before and store.writes == []
        bed.take("a")
        store.writes.clear()
        assert bed.custody("a").give_back(NODE, returning(), dry_run=True)["changed"]
        assert store.writes == []


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

    def test_components_that_stay_have_their_labels_again(self, bed: Bed, store: Store, api: Api) -> None:
        before = bed.end()
        store.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "plugin", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/part-of": "gpuops"},
            "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": NODE}})
        error = refused("cluster.components_stay", bed.take, "a")
        assert bed.end() == before
        assert [each.split(" ")[0] for each in error.details["put_back"]] == ["labels", "opt-out", "cordon", "Lease"]

    def test_what_cannot_be_put_back_is_told(self, bed: Bed, api: Api) -> None:
        def down() -> None:
            api.state.refuse = type("Down", (), {"status": 400, "message": "no"})()

        drain = Drained(fails=GpuOpsError("cluster.pods_not_evicted", "a", "b", "c"), meanwhile=down)
        error = refused("cluster.pods_not_evicted", bed.take, "a", drain)
        assert error.details["put_back"] == [] and len(error.details["remains"]) == 3

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
        error = refused("cluster.node_held", bed.take, "b", wait=30.0)
        assert "a@ctrl-1" in str(error) and error.details["holder"] == "a@ctrl-1"
        assert "kubectl delete lease custody-gpu-1 --namespace gpuops" in error.remedy
        assert bed.end() == before
        assert any("held by run a@ctrl-1" in line for line in bed.told)

    def test_a_converged_run_does_not_open_the_node_that_another_has(self, bed: Bed) -> None:
        bed.take("a")
        before = bed.end()
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

    def test_the_one_that_lost_its_lease_stops_and_takes_nothing_with_it(self, bed: Bed) -> None:
        bed.take("slow")
        bed.take("b")
        before = bed.end()
        assert refused("cluster.custody_lost", bed.custody("slow").renew, NODE).details["holder"] == "b@ctrl-1"
        refused("cluster.node_held", bed.give_back, "slow", wait=10.0)
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

    def test_side_by_side_exactly_one_has_it(self, bed: Bed, api: Api) -> None:
        """The second comes at each request of the first."""
        for number in range(1, 40):
            other = Bed(Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None))
            told: Dict[str, str] = {}
            real, begins = bed.client._request, len(api.state.requests)

            def request(*arguments: Any, **options: Any) -> Any:
                if len(api.state.requests) - begins == number and "b" not in told:
                    told["b"] = "tried"
                    try:
                        other.take("b", wait=0.0)
                        told["b"] = "taken"
                    except GpuOpsError as error:
                        told["b"] = error.code
                return real(*arguments, **options)

            bed.client._request = request  # type: ignore[method-assign]
            try:
                bed.take("a", wait=0.0)
                told["a"] = "taken"
            except GpuOpsError as error:
                told["a"] = error.code
            finally:
                bed.client._request = real  # type: ignore[method-assign]
            if "b" not in told:
                assert number > 10
                return
            assert sorted(told.values()) == ["cluster.node_held", "taken"], number
            winner = next(name for name, what in told.items() if what == "taken")
            assert bed.holder() == winner + "@ctrl-1"
            bed.give_back(winner)


class TestWhoseCordon:
    def test_a_cordon_that_was_there_before_stays(self, bed: Bed) -> None:
        bed.cordon()
        told = bed.take("a")
        assert told["cordoned_by_others"] == ["kubectl-cordon"] and "kubectl-cordon" in told["notes"][0]
        bed.give_back("a")
        assert not bed.is_open() and bed.end()["claims"] == []

    def test_one_of_whom_nobody_kept_book_stays(self, bed: Bed, store: Store) -> None:
        there = store.get("Node", "", NODE)
        assert there
        there["spec"]["unschedulable"] = True
        there["metadata"]["managedFields"] = []
        assert bed.take("a")["cordoned_by_others"]

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

    def test_a_failed_node_that_was_uncordoned_is_not_cordoned_again(self, bed: Bed) -> None:
        bed.take("a")
        bed.uncordon()
        told = bed.give_back("a", "xid 79")
        assert told["custody"] == "uncordoned" and bed.is_open() and bed.end()["claims"] == []


class TestReturning:
    def test_a_node_that_was_not_taken_gets_its_labels_for_one_look(self, bed: Bed, store: Store, api: Api) -> None:
        store.writes.clear()
        api.state.requests.clear()
        told = bed.custody("b").give_back(NODE, returning(), lease_is_there=False)
        assert not told["changed"] and store.writes == []
        assert [request.path for request in api.state.requests] == ["/api/v1/nodes/gpu-1"] * 2

    def test_failed_checks_keep_it_out_of_service_with_their_words(self, bed: Bed) -> None:
        bed.take("a")
        told = bed.give_back("a", "GPU 3 fell off the bus", "no allocatable GPU")
        there = bed.node()
        assert told["custody"] == "kept" and not bed.is_open() and bed.lease() is None
        assert there["metadata"]["annotations"][CORDON_REASON].startswith(
            "Failed: GPU 3 fell off the bus; no allocatable GPU. Held by run a@ctrl-1.")
        assert {taint["key"] for taint in there["spec"]["taints"]} == {NOT_READY}
        assert not ADMITTING.keys() & there["metadata"]["labels"].keys()
        bed.take("b")
        bed.give_back("b")
        assert bed.is_open() and bed.end()["claims"] == [] and not bed.node()["spec"].get("taints")

    def test_a_converged_node_that_fails_is_taken_out_of_service(self, bed: Bed) -> None:
        told = bed.give_back("a", "DCGM level 1")
        assert told["custody"] == "kept" and not bed.is_open()
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys()

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

    def test_another_node_of_that_name_is_not_offered(self, bed: Bed, store: Store) -> None:
        uid = bed.take("a")["node"]["uid"]
        store.put(node(NODE, taints=[{"key": NOT_READY, "effect": "NoSchedule"}]), "kubelet")
        refused("cluster.node_replaced", bed.give_back, "a", uid=uid)
        assert bed.node()["spec"]["taints"]


class TestOthersAtWork:
    def test_a_mark_is_named_and_nothing_was_touched(self, bed: Bed, store: Store) -> None:
        bed.write("operator", labels={UPGRADE: "drain-required"})
        before = bed.end()
        store.writes.clear()
        error = refused("cluster.node_of_others", bed.take, "a", wait=20.0)
        assert "NVIDIA's upgrade controller (label %s=drain-required); waited for 20 s" % UPGRADE in error.found
        assert bed.end() == before and store.writes == []

    def test_a_mark_that_goes_in_time_is_waited_for(self, bed: Bed) -> None:
        bed.write("operator", labels={UPGRADE: "drain-required"})
        bed.time.meanwhile = [lambda: None] * 3 + [lambda: bed.write("operator", labels={UPGRADE: "upgrade-done"})]
        assert bed.take("a")["custody"] == "taken"
        assert "Waiting for 0 s: node gpu-1 is in the hands of NVIDIA's upgrade controller" in bed.told[0]

    def test_one_that_comes_while_it_is_cordoned_is_seen_before_the_drain(self, bed: Bed, store: Store) -> None:
        before, drain = bed.end(), Drained()
        store.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
            "name": "kured", "namespace": "kube-system", "annotations": {}}, "spec": {}})
        real = bed.client.apply

        def apply(*arguments: Any, **options: Any) -> Any:
            there = store.get("DaemonSet", "kube-system", "kured")
            assert there
            there["metadata"]["annotations"]["weave.works/kured-node-lock"] = json.dumps({"nodeID": NODE})
            return real(*arguments, **options)

        bed.client.apply = apply  # type: ignore[method-assign]
        error = refused("cluster.node_of_others", bed.take, "a", drain)
        assert "DaemonSet kube-system/kured" in error.found and drain.asked == [True]
        assert bed.end() == before

    def test_a_node_is_not_opened_under_a_reboot_of_others(self, bed: Bed) -> None:
        bed.take("a")
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": "2026-01-01"})
        refused("cluster.node_of_others", bed.give_back, "a", wait=LEASE_SECONDS * 2.0)
        assert not bed.is_open() and bed.lease() is None
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": None})
        bed.give_back("b")
        assert bed.is_open()

    def test_a_node_maintenance_is_honoured(self, bed: Bed, store: Store) -> None:
        store.put({"apiVersion": "maintenance.nvidia.com/v1alpha1", "kind": "NodeMaintenance", "metadata": {
            "name": "firmware-gpu-1", "namespace": "default"}, "spec": {"nodeName": NODE}})
        error = refused("cluster.node_of_others", bed.take, "a", wait=0.0)
        assert "NodeMaintenance default/firmware-gpu-1" in error.found

    def test_who_may_not_look_for_them_sees_the_node(self, bed: Bed, store: Store) -> None:
        store.denied |= {("list", "daemonsets"), ("list", "nodemaintenances")}
        assert bed.take("a")["custody"] == "taken"


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

    def test_the_machine_is_not_replaced_meanwhile(self, bed: Bed, store: Store) -> None:
        store.put({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {
            "name": "m", "namespace": "default"}, "spec": {}})
        bed.write("capi", annotations={"cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"})

        def is_protected() -> bool:
            there = store.get("Machine", "default", "m")
            assert there
            return "cluster.x-k8s.io/skip-remediation" in (there["metadata"].get("annotations") or {})

        bed.take("a")
        assert is_protected()
        bed.give_back("a")
        assert not is_protected()
        refused("cluster.pods_not_evicted", bed.take, "a",
                Drained(fails=GpuOpsError("cluster.pods_not_evicted", "a", "b", "c")))
        assert not is_protected()
