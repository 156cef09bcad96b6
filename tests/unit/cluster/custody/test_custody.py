# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Custody on the double of the API server: what every server is held to, and what only the double can be made to do."""
from __future__ import annotations

import functools
import itertools
import json
import time
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, Sequence, Tuple

import pytest
from cluster_api import Answer, Api
from cluster_objects import node
from custody_bed import (
    ADMITTING,
    NAMESPACE,
    NODE,
    NOT_READY,
    PATH,
    Bed,
    Drained,
    refused,
    returning,
    taking,
)
from custody_cases import (  # noqa: F401
    STANDSTILL,
    UPGRADE,
    TestAdmitting,
    TestAStoppedRun,
    TestOptOuts,
    TestOthersAtWork,
    TestReturning,
    TestTaking,
    TestTwoRuns,
    TestUnwinding,
    TestWhoseCordon,
    out,
)
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import NodeReading, node_state
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims, leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import (
    Custody,
    still_to_take,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.surroundings import MarksInLists
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.carrying_out import drain_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

NODES = {"Node": ("v1", "nodes", False), "Machine": ("cluster.x-k8s.io/v1beta1", "machines", True),
         "NodeMaintenance": ("maintenance.nvidia.com/v1alpha1", "nodemaintenances", True)}


@pytest.fixture
def store(api: Api) -> Store:
    """With a node that has our labels, and the namespace of ours."""
    api.state.store = Store(more=NODES)
    for name in (NAMESPACE, "default"):
        api.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api.state.store.put(node(NODE), "kubelet")
    return api.state.store


@pytest.fixture
def bed(api: Api, store: Store) -> Bed:
    made = Bed(Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None))
    made.give_back("earlier")
    assert made.end()["lease"] is False
    return made


class TestTakingOnTheDouble:
    def test_a_namespace_that_is_not_there_is_made_as_the_components_make_it(self, bed: Bed, store: Store) -> None:
        del store.objects["/api/v1/namespaces/" + NAMESPACE]
        bed.take("a")
        made = store.get("Namespace", "", NAMESPACE)
        assert made and made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gpuops"

    def test_of_nodes_that_are_taken_together_those_count_that_this_run_has_not_cordoned(
        self, bed: Bed, store: Store
    ) -> None:
        store.put(node("gpu-2"), "kubelet")
        bed.take("a")
        for name, still in (("a", ["gpu-2"]), ("b", [NODE, "gpu-2"])):
            assert still_to_take(bed.client, [NODE, "gpu-2", "gone"], Run(name, "ctrl-1")) == still

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

    def test_check_mode_goes_on_where_others_write_to_the_node_meanwhile(self, bed: Bed, store: Store) -> None:
        """A drain is previewed for seconds, and kubelets write all the time."""
        drain = Drained(previewing=lambda: store.edit("Node", "", NODE, "kubelet", status={"phase": "Running"}))
        store.writes.clear()
        assert bed.custody("a").take(NODE, taking(drain), dry_run=True)["changed"]
        assert drain.asked == [True] and store.writes == []


