# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our drain beside kubectl's, case by case, on a real API server whose disruption controller works the budgets out.

Nodes and pods are objects; a thread stands in for their kubelets, and ends pods.
"""
from __future__ import annotations

import itertools
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import drain_cases
import pytest
from drain_cases import (
    CASES,
    COMPLETES,
    CONTROLLER,
    DAEMON,
    FAILS,
    GONE,
    HOLDERS,
    LEFT,
    RECREATED,
    REFUSED,
    STATEFUL,
    STAYS,
    WAITS,
    Case,
    Made,
)
from laboratory import new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.carrying_out import Drain, drain_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.observation import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.preview import Preview, preview
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.selectors import parsed, selects
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.times import epoch
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from gpulab.control_plane import ControlPlane

ENDS = "gpuops.nvidia.com/ends"
SETTLES = 20
# Seconds after which a program has started and its first evictions were answered, and none was asked for again
MEANWHILE = 3
LIMIT = 60
ELSEWHERE = "elsewhere"
WEB = {"app": "web"}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/%s/resourceclaims"
BUDGETS = "/apis/policy/v1/namespaces/%s/poddisruptionbudgets"
Object = Dict[str, Any]


@dataclass
class Cluster:
    """The API server, and what tests put there."""

    plane: ControlPlane
    client: Client
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def node(self, name: str, is_silent: bool = False) -> None:
        ready = {"type": "Ready", "status": "Unknown" if is_silent else "True", "reason": "x", "message": "x",
                 "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
        self.client.create("/api/v1/nodes", {"metadata": {"name": name}})
        self.client.patch("/api/v1/nodes/%s/status" % name, {"status": {"conditions": [ready]}})

    def namespace(self, name: str) -> None:
        self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        # Its controller does not run, and without one no pod is taken
        self.client.create("/api/v1/namespaces/%s/serviceaccounts" % name, {"metadata": {"name": "default"}})

    def pod(self, namespace: str, node: str, made: Made, owner: Mapping[str, Any], claim: str = "") -> Object:
        """claim: the ResourceClaim that it has, '' for none."""
        resources: Dict[str, Any] = {"limits": dict(made.resources), "requests": dict(made.resources)}
        claims: Dict[str, Any] = {}
        if claim:
            resources["claims"] = [{"name": "devices"}]
            claims["resourceClaims"] = [{"name": "devices", "resourceClaimName": claim}]
        metadata = {"name": made.name, "labels": dict(made.labels), "ownerReferences": [dict(owner)] if owner else [],
                    "finalizers": list(made.finalizers),
                    "annotations": {**made.annotations, ENDS: str(made.ends).lower()}}
        found = self.client.create("/api/v1/namespaces/%s/pods" % namespace, {"metadata": metadata, "spec": {
            "nodeName": ELSEWHERE if made.elsewhere else node, "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False, **claims, **made.spec,
            "containers": [{"name": "main", "image": "none", "resources": resources}]}})
        self.status(namespace, made.name, made.phase, made.is_ready)
        return found

    def status(self, namespace: str, name: str, phase: str, is_ready: bool) -> None:
        self.client.patch(path(namespace, name) + "/status", {"status": {"phase": phase, "conditions": [
            {"type": "Ready", "status": str(is_ready)}]}})

    def budget(self, namespace: str, name: str, spec: Mapping[str, Any]) -> None:
        """Made before its pods, so that it is worked out once where the control plane knows no controller of theirs."""
        self.client.create(BUDGETS % namespace, {"metadata": {"name": name}, "spec": dict(spec)})
        self.settle(namespace, name, 0, 0)

    def settle(self, namespace: str, name: str, counted: int, healthy: int) -> None:
        """Return once a budget is worked out. counted: pods that it counts. healthy: those of them that are ready."""
        def settled() -> bool:
            status = self.client.get("%s/%s" % (BUDGETS % namespace, name)).get("status") or {}
            failed = any(each["reason"] == "SyncFailed" for each in status.get("conditions") or ())
            return failed or (status.get("observedGeneration"), status.get("expectedPods"),
                              status.get("currentHealthy")) == (1, counted, healthy)
        assert wait_for(settled, bool, SETTLES, 0.2)[1], "the disruption controller works"

    def claim(self, namespace: str, driver: str) -> None:
        """One for a device, which no pod has yet."""
        self.client.create(CLAIMS % namespace, {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [
            {"name": "device", "exactly": {"deviceClassName": driver}}]}}})

    def allocate(self, namespace: str, driver: str, node: str, uid: str) -> None:
        """Give its device, of this node, to the pod 'subject'."""
        self.client.patch((CLAIMS % namespace) + "/claim/status", {"status": {
            "allocation": {"devices": {"results": [
                {"request": "device", "driver": driver, "pool": node, "device": "gpu-0"}]}},
            "reservedFor": [{"resource": "pods", "name": "subject", "uid": uid}]}})

    def seen(self, nodes: Sequence[str], **options: Any) -> Preview:
        policies = {node: policy_of(options) for node in nodes}
        return preview(observe(self.client, policies), policies)


def path(namespace: str, name: str) -> str:
    return "/api/v1/namespaces/%s/pods/%s" % (namespace, name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    lab = new_lab("drain")
    lab.up("cluster")
    plane = lab.control_plane
    assert plane is not None
    plane.work_out_budgets_only()
    client = Client(Connection(kubeconfig=str(lab.kubeconfig)))
    client.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    over = threading.Event()
    kubelets = threading.Thread(target=end_pods, args=(Client(Connection(kubeconfig=str(lab.kubeconfig))), over))
    kubelets.start()
    yield Cluster(plane, client)
    over.set()
    kubelets.join()
    lab.down()


def end_pods(client: Client, over: threading.Event) -> None:
    """As kubelets do, when their grace is over."""
    while not over.wait(0.3):
        for pod in client.items("/api/v1/pods"):
            metadata = pod["metadata"]
            stamp = metadata.get("deletionTimestamp")
            if stamp and metadata["annotations"][ENDS] == "true" and epoch(stamp) < time.time():
                client.delete(path(metadata["namespace"], metadata["name"]), metadata["uid"], "Background", 0)


def time_for(outcome: str) -> int:
    return drain_cases.SHORT if outcome == WAITS else drain_cases.LONG


@dataclass
class Side:
    """One node with the pods of a case, in a namespace of its name."""

    cluster: Cluster
    case: Case
    name: str
    subject: Object = field(default_factory=dict)

    def set_up(self) -> None:
        self.cluster.node(self.name, self.case.is_silent)
        self.cluster.namespace(self.name)
        daemon = self.cluster.client.create("/apis/apps/v1/namespaces/%s/daemonsets" % self.name, {
            "metadata": {"name": "daemon"}, "spec": {"selector": {"matchLabels": {"x": "y"}}, "template": {
                "metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}}})
        if self.case.claim:
            self.cluster.claim(self.name, self.case.claim)
        for name, spec in self.case.budgets.items():
            self.cluster.budget(self.name, name, spec)
        for made in self.case.pods:
            owner = {**made.owner, "uid": daemon["metadata"]["uid"]} if made.owner is DAEMON else made.owner
            pod = self.cluster.pod(self.name, self.name, made, owner, "claim" if self.case.claim else "")
            self.subject = self.subject or pod
        if self.case.claim:
            self.cluster.allocate(self.name, self.case.claim, self.name, self.subject["metadata"]["uid"])
        covered = [made for made in self.case.pods if made.labels == drain_cases.WEB]
        # Of several that select a pod the control plane works out one; their numbers do not matter
        for name in self.case.budgets if len(self.case.budgets) == 1 else ():
            self.cluster.settle(self.name, name, self.case.counted if self.case.counted >= 0 else len(covered),
                                len([made for made in covered if made.is_ready]))
        if self.case.pods[0].is_deleted:
            self.cluster.client.delete(path(self.name, "subject"), self.subject["metadata"]["uid"], "Background")
        if self.case.namespace_ends:
            self.cluster.client.delete("/api/v1/namespaces/%s" % self.name)

    def begin(self) -> None:
        """The drain begins."""
        if self.case.meanwhile:
            threading.Timer(MEANWHILE, self._meanwhile).start()

    def _meanwhile(self) -> None:
        client = Client(Connection(kubeconfig=str(self.cluster.plane.kubeconfig)))
        beside = Cluster(self.cluster.plane, client)
        try:
            if self.case.meanwhile == COMPLETES:
                beside.status(self.name, "subject", "Succeeded", False)
            elif self.case.meanwhile == RECREATED:
                made = self.case.pods[0]
                client.delete(path(self.name, "subject"), self.subject["metadata"]["uid"], "Background", 0)
                self.subject = beside.pod(self.name, self.name, replace(made, labels={}, elsewhere=True), made.owner)
        except ApiError:
            # The drain was faster, as kubectl's is with a job
            pass

    def there(self) -> str:
        """What has become of the pod after a drain that has succeeded, or will in a moment."""
        found = self.cluster.client.find(path(self.name, "subject"))
        if found is None or found["metadata"]["uid"] != self.subject["metadata"]["uid"]:
            return GONE
        if not found["metadata"].get("deletionTimestamp"):
            return STAYS
        return GONE if self.case.pods[0].ends else LEFT

    def by_kubectl(self) -> Tuple[str, str]:
        """(the outcome, what was said)."""
        self.begin()
        argv = self.cluster.plane.kubectl(
            ["drain", self.name, "--timeout=%ds" % time_for(self.case.kubectl), *self.case.flags])
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=LIMIT, check=False)
        if done.returncode == 0:
            return self.there(), done.stdout
        if "timeout reached" in done.stdout or "deadline exceeded" in done.stdout:
            return WAITS, done.stdout
        return FAILS if "evicting pod" in done.stdout else REFUSED, done.stdout

    def by_us(self) -> Tuple[str, str]:
        """(the outcome, what was said)."""
        options = {"scope": "node", "timeout": time_for(self.case.ours), **self.case.options}
        if HOLDERS in options:
            options[HOLDERS] = [self.subject["metadata"]["uid"]]
        before = self.cluster.client.find(path(self.name, "subject")) or {}
        self.begin()
        try:
            told = drain_node(self.cluster.client, self.name, policy_of(options), False)
        except GpuOpsError as error:
            if error.code == "cluster.pods_not_evicted":
                return WAITS, str(error)
            now = self.cluster.client.find(path(self.name, "subject")) or {}
            assert before.get("metadata") == now.get("metadata"), "refused before anything was touched"
            return REFUSED, str(error)
        return self.there(), str(told)


@pytest.mark.parametrize("name", CASES)
def test_case(cluster: Cluster, name: str) -> None:
    case, number = CASES[name], next(cluster.numbers)
    theirs, ours = (Side(cluster, case, "%s-%d" % (who, number)) for who in ("kubectl", "ours"))
    for side in (theirs, ours):
        side.set_up()
    with ThreadPoolExecutor(2) as pool:
        by_kubectl, by_us = pool.submit(theirs.by_kubectl), pool.submit(ours.by_us)
    told = {"kubectl": by_kubectl.result(), "ours": by_us.result()}
    assert {who: outcome for who, (outcome, _said) in told.items()} == {
        "kubectl": case.kubectl, "ours": case.ours}, told
    if case.budgets and case.ours == WAITS:
        assert "disruption budget web" in told["ours"][1]


def replicas(cluster: Cluster, name: str, nodes: Sequence[str], minimum: int) -> None:
    """Pods of one budget in a namespace, one a node."""
    cluster.namespace(name)
    cluster.budget(name, "web", drain_cases.at_least(minimum))
    for node in nodes:
        cluster.pod(name, node, Made("on-" + node, labels=WEB, resources={"nvidia.com/gpu": "1"}), CONTROLLER)
    cluster.settle(name, "web", len(nodes), len(nodes))


def test_evictions_are_added_up_over_nodes_where_a_dry_run_of_the_server_is_not(cluster: Cluster) -> None:
    nodes = ["sum-%d" % number for number in range(3)]
    for node in nodes:
        cluster.node(node)
    replicas(cluster, "sum", nodes, 2)
    for node in nodes:
        asked = drain_node(cluster.client, node, policy_of({}), True)
        assert asked["blocked"] == [], "alone each may go, the server says so too"
    seen = cluster.seen(nodes)
    assert seen.refusals == ()
    assert [[each["pod"] for each in seen.result(node)["blocked"]] for node in nodes] == [
        [], ["sum/on-sum-1"], ["sum/on-sum-2"]]


def test_two_nodes_at_once_never_leave_fewer_than_the_budget(cluster: Cluster) -> None:
    """Each pod that goes comes back elsewhere after a while, as its controller would have it."""
    nodes = ["pair-%d" % number for number in range(2)]
    for node in nodes:
        cluster.node(node)
    replicas(cluster, "pair", nodes, 1)
    over, fewest = threading.Event(), [2]

    def controller() -> None:
        client = Client(Connection(kubeconfig=str(cluster.plane.kubeconfig)))
        beside, made = Cluster(cluster.plane, client), 0
        while not over.wait(0.2):
            pods = [each for each in client.items("/api/v1/namespaces/pair/pods")
                    if not each["metadata"].get("deletionTimestamp")]
            fewest[0] = min(fewest[0], len(pods))
            if len(pods) < 2 and not over.wait(1.5):
                made += 1
                beside.pod("pair", ELSEWHERE, Made("new-%d" % made, labels=WEB), CONTROLLER)

    helper = threading.Thread(target=controller)
    helper.start()
    lines: List[str] = []
    try:
        with ThreadPoolExecutor(2) as pool:
            drains = [pool.submit(drain_node, Client(Connection(kubeconfig=str(cluster.plane.kubeconfig))), node,
                                  policy_of({"timeout": 60, "progress_interval": 1}), False, tell=lines.append)
                      for node in nodes]
        assert all(each.result()["changed"] for each in drains)
    finally:
        over.set()
        helper.join()
    assert fewest == [1]
    assert any("The disruption budget web needs 1 healthy pods and has " in line for line in lines), lines


def test_a_pod_that_came_back_spends_no_budget(cluster: Cluster) -> None:
    """The server counts an eviction before it compares UIDs, and for two minutes."""
    cluster.node("spent")
    cluster.node("spent-2")
    replicas(cluster, "spent", ["spent", "spent-2"], 1)

    def allowed() -> int:
        return int(cluster.client.get((BUDGETS % "spent") + "/web")["status"]["disruptionsAllowed"])

    seen = cluster.seen(["spent"])
    cluster.client.delete(path("spent", "on-spent"), None)
    gone = wait_for(lambda: cluster.client.find(path("spent", "on-spent")), lambda found: found is None, SETTLES, 0.2)
    assert gone[1]
    cluster.pod("spent", "spent", Made("on-spent", labels=WEB, elsewhere=True), STATEFUL)
    assert wait_for(allowed, lambda count: count == 1, SETTLES, 0.2)[1]
    done = Drain(cluster.client, "spent", policy_of({"timeout": 10})).run(seen)
    assert not done["changed"] and allowed() == 1
    with pytest.raises(ApiError) as stale:
        cluster.client.create(path("spent", "on-spent") + "/eviction", {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "on-spent", "namespace": "spent"},
            "deleteOptions": {"preconditions": {"uid": "another"}}})
    assert stale.value.status == 409 and allowed() == 0, "what it would have cost"


SELECTORS = ("app", "!app", "app=web", "app==web", "app!=web", "app in (web,api)", "app in (api, batch)",
             "app notin (web)", "app notin (api)", "tier>0", "tier<1", "tier > 1", "app=web,tier=1", "app=web,!x",
             "app=", "example.com/x=1", "x in ()", "")
MALFORMED = ("app in", "app in web", "=web", "app=web,", ",", "app=-web", "a b", "!", "a!b", "app=web;x")


def test_selectors_select_what_the_server_does(cluster: Cluster) -> None:
    cluster.namespace("selected")
    labelled: Mapping[str, Dict[str, str]] = {
        "none": {}, "web": {"app": "web", "tier": "1"}, "api": {"app": "api", "tier": "x"}, "empty": {"app": ""},
        "named": {"example.com/x": "1"}}
    pods = "/api/v1/namespaces/selected/configmaps"
    for name, labels in labelled.items():
        cluster.client.create(pods, {"metadata": {"name": name, "labels": labels}})
    for text in SELECTORS:
        theirs = sorted(each["metadata"]["name"] for each in cluster.client.items(pods, labelSelector=text))
        assert sorted(name for name, labels in labelled.items() if selects(parsed(text, "x"), labels)) == theirs, text
    for text in MALFORMED:
        with pytest.raises(ApiError):
            cluster.client.items(pods, labelSelector=text)
        with pytest.raises(GpuOpsError):
            parsed(text, "x")
