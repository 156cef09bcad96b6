# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How far a run is with its hosts, in a line where the change of one begins or ends. Pure.

What a host is at in between, core/progress.py says. All times are seconds since the epoch, by the controller's clock.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ..core.progress import clock, duration


@dataclass(frozen=True)
class Change:
    """Of a host. ended: None while it is at work."""

    host: str
    begun: float
    ended: Optional[float] = None
    failed: bool = False

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Change:
        return cls(str(data["host"]), float(data["begun"]), data["ended"], bool(data["failed"]))


def begins(change: Change, others: Iterable[Change], hosts: int, seconds: Optional[float]) -> str:
    """hosts: how many are to be changed, 0 where nobody knows. seconds: how long this one is expected to take."""
    number = 1 + sum(other.host != change.host for other in others)
    return "%s: its change begins%s%s" % (
        change.host, " (%d of %d)" % (number, hosts) if hosts else "",
        ", expected until %s" % clock(change.begun + seconds, change.begun) if seconds is not None else "")


def ends(change: Change, others: Iterable[Change], hosts: int) -> str:
    """The same where it has ended. By when the rest is, follows from how many have ended since the first began."""
    ended = change.ended if change.ended is not None else change.begun
    known = [change, *(other for other in others if other.host != change.host)]
    over = [each for each in known if each.ended is not None]
    failed = sum(each.failed for each in over)
    told: List[str] = ["%s: %s %s" % (change.host, "failed after" if change.failed else "done in",
                                      duration(ended - change.begun)),
                       "%d of %d done" % (len(over) - failed, max(hosts, len(known)))]
    if failed:
        told.append("%d failed" % failed)
    left = hosts - len(over)
    if left > 0 and not failed:
        pace = (ended - min(each.begun for each in known)) / len(over)
        told.append("the rest expected until %s" % clock(ended + left * pace, ended))
    return "; ".join(told[:1] + [", ".join(told[1:])])