def plugin(store: Store, selector: Sequence[str] = (), **metadata: Any) -> None:
    """A pod of a component of ours on the node. selector: labels of which it wants the value 'true'."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "p", "uid": "d", "controller": True}
    spec = {"nodeName": NODE, "nodeSelector": dict.fromkeys(selector, "true")}
    store.put({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {
        "name": "plugin", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/part-of": "gpuops"},
        "ownerReferences": [owner], **metadata}})


class TestDeadKubeletOnTheDouble:
    """Nobody ends the pods, those of the components no more than others."""

    def silent(self, store: Store) -> None:
        there = store.get("Node", "", NODE)
        assert there
        there["status"]["conditions"] = [
            {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}]

    def test_is_taken_where_pods_may_be_left_behind(self, bed: Bed, store: Store) -> None:
        self.silent(store)
        plugin(store, deletionTimestamp="2026-01-01T00:00:30Z")
        drain = functools.partial(drain_node, bed.client, NODE, policy_of({"skip_wait_for_delete_timeout": 30}))
        told = bed.custody("a").take(NODE, replace(taking(drain), skip_after=30.0))
        assert told["custody"] == "taken" and not bed.is_open()
        assert "pod gpuops/plugin of node gpu-1 should have ended by 2026-01-01T00:00:30Z, and was not waited for any "\
            "longer" in told["notes"]

    @pytest.mark.parametrize("leaving", [{"selector": [*ADMITTING]}, {"deletionTimestamp": "2026-01-01T00:00:30Z"}])
    def test_is_not_where_they_may_not_and_the_way_is_named(
        self, bed: Bed, store: Store, leaving: Dict[str, Any]
    ) -> None:
        """Before it is cordoned, and without a wait for what never ends."""
        self.silent(store)
        plugin(store, **leaving)
        before, began, drain = bed.end(), bed.time.now, Drained()
        store.writes.clear()
        for dry_run in (True, False):
            error = refused("cluster.kubelet_silent", bed.custody("a").take, NODE, taking(drain), dry_run=dry_run)
            assert error.refusals[0].option == "skip_wait_for_delete_timeout" and "gpuops/plugin" in error.found
        assert bed.end() == before and bed.time.now == began and drain.asked == [True, True]
        assert {path.split("/")[-1] for _verb, path in store.writes} == {"custody-gpu-1"}

    def test_is_taken_where_they_stay_anyway(self, bed: Bed, store: Store) -> None:
        self.silent(store)
        plugin(store, ["kubernetes.io/of-the-user"])
        bed.write("admin", labels={"kubernetes.io/of-the-user": "true"})
        assert bed.take("a")["custody"] == "taken"


class TestUnwindingOnTheDouble:
    def test_components_that_stay_have_their_labels_again(self, bed: Bed, store: Store, api: Api) -> None:
        before = bed.end()
        plugin(store, deletionTimestamp="2026-01-01T00:00:00Z")
        error = refused("cluster.components_stay", bed.take, "a")
        assert bed.end() == before
        assert [each.split(" ")[0] for each in error.details["put_back"]] == ["labels", "cordon", "Lease"]

    def test_what_cannot_be_put_back_is_told(self, bed: Bed, api: Api) -> None:
        def down() -> None:
            api.state.refuse = Answer(400, "no")

        drain = Drained(fails=GpuOpsError("cluster.pods_not_evicted", "a", "b", "c"), meanwhile=down)
        error = refused("cluster.pods_not_evicted", bed.take, "a", drain)
        assert error.details["put_back"] == [] and len(error.details["remains"]) == 2


def tried(bed: Bed, name: str) -> str:
    """What becomes of a run that does not wait."""
    try:
        return str(bed.take(name, wait=0.0)["custody"])
    except GpuOpsError as error:
        return error.code


def met(bed: Bed, other: Bed, number: int) -> Dict[str, str]:
    """What becomes of two runs, the second of which comes between two requests of the first; alone, of the first."""
    told: Dict[str, str] = {}
    real, sent = bed.client._request, [0]

    def request(*arguments: Any, **options: Any) -> Any:
        sent[0] += 1
        if sent[0] == number:
            told["b"] = tried(other, "b")
        return real(*arguments, **options)

    bed.client._request = request  # type: ignore[method-assign]
    told["a"] = tried(bed, "a")
    bed.client._request = real  # type: ignore[method-assign]
    return told


class TestTwoRunsOnTheDouble:
    def test_side_by_side_exactly_one_has_it(self, bed: Bed, api: Api) -> None:
        other = Bed(Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None))
        winners = set()
        for number in range(1, 100):
            told = met(bed, other, number)
            if "b" not in told:
                break
            assert sorted(told.values()) == ["cluster.node_held", "taken"], number
            winner, = (name for name, what in told.items() if what == "taken")
            winners.add(winner)
            assert bed.holder() == winner + "@ctrl-1"
            bed.give_back(winner)
        assert winners == {"a", "b"} and number > 10


class TestAStoppedRunOnTheDouble:
    def test_it_does_not_open_the_node_that_another_drains(self, bed: Bed, store: Store) -> None:
        """Stopped while it waits for the GPUs to be on offer again."""
        bed.take("slow")
        stopped = []

        def sleep(seconds: float) -> None:
            bed.time.now += seconds
            if not stopped:
                stopped.append(True)
                out(bed)
                there = store.get("Node", "", NODE)
                assert there
                there["status"]["allocatable"]["nvidia.com/gpu"] = "8"

        custody = bed.custody("slow")
        custody._sleep = sleep
        refused("cluster.custody_lost", custody.give_back, NODE, replace(
            returning(), offers={"nvidia.com/gpu": 8}, was_taken=True))
        assert stopped and not bed.is_open() and bed.holder() == "b@ctrl-1"
        assert "gpuops-custody-b" in bed.end()["claims"]

    def test_nor_does_it_give_its_labels_back(self, bed: Bed, store: Store) -> None:
        """Stopped between its look at the Node and its write."""
        bed.take("slow")
        real = bed.client.patch

        def patch(path: str, *arguments: Any, **options: Any) -> Any:
            if path == PATH:
                bed.client.patch = real  # type: ignore[method-assign]
                out(bed)
            return real(path, *arguments, **options)

        bed.client.patch = patch  # type: ignore[method-assign]
        refused("cluster.custody_lost", bed.give_back, "slow", was_taken=True)
        assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys()
        assert bed.holder() == "b@ctrl-1" and not bed.is_open()

    def test_the_machine_keeps_its_opt_out_for_the_run_that_has_the_node(self, bed: Bed, store: Store) -> None:
        store.put({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {
            "name": "m", "namespace": "default"}, "spec": {}})
        bed.write("capi", annotations={
            "cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"})
        refused("cluster.custody_lost", bed.take, "slow", Drained(meanwhile=lambda: out(bed)))
        there = store.get("Machine", "default", "m")
        assert there and "cluster.x-k8s.io/skip-remediation" in there["metadata"]["annotations"]
        bed.give_back("b", was_taken=True)
        there = store.get("Machine", "default", "m")
        assert there and not there["metadata"].get("annotations")

    def test_what_a_dead_run_s_node_offered_is_waited_for_by_the_run_that_completes_it(
        self, bed: Bed, store: Store
    ) -> None:
        def offered() -> Dict[str, str]:
            there = store.get("Node", "", NODE)
            assert there
            found: Dict[str, str] = there["status"]["allocatable"]
            return found

        offered().update({"nvidia.com/gpu": "8", "cpu": "64"})
        assert bed.take("dead")["offers"] == {"nvidia.com/gpu": 8}
        offered()["nvidia.com/gpu"] = "0"
        offers = bed.take("b")["offers"]
        assert offers == {"nvidia.com/gpu": 8}
        back = replace(returning(), offers=offers, timeout=0, was_taken=True)
        error = refused("cluster.gpus_not_offered", bed.custody("b").give_back, NODE, back)
        assert "kubectl annotate node gpu-1 gpuops.nvidia.com/offers-" in error.remedy and not bed.is_open()
        offered()["nvidia.com/mig-1g.10gb"] = "56"
        bed.custody("b").give_back(NODE, back)
        assert bed.is_open() and claims.OFFERS not in (bed.node()["metadata"]["annotations"] or {})


class TestWhoseCordonOnTheDouble:
    def test_to_a_rollout_it_is_whose_the_book_of_fields_says(self, bed: Bed) -> None:
        def state() -> Tuple[bool, bool]:
            """Whether it is ours, and whether that of others."""
            found = node_state(bed.node(), NodeReading(), [NODE])
            assert found
            return found.ours, bool(found.cordoned_by)

        assert state() == (False, False)
        bed.take("dead")
        assert state() == (True, False)
        bed.uncordon()
        assert state() == (False, False)
        bed.cordon()
        assert state() == (False, True), "an admin's, though our annotations are there yet"
        bed.give_back("b")
        assert state() == (False, True)

    def test_one_of_whom_nobody_kept_book_stays(self, bed: Bed, store: Store) -> None:
        there = store.get("Node", "", NODE)
        assert there
        there["spec"]["unschedulable"] = True
        there["metadata"]["managedFields"] = []
        assert bed.take("a")["cordoned_by_others"]

    def test_one_of_a_release_before_goes(self, bed: Bed, store: Store) -> None:
        """It said in an annotation alone that a run of ours had cordoned the node."""
        there = store.get("Node", "", NODE)
        assert there
        there["spec"]["unschedulable"] = True
        there["metadata"].setdefault("annotations", {})["gpuops.nvidia.com/cordoned-by"] = "gpuops"
        store.put(there, "OpenAPI-Generator")
        assert bed.custody("a").give_back(NODE, returning(), dry_run=True)["changed"]
        bed.give_back("a")
        there = store.get("Node", "", NODE)
        assert there and "unschedulable" not in there["spec"]
        assert "gpuops.nvidia.com/cordoned-by" not in there["metadata"]["annotations"]

    def test_what_nobody_says_on_the_node_does_not_go_with_our_claim(self, bed: Bed, store: Store) -> None:
        """As the taint of a new Node, and what admission has annotated."""
        there = store.get("Node", "", NODE)
        assert there
        there["metadata"]["annotations"]["example.com/of-nobody"] = "x"
        there["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {
            "f:metadata": {"f:labels": {"f:kubernetes.io/hostname": {}}}}}]
        before = bed.end()
        bed.take("a")
        bed.give_back("a")
        assert bed.end() == before and bed.node()["spec"]["podCIDR"]


class TestAdmittingOnTheDouble:
    @staticmethod
    def says(store: Store, ready: str = "True", **offered: int) -> None:
        """The kubelet, of itself and of its GPUs. offered: whole ones, and parts."""
        there = store.get("Node", "", NODE)
        assert there
        there["status"]["conditions"][0].update({"status": ready})
        names = {"gpus": "nvidia.com/gpu", "parts": "nvidia.com/mig-1g.10gb"}
        there["status"]["allocatable"].update({names[name]: str(count) for name, count in offered.items()})

    @pytest.mark.parametrize("offers", [{"nvidia.com/gpu": 8}, {}], ids=["offered before", "another layout"])
    def test_it_is_waited_for_until_it_is_ready_whatever_it_is_to_offer(
        self, bed: Bed, store: Store, offers: Dict[str, int]
    ) -> None:
        self.says(store, gpus=8)
        bed.take("a")
        self.says(store, "False")
        error = refused("cluster.gpus_not_offered", bed.admit, "a", offers)
        assert "offers nothing while it is not Ready after 20 s" in error.found
        assert not bed.is_open() and bed.holder() == "a@ctrl-1"
        bed.time.meanwhile = [lambda: self.says(store)]
        assert bed.admit("a", offers)["offers"] == {"nvidia.com/gpu": 8}

    def test_its_gpus_are_waited_for_and_it_says_what_it_offers(self, bed: Bed, store: Store) -> None:
        self.says(store, gpus=8)
        offers = bed.take("a")["offers"]
        self.says(store, gpus=0)
        error = refused("cluster.gpus_not_offered", bed.admit, "a", offers)
        assert "0 of 8 nvidia.com/gpu" in error.found
        bed.time.meanwhile = [lambda: self.says(store, gpus=8)]
        assert bed.admit("a", offers)["offers"] == {"nvidia.com/gpu": 8} and not bed.is_open()

    def test_that_of_a_dead_run_is_to_offer_what_it_did_and_is_free_for_the_next_until_it_does(
        self, bed: Bed, store: Store
    ) -> None:
        self.says(store, gpus=8)
        bed.take("dead")
        self.says(store, gpus=0)
        error = refused("cluster.gpus_not_offered", bed.admit, "a", wait=STANDSTILL, was_taken=False)
        assert "0 of 8 nvidia.com/gpu" in error.found and not bed.is_open() and bed.lease() is None

    def test_the_startup_taint_stays_until_it_is_opened(self, bed: Bed) -> None:
        bed.merge(PATH, {"spec": {"taints": [{"key": NOT_READY, "effect": "NoSchedule"}]}}, "kubelet")
        bed.take("a")
        bed.admit("a")
        assert NOT_READY in bed.taints()
        bed.give_back("a", was_taken=True)
        assert NOT_READY not in bed.taints()

    def test_check_mode_says_which_labels_come_and_writes_nothing(self, bed: Bed, store: Store) -> None:
        bed.take("a")
        store.writes.clear()
        told = bed.custody("a").admit(NODE, returning(), dry_run=True)
        assert told["changed"] and told["custody"] == "admitted" and store.writes == []

    def test_a_run_that_died_while_it_looked_leaves_what_its_own_layout_offers_to_the_next(
        self, bed: Bed, store: Store
    ) -> None:
        """What the node offered before it divided the GPUs nobody waits for any more."""
        self.says(store, gpus=8)
        bed.take("dead")
        self.says(store, gpus=0, parts=56)
        bed.admit("dead")
        offers = bed.take("b")["offers"]
        assert offers == {"nvidia.com/mig-1g.10gb": 56}
        self.says(store, parts=0)
        assert "0 of 56" in refused("cluster.gpus_not_offered", bed.admit, "b", offers).found


class TestReturningOnTheDouble:
    def test_it_is_opened_once_it_offers_what_it_did(self, bed: Bed, store: Store) -> None:
        there = store.get("Node", "", NODE)
        assert there
        offered = there["status"].setdefault("allocatable", {})
        offered.update({"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0", "cpu": "64"})
        taken = bed.take("a")
        assert taken["offers"] == {"nvidia.com/gpu": 8}
        back = replace(returning(), offers=taken["offers"], timeout=0)
        for count in ("0", "7"):
            there = store.get("Node", "", NODE)
            assert there
            there["status"]["allocatable"]["nvidia.com/gpu"] = count
            error = refused("cluster.gpus_not_offered", bed.custody("a").give_back, NODE, back)
            assert "%s of 8 nvidia.com/gpu" % count in error.found and not bed.is_open()
        there["status"]["allocatable"]["nvidia.com/gpu"] = "8"
        bed.custody("a").give_back(NODE, back)
        assert bed.is_open() and bed.end()["lease"] is False

    def test_one_whose_kubelet_is_not_heard_of_offers_nothing(self, bed: Bed, store: Store) -> None:
        """What it said when it was last stays on its Node."""
        def status() -> Dict[str, Any]:
            there = store.get("Node", "", NODE)
            assert there
            found: Dict[str, Any] = there["status"]
            return found

        status()["allocatable"]["nvidia.com/gpu"] = "8"
        back = replace(returning(), offers=bed.take("a")["offers"], timeout=0)
        status()["conditions"][0]["status"] = "Unknown"
        error = refused("cluster.gpus_not_offered", bed.custody("a").give_back, NODE, back)
        assert "offers nothing while it is not Ready" in error.found and not bed.is_open()
        status()["conditions"][0]["status"] = "True"
        bed.custody("a").give_back(NODE, back)
        assert bed.is_open()

    def test_a_node_that_was_not_taken_gets_its_labels_for_one_look(self, bed: Bed, store: Store, api: Api) -> None:
        store.writes.clear()
        api.state.requests.clear()
        told = bed.custody("b").give_back(NODE, returning(), lease_is_there=False)
        assert not told["changed"] and store.writes == []
        assert [request.path for request in api.state.requests] == ["/api/v1/nodes/gpu-1"]

    def test_another_node_of_that_name_is_not_offered(self, bed: Bed, store: Store) -> None:
        uid = bed.take("a")["node"]["uid"]
        store.put(node(NODE, taints=[{"key": NOT_READY, "effect": "NoSchedule"}]), "kubelet")
        refused("cluster.node_replaced", bed.give_back, "a", uid=uid)
        assert NOT_READY in bed.taints()


class TestOthersAtWorkOnTheDouble:
    def test_a_mark_is_named_and_nothing_was_touched(self, bed: Bed, store: Store) -> None:
        bed.write("operator", labels={UPGRADE: "drain-required"})
        before = bed.end()
        store.writes.clear()
        error = refused("cluster.node_of_others", bed.take, "a", wait=20.0)
        assert "NVIDIA's upgrade controller (label %s=drain-required); waited for 20 s" % UPGRADE in error.found
        assert bed.end() == before and store.writes == []

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

    def test_one_that_kured_wants_to_reboot_and_has_no_lock_for_is_nobodys(self, bed: Bed, store: Store) -> None:
        wants = {"weave.works/kured-reboot-in-progress": "2026-01-01T00:00:00Z"}
        bed.write("kured", annotations=wants)
        error = refused("cluster.node_of_others", bed.take, "a", wait=0.0)
        assert "kured, which wants to reboot the node" in error.found
        assert "kubectl annotate node gpu-1 weave.works/kured-reboot-in-progress-" in error.remedy
        seen = MarksInLists(bed.client, bed.time.clock)
        assert [mark.who for mark in seen.of(bed.node())] == ["kured, which wants to reboot the node"]
        store.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
            "name": "kured", "namespace": "kube-system", "annotations": {}}, "spec": {"template": {"spec": {
                "containers": [{"name": "kured", "command": ["/usr/bin/kured", "--annotate-nodes"]}]}}}})
        bed.time.now += 60
        assert seen.of(bed.node()) == []
        bed.take("a")
        # The reboot of our change leaves it there for good
        bed.give_back("a", was_taken=True)
        assert bed.is_open()
        there = store.get("DaemonSet", "kube-system", "kured")
        assert there
        there["metadata"]["annotations"]["weave.works/kured-node-lock"] = json.dumps({"nodeID": NODE})
        refused("cluster.node_of_others", bed.take, "a", wait=0.0)
        bed.time.now += 60
        assert [mark.who for mark in seen.of(bed.node())] == ["kured, which has its lock for the node"]

    def test_the_daemon_sets_are_listed_once_for_many_nodes_and_for_none_that_kured_does_not_want(
        self, bed: Bed, store: Store, api: Api
    ) -> None:
        seen, there = MarksInLists(bed.client, bed.time.clock), bed.node()
        api.state.requests.clear()
        assert seen.of(there) == [] and api.state.requests == []
        bed.write("kured", annotations={"weave.works/kured-reboot-in-progress": "2026-01-01T00:00:00Z"})
        there = bed.node()
        for _node in range(20):
            seen.of(there)
        assert api.count("GET", "/apis/apps/v1/daemonsets") == 1

    @pytest.mark.parametrize("group, namespace, who", [
        ("maintenance.nvidia.com/v1alpha1", {"namespace": "default"}, "NVIDIA's maintenance operator"),
        ("nodemaintenance.medik8s.io/v1beta1", {}, "medik8s' node maintenance operator")])
    def test_a_node_maintenance_is_honoured(
        self, bed: Bed, store: Store, group: str, namespace: Dict[str, str], who: str
    ) -> None:
        store.more = {**NODES, "NodeMaintenance": (group, "nodemaintenances", bool(namespace))}
        store.put({"apiVersion": group, "kind": "NodeMaintenance", "metadata": {"name": "firmware-gpu-1", **namespace},
                   "spec": {"nodeName": NODE}})
        error = refused("cluster.node_of_others", bed.take, "a", wait=0.0)
        named = "/".join([*namespace.values(), "firmware-gpu-1"])
        assert "%s (NodeMaintenance %s)" % (who, named) in error.found

    def test_a_lease_of_medik8s_is_honoured_until_it_has_run_out(self, bed: Bed, store: Store) -> None:
        renewed = leases.timestamp(bed.time.wall())
        store.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
            "name": "node-" + NODE, "namespace": "medik8s-leases"}, "spec": {
                "holderIdentity": "node-healthcheck", "leaseDurationSeconds": 60, "renewTime": renewed}})
        error = refused("cluster.node_of_others", bed.take, "a", wait=20.0)
        assert "node-healthcheck, by medik8s (Lease medik8s-leases/node-gpu-1)" in error.found
        assert bed.take("a", wait=60.0)["custody"] == "taken"

    @pytest.mark.parametrize("minutes", [-60, 0, 60])
    def test_the_times_of_others_are_the_clusters_whatever_the_clock_of_a_controller_shows(
        self, bed: Bed, store: Store, monkeypatch: pytest.MonkeyPatch, minutes: int
    ) -> None:
        theirs = time.time() + minutes * 60
        monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda self: formatdate(theirs, usegmt=True))
        custody = Custody(bed.client, Run("a", "c"), NAMESPACE, 60, 0, bed.told.append, bed.time.clock, bed.time.sleep)
        store.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
            "name": "node-" + NODE, "namespace": "medik8s-leases"}, "spec": {
                "holderIdentity": "node-healthcheck", "leaseDurationSeconds": 600,
                "renewTime": leases.timestamp(theirs)}})
        error = refused("cluster.node_of_others", custody.take, NODE, taking())
        assert "node-healthcheck" in error.found
        store.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {
            "name": "kured", "namespace": "kube-system", "annotations": {"weave.works/kured-node-lock": json.dumps(
                {"nodeID": NODE, "created": leases.timestamp(theirs - 100), "TTL": 600 * 10 ** 9})}}, "spec": {}})
        del store.objects["/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases/node-" + NODE]
        error = refused("cluster.node_of_others", custody.take, NODE, taking())
        assert "DaemonSet kube-system/kured" in error.found

    @pytest.mark.parametrize("dying", [{"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["machine"]}, {
        "annotations": {"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}}])
    def test_a_machine_that_goes_is_cluster_apis(self, bed: Bed, store: Store, dying: Dict[str, Any]) -> None:
        """Whose drain writes no cordon on a node that has one, so that ours would be the only one."""
        machine = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "spec": {},
                   "metadata": {"name": "m", "namespace": "default", **dying}}
        bed.write("capi", annotations={
            "cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"})
        before = bed.end()
        store.put(machine)
        store.writes.clear()
        error = refused("cluster.node_of_others", bed.take, "a", wait=20.0)
        assert "Machine default/m" in error.found and bed.end() == before and store.writes == []
        del store.objects["/apis/cluster.x-k8s.io/v1beta1/namespaces/default/machines/m"]
        bed.take("a")
        store.put(machine)
        refused("cluster.node_of_others", bed.give_back, "a", wait=20.0)
        assert not bed.is_open()

    def test_who_may_not_look_for_them_sees_the_node(self, bed: Bed, store: Store) -> None:
        store.denied |= {("list", "daemonsets"), ("list", "nodemaintenances")}
        assert bed.take("a")["custody"] == "taken"


class TestOptOutsOnTheDouble:
    def test_a_machine_that_others_write_to_all_the_time_is_told(self, bed: Bed, store: Store) -> None:
        store.put({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {
            "name": "m", "namespace": "default"}, "spec": {}})
        bed.write("capi", annotations={
            "cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"})
        before, real, writes = bed.end(), bed.client.apply, itertools.count()

        def apply(path: str, *arguments: Any, **options: Any) -> Any:
            if "/machines/" in path:
                bed.merge(path, {"metadata": {"labels": {"writes": str(next(writes))}}}, "capi")
            return real(path, *arguments, **options)

        bed.client.apply = apply  # type: ignore[method-assign]
        error = refused("cluster.node_contended", bed.take, "a")
        assert "Machine m was changed by others" in error.found and bed.end() == before

    @pytest.mark.parametrize("mark", [
        {"annotations": {"weave.works/kured-reboot-in-progress": "2026-01-01"}},
        {"labels": {UPGRADE: "drain-required"}}])
    def test_who_opens_nothing_waits_for_no_other_manager(self, bed: Bed, mark: Dict[str, Dict[str, str]]) -> None:
        """What is left of the dead run is put right once nobody else is at work there."""
        bed.take("dead")
        bed.uncordon()
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        bed.write("another", **mark)
        before = bed.time.now
        assert bed.give_back("a", opens=False, wait=600.0)["custody"] == "returned" and bed.time.now == before
        assert bed.node()["metadata"]["labels"].items() >= ADMITTING.items()
        assert "dead" in str(claims.claims(bed.node())) and bed.is_open()
        foretold = bed.custody("a").give_back(NODE, replace(returning(), opens=False), dry_run=True)
        assert not foretold["changed"] and not bed.give_back("a", opens=False)["changed"]
        bed.write("another", **{kind: dict.fromkeys(said) for kind, said in mark.items()})
        assert bed.give_back("a", opens=False)["changed"] and not claims.claims(bed.node())

    def test_the_machine_is_not_replaced_meanwhile(self, bed: Bed, store: Store) -> None:
        store.put({"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "metadata": {
            "name": "m", "namespace": "default"}, "spec": {}})
        bed.write("capi", annotations={
            "cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"})

        def is_protected() -> bool:
            there = store.get("Machine", "default", "m")
            assert there
            return "cluster.x-k8s.io/skip-remediation" in (there["metadata"].get("annotations") or {})

        bed.take("a")
        assert is_protected()
        bed.give_back("a")
        assert not is_protected()
        # A node that somebody has freed by hand, who did not know of its Machine
        bed.take("dead")
        bed.free()
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        assert is_protected()
        assert bed.custody("next").give_back(NODE, returning(), dry_run=True)["changed"] and is_protected()
        assert bed.give_back("next")["changed"] and not is_protected() and bed.lease() is None
        assert not bed.give_back("next")["changed"]
        # Nor is it opened by who finds it in service, and opens nothing
        bed.take("dead")
        bed.free()
        bed.client.delete(leases.path_of(NAMESPACE, NODE))
        assert bed.give_back("next", opens=False)["changed"] and not is_protected() and bed.lease() is None
        assert not bed.give_back("next", opens=False)["changed"]
        refused("cluster.pods_not_evicted", bed.take, "a",
                Drained(fails=GpuOpsError("cluster.pods_not_evicted", "a", "b", "c")))
        assert not is_protected()
        # What this run has said before stays said where its components do not leave a second time
        bed.take("a")
        bed.admit("a")
        plugin(store, deletionTimestamp="2026-01-01T00:00:00Z")
        refused("cluster.components_stay", bed.retake, "a")
        assert is_protected() and not bed.is_open()
