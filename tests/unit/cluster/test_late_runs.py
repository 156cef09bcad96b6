# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs that are slow, stopped or killed, and what becomes of the places that they hold."""
from __future__ import annotations

import contextlib
import copy
import itertools
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Callable, Collection, Dict, List, Mapping, Sequence, Tuple

import pytest
from cluster_api import Api
from cluster_objects import node
from custody_bed import Killed, Time, kill
from object_store import Store
from store_client import StoreClient

from ansible_collections.gpuops.nvidia.plugins.action.gpu_rollout import _identity, _Living
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import (
    NODES,
    Budget,
    NodeReading,
    prove_place,
    prove_unchanged,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Returning, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run, run_called
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    CONFIRMING,
    DONE,
    FAILED,
    LEFT,
    Asking,
    Pool,
    closed,
    ended,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import Cause, Host, Kind, Rollout
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import policy_of

NOW = datetime.now(timezone.utc).replace(microsecond=0)
POOL = "gpus"
ADMITTING = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}


@pytest.fixture
def client(api: Api) -> Client:
    """Of a cluster with three nodes."""
    there(api)
    return client_of(api)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> List[float]:
    """What all clocks of this machine show that only go forward."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def there(api: Api, **more: Any) -> None:
    api.state.store = store_of(**more)


def store_of(**more: Any) -> Store:
    store = Store(more={"Node": ("v1", "nodes", False)})
    for name in ("gpuops", "team-b"):
        store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for name in ("n1", "n2", "n3"):
        store.put(node(name, **{"labels": {"nvidia.com/gpu.present": "true"}, **more}), "kubelet")
    return store


def client_of(api: Api) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None)


def hosts(*names: str, **more: Any) -> List[Host]:
    return [Host(name, name, **dict({"plan": "p", "policy": "q", "kind": Kind("b"), "seconds": 60,
                                     "disruption": Disruption.driver_reload}, **more)) for name in names]


def rollout_of(fleet: Sequence[Host], **options: Any) -> Rollout:
    return plan(fleet, policy_of({"canaries": "none", "max_failures": 9, "limit": 1, **options}), NOW)


def asking(host: str, run: str, aim: str = "x", now: datetime = NOW, **more: Any) -> Asking:
    return Asking(host, run, "controller", aim, now, **more)


def budget_of(client: Client, dead: Collection[str] = (), namespace: str = "gpuops", **more: Any) -> Budget:
    return Budget(client, namespace, POOL, more.pop("reading", NodeReading()), lambda run: run not in dead, **more)


def held(client: Client, namespace: str = "gpuops") -> Dict[str, str]:
    return {node: slot.run for node, slot in budget_of(client, (), namespace).read().pool(POOL).slots.items()}


def custody(client: Client, run: Run, clock: Sequence[float]) -> Custody:
    return Custody(client, run, "gpuops", 600, 0, lambda text: None, now=lambda: 1e9 + clock[0])


def nothing_to_evict(dry_run: bool, proof: Any) -> Mapping[str, Any]:
    return {"changed": True, "evicted": []}


TAKING = Taking("upgrade", NodePolicy(unset_labels=list(ADMITTING)), nothing_to_evict, 5)


@pytest.mark.parametrize("selector, labels, capacity", [
    ("nvidia.com/gpu.present=true", {}, {"nvidia.com/gpu": "8"}), ("", {}, {"nvidia.com/gpu": "0"})],
    ids=["a selector of what is taken off", "no GPUs after the plugin has gone"])
def test_a_node_out_of_service_keeps_its_place_whatever_it_is_known_by(
    api: Api, selector: str, labels: Dict[str, str], capacity: Dict[str, str]
) -> None:
    there(api, labels=labels, capacity={"nvidia.com/gpu": "8"})
    client, reading = client_of(api), NodeReading(selector)
    ours = custody(client, Run("a", "c1"), [0.0])
    for name in ("n1", "n2", "n3"):
        ours.give_back(name, Returning(NodePolicy(labels=ADMITTING)))
    assert budget_of(client, reading=reading).ask(asking("n1", "a@c1"), rollout_of(hosts("n1"))).may_start
    ours.take("n1", TAKING)
    # The kubelet forgets what a plugin has offered some minutes after that is gone
    path = next(path for path in api.state.store.objects if path.endswith("/nodes/n1"))
    api.state.store.objects[path]["status"]["capacity"].update(capacity)
    api.state.store.objects[path]["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    answer = budget_of(client, reading=reading).ask(asking("n2", "b@c2"), rollout_of(hosts("n2")))
    assert answer.waiting is not None and held(client) == {"n1": "a@c1"}
    client.delete(NODES + "/n1")
    assert budget_of(client, reading=reading).ask(asking("n2", "b@c2"), rollout_of(hosts("n2"))).may_start
    assert held(client) == {"n2": "b@c2"}


@pytest.mark.parametrize("namespace, run", [("gpuops", "a"), ("team-b", "a"), ("team-b", "nightly")])
def test_a_run_that_renews_a_lease_is_at_work_wherever_the_record_is_and_however_it_is_called(
    client: Client, clock: List[float], namespace: str, run: str
) -> None:
    named = _identity(run, {})
    ours = run_called(*named.split("@"))
    living = _Living(client, "gpuops", (), 600)
    budget = Budget(client, namespace, POOL, NodeReading(), living)
    assert budget.ask(asking("n1", named), rollout_of(hosts("n1"), limit=2)).may_start
    change = custody(client, ours, clock)
    change.take("n1", TAKING)
    for _ in range(5):
        living.look(lambda: budget.read().pool(POOL))
        clock[0] += 200
        change.renew("n1")
    living.look(lambda: budget.read().pool(POOL))
    waiting = budget.ask(asking("n2", "b@c2", "y"), rollout_of(hosts("n2"), limit=2)).waiting
    assert living(named) and waiting is not None and waiting.cause is Cause.rollout


def test_a_run_may_be_named_as_others_are_told_of_it() -> None:
    assert _identity("nightly@c7", {}) == "nightly@c7" != _identity("nightly", {})
    with pytest.raises(GpuOpsError, match="cluster.run_malformed"):
        _identity("a b@c7", {})


def test_how_long_a_run_may_be_silent_is_its_own_word(client: Client, clock: List[float]) -> None:
    living = _Living(client, "gpuops", (), 120)
    theirs, ours = budget_of(client), Budget(client, "gpuops", POOL, NodeReading(), living)
    rollout = rollout_of(hosts("n1", "n2"))

    def ask(host: str) -> None:
        theirs.ask(asking(host, "a", now=NOW + timedelta(seconds=clock[0]), beat=timedelta(seconds=150), seconds=600),
                   rollout)

    ask("n1")
    for _ in range(60):
        clock[0] += 10
        ask("n2")
        living.look(lambda: ours.read().pool(POOL))
        assert living("a")
    clock[0] += 601
    living.look(lambda: ours.read().pool(POOL))
    assert not living("a")


def test_of_an_outage_of_the_server_no_second_counts_against_a_run(client: Client, clock: List[float]) -> None:
    """Nobody could say that he is at work."""
    living = _Living(client, "gpuops", (), 600)
    budget = Budget(client, "gpuops", POOL, NodeReading(), living)
    assert budget.ask(asking("n1", "a"), rollout_of(hosts("n1"))).may_start

    def away() -> Pool:
        raise GpuOpsError("cluster.no_answer", "the Kubernetes API server does not answer", "an answer", "see to it")

    for seconds in (0, 400):
        clock[0] += seconds
        living.look(lambda: budget.read().pool(POOL))
    with pytest.raises(GpuOpsError):
        living.look(away)
    clock[0] += 400
    living.look(lambda: budget.read().pool(POOL))
    assert living("a")
    clock[0] += 601
    living.look(lambda: budget.read().pool(POOL))
    assert not living("a")


class Outage(Budget):
    """The API server is away when it lists the Nodes for the second time."""

    lists = 0

    def _listed(self, names: Collection[str]) -> Dict[str, Any]:
        self.lists += 1
        if self.lists == 2:
            raise RuntimeError("no answer")
        return super()._listed(names)


def test_places_that_could_not_be_confirmed_are_given_back(client: Client) -> None:
    rollout = rollout_of([*hosts("n1", "n2", clique="x"), *hosts("n3")], limit=2)
    budget = Outage(client, "gpuops", POOL, NodeReading(), lambda run: True)
    with pytest.raises(RuntimeError, match="no answer"):
        budget.ask(asking("n1", "a"), rollout)
    assert held(client) == {}
    assert budget.ask(asking("n2", "a"), rollout).may_start and set(held(client)) == {"n1", "n2"}


def test_where_they_cannot_be_given_back_either_another_host_of_the_unit_asks_anew(client: Client) -> None:
    rollout = rollout_of([*hosts("n1", "n2", clique="x"), *hosts("n3")], limit=2)
    budget = Outage(client, "gpuops", POOL, NodeReading(), lambda run: True)
    budget._give_back = lambda answer, asking: None  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="no answer"):
        budget.ask(asking("n1", "a"), rollout)
    waiting = budget.ask(asking("n2", "a"), rollout).waiting
    assert waiting is not None and waiting.cause is Cause.run
    for name in ("n2", "n1"):
        assert budget.ask(asking(name, "a", now=NOW + CONFIRMING), rollout).may_start


def test_places_that_others_were_given_meanwhile_are_not_begun_with(client: Client) -> None:
    """While a run is stopped between its reservation and its end, it counts as dead."""
    rollout = rollout_of([*hosts("n1", "n2", clique="x"), *hosts("n3")], limit=2)

    class Stopped(Budget):
        def _confirmed(self, *given: Any) -> Any:
            assert budget_of(client, ["a"]).ask(asking("n3", "b"), rollout_of(hosts("n3"), limit=2)).may_start
            return super()._confirmed(*given)

    answer = Stopped(client, "gpuops", POOL, NodeReading(), lambda run: True).ask(asking("n1", "a"), rollout)
    assert answer.waiting is not None and answer.waiting.cause is Cause.run and not answer.is_final
    assert held(client) == {"n3": "b"}


def test_a_run_that_lost_its_place_is_told_so_before_it_takes_the_node(client: Client) -> None:
    assert budget_of(client).ask(asking("n1", "a"), rollout_of(hosts("n1"))).may_start
    # Stopped while it prepares the host: it has no Lease yet
    later = budget_of(client, ["a"])
    rollout = rollout_of([*hosts("n1", half_done=True), *hosts("n2")])
    assert later.ask(asking("n1", "b"), rollout).may_start
    later.change(lambda record: ended(record, POOL, "n1", "b", LEFT, "a bare pod", NOW))
    assert later.ask(asking("n2", "b"), rollout).may_start
    answer = budget_of(client).ask(asking("n1", "a"), rollout_of(hosts("n1")))
    assert not answer.may_start and held(client) == {"n2": "b"}


@pytest.mark.parametrize("selector, labels, is_counted", [
    ("", {}, True),
    ("nvidia.com/gpu.present=true", {}, True),
    ("nvidia.com/gpu.present=true,team=a", {"team": "a"}, True),
    ("nvidia.com/gpu.present=true,team in (b,c)", {"team": "a"}, False),
    ("node-role.kubernetes.io/train", {"node-role.kubernetes.io/infer": ""}, False),
    ("team=b", {}, False)])
def test_a_node_that_we_keep_out_of_service_counts_without_what_it_was_known_by(
    selector: str, labels: Dict[str, str], is_counted: bool
) -> None:
    """Custody takes its labels off, the plugin's resources go, and whoever is at its turn may give its place up."""
    store, time = store_of(labels=labels, capacity={"nvidia.com/gpu": "8"}), Time()
    for name in ("n1", "n2"):
        Way(store, name, time).custody().give_back(name, Returning(NodePolicy(labels=ADMITTING)))
    Way(store, "dead", time).custody().take("n1", TAKING)
    [node] = [each for at, each in store.objects.items() if at.endswith("/nodes/n1")]
    node["status"].update(capacity={}, allocatable={})
    budget = budget_of(StoreClient(store), reading=NodeReading(selector))
    answer = budget.ask(asking("n2", "b"), rollout_of(hosts("n2")))
    assert answer.may_start != is_counted
    assert (answer.waiting is not None and "1 half done (node n1)" in answer.waiting.why) == is_counted


