# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults at every request of a node's way out of service and back, and the run killed at every request.

What counts is the end: it is that of a run that nobody disturbed, and no cordon of others is ever lifted on the way.
"""
from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional

import pytest
from cluster_api import Api, Fault
from cluster_objects import node
from custody_bed import COMPLETIONS, NAMESPACE, NODE, WAYS, Bed, Killed, kill
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection

FAULTS = ("429", "409", "500", "503", "504", "reset", "lost")
KINDS = {"Node": ("v1", "nodes", False), "Machine": ("cluster.x-k8s.io/v1beta1", "machines", True)}
MACHINE = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine",
           "metadata": {"name": "m", "namespace": "default"}, "spec": {}}
OF_MACHINE = {"cluster.x-k8s.io/machine": "m", "cluster.x-k8s.io/cluster-namespace": "default"}


class Disturbed:
    """The same way again and again, each time on a server of the same state."""

    def __init__(self, directory: Path, way: Callable[[Bed, str], None], cordoned: bool) -> None:
        self.api, self.way, self.cordoned = Api(directory), way, cordoned
        store = self.api.state.store = Store(more=KINDS)
        for name in (NAMESPACE, "default"):
            store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        store.put(node(NODE, annotations=OF_MACHINE), "kubelet")
        store.put(MACHINE)
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


@pytest.fixture(params=[
    pytest.param((way, cordoned), id="%s, %s" % (way, "cordoned" if cordoned else "open"),
                 marks=[pytest.mark.variation] if cordoned and way != "out and back" or way == "out and failed" else [])
    for way in WAYS for cordoned in (False, True)])
def disturbed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disturbed]:
    way, cordoned = request.param
    made = Disturbed(tmp_path, WAYS[way], cordoned)
    yield made
    made.api.close()


def test_the_end_is_the_beginning(disturbed: Disturbed) -> None:
    bed = disturbed.begin()
    assert disturbed.end == disturbed.seen(bed)
    assert disturbed.requests > 15


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


def test_killed_at_any_request_and_completed_by_another_run(disturbed: Disturbed) -> None:
    """Before the request is sent or after it was carried out, and completed in one way or the other, in turn."""
    for number in range(1, disturbed.requests + 1):
        bed = disturbed.begin()
        kill(bed.client, number, number % 2 == 0)
        with pytest.raises(Killed):
            disturbed.way(bed, "a")
        next_run = disturbed.bed()
        assert not (disturbed.cordoned and next_run.is_open()), number
        COMPLETIONS[number // 2 % 2](next_run)
        assert disturbed.seen(next_run) == disturbed.end, number
