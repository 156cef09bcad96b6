# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which remedy a part gets next. Pure.

A finding's own remedy first. What was tried on the same part as often as the policy lets within its time is not tried
again: the next rung that there is on this host comes then, and after the last one the part is to be taken out. Whatever
an attempt was made for, and however it ended, it counts: a part that needs the same again and again is broken.
"""
from __future__ import annotations

from typing import Collection, Iterable

from ..hardware.recovery import LADDER, NONE, OUT, POWER_CYCLE, REBOOT, RELOAD
from .attempts import Attempt

# Done to the whole host
OF_HOST = (RELOAD, REBOOT, POWER_CYCLE)


def next_rung(
    remedy: str, part: str, tried: Iterable[Attempt], there: Collection[str], tries: int, since: float
) -> str:
    """remedy: what the finding asks for. part: key of its subject. tried: attempts, without one that is at hand.

    there:  rungs that there are for this part on this host.
    tries:  how often each is tried. since: from when on attempts count, in seconds since 1970. One of the future, by a
            clock that was wrong, counts.
    """
    if remedy in (NONE, OUT):
        return remedy
    counted = list(tried)
    return next((rung for rung in LADDER[LADDER.index(remedy):]
                 if rung == OUT or (rung in there and _times(rung, part, counted, since) < tries)), OUT)


def number_of(rung: str, part: str, tried: Iterable[Attempt], since: float) -> int:
    """Which try of a rung on a part is the next one, from 1."""
    return 1 + _times(rung, part, tried, since)


def _times(rung: str, part: str, tried: Iterable[Attempt], since: float) -> int:
    """How often a rung was tried on a part. However often it was written down for one boot, or one load, it came once.
    """
    mine = [attempt for attempt in tried if attempt.time > since and attempt.rung == rung and part in attempt.keys]
    return len({(each.boot, each.load if rung == RELOAD else "") for each in mine}) if rung in OF_HOST else len(mine)


def is_out(part: str, tried: Iterable[Attempt], found: float) -> bool:
    """Whether a part was found to be beyond repair while what is found of it was so already. Neither time nor a reboot
    takes that back; who releases the finding does. found: since when it is so."""
    return any(attempt.rung == OUT and part in attempt.keys and attempt.time >= found for attempt in tried)