@pytest.mark.parametrize("pool, is_counted", [(POOL, True), ("other", False)])
def test_one_that_another_pool_has_is_none_of_this_one(pool: str, is_counted: bool) -> None:
    """Where both are told apart by a label that went with the components."""
    store, time = store_of(labels={}), Time()
    way, client = Way(store, "b", time), StoreClient(store)
    client.patch(NODES + "/n2", {"metadata": {"labels": {"nvidia.com/gpu.product": "A100"}}})
    budget = Budget(client, "gpuops", pool, NodeReading(), lambda run: True)
    assert budget.ask(asking("n1", way.run.identity), rollout_of(hosts("n1"))).may_start
    way.custody().take("n1", Taking())
    ours = budget_of(client, reading=NodeReading("nvidia.com/gpu.product=A100"))
    assert ("n1" in ours.nodes(["n2"], Pool())) == is_counted
    assert ours.ask(asking("n2", way.run.identity), rollout_of(hosts("n2"))).may_start != is_counted


@pytest.mark.parametrize("selector, lists", [("", 1), ("team=a", 3), ("team=b", 5), ("nvidia.com/gpu.present", 5)])
def test_a_host_counts_whether_the_selector_names_its_node_or_not(selector: str, lists: int) -> None:
    """One that has no Node has not joined yet, and takes no place."""
    listed: List[str] = []

    class Listing(StoreClient):
        def items(self, path: str, *given: Any, **more: Any) -> List[Any]:
            listed.extend([path] if path == NODES else ())
            return super().items(path, *given, **more)

    budget = budget_of(Listing(store_of(labels={"team": "a"})), reading=NodeReading(selector))
    nodes = budget.nodes(["n1", "n2", "n9", ""], Pool())
    assert {"n1", "n2"} <= nodes.keys() <= {"n1", "n2", "n3"} and len(listed) == lists
    listed.clear()
    budget.nodes(["n1", "n2", *("n%d" % number for number in range(9, 99))], Pool())
    assert len(listed) == min(lists, 3), "of many there is one list"
    assert {name: state.of_pool for name, state in nodes.items() if not state.of_pool} == (
        {"n1": False, "n2": False} if selector == "team=b" else {})
    fleet = rollout_of(hosts("n1", "n2", "n9"))
    for name, may_start in (("n9", True), ("n1", True), ("n2", False)):
        assert budget.ask(asking(name, "a"), fleet).may_start == may_start


