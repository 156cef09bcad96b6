# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A line where the change of a host begins or ends."""
from __future__ import annotations

import time
from typing import Iterator

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.course import Change, begins, ends

NINE = 1800000000.0


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In which it is nine o'clock then."""
    monkeypatch.setenv("TZ", "Etc/GMT-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_change_that_begins() -> None:
    change, other = Change("gpu-1", NINE), Change("gpu-2", NINE - 60)
    assert begins(change, [], 0, None) == "gpu-1: its change begins"
    assert begins(change, [other], 80, 840) == "gpu-1: its change begins (2 of 80), expected until 09:14"
    assert begins(change, [change, other], 80, None) == "gpu-1: its change begins (2 of 80)"
    assert begins(change, [], 1, 86400) == "gpu-1: its change begins (1 of 1), expected until 2027-01-16 09:00"


def test_a_change_that_ends() -> None:
    change, at_work = Change("gpu-1", NINE - 600, NINE), Change("gpu-2", NINE - 300)
    assert ends(change, [at_work], 3) == "gpu-1: done in 10 min 0 s; 1 of 3 done, the rest expected until 09:20"
    over = Change("gpu-2", NINE - 900, NINE - 300)
    assert ends(change, [over], 4) == "gpu-1: done in 10 min 0 s; 2 of 4 done, the rest expected until 09:15"
    assert ends(change, [over], 2) == "gpu-1: done in 10 min 0 s; 2 of 2 done"
    assert ends(change, [], 0) == "gpu-1: done in 10 min 0 s; 1 of 1 done"


def test_after_a_failure_nobody_says_when_it_is_over() -> None:
    failed = Change("gpu-1", NINE - 90, NINE, failed=True)
    assert ends(failed, [Change("gpu-2", NINE - 900, NINE - 300)], 4) == (
        "gpu-1: failed after 1 min 30 s; 1 of 4 done, 1 failed")


def test_it_survives_being_a_file() -> None:
    for change in (Change("gpu-1", NINE), Change("gpu-1", NINE, NINE + 1, True)):
        assert Change.from_dict(change.to_dict()) == change
