# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One budget in a real API server: writers side by side never exceed it, lose no slot, and all get through."""
from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import cluster_objects
import pytest
from cluster_api import Api
from real_api import RealApi, node, watched

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import (
    LEAST_PATIENCE_SECONDS,
    NAME,
    OTHERS,
    OUTAGE_SECONDS,
    PATIENCE_SECONDS,
    WRITE_SECONDS,
    Budget,
    NodeReading,
    Read,
    node_state,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import NO_ANSWER, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.marks import on_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    DONE,
    FAILED,
    LEFT,
    WORKING,
    Answer,
    Asking,
    NodeState,
    Record,
    Slot,
    closed,
    ended,
    read_record,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import Cause, Host, Kind, Rollout
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import policy_of

POOL = "gpus"
NOW = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)
NODES = "/api/v1/nodes"
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    server = RealApi(tmp_path_factory.mktemp("api"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace(real: RealApi, request: pytest.FixtureRequest) -> Iterator[str]:
    """A place of its own for the record, and no Nodes but those of the test."""
    name = "t-%s" % digest(request.node.name)
    real.client().create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    client = real.client()
    for each in client.items(NODES):
        client.delete("%s/%s" % (NODES, each["metadata"]["name"]))


def path_of(namespace: str) -> str:
    return "/api/v1/namespaces/%s/configmaps/%s" % (namespace, NAME)


def hosts(number: int, **more: Any) -> List[Host]:
    return [Host(**dict({"name": "h%d" % each, "node": "n%d" % each, "plan": "p", "policy": "q", "kind": Kind("b"),
                         "disruption": Disruption.driver_reload, "seconds": 60}, **more)) for each in range(number)]


def rollout_of(fleet: Sequence[Host], **options: Any) -> Rollout:
    return plan(fleet, policy_of({"canaries": "none", "max_failures": 99, **options}), NOW)


def add_nodes(real: RealApi, names: Sequence[str]) -> None:
    client = real.client()
    for name in names:
        client.create(NODES, node(name))


def budget_of(client: Client, namespace: str, dead: Sequence[str] = (), **more: Any) -> Budget:
    return Budget(client, namespace, POOL, NodeReading(), lambda run: run not in dead, **more)


def asking(host: str, run: str = "a", now: Optional[datetime] = None) -> Asking:
    return Asking(host, run, "controller", "x", now or datetime.now(timezone.utc))


def asked_as(host: str, run: str = "a") -> Callable[[Read, datetime], Asking]:
    return lambda read, now: asking(host, run, now)


def finish(budget: Budget, name: str, run: str, outcome: str = DONE) -> None:
    budget.change(lambda record: ended(record, POOL, name, run, outcome, "Xid", datetime.now(timezone.utc)))


def work(kubeconfig: str, namespace: str, run: str, fleet: Sequence[Host], own: Sequence[str], limit: int,
         failing: Sequence[str] = (), pause: float = 0.0) -> None:
    """A run of one controller, which brings its hosts to their end one after another."""
    budget = budget_of(Client(Connection(kubeconfig=kubeconfig)), namespace)
    rollout = rollout_of([each for each in fleet if each.name in own], limit=limit)
    for name in own:
        answer = budget.wait(asked_as(name, run), rollout, 120, 0.2)
        assert answer.may_start, answer
        time.sleep(pause)
        finish(budget, rollout.hosts[name].node, run, FAILED if name in failing else DONE)
    budget.change(lambda record: closed(record, POOL, run))


def records(versions: Sequence[Dict[str, Any]]) -> List[Record]:
    return [read_record((item.get("data") or {}).get("record", "")) for item in versions]


def processes(tasks: Sequence[Tuple[Any, ...]]) -> List[Any]:
    started = [FORK.Process(target=work, args=task) for task in tasks]
    for each in started:
        each.start()
    return started


def test_writers_side_by_side_never_exceed_it_and_all_get_through(real: RealApi, namespace: str) -> None:
    fleet, writers, limit = hosts(40), 10, 3
    add_nodes(real, [each.node for each in fleet])
    with watched(real, path_of(namespace)) as versions:
        at_work = processes([(str(real.kubeconfig), namespace, "run-%d" % number, fleet,
                              [each.name for each in fleet[number::writers]], limit) for number in range(writers)])
        for each in at_work:
            each.join(200)
        assert [each.exitcode for each in at_work] == [0] * writers
    held = [{name for name, slot in record.pool(POOL).slots.items() if slot.state == WORKING}
            for record in records(versions)]
    assert max(map(len, held)) == limit
    # Each node was held once, from its start to its end, whoever wrote in between
    begun = [name for before, after in zip([set(), *held], held) for name in after - before]
    assert sorted(begun) == sorted(each.node for each in fleet)
    last = budget_of(real.client(), namespace).read().pool(POOL)
    assert last.slots == {} and last.rollout is None


def test_failed_nodes_and_a_killed_run_keep_their_places_until_another_takes_over(
    real: RealApi, namespace: str
) -> None:
    fleet, writers, limit = hosts(24), 8, 4
    add_nodes(real, [each.node for each in fleet])
    failing = ["h8", "h17"]
    shares = [[each.name for each in fleet[number::writers]] for number in range(writers)]
    with watched(real, path_of(namespace)) as versions:
        victim = FORK.Process(target=work, args=(str(real.kubeconfig), namespace, "victim", fleet, shares[7], limit, (),
                                                 3600.0))
        victim.start()
        budget = budget_of(real.client(), namespace)
        deadline = time.monotonic() + 60
        while "n7" not in budget.read().pool(POOL).slots:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        at_work = processes([(str(real.kubeconfig), namespace, "run-%d" % number, fleet, shares[number], limit,
                              failing) for number in range(writers - 1)])
        for each in at_work:
            each.join(200)
        assert [each.exitcode for each in at_work] == [0] * (writers - 1)
        left = budget.read().pool(POOL)
        assert {name: slot.state for name, slot in left.slots.items()} == {
            "n7": WORKING, "n8": FAILED, "n17": FAILED}
        next_run = budget_of(real.client(), namespace, dead=["victim"])
        rollout = rollout_of([each for each in fleet if each.name in shares[7]], limit=limit)
        for name in shares[7]:
            assert next_run.ask(asking(name, "next"), rollout).may_start
            finish(next_run, rollout.hosts[name].node, "next")
    assert max(len(record.pool(POOL).slots) for record in records(versions)) == limit
    assert set(budget.read().pool(POOL).slots) == {"n8", "n17"}


class Meanwhile(Client):
    """A client of which something else happens after its first write."""

    def __init__(self, kubeconfig: Path, what: Callable[[], None], lose: bool = False) -> None:
        super().__init__(Connection(kubeconfig=str(kubeconfig)))
        self._what: List[Callable[[], None]] = [what]
        self._lose = lose

    def patch(self, path: str, body: Dict[str, Any], dry_run: bool = False) -> Dict[str, Any]:
        answer = super().patch(path, body, dry_run)
        if self._what and "data" in body:
            self._what.pop()()
            if self._lose:
                # As the library repeats it where the answer was lost
                return super().patch(path, body, dry_run)
        return answer


def cordon(real: RealApi, name: str) -> None:
    real.client().patch("%s/%s" % (NODES, name), {"spec": {"unschedulable": True}})


def test_who_asks_again_is_told_of_a_node_that_was_taken_since(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0"])
    rollout = rollout_of(hosts(1))
    assert budget_of(real.client(), namespace).ask(asking("h0"), rollout).may_start
    for taken in (False, True):
        budget = budget_of(real.client(), namespace)
        assert budget.ask(asking("h0"), rollout).may_start
        there = budget.seen("n0")
        assert there is not None and there.ours is taken
        Custody(real.client(), Run("a", "ctrl"), namespace, 60, 0, str).take("n0", Taking())


def test_what_an_administrator_takes_while_a_place_is_reserved_is_seen_and_it_is_given_back(
    real: RealApi, namespace: str
) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    rollout = rollout_of(hosts(3), limit=2)
    budget_of(real.client(), namespace).ask(asking("h0"), rollout)
    client = Meanwhile(real.kubeconfig, lambda: cordon(real, "n2"))
    answer = budget_of(client, namespace).ask(asking("h1"), rollout)
    assert not answer.may_start and answer.waiting is not None and answer.waiting.cause is Cause.slots
    assert answer.waiting.why.endswith("0 of 2 free; 1 in progress (h0); 1 cordoned by others (h2)")
    assert set(budget_of(real.client(), namespace).read().pool(POOL).slots) == {"n0"}


def test_a_clique_begins_once_all_its_places_are_confirmed(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    rollout = rollout_of(hosts(2, clique="x"), limit=2)
    between: List[Answer] = []
    client = Meanwhile(real.kubeconfig, lambda: between.append(
        budget_of(real.client(), namespace).ask(asking("h1"), rollout)))
    assert budget_of(client, namespace).ask(asking("h0"), rollout).may_start
    (answer,) = between
    assert answer.waiting is not None and answer.waiting.cause is Cause.run
    budget = budget_of(real.client(), namespace)
    slots = budget.read().pool(POOL).slots
    assert {name: (slot.confirmed, slot.begun) for name, slot in slots.items()} == {
        "n0": (True, True), "n1": (True, False)}
    assert budget.ask(asking("h1"), rollout).may_start


@pytest.mark.parametrize("others", [False, True])
def test_a_write_whose_answer_was_lost_is_known_again_and_confirmed(
    real: RealApi, namespace: str, others: bool
) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    rollout = rollout_of(hosts(3), limit=2)

    def meanwhile() -> None:
        if others:
            budget_of(real.client(), namespace).ask(asking("h2", "b"), rollout)

    client = Meanwhile(real.kubeconfig, meanwhile, lose=True)
    budget_of(real.client(), namespace).change(lambda record: closed(record, "none", "x"))
    answer = budget_of(client, namespace).ask(asking("h1"), rollout)
    assert answer.may_start and set(answer.before) == {"n1"}
    assert set(budget_of(real.client(), namespace).read().pool(POOL).slots) == ({"n1", "n2"} if others else {"n1"})


def test_the_namespace_is_made_as_the_components_have_it(real: RealApi, namespace: str) -> None:
    place = namespace + "-new"
    add_nodes(real, ["n0"])
    assert budget_of(real.client(), place).read() == Record()
    assert budget_of(real.client(), place).ask(asking("h0"), rollout_of(hosts(1))).may_start
    made = real.client().get("/api/v1/namespaces/" + place)
    assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert set(json.loads(real.client().get(path_of(place))["data"]["record"])["pools"]) == {POOL}


def test_the_least_rights_are_enough_where_the_namespace_is_there(real: RealApi, namespace: str) -> None:
    """And the rules are those of the table, by which the playbooks ask before they begin."""
    from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.playbook_rights import ACTS

    add_nodes(real, ["n0"])
    rules = [{"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs),
              **({"resourceNames": list(rule.names)} if rule.names else {})} for rule in ACTS["rollout"]]
    user = Client(Connection(kubeconfig=str(real.user("changes-" + namespace, *rules))))
    assert budget_of(user, namespace).ask(asking("h0"), rollout_of(hosts(1))).may_start
    with pytest.raises(GpuOpsError, match="cluster.rollout_without_namespace"):
        budget_of(user, namespace + "-not-there").ask(asking("h0"), rollout_of(hosts(1)))


def test_a_record_is_never_larger_than_an_object_may_be(real: RealApi, namespace: str) -> None:
    budget = budget_of(real.client(), namespace)
    budget.ask(asking("h0"), rollout_of(hosts(1)))
    slots = {"n%d" % each: Slot("h%d" % each, "a", NOW, FAILED, reason="x" * 500) for each in range(2000)}
    with pytest.raises(GpuOpsError, match="cluster.rollout_record_full"):
        budget.change(lambda record: record.but(POOL, replace(record.pool(POOL), slots=slots)))


class Clock:
    """Time that passes by sleeping."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    def clock(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds


def waiting(real: RealApi, namespace: str, run: str = "a") -> Tuple[Budget, Clock]:
    clock = Clock()
    return budget_of(real.client(), namespace, now=clock.now, clock=clock.clock, sleep=clock.sleep), clock


def test_a_wait_has_a_limit_and_says_for_whom_and_since_when(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), limit=1)
    budget_of(real.client(), namespace).ask(asking("h0", now=NOW), rollout)
    budget, clock = waiting(real, namespace)
    told: List[str] = []
    answer = budget.wait(asked_as("h1"), rollout, 60, 10, told.append)
    assert not answer.may_start and 60 <= clock.passed < 75 and answer.waiting and told == [answer.waiting.why]
    assert answer.waiting is not None and answer.waiting.since == NOW
    assert answer.waiting.why == "needs 1, and in all there are 0 of 1 free; 1 in progress (h0)"


def test_what_ends_meanwhile_ends_the_wait(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), limit=1)
    other = budget_of(real.client(), namespace)
    other.ask(asking("h0", now=NOW), rollout)
    budget, clock = waiting(real, namespace)
    asked = []

    def at(read: Read, now: datetime) -> Asking:
        asked.append(now)
        if len(asked) == 3:
            finish(other, "n0", "a")
        return asking("h1", "a", now)

    assert budget.wait(at, rollout, 60, 10).may_start and len(asked) == 3


class Counted(Client):
    """Counts lists of Nodes, and how often the record is read."""

    def __init__(self, real: RealApi) -> None:
        super().__init__(Connection(kubeconfig=str(real.kubeconfig)))
        self.lists = self.records = 0

    def find(self, path: str) -> Optional[Dict[str, Any]]:
        self.records += 1
        return super().find(path)

    def items(self, path: str, *arguments: Any, **options: Any) -> List[Any]:
        self.lists += path == NODES
        return super().items(path, *arguments, **options)


def counted(real: RealApi, namespace: str) -> Tuple[Budget, Clock, Counted]:
    clock, client = Clock(), Counted(real)
    return budget_of(client, namespace, now=clock.now, clock=clock.clock, sleep=clock.sleep), clock, client


def is_ready(real: RealApi, name: str, status: str) -> None:
    real.client().patch("%s/%s/status" % (NODES, name), {"status": {"conditions": [{
        **node(name)["status"]["conditions"][0], "status": status}]}})


def test_a_host_that_waits_lists_the_nodes_once_a_minute_and_asks_for_its_place_in_between(
        real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), limit=1)
    budget_of(real.client(), namespace).ask(asking("h0", now=NOW), rollout)
    budget, clock, client = counted(real, namespace)
    asked: List[datetime] = []

    def at(read: Read, now: datetime) -> Asking:
        assert read() is read()
        asked.append(now)
        return asking("h1", "a", now)

    assert not budget.wait(at, rollout, 600, 10).may_start
    assert len(asked) > 60 and 600 / 80 < client.lists <= 600 / 60 + 2 and clock.passed < 620
    # With a list two more: whether it has its place already, and how things stand once the Nodes are listed
    assert client.records == len(asked) + 2 * client.lists


@pytest.mark.parametrize("pause", [10, 300])
def test_what_a_node_says_is_seen_within_a_minute_however_seldom_it_is_asked(
    real: RealApi, namespace: str, pause: int
) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    is_ready(real, "n0", "Unknown")
    rollout = rollout_of(hosts(3)[1:], limit=1)
    budget, clock, client = counted(real, namespace)

    def at(read: Read, now: datetime) -> Asking:
        if clock.passed > 30:
            is_ready(real, "n0", "True")
        return asking("h1", "a", now)

    assert budget.wait(at, rollout, 3600, pause).may_start and 30 < clock.passed < 80
    # One for the wait, then one for the place and one to see that it is there
    assert client.lists == 3


@pytest.mark.parametrize("seen, outcome", [
    ({"status": {"conditions": [{**node("n0")["status"]["conditions"][0], "status": "Unknown"}]}}, DONE),
    ({"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "0"}}}, DONE),
    ({"spec": {"unschedulable": True}, "metadata": {"annotations": {"gpuops.nvidia.com/cordoned-by": "gpuops"}}}, LEFT),
], ids=["rebooting", "without its device plugin", "cordoned"])
def test_a_place_is_taken_at_once_though_its_node_was_seen_in_the_middle_of_its_change(
    real: RealApi, namespace: str, seen: Dict[str, Any], outcome: str
) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), limit=1)
    other = budget_of(real.client(), namespace)
    other.ask(asking("h0", now=NOW), rollout)
    real.client().patch("%s/n0%s" % (NODES, "/status" if "status" in seen else ""), seen)
    budget, clock, client = counted(real, namespace)
    freed: List[float] = []

    def at(read: Read, now: datetime) -> Asking:
        if clock.passed > 20 and not freed:
            real.client().delete("%s/n0" % NODES)
            add_nodes(real, ["n0"])
            finish(other, "n0", "a", outcome)
            freed.append(clock.passed)
        return asking("h1", "a", now)

    told: List[str] = []
    assert budget.wait(at, rollout, 600, 10, told.append).may_start
    assert [clock.passed] == freed and not any("healthy" in each or "half done" in each for each in told)
    assert client.lists == 3


def test_hosts_that_look_after_their_nodes_differently_list_no_more_than_others(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    rollout = rollout_of(hosts(3), limit=1)
    budget_of(real.client(), namespace).ask(asking("h0", now=NOW), rollout)
    budget, _clock, client = counted(real, namespace)
    turns = iter(range(10 ** 6))

    def at(read: Read, now: datetime) -> Asking:
        number = next(turns) % 2
        return replace(asking("h%d" % (1 + number), "a", now), seconds=(600, 300)[number])

    assert not budget.wait(at, rollout, 600, 10).may_start
    assert client.lists <= 600 / 60 + 2
    assert budget.read().pool(POOL).rollout.runs["a"].seconds == 600  # type: ignore[union-attr]


def test_nobody_begins_by_nodes_that_were_seen_before(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1", "n2"])
    rollout = rollout_of(hosts(2), limit=1)
    other = budget_of(real.client(), namespace)
    other.ask(asking("h0", now=NOW), rollout)
    budget, clock, client = counted(real, namespace)

    def at(read: Read, now: datetime) -> Asking:
        if client.lists == 1 and clock.passed > 20:
            cordon(real, "n2")
            finish(other, "n0", "a")
        return asking("h1", "a", now)

    answer = budget.wait(at, rollout, 300, 10)
    assert not answer.may_start and answer.waiting is not None and answer.waiting.cause is Cause.person
    assert client.lists == 2 and "n2" in answer.waiting.why and clock.passed < 40


class Away(Client):
    """A client of a server that is away between two times of a clock."""

    def __init__(self, kubeconfig: Path, clock: Clock, begins: float, ends: float) -> None:
        super().__init__(Connection(kubeconfig=str(kubeconfig)))
        self._time, self._begins, self._ends = clock, begins, ends

    def _ask(self) -> None:
        if self._begins <= self._time.passed < self._ends:
            raise GpuOpsError(NO_ANSWER, "the Kubernetes API server does not answer", "an answer", "see to it")

    def find(self, path: str) -> Optional[Dict[str, Any]]:
        self._ask()
        return super().find(path)

    def items(self, *arguments: Any, **options: Any) -> List[Any]:
        self._ask()
        return super().items(*arguments, **options)


def away(real: RealApi, namespace: str, begins: float, ends: float) -> Tuple[Budget, Clock]:
    clock = Clock()
    return budget_of(Away(real.kubeconfig, clock, begins, ends), namespace, now=clock.now, clock=clock.clock,
                     sleep=clock.sleep), clock


def test_a_wait_goes_on_through_an_outage_of_the_server_and_says_so(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), limit=1)
    budget_of(real.client(), namespace).ask(asking("h0", now=NOW), rollout)
    budget, clock = away(real, namespace, 20, 500)
    told: List[str] = []
    answer = budget.wait(asked_as("h1"), rollout, 600, 10, told.append)
    assert answer.waiting is not None and answer.waiting.cause is Cause.slots and 600 <= clock.passed < 615
    assert [each.partition(";")[0] for each in told][1:] == ["the Kubernetes API server does not answer"]
    budget, clock = away(real, namespace, 20, 5000)
    with pytest.raises(GpuOpsError, match=NO_ANSWER):
        budget.wait(asked_as("h1"), rollout, 600, 10)
    assert 600 <= clock.passed < 625


class CutShort(Away):
    """It is away after its first write, and others take a node then. lost: whether its answer was, too."""

    def __init__(self, real: RealApi, clock: Clock, lost: bool) -> None:
        super().__init__(real.kubeconfig, clock, 0, 0)
        self._real, self._lost = real, lost

    def patch(self, path: str, body: Dict[str, Any], dry_run: bool = False) -> Dict[str, Any]:
        answer = super().patch(path, body, dry_run)
        if "data" in body and not self._ends:
            cordon(self._real, "n1")
            self._ends = self._time.passed + 100
            if self._lost:
                self._ask()
        return answer


@pytest.mark.parametrize("lost", [False, True])
def test_what_was_reserved_before_an_outage_is_asked_about_anew(real: RealApi, namespace: str, lost: bool) -> None:
    add_nodes(real, ["n0", "n1"])
    budget_of(real.client(), namespace).change(lambda record: closed(record, "none", "x"))
    clock = Clock()
    budget = budget_of(CutShort(real, clock, lost), namespace, now=clock.now, clock=clock.clock, sleep=clock.sleep)
    answer = budget.wait(asked_as("h0"), rollout_of(hosts(2)), 300, 10)
    assert answer.waiting is not None and answer.waiting.cause is Cause.person and clock.passed >= 100
    assert "1 cordoned by others (h1)" in answer.waiting.why
    assert budget_of(real.client(), namespace).read().pool(POOL).slots == {}


@pytest.mark.parametrize("ends, is_told", [(OUTAGE_SECONDS - 20, True), (OUTAGE_SECONDS * 2, False)])
def test_what_has_no_time_to_wait_outlives_a_short_outage(
    real: RealApi, namespace: str, ends: float, is_told: bool
) -> None:
    add_nodes(real, ["n0"])
    rollout = rollout_of(hosts(1))
    budget_of(real.client(), namespace).ask(asking("h0", now=NOW), rollout)
    budget, clock = away(real, namespace, 0, ends)
    if is_told:
        assert budget.wait(asked_as("h0"), rollout, 0, 10).may_start
    budget, clock = away(real, namespace, 0, ends)
    try:
        budget.change(lambda record: ended(record, POOL, "n0", "a", DONE, "", NOW), OUTAGE_SECONDS)
    except GpuOpsError as error:
        assert error.code == NO_ANSWER and not is_told
    assert (budget_of(real.client(), namespace).read().pool(POOL).slots == {}) == is_told
    with pytest.raises(GpuOpsError, match=NO_ANSWER):
        away(real, namespace, 0, ends)[0].change(lambda record: record)


def test_who_stood_still_while_he_wrote_tries_again(real: RealApi, namespace: str) -> None:
    """Others were faster once, however long ago he began."""
    budget_of(real.client(), namespace).change(lambda record: closed(record, "none", "x"))
    clock = Clock()

    def stop(record: Record) -> Record:
        if clock.passed == 0:
            clock.passed = 2 * WRITE_SECONDS
            budget_of(real.client(), namespace).change(lambda there: ended(there, POOL, "n0", "b", FAILED, "x", NOW))
        return ended(record, POOL, "n1", "a", FAILED, "Xid", NOW)

    budget_of(real.client(), namespace, clock=clock.clock, sleep=clock.sleep).change(stop)
    assert set(budget_of(real.client(), namespace).read().pool(POOL).slots) == {"n0", "n1"}


def test_a_window_that_opens_later_is_not_waited_for(real: RealApi, namespace: str) -> None:
    add_nodes(real, ["n0"])
    windows = [{"days": "wed", "start": "12:01", "duration": "1h", "zone": "UTC"}]
    budget, clock = waiting(real, namespace)
    rollout = rollout_of(hosts(1), windows=windows)
    answer = budget.wait(asked_as("h0"), rollout, 30, 10)
    assert answer.waiting is not None and answer.waiting.cause is Cause.window and clock.passed == 0
    assert budget.wait(asked_as("h0"), rollout, 90, 10).may_start


@pytest.mark.parametrize("soak, waits", [("1h", False), ("5m", True)])
def test_a_canary_that_is_watched_for_longer_is_not_waited_for(
    real: RealApi, namespace: str, soak: str, waits: bool
) -> None:
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), canaries="every_kind", soak=soak)
    canary, other = (unit.hosts[0] for unit in rollout.units)
    budget, clock = waiting(real, namespace)
    assert budget.ask(asking(canary, now=NOW), rollout).may_start
    budget.change(lambda record: ended(record, POOL, rollout.hosts[canary].node, "a", DONE, "", NOW))
    answer = budget.wait(asked_as(other), rollout, 3000, 10)
    assert answer.may_start == waits and (300 <= clock.passed < 320 if waits else clock.passed < 1)
    assert waits or (answer.waiting is not None and answer.waiting.until == NOW + timedelta(hours=1))


@pytest.mark.parametrize("kept", ["cordoned", "failed"])
def test_places_that_a_person_has_to_free_are_not_waited_for(real: RealApi, namespace: str, kept: str) -> None:
    add_nodes(real, ["n0", "n1"])
    budget, clock = waiting(real, namespace)
    if kept == "failed":
        budget.change(lambda record: ended(record, POOL, "n1", "z", FAILED, "Xid", NOW))
    else:
        cordon(real, "n1")
    answer = budget.wait(asked_as("h0"), rollout_of(hosts(1)), 3600, 10)
    assert answer.waiting is not None and answer.waiting.cause is Cause.person and clock.passed < 1


@pytest.mark.parametrize("limit, patience", [(3600, PATIENCE_SECONDS), (240, 120), (50, LEAST_PATIENCE_SECONDS)])
def test_a_canary_that_does_not_begin_is_waited_for_with_patience(
    real: RealApi, namespace: str, limit: int, patience: float
) -> None:
    """As one that could not begin when its turn came, and is not asked about again in this run."""
    add_nodes(real, ["n0", "n1"])
    rollout = rollout_of(hosts(2), canaries="every_kind", limit=2)
    other = rollout.units[1].hosts[0]
    budget, clock = waiting(real, namespace)
    assert budget.wait(asked_as(other), rollout, limit, 10).may_start
    assert patience < clock.passed < patience + 20


def test_jobs_are_counted_by_what_restarts(real: RealApi, namespace: str) -> None:
    def pod(name: str, on: str, gpus: int = 1, owner: str = "ReplicaSet", **labels: str) -> None:
        path = "/api/v1/namespaces/%s/pods" % namespace
        real.client().create(path, {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": owner, "name": "web", "uid": "u", "controller": True}]},
            "spec": {"nodeName": on, "containers": [{"name": "c", "image": "i", "resources": {
                "limits": {"nvidia.com/gpu": gpus} if gpus else {}}}]}})

    add_nodes(real, ["n0", "n1", "n2"])
    for number in range(3):
        pod("t-%d" % number, "n%d" % (number % 2), **{"training.kubeflow.org/job-name": "train"})
    pod("web-1", "n2")
    pod("web-2", "n2")
    pod("agent", "n2", owner="DaemonSet")
    pod("none", "n1", gpus=0)
    budget = budget_of(real.client(), namespace)
    jobs = {"n0": [namespace + "/train"], "n1": [namespace + "/train"], "n2": [namespace + "/ReplicaSet/web"]}
    assert budget.jobs([]) == (jobs, {})
    assert budget.jobs(["training.kubeflow.org/job-name"]) == (
        jobs, {"n0": namespace + "/train", "n1": namespace + "/train"})


def test_a_job_whose_gpus_go_by_claims_is_one(api: Api) -> None:
    label = "training.kubeflow.org/job-name"
    api.state.pods = [cluster_objects.pod("rank-%s" % on, gpus=0, node_name=on, labels={label: "llama"})
                      for on in ("n0", "n1", "n2")]
    for each, name in zip(api.state.pods, ("n0", "n1")):
        each["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "eight"}]
        each["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "llama-" + name}]
    jobs = {"n0": ["team/llama"], "n1": ["team/llama"]}
    budget = budget_of(Client(Connection(kubeconfig=str(api.kubeconfig))), "gpuops")
    assert budget.jobs([label]) == (jobs, {"n0": "team/llama", "n1": "team/llama"})


TAINT = "gpuops.nvidia.com/not-ready"


@pytest.mark.parametrize("change, state", [
    ({}, NodeState("n", domain="z1")),
    ({"status": {"conditions": []}}, NodeState("n", ready=False, domain="z1")),
    ({"spec": {"unschedulable": True}}, NodeState("n", cordoned_by=OTHERS, domain="z1")),
    ({"spec": {"unschedulable": True}, "annotations": {"gpuops.nvidia.com/cordoned-by": "gpuops"}},
     NodeState("n", ours=True, domain="z1")),
    ({"spec": {"unschedulable": True}, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "gpuops", "gpuops.nvidia.com/cordon-reason": "Failed: Xid 79. Held by run a"}},
     NodeState("n", ours=True, kept=True, domain="z1")),
    ({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}, NodeState("n", in_service=False, domain="z1")),
    ({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}, NodeState("n", domain="z1")),
    ({"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]},
      "annotations": {"gpuops.nvidia.com/tainted": TAINT}},
     NodeState("n", domain="z1")),
    ({"labels": {"nvidia.com/gpu.clique": "c.1"}}, NodeState("n", domain="z1", clique="c.1")),
    ({"labels": {"nvidia.com/gpu.present": ""}}, None),
    ({"status": {**node("n")["status"], "capacity": {"nvidia.com/mig-1g.10gb": "0"}}},
     NodeState("n", domain="z1", had_gpus=True)),
    ({"status": {**node("n")["status"], "capacity": {"nvidia.com/rdma": "0"}}}, NodeState("n", domain="z1")),
    ({"labels": {"nvidia.com/gpu.product": "NVIDIA-H200"}}, NodeState("n", domain="z1")),
    ({"labels": {"nvidia.com/cuda.driver-version.full": "580.1"}}, NodeState("n", domain="z1", had_gpus=True)),
    ({"annotations": {"gpuops.nvidia.com/labels": '{"nvidia.com/gpu.deploy.dcgm-exporter": "true"}'}},
     NodeState("n", domain="z1", had_gpus=True)),
    ({"annotations": {"gpuops.nvidia.com/labels": '{"nvidia.com/mig.config.state": "failed"}'}},
     NodeState("n", domain="z1")),
])
def test_what_a_node_says(change: Dict[str, Any], state: Optional[NodeState]) -> None:
    read = {**node("n"), **{name: part for name, part in change.items() if name in ("spec", "status")}}
    read["metadata"] = {"name": "n", "annotations": change.get("annotations", {}), "labels": {
        "nvidia.com/gpu.present": "true", "topology.kubernetes.io/zone": "z1", **change.get("labels", {})}}
    assert node_state(read, NodeReading(startup_taint=TAINT)) == state
    assert node_state(read, NodeReading(startup_taint=TAINT), ["n"]) is not None


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("metadata, taint, words", [
    ({}, "karpenter.sh/disrupted", "Karpenter, which is replacing the node (taint karpenter.sh/disrupted)"),
    ({}, "ToBeDeletedByClusterAutoscaler", "the cluster autoscaler, which is removing the node (taint "
     "ToBeDeletedByClusterAutoscaler)"),
    ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "", "somebody who is deleting the Node (deletionTimestamp "
     "2026-01-01T00:00:00Z)"),
    ({"labels": {"nvidia.com/gpu-driver-upgrade-state": "upgrade-required"}}, "", ""),
])
def test_a_node_that_another_manager_takes_away_is_out_of_service_by_others(
    metadata: Dict[str, Any], taint: str, words: str, ours: bool
) -> None:
    """It takes a place as a cordon does; what only waits for its turn there is a mark alone."""
    spec = {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else [], "unschedulable": ours}
    annotations = {"gpuops.nvidia.com/cordoned-by": "gpuops"} if ours else {}
    read = {**node("n"), "spec": spec, "metadata": {"name": "n", "annotations": annotations, **metadata}}
    state = node_state(read, NodeReading(marks=on_node), ["n"])
    assert state is not None and state.ours == ours and len(state.marks) == 1
    assert state.cordoned_by == ("" if ours else words)


def test_a_node_that_lost_gpus_is_not_well() -> None:
    read = {**node("n"), "status": {**node("n")["status"], "capacity": {"nvidia.com/gpu": "8"},
                                    "allocatable": {"nvidia.com/gpu": "7"}}}
    state = node_state(read, NodeReading())
    assert state is not None and "nvidia.com/gpu: 7 of 8" in state.unhealthy