WEDNESDAYS = {"windows": [{"days": ["wed"], "start": "00:00", "duration": "1h", "zone": "UTC"}]}


def test_who_has_begun_is_told_so_without_a_list_of_all_nodes(api: Api, client: Client) -> None:
    rollout = rollout_of(hosts("n1"))
    assert budget_of(client).ask(asking("n1", "a"), rollout).may_start
    before = len(api.state.requests)
    assert budget_of(client).ask(asking("n1", "a"), rollout).may_start
    assert [request.query.get("fieldSelector") for request in api.state.requests[before:]
            if request.path == NODES] == ["metadata.name=n1"]


def test_who_may_not_begin_any_more_has_his_place_no_more_either(client: Client) -> None:
    day = next(NOW + timedelta(days=days) for days in range(7) if (NOW + timedelta(days=days)).weekday() == 2)
    opens, closes = (day.replace(hour=hour, minute=0, second=0) for hour in (0, 2))
    rollout = plan(hosts("n1"), policy_of({"canaries": "none", **WEDNESDAYS}), opens)
    assert budget_of(client).ask(asking("n1", "a", now=opens), rollout).may_start and held(client) == {"n1": "a"}
    waiting = budget_of(client).ask(asking("n1", "a", now=closes), rollout).waiting
    assert waiting is not None and waiting.cause is Cause.window and held(client) == {}


