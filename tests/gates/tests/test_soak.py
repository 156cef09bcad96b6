# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Campaigns: a seed is a case, a case is run once, and one that failed says how to repeat it."""
from __future__ import annotations

import contextlib
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, Iterator, List

import api_proxy
import host_cuts
import pytest
import request_faults
import soak
from campaigns import Campaign


class Toy:
    """A campaign whose odd seeds fail, and what becomes of it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path))
        self.worlds = 0
        self.ran: List[int] = []
        self.results: soak.Results = {}
        self.options = Namespace(seed=1, count=4, again=False, results=tmp_path / "results.json")

    @contextlib.contextmanager
    def world(self, scratch: Path) -> Iterator[int]:
        self.worlds += 1
        yield self.worlds

    def case(self, world: int, seed: int) -> List[str]:
        self.ran.append(seed)
        assert seed % 2 == 0, "odd"
        if seed == 4:
            raise OSError("the world ended")
        return ["even in world %d" % world]

    def run(self, deadline: float = 1e12) -> List[str]:
        campaign = Campaign("a toy", 9, self.world, self.case)
        return list(soak.run("toy", campaign, self.options, self.results, deadline))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    return Toy(tmp_path, monkeypatch)


def test_every_case_has_a_result_and_is_not_run_again(toy: Toy) -> None:
    told = toy.run()
    assert [line.splitlines()[0].split(" (")[0] for line in told] == [
        "toy 1: FAILED", "toy 2: passed", "toy 3: FAILED", "toy 4: FAILED"]
    assert [case["passed"] for case in toy.results["toy"].values()] == [False, True, False, False]
    assert "the world ended" in toy.results["toy"]["4"]["error"]
    assert toy.options.results.is_file()
    assert (toy.run(), toy.ran) == ([], [1, 2, 3, 4])


def test_only_what_was_not_judged_ends_a_world(toy: Toy) -> None:
    toy.options.seed, toy.options.count = 1, 3
    toy.run()
    assert toy.worlds == 1
    toy.options.seed = 4
    toy.run()
    assert toy.worlds == 3


def test_no_case_begins_after_the_time(toy: Toy) -> None:
    assert toy.run(deadline=1e-9) == ["toy: the time is over; 0 of 4 cases have a result"]
    assert toy.ran == []


def test_a_seed_draws_the_same_cut_again_and_seeds_reach_every_event() -> None:
    pace = (2.0, 2.5, 40.0)
    cuts = [host_cuts.draw(seed, "install", pace) for seed in range(100)]
    assert cuts == [host_cuts.draw(seed, "install", pace) for seed in range(100)]
    assert {cut.events for cut in cuts} == {0, 1, 2}
    assert {cut.kind for cut in cuts} == set(host_cuts.KINDS)
    for cut in cuts:
        assert 0 <= cut.seconds <= (2.0, 0.5, 37.5)[cut.events]


READS = [("GET", "/api/v1/nodes?limit=500"), ("GET", "/api/v1/nodes/a"), ("POST", "/reviews"), ("POST", "/reviews")]
REQUESTS = [*READS, ("PATCH", "/api/v1/nodes/a"), ("DELETE", "/api/v1/namespaces/gpuops"), *READS * 30]


def test_the_cases_of_requests_together_reach_every_request_by_every_kind() -> None:
    """But conflicts who writes nothing, and 410 who does not list."""
    everything = list(range(1, len(REQUESTS) + 1))
    met = {"409": [5, 6], "410": [number for number in everything if "limit" in REQUESTS[number - 1][1]]}
    for kind in request_faults.KINDS:
        for shared in (True, False):
            cases = [case for case in request_faults.CASES if (case.kind, case.shared) == (kind, shared)]
            found = [number for case in cases for number in case.numbers(REQUESTS)]
            assert sorted(found) == met.get(kind.name, everything), kind.name
    assert len(set(map(str, request_faults.CASES))) == len(request_faults.CASES)


# Those that count are 1, 2, 3, 4, 5 and 6
SENT = [("GET", "/a"), ("GET", "/a"), ("POST", "/reviews"), ("POST", "/reviews"), ("GET", "/b?limit=5"),
        ("GET", "/b?limit=5"), ("PATCH", "/a"), ("DELETE", "/a")]


@pytest.mark.parametrize("kind, number, lasting, spoiled", [
    ("", 1, False, []), ("503", 2, False, [2]), ("503", 3, False, [3]), ("503", 4, True, [4, 5, 6, 7]),
    ("409", 2, False, []), ("409", 6, False, [7]), ("410", 1, False, []), ("410", 4, False, [4]),
    ("lost", 5, False, [6]), ("500", 0, False, [0, 2, 4, 6, 7]), ("409", 0, False, [6]),
])
def test_a_proxy_counts_what_is_asked_again_as_one(
        kind: str, number: int, lasting: bool, spoiled: List[int]) -> None:
    """Who waits for something asks for it again, and not equally often in each run."""
    proxy = api_proxy.Proxy(None)  # type: ignore[arg-type]
    proxy.spoil(kind, number, lasting)
    found = [place for place, request in enumerate(SENT) if proxy.takes(*request)]
    assert (found, proxy.met, len(proxy.seen)) == (spoiled, bool(spoiled), 6)
    proxy.spoil("")
    assert (proxy.takes(*SENT[0]), proxy.met, len(proxy.seen)) == (False, False, 1)


def test_objects_are_compared_without_what_is_new_each_time() -> None:
    def made(time: str, manager: str = "gpuops", label: str = "a") -> Dict[str, Any]:
        return {"kind": "configmaps", "data": {"a": "b"}, "status": {"seen": time}, "metadata": {
            "name": "x", "namespace": "y", "uid": time, "resourceVersion": time, "creationTimestamp": time,
            "labels": {"l": label}, "managedFields": [
                {"manager": "kubectl", "operation": "Update", "time": time},
                {"manager": manager, "operation": "Apply", "time": time},
                {"manager": "kubelet", "operation": "Update", "subresource": "status", "time": time}]}}

    def apart(*arguments: str) -> List[str]:
        return list(request_faults.differences({"x": request_faults.steady(made("1"))},
                                               {"x": request_faults.steady(made(*arguments))}))

    assert (apart("2"), apart("2", "other"), apart("2", "gpuops", "b")) == (
        [], ["x: metadata: managedFields"], ["x: metadata: labels: l"])
    assert request_faults.differences({"a": 1}, {"b": {"c": 1}}) == {"a": (1, None), "b": (None, {"c": 1})}


def test_what_a_run_says_at_its_end_names_what_to_do() -> None:
    well = request_faults.WELL_TOLD
    assert well.search("Found: no answer. Wanted: one. Do: look. [cluster.no_answer]")
    assert not well.search("HTTPError 503") and not well.search("Found: x. Wanted: y. [cluster.no_answer]")
