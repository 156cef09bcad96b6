# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A few storms; `make soak` has two hundred. And that a storm would tell what it is for."""
from __future__ import annotations

from typing import Iterator, List

import pytest
from fleet_storm import Admin, Bed, Seen, judge

US, KUBECTL = "fieldManager=gpuops-run-1", "fieldManager=kubectl-cordon"
# Two and three controllers; one that is killed, one that stands still, an API server that goes
SEEDS = (pytest.param(3, marks=pytest.mark.variation), 8)
HOSTS = 5


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("storms"))
    try:
        bed.start()
        yield bed
    finally:
        bed.stop()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_is_changed_to_its_end_in_bad_weather(bed: Bed, seed: int) -> None:
    told = bed.storm(seed, HOSTS)

    assert any("pods were evicted" in line for line in told)


def free(name: str, version: int, zone: str = "a", by: str = US) -> Seen:
    return Seen(by, name, zone, version, cordoned=False, ours=False, others=False, reason="")


def taken(name: str, version: int, zone: str = "a", reason: str = "being changed") -> Seen:
    return Seen(US, name, zone, version, cordoned=True, ours=True, others=False, reason=reason)


def theirs(name: str, version: int) -> Seen:
    return Seen(KUBECTL, name, "a", version, cordoned=True, ours=False, others=True, reason="")


@pytest.mark.parametrize("versions, wrong", (
    ([taken("n1", 1), taken("n2", 2, "b"), free("n1", 3), taken("n3", 4)], []),
    ([taken("n1", 1), taken("n2", 2, "b"), taken("n3", 3, "c")], ["3 of 2 are out of service: n1, n2, n3"]),
    ([taken("n1", 1), taken("n2", 2)], ["2 of 1 of zone a"]),
    ([theirs("n1", 1), free("n1", 2)], ["a cordon of others is gone"]),
    ([theirs("n1", 1), free("n1", 2, by="/api/v1/nodes/n1?" + Admin.UNCORDONS)], []),
    ([taken("n1", 1, reason="")], ["cordoned, and nobody is told why"]),
), ids=("in turn", "too many", "too many of a zone", "not ours", "an admin's own", "without a reason"))
def test_what_went_wrong_is_told(versions: List[Seen], wrong: List[str]) -> None:
    found = judge(versions, limit=2, of_zone=1)

    assert len(found) == len(wrong)
    assert all(words in line for words, line in zip(wrong, found))
