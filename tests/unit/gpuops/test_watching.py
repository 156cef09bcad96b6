# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""When the next round of a watch is, and whether NVML is asked in it."""
from __future__ import annotations

import math
from typing import Any, List, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops.watching import (
    PAUSE,
    SETTLING,
    Rounds,
    after_failure,
    after_round,
    asks_nvml,
    due,
    is_told_of,
    wants_nvml,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import Finding, Moment, Subject
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import (
    ANSWERS,
    LOG,
    Failing,
    Look,
    State,
    Unknown,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy, policy_of

POLICY = HealthPolicy(round_seconds=60, nvml_seconds=240)
QUIET = Rounds(ended=1000.0, asked=990.0, wants=False)
AT = Moment(0.0, "boot")


def quiet(**changes: Any) -> Rounds:
    return Rounds(**{"ended": 1000.0, "asked": 990.0, "wants": False, **changes})


def look(is_answered: bool = True) -> Look:
    return Look(taken=1, at=1.0, boot="boot", nvml=NvmlReading() if is_answered else None)


def test_a_round_that_another_look_has_outdone_has_asked_nobody() -> None:
    rounds = after_round(QUIET, look(), State(rounds=1, asked=0), True, 1072.0, 1073.0)
    assert (rounds.asked, rounds.wants) == (990.0, True)


def finding(kind: str, remedy: str) -> State:
    each = Finding(Subject("gpu", "GPU-1"), "nvml", "code", kind, remedy, "text", AT, AT)
    return State(rounds=1, findings={each.key: each})


@pytest.mark.parametrize("rounds, when", [
    (Rounds(), -math.inf),
    (QUIET, 1060.0),
    (quiet(heard=1030.0), 1030.0 + SETTLING),
    (quiet(heard=1000.5), 1000.0 + PAUSE),
    (quiet(heard=1001.0, called=1), 1000.0 + PAUSE),
    (quiet(heard=1001.0, called=3), 1000.0 + 4 * PAUSE),
    (quiet(heard=1001.0, called=1000), 1060.0),
    (quiet(heard=1059.9, called=4), 1060.0),
    # When NVML is due there is a round, so that its answers are never older
    (quiet(asked=800.0), 1040.0),
    (quiet(asked=761.0), 1000.0 + PAUSE),
    # It was due in the last round, in which a run worked on the host
    (quiet(asked=700.0), 1060.0),
    (quiet(asked=-math.inf), 1060.0),
])
def test_a_round_is_due_by_time_or_by_the_log(rounds: Rounds, when: float) -> None:
    assert due(rounds, POLICY) == pytest.approx(when)


@pytest.mark.parametrize("rounds, now, asks", [
    (Rounds(), 5.0, True), (QUIET, 1060.0, False), (QUIET, 1229.9, False), (QUIET, 1230.0, True),
    (quiet(wants=True), 1060.0, True), (quiet(heard=1030.0), 1031.0, True)])
def test_nvml_is_asked_when_it_is_time_when_it_is_wanted_and_when_the_driver_has_logged(
    rounds: Rounds, now: float, asks: bool
) -> None:
    assert asks_nvml(rounds, POLICY, now) is asks


def test_a_round_that_asked_in_vain_has_the_next_one_ask() -> None:
    """As while a run works on the host, which must not find its GPU in use."""
    rounds = after_round(quiet(heard=1010.0), look(False), State(rounds=1), True, 1011.0, 1012.0)
    assert (rounds.asked, rounds.wants, rounds.heard) == (990.0, True, math.inf)
    rounds = after_round(rounds, look(), State(rounds=1, asked=1), True, 1072.0, 1073.0)
    assert (rounds.asked, rounds.wants, rounds.called) == (1072.0, False, 0)


def test_a_round_that_was_not_to_ask_leaves_when_it_was_asked() -> None:
    rounds = after_round(QUIET, look(False), State(rounds=1), False, 1060.0, 1060.5)
    assert (rounds.asked, rounds.wants) == (990.0, False)


def test_a_round_that_failed_is_repeated_in_time_and_asks_again() -> None:
    rounds = after_failure(quiet(heard=1010.0), True, 1015.0)
    assert (rounds.wants, due(rounds, POLICY)) == (True, 1075.0)


def seen(lines: List[float], seconds: float, lasts: float = 2.0) -> List[Tuple[float, bool]]:
    """(when, whether NVML is asked) of the rounds within so many seconds, where the driver logs at those times."""
    rounds, told = Rounds(), []
    waiting = sorted(lines)
    now = 0.0
    while True:
        heard = next((line for line in waiting if line >= now), math.inf)
        if heard < due(rounds, POLICY):
            rounds = quiet(**{**vars(rounds), "heard": min(rounds.heard, heard)})
        now = max(now, due(rounds, POLICY))
        if now > seconds:
            return told
        asks = asks_nvml(rounds, POLICY, now)
        told.append((now, asks))
        rounds = after_round(rounds, look(asks), State(rounds=1, asked=1), asks, now, now + lasts)
        now += lasts


def test_on_a_quiet_host_nvml_is_asked_every_four_minutes_and_the_rest_every_minute() -> None:
    found = seen([], 3600)
    assert 14 <= sum(asks for _when, asks in found) <= 16
    assert 57 <= len(found) <= 75
    asked = [when for when, asks in found if asks]
    assert all(later - earlier <= POLICY.nvml_seconds for earlier, later in zip(asked, asked[1:]))


def test_a_storm_makes_few_rounds_and_its_first_line_makes_one_at_once() -> None:
    found = [when for when, _asks in seen([100 + number / 10 for number in range(36000)], 3700)]
    begun = next(when for when in found if when >= 100)
    assert begun <= 100 + PAUSE + SETTLING
    assert all(later - earlier >= PAUSE for earlier, later in zip(found, found[1:]))
    assert len(found) < 75


def test_after_a_storm_a_line_is_heard_at_once_again() -> None:
    found = [when for when, _asks in seen([100 + number for number in range(600)] + [1000.0], 1100)]
    assert any(1000.0 < when <= 1000.0 + PAUSE + SETTLING for when in found)


@pytest.mark.parametrize("state, wanted", [
    (State(rounds=1), False), (finding("warning", ""), False), (finding("sick", "out"), False),
    (finding("sick", "reset"), True), (finding("pending", "reset"), True),
    (State(rounds=1, failing={"x": Failing(1, 0.0)}), True),
    (State(rounds=1, unknown={ANSWERS: Unknown(0.0, "no driver")}), True),
    (State(rounds=1, unknown={LOG: Unknown(0.0, "no log")}), False)])
def test_what_only_nvml_can_tell_is_asked_for_in_each_round(state: State, wanted: bool) -> None:
    assert wants_nvml(state) is wanted


@pytest.mark.parametrize("text, told", [
    ("3,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, gone", True),
    ("3,1,5,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal", True),
    ("6,1,5,-;eth0: link up\n SUBSYSTEM=net", False), ("3,1,5,-;usb: NVR", False), ("", False), ("NVRM", False),
    # A program may write there too
    ("12,1,5,-;NVRM: Xid (PCI:0000:3b:00): 79, gone", False)])
def test_only_what_the_driver_says_wakes_it(text: str, told: bool) -> None:
    assert is_told_of(["6,0,1,-;Linux", text]) is told


@pytest.mark.parametrize("given", [
    {"nvml_seconds": 300}, {"nvml_seconds": 200, "stale_seconds": 200}, {"round_seconds": 300}, {"stale_seconds": 60}])
def test_what_is_asked_more_seldom_than_it_goes_stale_is_refused(given: Any) -> None:
    with pytest.raises(GpuOpsError) as caught:
        policy_of(given)
    assert caught.value.code == "health.policy_not_understood" and "stale_seconds" in caught.value.wanted
