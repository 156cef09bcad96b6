# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A clock for what waits, so that no test does."""
from __future__ import annotations

from typing import Callable


class Time:
    """A clock that only sleeping moves. asleep: called after each sleep with the time then."""

    def __init__(self, asleep: Callable[[float], None] = lambda now: None) -> None:
        self.now = 0.0
        self._asleep = asleep

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self._asleep(self.now)
