# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""When a request to the API server is sent once more, and after how long. Pure but for the clock.

A server that is busy (429), restarts (a closed connection, 503) or has lost its etcd for a moment (500, 504) answers
the next request. Sent again is only what may be done twice: reading, server-side apply, deletion and eviction of one
uid, a patch of one version, dry runs.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Callable, FrozenSet, Mapping, Optional

# What says nothing of the request itself. 429 and 503 may name a time in Retry-After.
PASSING = frozenset((429, 500, 502, 503, 504))
BUSY = frozenset((429,))
CONFLICT = 409

ATTEMPTS = 6
# Seconds in which a request is begun again; the last answer is the error after that.
LIMIT_SECONDS = 90.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 20.0


@dataclass(frozen=True)
class Repetition:
    """What a request may be sent again for. statuses: of HTTP; lost: when the connection broke before an answer."""

    statuses: FrozenSet[int] = frozenset()
    lost: bool = False


ALWAYS = Repetition(PASSING, lost=True)
# A server-side apply that met another writer: the server would merge it with what is there now.
MERGED = Repetition(PASSING | {CONFLICT}, lost=True)
# An eviction of one uid. 429 is a disruption budget's answer and 500 that of two budgets: its caller tells them from
# others, and asks again in his own time.
EVICTED = Repetition(PASSING - BUSY - {500}, lost=True)
# Turned away at the door, so that nothing of it was done.
UNDONE = Repetition(BUSY)


class Attempts:
    """The attempts of one request."""

    def __init__(self, repetition: Repetition, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self._repetition = repetition
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._made = 1

    def again_after(self, status: int, headers: Mapping[str, str]) -> bool:
        """True, after a pause, where an answer of this status is no reason to give up."""
        return status in self._repetition.statuses and self._paused(retry_after(headers))

    def again_lost(self) -> bool:
        """True, after a pause, where the request may be sent again although what became of it is unknown."""
        return self._repetition.lost and self._paused(None)

    def _paused(self, asked_for: Optional[float]) -> bool:
        pause = FIRST_PAUSE_SECONDS * 2 ** (self._made - 1) if asked_for is None else asked_for
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        if self._made >= ATTEMPTS or self._clock() + pause - self._began > LIMIT_SECONDS:
            return False
        self._made += 1
        self._sleep(pause)
        return True


def retry_after(headers: Mapping[str, str]) -> Optional[float]:
    """Seconds; None where the server names none, or a date, which API servers do not send."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None
