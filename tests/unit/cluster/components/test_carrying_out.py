# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A plan is carried out whatever happens on the way: faults at every request, the process killed at every request.

The run that is disturbed installs, changes and removes; what counts is that its end is that of a run that is not.
"""
from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

import pytest
from cluster_api import Api, Fault
from object_store import Store
from small_components import FINDER, PLUGIN, RULES, look, plans, removed, run, told

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.carrying_out import (
    apply,
    await_rollout,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import complete
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.observation import Live
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

THEIRS = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": "other"}}


FAULTS = ("429", "409", "500", "503", "504", "reset", "lost")


class Killed(BaseException):
    """The process is no more."""


def upgrade(client: Client) -> None:
    """A plan with every kind of step but adoption: a new namespace, another role, another value."""
    run(client, namespace="gpu-system", cluster_role="another", data={"config.yaml": "a: 2\n"})


# {what is done: (what is there before, what is done)}
RUNS: Dict[str, Tuple[Callable[[Client], Any], Callable[[Client], Any]]] = {
    "install": (lambda client: None, run),
    "upgrade": (run, upgrade),
    "removal": (run, removed),
}


@pytest.fixture(params=sorted(RUNS))
def disturbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disturbed]:
    made = Disturbed(tmp_path, *RUNS[request.param])
    yield made
    made.close()


class Disturbed:
    """The same run again and again, each time on a server of the same state."""

    def __init__(self, directory: Path, before: Callable[[Client], Any], act: Callable[[Client], Any]) -> None:
        self.api = Api(directory)
        self.act = act
        self.api.state.store = Store(lingers={"DaemonSet": 2, "Job": 1, "Namespace": 2})
        self.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        self.store.put(THEIRS)
        before(self.client())
        self.first = copy.deepcopy(self.store)
        self.begin()
        self.act(self.client())
        self.requests = len(self.api.state.requests)
        self.end = self.store.snapshot()

    @property
    def store(self) -> Store:
        assert self.api.state.store is not None
        return self.api.state.store

    def close(self) -> None:
        self.api.close()

    def client(self) -> Client:
        self.api.state.requests.clear()
        return Client(Connection(kubeconfig=str(self.api.kubeconfig)), sleep=lambda seconds: None)

    def begin(self, fault: Optional[Fault] = None) -> None:
        self.api.state.store = copy.deepcopy(self.first)
        self.api.state.fault = fault


@pytest.mark.parametrize("kind", FAULTS)
def test_every_request_meets_a_fault_once(disturbed: Disturbed, kind: str) -> None:
    disturbed.begin(Fault(kind))
    disturbed.act(disturbed.client())
    assert disturbed.store.snapshot() == disturbed.end


@pytest.mark.parametrize("disturbed", [
    "install", *(pytest.param(act, marks=pytest.mark.variation) for act in ("removal", "upgrade"))], indirect=True)
def test_a_fault_at_any_request_changes_nothing_of_the_end(disturbed: Disturbed) -> None:
    for number in range(1, disturbed.requests + 1):
        disturbed.begin(Fault(FAULTS[number % len(FAULTS)], number))
        disturbed.act(disturbed.client())
        assert disturbed.store.snapshot() == disturbed.end, number


def test_killed_after_any_write_and_run_again(disturbed: Disturbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """After which the third run has nothing to do. After a request that reads all is as after the one before it."""
    real = Client._request

    def request(self: Client, *arguments: Any, **options: Any) -> Any:
        try:
            return real(self, *arguments, **options)
        finally:
            if len(disturbed.api.state.requests) == killed_at:
                raise Killed

    monkeypatch.setattr(Client, "_request", request)
    writers = []
    disturbed.begin()
    killed_at = 0
    disturbed.act(disturbed.client())
    for number, sent in enumerate(disturbed.api.state.requests, 1):
        if sent.method in ("PATCH", "DELETE") and sent.query.get("dryRun") is None:
            writers.append(number)
    for number in writers:
        disturbed.begin()
        client = disturbed.client()
        killed_at = number
        with pytest.raises(Killed):
            disturbed.act(client)
        killed_at = 0
        disturbed.act(disturbed.client())
        assert disturbed.store.snapshot() == disturbed.end, number
        disturbed.store.writes.clear()
        disturbed.act(disturbed.client())
        assert disturbed.store.writes == [], number


def test_a_terminating_object_is_made_again_once_it_is_gone(client: Client, store: Store) -> None:
    run(client)
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there
    there["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    store.leaving[store.path_of(there)] = 3
    uid = there["metadata"]["uid"]
    assert told(run(client)) == ["object.replace DaemonSet gpuops/plugin"]
    made = store.get("DaemonSet", "gpuops", "plugin")
    assert made and made["metadata"]["uid"] != uid and told(plans(client)) == []


def test_what_does_not_go_is_named_with_its_finalizers(client: Client, store: Store) -> None:
    run(client)
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there
    there["metadata"]["finalizers"] = ["example.com/held"]
    store.lingers["DaemonSet"] = 10 ** 6
    times = iter(range(10 ** 6))
    plan = plans(client, [PLUGIN], state="absent")[0]
    with pytest.raises(GpuOpsError) as stays:
        apply(client, plan, 5, clock=lambda: float(next(times)), sleep=lambda seconds: None)
    assert stays.value.code == "cluster.object_stays" and "example.com/held" in stays.value.found


def test_a_namespace_that_does_not_go_is_named_with_its_conditions(client: Client, store: Store) -> None:
    run(client, [PLUGIN])
    there = store.get("Namespace", "", "gpuops")
    assert there
    there["status"] = {"conditions": [
        {"type": "NamespaceDeletionDiscoveryFailure", "status": "True", "message": "unable to retrieve metrics.k8s.io"},
        {"type": "NamespaceContentRemaining", "status": "False", "message": "All content successfully removed"}]}
    store.lingers["Namespace"] = 10 ** 6
    times = iter(range(10 ** 6))
    plan = plans(client, [PLUGIN], state="absent")[0]
    with pytest.raises(GpuOpsError) as stays:
        apply(client, plan, 5, clock=lambda: float(next(times)), sleep=lambda seconds: None)
    assert stays.value.found.endswith("its finalizers: none; unable to retrieve metrics.k8s.io")


def test_a_job_that_another_run_takes_away_is_not_waited_for(client: Client, store: Store) -> None:
    run(client, [FINDER])
    plan = plans(client, [FINDER], state="absent")[0]
    find = store._find

    def without_job(path: str) -> Any:
        return (404, {"message": "not found"}) if path.endswith("/jobs/prune") else find(path)

    store._find = without_job  # type: ignore[method-assign]
    times = iter(range(10 ** 6))
    with pytest.raises(GpuOpsError) as gone:
        apply(client, plan, 10 ** 5, clock=lambda: float(next(times)), sleep=lambda seconds: None)
    assert gone.value.code == "cluster.job_not_done" and "taken away by others" in gone.value.found
    assert next(times) < 100


def test_an_object_of_that_name_that_came_since_stays(client: Client, store: Store) -> None:
    run(client)
    plan = plans(client, [PLUGIN], state="absent")[0]
    there = store.get("ConfigMap", "gpuops", "plugin")
    assert there
    there["metadata"]["uid"] = "another"
    apply(client, plan, 5, sleep=lambda seconds: None)
    assert store.get("ConfigMap", "gpuops", "plugin") is not None
    assert store.get("DaemonSet", "gpuops", "plugin") is None


def test_what_came_into_the_namespace_since_the_plan_keeps_it(client: Client, store: Store) -> None:
    run(client, [PLUGIN])
    plan = plans(client, [PLUGIN], state="absent")[0]
    store.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "new", "namespace": "gpuops"}})
    with pytest.raises(GpuOpsError) as held:
        apply(client, plan, 5, sleep=lambda seconds: None)
    assert held.value.code == "cluster.held_by_others" and "Secret new" in held.value.found
    assert store.get("Secret", "gpuops", "new") is not None


def test_a_job_that_fails_keeps_what_it_needs(client: Client, store: Store) -> None:
    run(client, [FINDER])
    plan = plans(client, [FINDER], state="absent")[0]
    find = store._find

    def failing(path: str) -> Any:
        answer = find(path)
        if answer[1].get("kind") == "Job":
            answer[1]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        return answer

    store._find = failing  # type: ignore[method-assign]
    with pytest.raises(GpuOpsError) as failed:
        apply(client, plan, 0.2)
    assert failed.value.code == "cluster.job_not_done" and "Job gpuops/prune" in failed.value.found
    assert "delete ServiceAccount finder" in failed.value.remedy
    assert store.get("ServiceAccount", "gpuops", "finder") is not None
    store._find = find  # type: ignore[method-assign]
    assert told(removed(client, [FINDER]))[0] == "job.run Job gpuops/prune"
    assert store.objects == {}


def test_a_job_that_takes_longer_than_a_run_goes_on_in_the_next(client: Client, store: Store) -> None:
    """Begun anew with every run it would never end. One that is wanted otherwise by now is begun anew."""
    run(client, [FINDER])
    find, ends = store._find, [False]

    def at_work(path: str) -> Any:
        answer = find(path)
        if answer[1].get("kind") == "Job" and not ends[0]:
            store.objects[path].pop("status", None)
            answer[1].pop("status", None)
        return answer

    def seen() -> str:
        job = store.get("Job", "gpuops", "prune")
        assert job is not None
        return str(job["metadata"]["uid"])

    store._find = at_work  # type: ignore[method-assign]
    uids = []
    for image in ("x:1", "x:1", "x:2"):
        plan = plans(client, [FINDER], state="absent")[0]
        step, = (step for step in plan.steps if step.action == "job.run")
        step.parameters["object"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
        with pytest.raises(GpuOpsError) as unfinished:
            apply(client, plan, 0.2)
        assert "is not complete after" in unfinished.value.found and "wait_timeout" in unfinished.value.remedy
        uids.append(seen())
    assert uids[0] == uids[1] != uids[2]
    ends[0] = True
    removed(client, [FINDER])
    assert store.objects == {}


def test_a_job_of_a_removal_ends_before_the_component_comes_back(client: Client, store: Store) -> None:
    """It would take off the labels that the component sets."""
    run(client, [FINDER])
    plan = plans(client, [FINDER], state="absent")[0]
    job = next(step for step in plan.steps if step.action == "job.run").parameters["object"]
    client.apply("/apis/batch/v1/namespaces/gpuops/jobs/prune", job)
    workload = store.get("DaemonSet", "gpuops", "finder")
    assert workload is not None
    client.delete("/apis/apps/v1/namespaces/gpuops/daemonsets/finder", workload["metadata"]["uid"], "Foreground")
    steps = told(run(client, [FINDER]))
    assert steps.index("object.prune Job gpuops/prune") < steps.index("object.create DaemonSet gpuops/finder")


def test_a_kind_is_there_before_its_objects(api: Api, client: Client, store: Store) -> None:
    run(client, [FINDER])
    paths = [request.path for request in api.state.requests if request.query.get("dryRun") != "All"]
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + RULES
    applied = paths.index(definition, paths.index("/apis/node.k8s.io/v1/runtimeclasses/nvidia", 20))
    assert definition in paths[applied + 1:] and paths.index(
        "/apis/nfd.k8s-sigs.io/v1alpha1/nodefeaturerules/gpuops-gds") > applied


def test_what_kubernetes_made_for_what_is_gone_keeps_no_namespace(client: Client, store: Store) -> None:
    """Controllers take the endpoints of a Service and the token of an account away in their own time."""
    namespace = run(client)[0]
    made, = (step for step in namespace.steps if step.subject == "Namespace gpuops")
    there = store.get("Namespace", "", "gpuops")
    assert there
    steps = [replace(made, action="object.remove", parameters={
        "kind": kind, "namespace": place, "name": name, "uid": there["metadata"]["uid"]})
        for kind, place, name in (("ServiceAccount", "gpuops", "gone"), ("Namespace", "", "gpuops"))]
    removed(client, [PLUGIN])
    for path in [path for path, item in store.objects.items() if item["metadata"].get("namespace") == "gpuops"]:
        del store.objects[path]
    account = {"kubernetes.io/service-account.name": "gone"}
    store.put({"apiVersion": "v1", "kind": "Secret", "metadata": {
        "name": "token", "namespace": "gpuops", "annotations": account}})
    apply(client, Plan(steps=tuple(steps)), 5, sleep=lambda seconds: None)
    assert store.get("Namespace", "", "gpuops") is None


# The rollout

def status(wanted: int, ready: int, generation: int = 1) -> Dict[str, int]:
    return {"observedGeneration": generation, "desiredNumberScheduled": wanted, "numberReady": ready,
            "updatedNumberScheduled": ready}


def rolled(store: Store, **counts: int) -> Dict[str, Any]:
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there
    there["metadata"]["generation"] = 1
    there["status"] = status(**counts)
    return there


def test_what_was_seen_rolled_out_is_not_asked_for(api: Api, client: Client, store: Store) -> None:
    run(client, [PLUGIN])
    rolled(store, wanted=2, ready=2)
    live = look(client, [PLUGIN])
    api.state.requests.clear()
    assert await_rollout(client, PLUGIN, complete(PLUGIN, {}), 5, live) == ()
    assert api.state.requests == []
    assert await_rollout(client, PLUGIN, complete(PLUGIN, {"state": "absent"}), 5, Live()) == ()


@pytest.mark.parametrize("ready", [True, False])
def test_a_dead_node_is_named_and_not_waited_for(api: Api, client: Client, store: Store, ready: bool) -> None:
    run(client, [PLUGIN])
    rolled(store, wanted=2, ready=1)
    for node, alive in (("gpu-1", True), ("gpu-2", ready)):
        api.state.nodes.append({"metadata": {"name": node}, "status": {"conditions": [
            {"type": "Ready", "status": str(alive)}]}})
        store.put({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": "plugin-" + node, "namespace": "gpuops",
            "labels": {"app.kubernetes.io/name": "plugin", "app.kubernetes.io/part-of": "gpuops"}},
            "spec": {"nodeName": node},
            "status": {"conditions": [{"type": "Ready", "status": str(node == "gpu-1")}]}})
    times = iter(range(10 ** 6))

    def clock() -> float:
        return float(next(times))

    if not ready:
        assert await_rollout(client, PLUGIN, complete(PLUGIN, {}), 60, clock=clock,
                             sleep=lambda seconds: None) == ("gpu-2",)
        return
    with pytest.raises(GpuOpsError) as waited:
        await_rollout(client, PLUGIN, complete(PLUGIN, {}), 60, clock=clock, sleep=lambda seconds: None)
    assert waited.value.code == "cluster.pods_not_ready" and "gpu-2" in waited.value.found
