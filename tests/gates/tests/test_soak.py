# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Campaigns: a seed is a case, a case is run once, and one that failed says how to repeat it."""
from __future__ import annotations

import contextlib
from argparse import Namespace
from pathlib import Path
from typing import Iterator, List

import host_cuts
import pytest
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
