# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""When the next round of a watch is due, and whether it asks NVML. Pure.

Times are seconds of the clock that begins with the boot, which nobody sets and which goes on while the host is
suspended.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Iterable

from ..hardware.recovery import OUT
from ..health.catalogue import MENDED
from ..health.kernel_log import is_of_driver, parse_record
from ..health.model import ANSWERS, Look, State
from ..health.policy import HealthPolicy

# After a line of the driver, in which the others of the same error come
SETTLING = 1.0
# Between the end of a round and the next one, whatever the log says. Twice as long each time that a line has called for
# a round again: a sick GPU has the driver log something whenever it is asked
PAUSE = 5.0
_MOST_DOUBLED = 10


@dataclass(frozen=True)
class Rounds:
    """What is remembered of the rounds of a watch.

    ended:  when the last one had ended.
    asked:  when the last one that has asked NVML began.
    wants:  whether the next one is to ask NVML, whenever it comes.
    heard:  when the log first said something of the driver since the last one began.
    called: how many one after the other the log has called for.
    """

    ended: float = -math.inf
    asked: float = -math.inf
    wants: bool = True
    heard: float = math.inf
    called: int = 0


def due(rounds: Rounds, policy: HealthPolicy) -> float:
    """When the next round is to begin."""
    times = [rounds.ended + policy.round_seconds, rounds.heard + SETTLING]
    if rounds.asked + policy.nvml_seconds > rounds.ended:
        # Else the last round could not ask it, as a run works on the host, and the next one is early enough
        times.append(rounds.asked + policy.nvml_seconds)
    pause = PAUSE * 2 ** min(max(0, rounds.called - 1), _MOST_DOUBLED)
    return max(min(times), rounds.ended + min(pause, policy.round_seconds))


def asks_nvml(rounds: Rounds, policy: HealthPolicy, now: float) -> bool:
    """Whether a round that begins now asks NVML, which attaches GPUs that nobody uses."""
    return rounds.wants or rounds.heard < math.inf or now >= rounds.asked + policy.nvml_seconds


def after_round(rounds: Rounds, look: Look, state: State, asked: bool, began: float, now: float) -> Rounds:
    """What is remembered once a round has ended. asked: whether it was to ask NVML; where a run works on the host, it
    does not, and the next round is to."""
    # Somebody else's look that was kept since outdoes it
    is_answered = look.nvml is not None and state.asked == look.taken
    return Rounds(ended=now, asked=began if is_answered else rounds.asked, called=_called(rounds),
                  wants=(asked and not is_answered) or wants_nvml(state))


def after_failure(rounds: Rounds, asked: bool, now: float) -> Rounds:
    """The same of one that could not be brought to its end."""
    return Rounds(ended=now, asked=rounds.asked, called=_called(rounds), wants=asked)


def _called(rounds: Rounds) -> int:
    return rounds.called + 1 if rounds.heard < math.inf else 0


def wants_nvml(state: State) -> bool:
    """Whether something is waited for that NVML alone can tell: that a look fails once more, that NVML answers again,
    that a GPU has been mended. What is to be taken out waits for a person."""
    return bool(state.failing) or ANSWERS in state.unknown or any(
        each.kind in MENDED and each.remedy != OUT for each in state.findings.values())


def is_told_of(texts: Iterable[str]) -> bool:
    """Whether records of the kernel's log say something of the driver."""
    records = map(parse_record, texts)
    return any(record is not None and is_of_driver(record) for record in records)
