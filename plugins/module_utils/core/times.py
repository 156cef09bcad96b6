# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Moments as Kubernetes writes them (RFC 3339, in UTC, whole seconds or six decimals). Pure."""
from __future__ import annotations

import calendar
import time

_WHOLE = "%Y-%m-%dT%H:%M:%S"


def epoch(text: str) -> float:
    """Seconds since the epoch. Raises ValueError for what is no such moment."""
    whole, point, decimals = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, _WHOLE)) + float("0." + decimals if point else 0)


def written(moment: float) -> str:
    """A moment in whole seconds. moment: seconds since the epoch."""
    return time.strftime(_WHOLE + "Z", time.gmtime(moment))
