# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Waiting asks at once, often at first, and once more when the time is over."""
from __future__ import annotations

from typing import List

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for


class Time:
    """A clock that only waiting and asking move; every question takes as long as it is told."""

    def __init__(self, question: float = 0.0) -> None:
        self.now, self.question = 1000.0, question
        self.asked: List[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def ask(self) -> float:
        self.asked.append(self.now - 1000)
        self.now += self.question
        return self.asked[-1]


def test_what_is_there_is_not_waited_for() -> None:
    time = Time()
    assert wait_for(time.ask, lambda _answer: True, 60, 5, time.clock, time.sleep) == (0.0, True)
    assert time.now == 1000


def test_even_without_time_it_is_asked_once() -> None:
    time = Time()
    assert wait_for(time.ask, lambda _answer: False, 0, 5, time.clock, time.sleep) == (0.0, False)
    assert time.asked == [0.0]


def test_the_last_question_is_asked_when_the_time_is_over_and_not_later() -> None:
    time = Time()
    answer, taken = wait_for(time.ask, lambda _answer: False, 60, 5, time.clock, time.sleep)
    assert not taken and answer == time.asked[-1] and 60 <= answer <= 60.05


def test_pauses_grow_up_to_the_longest() -> None:
    time = Time()
    wait_for(time.ask, lambda _answer: False, 300, 5, time.clock, time.sleep)
    pauses = [after - before for before, after in zip(time.asked, time.asked[1:])]
    assert 0.04 < pauses[0] < 0.06 and 4.99 < max(pauses) < 5.01
    assert pauses[:-2] == sorted(pauses[:-2]) and len(pauses) < 110


def test_what_came_while_a_question_took_long_is_not_missed() -> None:
    time = Time(question=100)
    answer, taken = wait_for(time.ask, lambda answer: answer > 0, 60, 5, time.clock, time.sleep)
    assert taken and answer > 100 and len(time.asked) == 2