class Way:
    """One run's way with hosts, as site goes it. store: of the cluster."""

    def __init__(self, store: Store, name: str, time: Time, dead: Collection[str] = ()) -> None:
        self.client, self.run, self.time = StoreClient(store), Run(name, "c"), time
        self.told: List[str] = []
        self.budget = budget_of(self.client, dead, clock=time.clock, sleep=time.sleep)

    def ask(self, host: str, rollout: Rollout) -> bool:
        now = NOW + timedelta(seconds=self.time.clock())
        return self.budget.ask(asking(host, self.run.identity, now=now), rollout).may_start

    def custody(self) -> Custody:
        return Custody(self.client, self.run, "gpuops", 600, 900, lambda text: None, self.time.clock, self.time.sleep,
                       self.time.wall)

    def take(self, host: str, drain: Callable[..., Mapping[str, Any]] = nothing_to_evict) -> None:
        place = partial(prove_place, self.client, "gpuops", POOL, host, self.run.identity)
        self.custody().take(host, replace(TAKING, drain=drain, place=place))

    def give_back(self, host: str, *failures: str) -> None:
        self.custody().give_back(host, Returning(
            NodePolicy(labels=ADMITTING), NodePolicy(unset_labels=list(ADMITTING)), failures, was_taken=True))

    def ended(self, host: str, outcome: str) -> None:
        try:
            now = NOW + timedelta(seconds=self.time.clock())
            self.budget.change(lambda record: ended(record, POOL, host, self.run.identity, outcome, "Xid", now))
        except GpuOpsError as error:
            self.told.append(error.code)

    def go(self, host: str, rollout: Rollout, drain: Callable[..., Mapping[str, Any]]) -> None:
        if not (self.ask(host, rollout) and self.ask(host, rollout)):
            return
        try:
            self.take(host, drain)
            self.give_back(host)
        except GpuOpsError as error:
            self.told.append(error.code)
        self.ended(host, LEFT if self.told else DONE)


