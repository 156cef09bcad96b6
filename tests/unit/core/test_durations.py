# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long steps are expected to take, of what a journal has seen."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from core_world import WISHES, furnish, run
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.durations import (
    MOST_KEPT,
    durations,
    expected,
    expected_of,
    usual,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Requirement, Step

BUILD = Step("driver", "dkms.build", "6.1.0-56", "It has none.")
LOAD = Step("activation", "module.load", "nvidia", "It is not loaded.")


def events(*told: Tuple[str, Step, float], **more: Any) -> List[Dict[str, Any]]:
    return [dict(more, event=event, step=step.to_dict(), time=at) for event, step, at in told]


def test_a_step_took_from_its_beginning_to_its_end() -> None:
    newer = Step("driver", "dkms.build", "6.1.0-57", "It has none.")
    assert durations(events(("started", BUILD, 10.0), ("started", LOAD, 12.0), ("done", LOAD, 13.0),
                            ("done", BUILD, 40.0), ("started", newer, 100.0), ("done", newer, 150.0))) == {
        "driver/dkms.build": [30.0, 50.0], "activation/module.load": [1.0]}


@pytest.mark.parametrize("told", [
    events(("done", BUILD, 40.0)),
    events(("satisfied", BUILD, 40.0)),
    events(("started", BUILD, 10.0), ("failed", BUILD, 40.0), ("done", BUILD, 50.0)),
    events(("started", BUILD, 10.0), ("superseded", BUILD, 40.0)),
    events(("started", BUILD, 10.0), ("done", BUILD, 4000.0), late=True),
    events(("started", BUILD, 10.0), ("done", BUILD, 9.0)),
])
def test_what_nobody_has_seen_whole_tells_nothing(told: List[Dict[str, Any]]) -> None:
    assert durations(told) == {}


def test_a_step_that_is_begun_again_took_as_long_as_the_last_time() -> None:
    assert durations(events(("started", BUILD, 10.0), ("started", BUILD, 100.0), ("done", BUILD, 103.0))) == {
        "driver/dkms.build": [3.0]}


def test_what_was_long_ago_is_forgotten() -> None:
    told = [event for each in range(100) for event in events(("started", BUILD, each * 10.0), (
        "done", BUILD, each * 10.0 + each / 10))]
    assert durations(told)["driver/dkms.build"] == [pytest.approx(each / 10) for each in range(100 - MOST_KEPT, 100)]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_nine_of_ten_did_not_take_longer(seconds: List[float]) -> None:
    found = usual(seconds)
    assert found in seconds
    assert sum(each <= found for each in seconds) >= 0.9 * len(seconds)
    assert sum(each < found for each in seconds) < 0.9 * len(seconds)


def test_a_sum_is_known_where_every_part_of_it_is() -> None:
    known = {"driver/dkms.build": [30.0, 20.0], "activation/module.load": [1.5]}
    assert expected([BUILD, LOAD, BUILD], known) == 61.5 and expected_of([BUILD, LOAD], known) == 32
    assert expected([], {}) == 0 and expected([BUILD, LOAD], {"driver/dkms.build": [30.0]}) is None
    assert expected_of([BUILD, Requirement("driver", "reboot", "kernel", "It is not running.")], known) is None


def test_a_run_is_in_the_journal_with_its_times(tmp_path: Path) -> None:
    furnish(tmp_path)
    applied = run(str(tmp_path), **WISHES["install"]).apply().applied
    found = Journal(Host(str(tmp_path))).durations()
    assert applied and sum(map(len, found.values())) == len(applied)
    assert all(0 <= each < 60 for seconds in found.values() for each in seconds)


def test_a_step_that_a_later_run_has_found_done_is_told_so(tmp_path: Path) -> None:
    """As where a machine lost power: it is not told how long that took."""
    furnish(tmp_path)
    killed = run(str(tmp_path), **WISHES["install"])
    plan = killed.preview().plan
    killed._execute(plan.steps[0], plan, "p")
    assert run(str(tmp_path), **WISHES["install"]).apply().applied[0] == plan.steps[0].id
    journal = Journal(Host(str(tmp_path)))
    ends = {event["step"]["id"]: event.get("late") for event in journal.events() if event["event"] == "done"}
    assert ends == {step.id: True if step is plan.steps[0] else None for step in plan.steps}
    assert sum(map(len, journal.durations().values())) == len(plan.steps) - 1
