# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""That a storm would tell what it is for. A few of them are variations; `make soak` has two hundred."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import Iterator, List, Optional

import pytest
from fleet_storm import Admin, Bed, Seen, Stood, judge, judge_end, judge_gates

US, KUBECTL = "fieldManager=gpuops-run-1", "fieldManager=kubectl-cordon"
# Two controllers of which one is killed, a host whose GPUs no container gets, and an API server that hangs and goes;
# three, and one that sheds what they ask; two, and one that dies
SEEDS = (8, 3, 9)
HOSTS, SERVED = 5, 2


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("storms"))
    try:
        bed.start()
        yield bed
    finally:
        bed.stop()


@pytest.mark.variation
@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_is_changed_to_its_end_in_bad_weather(bed: Bed, seed: int) -> None:
    told = bed.storm(seed, HOSTS)

    (evicted,) = re.findall(r"^(\d+) pods were evicted", "\n".join(told), re.MULTILINE)
    assert int(evicted) >= SERVED


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
    ([theirs("n0", 1), taken("n1", 2, "b"), taken("n2", 3, "c")], ["3 of 2 are out of service: n0, n1, n2"]),
    ([theirs("n0", 1), replace(theirs("n0", 2), at="later"), taken("n1", 3)], ["2 of 1 of zone a"]),
    ([theirs("n0", 1), free("n0", 2, by="/api/v1/nodes/n0?" + Admin.UNCORDONS), replace(theirs("n0", 3), at="later"),
      taken("n1", 4)], []),
    ([theirs("n1", 1), free("n1", 2)], ["a cordon of others is gone"]),
    ([theirs("n1", 1), free("n1", 2, by="/api/v1/nodes/n1?" + Admin.UNCORDONS)], []),
    ([taken("n1", 1, reason="")], ["cordoned, and nobody is told why"]),
), ids=("in turn", "too many", "too many of a zone", "beside an admin's",
        "beside an admin's of a zone", "beside one of meanwhile", "not ours", "an admin's own", "without a reason"))
def test_what_went_wrong_is_told(versions: List[Seen], wrong: List[str]) -> None:
    found = judge(versions, limit=2, of_zone=1)

    assert len(found) == len(wrong)
    assert all(words in line for words, line in zip(wrong, found))


def test_what_is_cordoned_before_its_window_opens_is_told() -> None:
    early, late = (replace(taken(name, version), at=at) for name, version, at in (
        ("n1", 1, "2026-07-01T12:00:59.9Z"), ("n2", 2, "2026-07-01T12:01:00.1Z")))
    (found,) = judge([early, replace(early, version=2), late], limit=2, of_zone=2, opens="2026-07-01T12:01")
    assert "version 1 of n1: cordoned at 2026-07-01T12:00:59.9Z, before its window opens" in found


BY_ADMIN = "/api/v1/nodes/n1?" + Admin.UNCORDONS
FAILED = Stood(begun=True, failed="Xid 79")


@pytest.mark.parametrize("versions, host, wrong", (
    ([free("n1", 1)], Stood(), []),
    ([free("n1", 1), taken("n1", 2)], Stood(), []),
    ([free("n1", 1), theirs("n1", 2)], Stood(), []),
    ([free("n1", 1)], Stood(is_promised=True), ["ended well, and it is not done and back"]),
    ([taken("n1", 1)], FAILED, []),
    ([taken("n1", 1), free("n1", 2)], FAILED, ["n1 is in service, though its change failed: Xid 79"]),
    ([free("n1", 1)], FAILED, ["our cordon went by: nothing, there was none"]),
    ([taken("n1", 1), free("n1", 2, by=BY_ADMIN)], FAILED, []),
    ([taken("n1", 1), free("n1", 2, by=BY_ADMIN), theirs("n1", 3)], FAILED, []),
    # He had opened it once, and then we did
    ([taken("n1", 1), free("n1", 2, by=BY_ADMIN), taken("n1", 3), free("n1", 4)], FAILED, ["n1 is in service"]),
    # What could not be drained is as it was
    ([taken("n1", 1), free("n1", 2)], Stood(failed="a budget"), []),
    ([taken("n1", 1)], Stood(begun=True), []),
    ([taken("n1", 1), free("n1", 2)], Stood(begun=True), ["its change came to no end"]),
    ([taken("n1", 1), free("n1", 2)], Stood(begun=True, done=True, is_promised=True), []),
    ([taken("n1", 1), free("n1", 2), theirs("n1", 3)], Stood(begun=True, done=True, is_promised=True), []),
    ([taken("n1", 1)], Stood(begun=True, done=True), []),
    ([taken("n1", 1)], Stood(begun=True, done=True, is_promised=True), ["ended well, and it is not done and back"]),
    ([taken("n1", 1), free("n1", 2)], Stood(begun=True, done=True, failed="not Ready"), ["n1 is in service"]),
    ([taken("n1", 1), free("n1", 2)], Stood(begun=True, done=True, is_broken=True), ["no container gets its"]),
    ([taken("n1", 1)], Stood(begun=True, failed=""), ["the record does not say why"]),
), ids=("left", "killed in its drain", "an admin's", "promised and left", "failed", "failed and opened",
        "failed and never taken", "failed and opened by an admin", "and his", "opened by him, and again by us",
        "not taken", "lost", "lost and opened", "back", "back and cordoned by an admin", "done, and killed",
        "promised and not given back", "failed on its way back and opened", "no container gets its GPUs",
        "no reason"))
def test_how_a_host_may_stand_when_all_runs_have_ended(versions: List[Seen], host: Stood, wrong: List[str]) -> None:
    found = judge_end(versions, {"n1": host})

    assert len(found) == len(wrong)
    assert all(words in line for words, line in zip(wrong, found))


@pytest.mark.parametrize("versions, gate, wrong", (
    ([taken("n1", 1), free("n1", 2)], "1", []),
    ([taken("n1", 1), free("n1", 2)], "nothing", ["n1 offered nothing when its cluster was looked at"]),
    ([taken("n1", 1), free("n1", 2)], None, ["n1 was given back unseen"]),
    ([free("n1", 1)], None, ["n1 was given back unseen"]),
    ([taken("n1", 1), free("n1", 2, by=BY_ADMIN)], None, []),
    ([taken("n1", 1), free("n1", 2, by=BY_ADMIN), taken("n1", 3), free("n1", 4)], None, ["n1 was given back unseen"]),
), ids=("seen", "seen too early", "unseen", "never taken", "opened by an admin", "opened by him, and again by us"))
def test_a_node_that_nobody_looked_at_is_told(versions: List[Seen], gate: Optional[str], wrong: List[str]) -> None:
    assert judge_gates(versions, {"n1": gate}) == wrong
