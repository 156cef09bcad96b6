# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A unit that makes anew at every boot what a boot loses, by a script of its own. Pure."""
from __future__ import annotations

from typing import Iterable, List, Mapping, Optional, Sequence

from .plan import Disruption, Step
from .steps import file_step, managed, service_step


def unit_text(
    description: str, after: Iterable[str], before: Iterable[str], script: str, job_seconds: int, start_seconds: int
) -> str:
    """The unit's file. job_seconds: that it may hold up what comes after; start_seconds: that the script may take."""
    return managed("\n".join([
        "[Unit]",
        "Description=" + description,
        "After=" + " ".join(after),
        "Before=" + " ".join(before),
        "ConditionPathExists=/proc/driver/nvidia/version",
        # A process that hangs in the driver outlives every signal, and what comes after must not wait for it
        "JobRunningTimeoutSec=%ds" % job_seconds,
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "ExecStart=/bin/sh " + script,
        "TimeoutStartSec=%ds" % start_seconds,
        "TimeoutStopSec=10s",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]) + "\n")


def unit_steps(
    capability: str, unit: str, wanted: Mapping[str, Optional[str]], there: Mapping[str, Optional[str]], enabled: bool,
    why: str, first: str = "the container runtime"
) -> List[Step]:
    """From what is there of script and unit to what is wanted of them: {path: text}, None for all where there is to be
    no unit. enabled: whether a boot starts it now; first: what it runs before."""
    is_wanted = any(text is not None for text in wanted.values())
    steps = [] if is_wanted else disabling(capability, unit, enabled)
    steps += [file_step(capability, path, there.get(path), text, why) for path, text in wanted.items()
              if there.get(path) != text]
    if is_wanted and not enabled:
        steps.append(service_step(capability, "enable", unit, "It runs before %s at every boot." % first,
                                  Disruption.none, "not enabled", "enabled", tuple(step.id for step in steps)))
    return steps


def removal(capability: str, unit: str, enabled: bool, restore: Sequence[Step]) -> List[Step]:
    return [*disabling(capability, unit, enabled), *restore]


def disabling(capability: str, unit: str, enabled: bool) -> List[Step]:
    return [service_step(capability, "disable", unit, "It has nothing to do any more.", Disruption.none, "enabled",
                         "not enabled")] if enabled else []
