# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Placements against all that there are, one by one."""
from __future__ import annotations

import itertools
from typing import List, Optional, Sequence, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mig_boards import WITH_MIG, profiles

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import mig_layout
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import ComputeInstance, GpuInstance, Mig
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Wanted
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.placement import Impossible, arrange


def mig(board: str, *instances: GpuInstance) -> Mig:
    return Mig(True, True, profiles(board), instances)


def ids(board: str, *names: str) -> List[Wanted]:
    by_name = {profile.name: profile for profile in profiles(board)}
    return [Wanted(by_name[name].id, (by_name[name].slices,)) for name in names]


def instance(board: str, name: str, start: int, used: bool = False) -> GpuInstance:
    profile = {profile.name: profile for profile in profiles(board)}[name]
    return GpuInstance(10 + start, profile.id, start, profile.size, (
        ComputeInstance(0, 0, profile.slices, "MIG-%d" % start, (7,) if used else ()),))


def cheapest(there: Mig, wanted: Sequence[Wanted]) -> Optional[Tuple[int, int, int]]:
    """(destroyed in use, calls that destroy, calls that create) by trying every start of every instance."""
    best = None
    here = {(each.profile, each.start): each for each in there.instances}
    for starts in itertools.product(*(there.profile(each.profile).starts for each in wanted)):  # type: ignore[union-attr]
        units = [set(range(start, start + there.profile(each.profile).size))  # type: ignore[union-attr]
                 for each, start in zip(wanted, starts)]
        if len(set().union(*units)) != sum(map(len, units)):
            continue
        left, created = dict(here), 0
        for each, start in zip(wanted, starts):
            if left.pop((each.profile, start), None) is None:
                created += 2
        used = sum(compute.in_use for one in left.values() for compute in one.compute)
        cost = used, 2 * len(left), created
        best = cost if best is None else min(best, cost)
    return best


@pytest.mark.parametrize("board", WITH_MIG)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_other_way_is_cheaper(board: str, data: st.DataObject) -> None:
    plain = [profile for profile in profiles(board) if not profile.attributes.startswith("+me")]
    empty = Mig(True, True, profiles(board))
    drawn = data.draw(st.lists(st.sampled_from(plain), max_size=5))
    try:
        first = arrange(empty, [Wanted(profile.id, (profile.slices,)) for profile in drawn])
    except Impossible:
        first = arrange(empty, [])
    there = mig(board, *(GpuInstance(number, placed.profile, placed.start, placed.size, (
        ComputeInstance(0, 0, placed.compute[0], "MIG-%d" % number, (7,) if data.draw(st.booleans()) else ()),))
        for number, placed in enumerate(first.created)))
    drawn = data.draw(st.lists(st.sampled_from(plain), max_size=5))
    wanted = [Wanted(profile.id, (profile.slices,)) for profile in drawn]
    best = cheapest(there, wanted)
    if best is None:
        with pytest.raises(Impossible) as impossible:
            arrange(there, wanted)
        conflict = impossible.value.conflict
        assert cheapest(there, conflict) is None
        assert all(cheapest(there, [*conflict[:number], *conflict[number + 1:]]) is not None
                   for number in range(len(conflict))), "nothing can be left out of the conflict"
        return
    found = arrange(there, wanted)
    assert (len(found.in_use), sum(1 + len(each.compute) for each in found.destroyed),
            sum(1 + len(each.compute) for each in found.created)) == best


def test_one_slice_first_would_leave_no_room_for_three() -> None:
    """The driver's own choice of places for 1g, 1g, 2g, 3g in this order ends without room (MIG User Guide)."""
    found = arrange(mig("a100-80gb-sxm"), ids("a100-80gb-sxm", "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"))
    assert {placed.start: placed.size for placed in found.created} == {0: 2, 2: 1, 3: 1, 4: 4}


def test_a_used_instance_is_worth_more_than_two_that_nobody_uses() -> None:
    board = "h100-sxm-hgx"
    there = mig(board, instance(board, "1g.10gb", 0, used=True), instance(board, "3g.40gb", 4))
    found = arrange(there, ids(board, "3g.40gb", "1g.10gb"))
    assert [kept.instance.start for kept in found.kept] == [0, 4]
    found = arrange(there, ids(board, "4g.40gb", "1g.10gb"))
    assert (found.created[0].start, len(found.in_use)) == (0, 1), "a 4g has one place"


def test_what_leaves_no_media_engines_for_others_does_not_fit_beside_them() -> None:
    board = "rtx-pro-6000-server"
    arrange(mig(board), ids(board, "1g.24gb+me.all", "1g.24gb-me", "1g.24gb-me"))
    with pytest.raises(Impossible):
        arrange(mig(board), ids(board, "1g.24gb+me.all", "1g.24gb"))
    with pytest.raises(Impossible):
        arrange(mig("h100-sxm-hgx"), ids("h100-sxm-hgx", "1g.10gb+me", "1g.10gb+me"))


@pytest.mark.parametrize("parts, units, expected", [
    ([(0, 2, "2g.20gb"), (2, 1, "1g.10gb"), (4, 4, "3g.40gb")], 8,
     "|2g.20gb        |1g.10gb|.......|3g.40gb                        |"),
    ([], 4, "|....|....|....|....|"),
    ([(0, 3, "1g.24gb+me.all"), (6, 6, "2g.48gb")], 12,
     "|1g.24gb+me.all|....|....|....|2g.48gb                      |"),
])
def test_a_board_is_drawn(parts: List[Tuple[int, int, str]], units: int, expected: str) -> None:
    assert mig_layout.drawn(parts, units) == expected