def overtaken(store: Store, time: Time, outcome: str) -> None:
    """Another run ends the host n1 of one that counts as dead, and begins with n2 where there is room for it."""
    other = Way(store, "b", time, ["a@c"])
    rollout = rollout_of([*hosts("n1", half_done="n1" in held(other.client)), *hosts("n2")])
    if other.ask("n1", rollout):
        if outcome != LEFT:
            other.take("n1")
            other.give_back("n1", *(["Xid 79"] if outcome == FAILED else []))
        other.ended("n1", outcome)
    if other.ask("n2", rollout):
        other.take("n2")


def out_of_service(store: Store) -> List[str]:
    return sorted(item["metadata"]["name"] for item in store.objects.values()
                  if item["kind"] == "Node" and item["spec"].get("unschedulable"))


@pytest.mark.parametrize("outcome", [DONE, FAILED, LEFT])
def test_stopped_at_any_request_it_drains_no_node_beyond_the_limit_and_forgets_no_failure(outcome: str) -> None:
    first = store_of()
    for number in itertools.count(1):
        store, time, left = copy.deepcopy(first), Time(), []  # type: ignore[var-annotated]
        way, out = Way(store, "a", time), []  # type: ignore[var-annotated]

        def stop(sent: int, number: int = number, store: Store = store, time: Time = time,
                 left: List[Any] = left) -> None:
            if sent == number:
                time.now += 5000
                overtaken(store, time, outcome)
                left.append(held(StoreClient(store)))

        def drain(dry_run: bool, proof: Callable[[], None], store: Store = store, out: List[Any] = out
                  ) -> Mapping[str, Any]:
            proof()
            out.extend(() if dry_run else [out_of_service(store)])
            return {"changed": True, "evicted": []}

        way.client.before = stop
        with contextlib.suppress(GpuOpsError):
            way.go("n1", rollout_of(hosts("n1", "n2")), drain)
        if not left:
            break
        assert out in ([], [["n1"]]), (number, out)
        assert len(out_of_service(store)) <= 1, number
        assert left[0].items() <= held(StoreClient(store)).items(), number
    assert number > 40


def test_a_run_that_lost_its_place_while_it_waited_for_the_node_does_not_touch_it() -> None:
    """It may be silent for less time than it waits for the Lease of another run."""
    store, time = store_of(), Time()
    way, lease = Way(store, "a", time), Way(store, "c", time).custody()._holding
    assert way.ask("n1", rollout_of(hosts("n1", "n2")))
    lease.acquire(way.client.get(NODES + "/n1"), 600)

    def ends() -> None:
        overtaken(store, time, LEFT)
        lease.release("n1")

    time.meanwhile = [lambda: lease.renew("n1", 600)] * 140 + [ends]
    store.writes.clear()
    with pytest.raises(GpuOpsError, match="cluster.rollout_place_lost"):
        way.take("n1")
    assert out_of_service(store) == ["n2"] and ("PATCH", NODES + "/n1") not in store.writes


@pytest.mark.parametrize("ends, pool, is_opened", [
    ("failed", POOL, False), ("killed", POOL, False), ("done", POOL, True), ("failed", "other", False),
    ("killed before", POOL, True), ("killed at work", POOL, False), ("killed, taken since", POOL, False),
    ("killed, kept since", POOL, False)])
