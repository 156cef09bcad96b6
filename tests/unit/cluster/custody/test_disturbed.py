# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults at every request of a node's way out of service and back, and the run killed or stopped at every request.

What counts is the end: it is that of a run that nobody disturbed, and no cordon of others is ever lifted on the way.
"""
from __future__ import annotations

import contextlib
import copy
import itertools
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from cluster_api import Api, Fault
from cluster_objects import node
from custody_bed import (
    ADMITTING,
    COMPLETIONS,
    NAMESPACE,
    NODE,
    NOT_READY,
    WAYS,
    Bed,
    Killed,
    kill,
    refused,
)
from custody_cases import out, overtaken
from object_store import Store
from store_client import StoreClient, no_answer

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import OUR_LABELS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

FAULTS = ("429", "409", "500", "503", "504", "reset", "lost")
KINDS = {"Node": ("v1", "nodes", False), "Machine": ("cluster.x-k8s.io/v1beta1", "machines", True)}
MACHINE = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine",
           "metadata": {"name": "m", "namespace": "default"}, "spec": {}}
OF_MACHINE = {"cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"}


def store_with_a_machine() -> Store:
    store = Store(more=KINDS)
    for name in (NAMESPACE, "default"):
        store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.put(node(NODE, annotations=OF_MACHINE), "kubelet")
    store.put(MACHINE)
    return store


class Disturbed:
    """The same way again and again, each time on a server of the same state."""

    def __init__(self, directory: Path, way: Callable[[Bed, str], None], cordoned: bool) -> None:
        self.api, self.way, self.cordoned = Api(directory), way, cordoned
        store = self.api.state.store = store_with_a_machine()
        bed = self.bed()
        bed.give_back("earlier")
        if cordoned:
            bed.cordon()
        self.first = copy.deepcopy(store)
        bed = self.begin()
        way(bed, "a")
        self.requests, self.end = len(self.api.state.requests), self.seen(bed)

    def bed(self) -> Bed:
        return Bed(Client(Connection(kubeconfig=str(self.api.kubeconfig)), sleep=lambda seconds: None))

    def begin(self, fault: Optional[Fault] = None) -> Bed:
        self.api.state.store = copy.deepcopy(self.first)
        self.api.state.requests.clear()
        self.api.state.fault = fault
        return self.bed()

    def seen(self, bed: Bed) -> Dict[str, Any]:
        assert self.api.state.store is not None
        return {**bed.end(), "all": self.api.state.store.snapshot()}


def each_way(*longer: str) -> List[Any]:
    """longer: ways that take long, and are variations too."""
    def marks(way: str, cordoned: bool) -> List[Any]:
        is_variation = cordoned and way != "out and back" or way in ("out and failed", *longer)
        return [pytest.mark.variation] if is_variation else []

    return [pytest.param((way, cordoned), id="%s, %s" % (way, "cordoned" if cordoned else "open"),
                         marks=marks(way, cordoned)) for way in WAYS for cordoned in (False, True)]


@pytest.fixture(params=each_way())
def disturbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disturbed]:
    way, cordoned = request.param
    made = Disturbed(tmp_path, WAYS[way], cordoned)
    yield made
    made.api.close()


def test_the_end_is_the_beginning(disturbed: Disturbed) -> None:
    bed = disturbed.begin()
    assert disturbed.end == disturbed.seen(bed)
    assert disturbed.requests > 15


@pytest.mark.parametrize("disturbed", each_way("taken over"), indirect=True)
def test_a_fault_at_any_request_changes_nothing_of_the_end(disturbed: Disturbed) -> None:
    for number in range(1, disturbed.requests + 1):
        bed = disturbed.begin(Fault(FAULTS[number % len(FAULTS)], number))
        disturbed.way(bed, "a")
        assert disturbed.seen(bed) == disturbed.end, number


@pytest.mark.parametrize("kind", [kind for kind in FAULTS if kind != "409"])
def test_nor_does_one_at_every_request_once(disturbed: Disturbed, kind: str) -> None:
    bed = disturbed.begin(Fault(kind))
    disturbed.way(bed, "a")
    assert disturbed.seen(bed) == disturbed.end


# A third of the requests has every way of being killed and of being completed, too
@pytest.mark.parametrize("first", [1, *(pytest.param(number, marks=pytest.mark.variation) for number in (2, 3))])
def test_killed_at_any_request_and_completed_by_another_run(disturbed: Disturbed, first: int) -> None:
    """Before the request is sent or after it was carried out, and completed in one way or the other, in turn."""
    for number in range(first, disturbed.requests + 1, 3):
        bed = disturbed.begin()
        kill(bed.client, number, number % 2 == 0)
        with pytest.raises(Killed):
            disturbed.way(bed, "a")
        next_run = disturbed.bed()
        assert not (disturbed.cordoned and next_run.is_open()), number
        COMPLETIONS[number // 2 % 2](next_run)
        assert disturbed.seen(next_run) == disturbed.end, number


# What becomes of a node that the run b has taken over
ENDS: Dict[str, Callable[[Bed], None]] = {
    "at work": out, "completed": overtaken, "failed": lambda bed: overtaken(bed, "xid 79")}


@pytest.fixture
def first() -> Store:
    """With a node that nobody has, whose labels are ours."""
    store = store_with_a_machine()
    Bed(StoreClient(store)).give_back("earlier")
    return store


def as_site_does(bed: Bed, *failures: str) -> Dict[str, Any]:
    """A change, with what follows where a task of it fails; the answer of the last task that succeeded."""
    told: Dict[str, Any] = {"custody": "not taken"}
    try:
        told = bed.take("a")
        bed.custody("a").renew(NODE)
        told = bed.admit("a")
        if failures:
            raise GpuOpsError("validation.failed", "; ".join(failures), "a node that is well", "see to it")
        return bed.give_back("a", was_taken=True)
    except GpuOpsError as error:
        codes = [error.code]
    if told["custody"] != "not taken":
        acts: List[Callable[[], Dict[str, Any]]] = [
            lambda: bed.custody("a").renew(NODE), lambda: bed.give_back("a", "it failed", was_taken=True)]
        if told["custody"] == "admitted":
            acts.insert(1, lambda: bed.retake("a"))
        for act in acts:
            try:
                told = told if "cluster.custody_lost" in codes else act()
            except GpuOpsError as error:
                codes.append(error.code)
    return told


def without_claims_of(run: str, bed: Bed, store: Store) -> Dict[str, Any]:
    """What there is of a node, but for what this run says of it."""
    end = bed.end()
    machine = store.get("Machine", "default", "m")
    assert machine
    return {**end, "claims": [each for each in end["claims"] if each != "gpuops-custody-" + run],
            "holder": bed.holder(), "machine": machine["metadata"].get("annotations")}


def stopped(store: Store, number: int, ends: str, act: Callable[[Bed], Any], run: str) -> Optional[bool]:
    """Whether what another run made of a node is there yet once a run goes on that was stopped before a request.

    None where it sends no such request, or does not have the node then, or has it no more.
    """
    client, other, seen = StoreClient(store), Bed(StoreClient(store)), []  # type: ignore[var-annotated]
    bed = Bed(client)
    other.time = bed.time

    def stop(sent: int) -> None:
        if sent == number and other.holder() == run + "@ctrl-1":
            ENDS[ends](other)
            seen.append(without_claims_of(run, other, store))

    client.before = stop
    act(bed)
    return without_claims_of(run, other, store) == seen[0] if seen else None


@pytest.mark.parametrize("failures", [pytest.param((), marks=pytest.mark.variation), ("xid 13",)],
                         ids=["well", "failed"])
@pytest.mark.parametrize("ends", ENDS)
def test_stopped_at_any_request_it_leaves_the_node_to_the_run_that_has_had_it_since(
    first: Store, ends: str, failures: Tuple[str, ...]
) -> None:
    found = {number: stopped(copy.deepcopy(first), number, ends, lambda bed: as_site_does(bed, *failures), "a")
             for number in range(1, 85)}
    assert [number for number, is_left in found.items() if is_left is False] == []
    assert len([is_left for is_left in found.values() if is_left]) > 30


@pytest.mark.parametrize("carried_out", [False, True], ids=["lost", "carried out"])
def test_a_node_that_is_open_is_never_told_as_failed_whichever_request_has_no_answer(
    first: Store, carried_out: bool
) -> None:
    before, became = Bed(StoreClient(copy.deepcopy(first))).end(), set()
    for number in itertools.count(1):
        store = copy.deepcopy(first)
        client, away = StoreClient(store), []  # type: ignore[var-annotated]

        def cut(sent: int, number: int = number, away: List[int] = away) -> None:
            if sent == number:
                away.append(sent)
                raise no_answer()

        client.after, client.before = (cut, client.before) if carried_out else (client.after, cut)
        told = as_site_does(Bed(client))
        bed = Bed(StoreClient(store))
        end = bed.end()
        became.add(told["custody"])
        if told["custody"] == "kept":
            assert not bed.is_open() and NOT_READY in bed.taints(), number
            assert not ADMITTING.keys() & bed.node()["metadata"]["labels"].keys(), number
        else:
            assert {**end, "lease": False} == before, number
        if told["custody"] == "returned" and end["lease"]:
            assert "the Lease of node gpu-1 is left to run out, and to the next run: no answer" in told["notes"], number
            Bed(StoreClient(store)).give_back("next")
            end = without_claims_of("next", Bed(StoreClient(store)), store)
            assert {key: end[key] for key in before} == before and not end["machine"], number
        if not away:
            break
    assert became == {"not taken", "kept", "returned"}


def test_a_write_that_nobody_answers_is_not_tried_for_long(first: Store) -> None:
    client, tried = StoreClient(copy.deepcopy(first)), []  # type: ignore[var-annotated]

    def apply(*_arguments: Any, **_options: Any) -> Any:
        tried.append(True)
        raise no_answer()

    client.apply = apply  # type: ignore[method-assign]
    error = refused("cluster.no_answer", Bed(client).take, "a")
    assert len(tried) == 1 and error.details["remains"] == []


@pytest.mark.parametrize("there", ["unlabelled", "labelled", "failed before"])
def test_who_finds_a_host_converged_leaves_its_node_to_the_run_that_takes_it_meanwhile(
    first: Store, there: str
) -> None:
    if there == "unlabelled":
        Bed(StoreClient(first)).write("kubectl", labels=dict.fromkeys(ADMITTING), annotations={OUR_LABELS: None})
    elif there == "failed before":
        bed = Bed(StoreClient(first))
        bed.take("z")
        bed.give_back("z", "xid 13", was_taken=True)
    found = 0
    for number in itertools.count(1):
        store, seen = copy.deepcopy(first), []  # type: ignore[var-annotated]
        client, other = StoreClient(store), Bed(StoreClient(store))
        bed = Bed(client)
        other.time = bed.time

        def taken(sent: int, number: int = number, seen: List[Any] = seen, other: Bed = other,
                  store: Store = store) -> None:
            if sent == number:
                out(other)
                seen.append(without_claims_of("s", other, store))

        client.before = taken
        with contextlib.suppress(GpuOpsError):
            bed.give_back("s", wait=0.0)
        if not seen:
            break
        assert without_claims_of("s", other, store) == seen[0], number
        found += 1
    assert found > 1
