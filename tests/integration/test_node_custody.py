# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Custody on a real API server, whose book of fields says whose a cordon is. No host: a Node is an object."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import pytest
from api_proxy import TOKEN, Proxy
from laboratory import new_lab
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import leases
from gpulab.lab import Lab
from gpulab.topology import parse

sys.path.insert(0, str(REPOSITORY / "tests" / "unit" / "cluster"))

from custody_bed import COMPLETIONS, NAMESPACE, NODE, PATH, WAYS, Bed, Killed, kill  # noqa: E402
from custody_cases import (  # noqa: E402, F401
    TestAdmitting,
    TestAStoppedRun,
    TestOptOuts,
    TestOthersAtWork,
    TestReturning,
    TestTaking,
    TestTwoRuns,
    TestUnwinding,
    TestWhoseCordon,
)

FAULTS = ("429", "409", "500", "503", "504", "reset", "lost")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = new_lab("custody")
    made.up(parse({"name": "custody", "control_plane": True, "hosts": []}, __file__))
    plane = made.control_plane
    assert plane is not None
    plane.leave_nodes_alone()
    yield made
    made.down()


@pytest.fixture
def bed(lab: Lab) -> Bed:
    return fresh(Bed(Client(Connection(kubeconfig=str(lab.kubeconfig)))))


def fresh(bed: Bed) -> Bed:
    """With a new Node that has our labels and no Lease."""
    for path in (PATH, leases.path_of(NAMESPACE, NODE)):
        try:
            bed.client.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise
    bed.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {
        "name": NODE, "labels": {"kubernetes.io/hostname": NODE}}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "reason": "KubeletReady",
             "lastHeartbeatTime": "2026-07-01T12:00:00Z", "lastTransitionTime": "2026-07-01T12:00:00Z"}]}})
    bed.give_back("earlier")
    return bed


class TestTheBookOfFields:
    """Which the double has only as far as these say."""

    def test_kubectl_itself_cordons_and_uncordons_as_the_tests_do(self, lab: Lab, bed: Bed) -> None:
        bed.take("a")
        lab.kubectl(["cordon", NODE])
        bed.give_back("a")
        assert bed.is_open(), "kubectl sent nothing about a node that was cordoned"
        lab.kubectl(["cordon", NODE])
        assert bed.take("b")["cordoned_by_others"] in (["kubectl-cordon"], ["kubectl"]), "by its release"
        bed.give_back("b")
        assert not bed.is_open()
        lab.kubectl(["uncordon", NODE])
        bed.take("c")
        lab.kubectl(["uncordon", NODE])
        assert bed.is_open() and bed.give_back("c")["notes"] == [
            "node gpu-1 was uncordoned by somebody else before it was given back"]

    def test_a_node_that_is_removed_meanwhile_is_not_made_anew_by_us(self, lab: Lab, bed: Bed) -> None:
        """A server-side apply makes what is not there."""
        real = bed.client.apply

        def apply(*arguments: Any, **options: Any) -> Any:
            if bed.client.find(PATH):
                lab.kubectl(["delete", "node", NODE])
            return real(*arguments, **options)

        bed.client.apply = apply  # type: ignore[method-assign]
        with pytest.raises(Exception, match=r"\[cluster\.(no_such_node|request_refused|custody_lost)\]"):
            bed.take("a")
        assert bed.client.find(PATH) is None


@pytest.mark.parametrize("way", [
    pytest.param(way, marks=[pytest.mark.variation] if way in ("taken over", "out and failed") else [])
    for way in WAYS])
def test_a_fault_at_any_request_changes_nothing_of_the_end(lab: Lab, bed: Bed, way: str, tmp_path: Path) -> None:
    with Proxy(lab) as proxy:
        def through(**_options: Any) -> Bed:
            made = Bed(Client(Connection(host=proxy.url, api_key=TOKEN), sleep=lambda seconds: None))
            made.time = bed.time
            return made

        def go() -> Dict[str, Any]:
            fresh(bed)
            WAYS[way](through(), "a")
            return bed.end()

        proxy.spoil("")
        wanted = go()
        for number in range(1, len(proxy.seen) + 1):
            proxy.spoil(FAULTS[number % len(FAULTS)], number)
            assert go() == wanted, number


@pytest.mark.parametrize("way", ["out and back", pytest.param("taken over", marks=pytest.mark.variation)])
def test_killed_at_any_request_and_completed_by_another_run(lab: Lab, bed: Bed, way: str) -> None:
    def next_bed() -> Bed:
        return Bed(Client(Connection(kubeconfig=str(lab.kubeconfig))))

    WAYS[way](bed, "a")
    wanted, number = bed.end(), 0
    ended = False
    while not ended:
        number += 1
        complete: Callable[[Bed], Any] = COMPLETIONS[number % 2]
        disturbed = next_bed()
        fresh(disturbed)
        kill(disturbed.client, number, number % 3 == 0)
        try:
            WAYS[way](disturbed, "a")
            ended = True
        except Killed:
            pass
        complete(next_bed())
        assert bed.end() == wanted, number
    assert number > 20
