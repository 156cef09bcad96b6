# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Moments as Kubernetes writes them (RFC 3339, in UTC, whole seconds or six decimals), and the clock of the boot.

That clock is set by nobody, and goes on while the host is suspended (clock_gettime(2), CLOCK_BOOTTIME).
"""
from __future__ import annotations

import calendar
import os
import time

_WHOLE = "%Y-%m-%dT%H:%M:%S"


def epoch(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for what is no such moment."""
    whole, point, decimals = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, _WHOLE)) + float("0." + decimals if point else 0)


def written(moment: float) -> str:
    """A moment in whole seconds. moment: seconds since the epoch."""
    return time.strftime(_WHOLE + "Z", time.gmtime(moment))


def since_boot() -> float:
    """Seconds since the boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def since_start(started: str) -> float:
    """Seconds since a process started. started: clock ticks from the boot to it (proc_pid_stat(5), starttime)."""
    return since_boot() - int(started) / os.sysconf("SC_CLK_TCK")


def of_boot() -> float:
    """When the boot was, in seconds since the epoch by the clock as it is set now."""
    return time.time() - since_boot()
