# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which remedy comes next: never a lower one than the finding's own, never one that the host has not, never one more
often than it may be tried, and in the end the part is to be taken out."""
from __future__ import annotations

import itertools
from dataclasses import replace
from typing import FrozenSet, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import LADDER, OUT
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import (
    BEGUN,
    DONE,
    FAILED,
    Attempt,
    Part,
    has_come,
    is_at_hand,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.ladder import next_rung, number_of

NOW, DAY = 1_700_000_000.0, 86400.0
GPU, OTHER = "gpu GPU-0", "gpu GPU-1"
ACTS = LADDER[1:-1]


BOOTS = itertools.count()


def attempt(rung: str, *parts: str, ago: float = 60, boot: str = "", end: str = DONE) -> Attempt:
    """In a boot of its own, where none is said."""
    return Attempt(1, rung, boot or "boot %d" % next(BOOTS), "load", NOW - ago, "somebody",
                   tuple(map(Part, parts or (GPU,))), (), end)


def after(remedy: str, *tried: Attempt, there: str = "service reset board_reset reboot", tries: int = 2) -> str:
    return next_rung(remedy, GPU, tried, there.split(), tries, NOW - DAY)


@pytest.mark.parametrize("remedy, tried, comes", [
    ("reset", [], "reset"),
    ("reset", [attempt("reset")], "reset"),
    ("reset", [attempt("reset"), attempt("reset")], "board_reset"),
    ("reset", [attempt("reset"), attempt("reset", ago=DAY + 1)], "reset"),
    ("reset", [attempt("reset"), attempt("reset", OTHER)], "reset"),
    ("reset", [attempt("reset", GPU, OTHER), attempt("reset", OTHER, GPU)], "board_reset"),
    ("reset", [attempt("reset", end=FAILED), attempt("reset", end=BEGUN)], "board_reset"),
    ("reset", [attempt("reset", ago=-3600), attempt("reset", ago=-3600)], "board_reset"),
    ("reset", [attempt("reboot"), attempt("reboot")], "reset"),
    ("service", [attempt("service")] * 2, "reset"),
    ("board_reset", [attempt("board_reset")] * 2, "reboot"),
    ("reload", [], "reboot"),
    ("reboot", [attempt("reboot"), attempt("reboot")], "out"),
    ("reboot", [attempt("reset")] * 9, "reboot"),
    ("out", [], "out"),
    ("", [attempt("reset")] * 2, ""),
])
def test_what_comes_next(remedy: str, tried: List[Attempt], comes: str) -> None:
    assert after(remedy, *tried) == comes


def test_with_one_try_the_second_is_the_next_rung() -> None:
    assert after("reset", attempt("reset"), tries=1) == "board_reset"


def test_what_the_host_has_not_is_passed_over() -> None:
    assert after("reset", there="reboot") == "reboot"
    assert after("reset", there="") == "out"
    assert after("reboot", attempt("reboot"), attempt("reboot"), there="reboot power_cycle") == "power_cycle"


@given(st.sampled_from(ACTS), st.frozensets(st.sampled_from(ACTS)), st.integers(1, 4))
def test_whoever_stays_sick_climbs_to_the_end_and_never_down(remedy: str, there: FrozenSet[str], tries: int) -> None:
    tried: List[Attempt] = []
    comes = []
    while not comes or comes[-1] != OUT:
        comes.append(next_rung(remedy, GPU, tried, there, tries, NOW - DAY))
        tried.append(attempt(comes[-1]))
        assert len(comes) <= 1 + tries * len(ACTS), "it goes on for ever"
    assert [LADDER.index(rung) for rung in comes] == sorted(LADDER.index(rung) for rung in comes)
    assert set(comes) - {OUT} == {rung for rung in there if LADDER.index(rung) >= LADDER.index(remedy)}
    assert all(comes.count(rung) == tries for rung in set(comes) - {OUT})


@given(st.sampled_from(ACTS), st.frozensets(st.sampled_from(ACTS)), st.lists(
    st.tuples(st.sampled_from(ACTS), st.sampled_from([GPU, OTHER]), st.floats(-DAY, 3 * DAY))))
def test_whatever_was_tried_what_comes_is_there_and_no_less_than_asked(
    remedy: str, there: FrozenSet[str], tried: List[tuple[str, str, float]]
) -> None:
    known = [attempt(rung, part, ago=ago) for rung, part, ago in tried]
    comes = next_rung(remedy, GPU, known, there, 2, NOW - DAY)
    assert comes == OUT or (comes in there and LADDER.index(comes) >= LADDER.index(remedy))
    assert comes == OUT or number_of(comes, GPU, known, NOW - DAY) <= 2
    mine = [each for each in known if GPU in each.keys and each.time > NOW - DAY]
    assert comes == next_rung(remedy, GPU, mine, there, 2, NOW - DAY), "what others had, or had before, counts"


def test_what_came_once_counts_once_however_often_it_was_written_down() -> None:
    """Another part got sick before the boot came, and a boot is one for all of them."""
    there = "reset reload reboot"
    boots = [attempt("reboot", boot="one"), attempt("reboot", GPU, OTHER, boot="one")]
    assert after("reboot", *boots, there=there) == "reboot" and number_of("reboot", GPU, boots, NOW - DAY) == 2
    assert after("reboot", *boots, attempt("reboot", boot="two"), there=there) == OUT
    loads = [replace(attempt("reload", boot="one"), load=load) for load in ("first", "first", "second")]
    assert after("reload", *loads[:2], there=there) == "reload" and after("reload", *loads, there=there) == "reboot"
    resets = [attempt("reset", boot="one"), attempt("reset", boot="one")]
    assert after("reset", *resets, there=there) == "reload", "each of these was one"


@pytest.mark.parametrize("rung, boot, end, at_hand, over", [
    ("reboot", "now", BEGUN, True, False),
    ("reboot", "before", BEGUN, False, True),
    ("reboot", "before", DONE, False, False),
    ("power_cycle", "now", BEGUN, True, False),
    ("reset", "now", BEGUN, False, False),
    ("reset", "before", BEGUN, False, False),
])
def test_a_reboot_is_at_hand_until_the_boot_is_another(
    rung: str, boot: str, end: str, at_hand: bool, over: bool
) -> None:
    found = attempt(rung, boot=boot, end=end)
    assert (is_at_hand(found, "now", "load"), has_come(found, "now", "load")) == (at_hand, over)


@pytest.mark.parametrize("boot, load, at_hand", [
    ("now", "one", True), ("now", "", True), ("now", "two", False), ("before", "one", False)])
def test_a_load_is_at_hand_until_there_is_another(boot: str, load: str, at_hand: bool) -> None:
    """Of a reload no more is known while no driver is loaded, and a boot loads it in any case."""
    found = replace(attempt("reload", boot=boot, end=BEGUN), load="one")
    assert (is_at_hand(found, "now", load), has_come(found, "now", load)) == (at_hand, not at_hand)
