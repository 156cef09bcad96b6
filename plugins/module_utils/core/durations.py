# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long steps take, from those of the same kind that the host's journal has seen to their end. Pure.

For people, and for the question whether something ends in time: what is done, and in which order, it never decides.
"""
from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from .plan import Requirement, Step

# Nine of ten were done by then
SHARE = 0.9
# Of one kind, the newest: a machine that is faster now is not held to what it was
MOST_KEPT = 20

Durations = Mapping[str, Sequence[float]]


def kind_of(step: Mapping[str, Any]) -> str:
    """Steps of one kind take about as long, whatever version they are about."""
    return "%s/%s" % (step["capability"], step["action"])


def durations(events: Iterable[Mapping[str, Any]]) -> Dict[str, List[float]]:
    """{kind of a step: seconds that it took, the newest last} of the events of a journal, oldest first.

    A step that was not begun here, or that failed, tells nothing; nor does one that a later run has found done
    ('late'): nobody knows since when it was.
    """
    begun: Dict[str, float] = {}
    found: Dict[str, List[float]] = {}
    for event in events:
        step = event["step"]
        if event["event"] == "started":
            begun[step["id"]] = event["time"]
            continue
        since = begun.pop(step["id"], None)
        if event["event"] == "done" and since is not None and not event.get("late") and event["time"] >= since:
            found[kind_of(step)] = [*found.get(kind_of(step), []), event["time"] - since][-MOST_KEPT:]
    return found


def usual(seconds: Sequence[float]) -> float:
    """What nine of ten did not exceed: the nearest rank."""
    return sorted(seconds)[math.ceil(SHARE * len(seconds)) - 1]


def expected(steps: Iterable[Step], known: Durations) -> Optional[float]:
    """Seconds that these steps are expected to take, one after another; None where one is of a kind that nobody knows.
    """
    total = 0.0
    for step in steps:
        seen = known.get(kind_of(step.to_dict()))
        if not seen:
            return None
        total += usual(seen)
    return total


def expected_of(parts: Iterable[Union[Step, Requirement]], known: Durations) -> Optional[int]:
    """The same of what is done of a plan, in whole seconds; None too where that needs what comes from outside, as a
    reboot."""
    steps = []
    for part in parts:
        if isinstance(part, Requirement):
            return None
        steps.append(part)
    seconds = expected(steps, known)
    return None if seconds is None else math.ceil(seconds)