def test_a_node_is_opened_by_what_its_host_is_once_the_run_that_has_it_has_ended(
    ends: str, pool: str, is_opened: bool
) -> None:
    """Its host needed nothing when the run looked that waits for it now."""
    store, time = store_of(), Time()
    is_earlier = ends.startswith("killed") and ends != "killed"
    way, since = Way(store, "m", time), NOW + timedelta(seconds=-9 if is_earlier else -1)
    way.budget = Budget(way.client, "gpuops", pool, NodeReading(), lambda run: True, clock=time.clock, sleep=time.sleep)
    looked = NOW if is_earlier else since - timedelta(seconds=9)
    rollout = rollout_of(hosts("n1", "n2"))
    assert way.budget.ask(asking("n1", way.run.identity, now=since), rollout).may_start
    taking = replace(TAKING, place=partial(prove_place, way.client, "gpuops", pool, "n1", way.run.identity))
    way.custody().take("n1", taking)
    path = "/apis/coordination.k8s.io/v1/namespaces/gpuops/leases/custody-n1"
    lease = way.client.get(path)
    is_late = ends in ("killed at work", "done")
    lease["spec"]["renewTime"] = (looked + timedelta(seconds=5 if is_late else -5)).strftime(
        "%Y-%m-%dT%H:%M:%S.%fZ")
    way.client.patch(path, {"spec": lease["spec"]})
    if ends == "killed, kept since":
        way.budget.change(lambda record: record.but(pool, replace(record.pool(pool), slots={})))
    if ends in ("killed, taken since", "killed, kept since"):
        # As the API server says it, where the Lease went with a run that took it over
        way.client.delete(path, lease["metadata"]["uid"], "Background")
        [node] = [each for at, each in store.objects.items() if at.endswith("/nodes/n1")]
        for entry in node["metadata"]["managedFields"]:
            entry["time"] = (looked + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def over() -> None:
        way.give_back("n1", *(["a part is to go"] if ends == "failed" else []))
        way.budget.change(lambda record: ended(
            record, pool, "n1", way.run.identity, FAILED if ends == "failed" else DONE, "a part is to go", NOW))

    time.meanwhile = [lambda: None] * 9 + ([] if "killed" in ends else [over])
    site = Way(store, "s", time)
    act = Returning(NodePolicy(labels=ADMITTING), unchanged=partial(
        prove_unchanged, site.client, "gpuops", "n1", site.run.identity, looked, True))
    if is_opened:
        assert site.custody().give_back("n1", act)["custody"] == "returned"
    else:
        with pytest.raises(GpuOpsError, match="cluster.node_changed_since") as refused:
            site.custody().give_back("n1", act)
        assert ("run m@c" in str(refused.value) and "in pool %s" % pool in str(refused.value)) == (
            ends != "killed, kept since")
        assert Way(store, "next", Time()).custody().take("n1", TAKING)["custody"] == "taken"
    assert out_of_service(store) == ([] if is_opened else ["n1"])


def bring(client: Client, run: str, dead: Collection[str], did: List[str]) -> None:
    """A clique and a host beside it, by a run that finds done what others have done."""
    budget = budget_of(client, dead, sleep=lambda seconds: None)
    slots = budget.read().pool(POOL).slots
    fleet = [each for each in (*hosts("n1", "n2", clique="x"), *hosts("n3")) if each.name in slots
             or each.name not in did]
    rollout = rollout_of([replace(each, half_done=each.name in slots) for each in fleet], limit=2)
    for name in rollout.order:
        answer = budget.ask(asking(name, run, patience=timedelta(0)), rollout)
        assert answer.may_start, (name, answer)
        did.append(name)
        budget.change(lambda record, name=name: ended(record, POOL, name, run, DONE, "", NOW))
    budget.change(lambda record: closed(record, POOL, run))


def requests_of(api: Api) -> Tuple[int, ...]:
    there(api)
    api.state.requests.clear()
    bring(client_of(api), "a", (), [])
    return tuple(range(1, len(api.state.requests) + 1))


def test_killed_at_any_request_it_is_completed_by_the_next(api: Api) -> None:
    for number in requests_of(api):
        for after in (False, True):
            there(api)
            did: List[str] = []
            client = client_of(api)
            kill(client, number, after)
            with pytest.raises(Killed):
                bring(client, "a", (), did)
            bring(client_of(api), "b", ["a"], did)
            assert held(client_of(api)) == {}, (number, after)


@pytest.mark.parametrize("minutes", [-60, 0, 60])
def test_what_is_compared_has_the_time_of_the_api_server(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    """Whatever the clock of a controller shows."""
    real = datetime.now(timezone.utc)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return real + timedelta(minutes=minutes)

    monkeypatch.setattr("ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client.datetime", Clock)
    budget = budget_of(client)
    budget.read()
    assert abs(budget.now() - real) < timedelta(seconds=30)
