# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Maintenance windows and freezes: when a change may start. Pure; what time it is comes in.

A window begins at a time of its zone's wall clock, on days of that zone's calendar, and lasts so many real hours: on
the nights on which clocks change it shows an hour more or less, and still lasts as long. Whatever is compared is UTC. A
start that the clock leaps over is the instant after the leap; of one that it shows twice, the first counts.

Closed unless open: where a window is configured, a host for which none holds stays closed. Only without any window is
it always open. In a freeze it is closed whatever the windows say.

For the controller alone, Python 3.10 or newer: no code of a host imports this package. Zones are those of the standard
library's zoneinfo (see policy.py).
"""
from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Iterable, List, Optional, Sequence, Tuple

from ..core.progress import duration

UTC = timezone.utc
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# A fifth one is not in every month: who writes it means the last
ORDINALS = {"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "last": -1}
# What lies further ahead is not looked for: nobody waits so long
HORIZON = timedelta(days=366)
# From one start to the next at most: from a 2nd Saturday to the next there are 28 or 35 days. And a day for zones
_LONGEST_PAUSE = 37
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Day:
    """A day of the week, or of those of a month one. weekday: 0 is Monday. nth: 1 to 4, -1 the last; 0 is each."""

    weekday: int
    nth: int = 0

    def includes(self, day: date) -> bool:
        if day.weekday() != self.weekday:
            return False
        if self.nth == -1:
            return (day + timedelta(days=7)).month != day.month
        return self.nth in (0, (day.day + 6) // 7)


@dataclass(frozen=True)
class Opening:
    """From start, which is in it, to end, which is not; both in UTC."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Window:
    """A time in which changes may be made, again and again.

    days:     those on which it begins, by the calendar of the zone.
    start:    by the clock of the zone.
    duration: real time.
    groups:   host groups that it holds for; () holds for all hosts.
    """

    days: Tuple[Day, ...]
    start: time
    duration: timedelta
    zone: tzinfo
    groups: Tuple[str, ...] = ()

    def openings_at(self, at: datetime) -> List[Opening]:
        """Those that an instant is in. Of several days they may overlap."""
        return [opening for opening in self._openings(at - self.duration, self.duration.days + 2)
                if opening.start <= at < opening.end]

    def opening_after(self, at: datetime) -> Opening:
        """The first one that begins later than this instant."""
        return next(opening for opening in self._openings(at, _LONGEST_PAUSE) if opening.start > at)

    def _openings(self, since: datetime, days: int) -> Iterable[Opening]:
        """Those that begin on the day of an instant, the one before, or so many after it; by their start."""
        first = since.astimezone(self.zone).date() - timedelta(days=1)
        for number in range(days + 2):
            day = first + timedelta(days=number)
            if any(each.includes(day) for each in self.days):
                start = first_instant(datetime.combine(day, self.start), self.zone)
                yield Opening(start, start + self.duration)


@dataclass(frozen=True)
class Freeze:
    """A time in which nothing is changed. zone: that of its dates, for people. groups: as a window's."""

    start: datetime
    end: datetime
    reason: str
    zone: tzinfo
    groups: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Windows:
    """What a policy says of times, for all hosts."""

    windows: Tuple[Window, ...] = ()
    freezes: Tuple[Freeze, ...] = ()

    def calendar(self, groups: Sequence[str] = ()) -> Calendar:
        """What holds for hosts that are in these groups."""
        def held(mine: Tuple[str, ...]) -> bool:
            return not mine or bool(set(mine).intersection(groups))

        return Calendar(tuple(window for window in self.windows if held(window.groups)),
                        tuple(freeze for freeze in self.freezes if held(freeze.groups)), always=not self.windows)


@dataclass(frozen=True)
class Calendar:
    """When hosts of the same groups may be changed. Instants are aware; a naive one is a ValueError.

    always: whether it is open outside freezes, since no window is configured for any host.
    """

    windows: Tuple[Window, ...] = ()
    freezes: Tuple[Freeze, ...] = ()
    always: bool = True

    def is_open(self, at: datetime) -> bool:
        _refuse_naive(at)
        return self.freeze_at(at) is None and (self.always or bool(self._openings_at(at)))

    def may_start(self, at: datetime, end: datetime) -> bool:
        """Whether what starts at this instant and is expected to end at that one may: it is open all the while."""
        if end < at:
            raise ValueError("a change ends before it starts: %s, %s" % (at, end))
        return self.is_open(at) and self._open_until(at, end) >= end

    def closes(self, at: datetime) -> Optional[datetime]:
        """Until when it stays open; the instant itself where it is closed, None where nothing ends it in a year."""
        if not self.is_open(at):
            return at
        until = self._open_until(at, at + HORIZON)
        return until if until < at + HORIZON else None

    def next_opening(self, at: datetime) -> Optional[datetime]:
        """From when it is open: the instant itself where it is; None where no window holds, ever."""
        _refuse_naive(at)
        moment = at
        while True:
            freeze = self.freeze_at(moment)
            if freeze is not None:
                moment = freeze.end
            elif self.always or self._openings_at(moment):
                return moment
            elif self.windows:
                moment = min(window.opening_after(moment).start for window in self.windows)
            else:
                return None

    def next_start(self, at: datetime, lasting: timedelta) -> Optional[datetime]:
        """From when what lasts so long may start; None where it may not within a year."""
        moment = self.next_opening(at)
        while moment is not None and moment <= at + HORIZON:
            until = self._open_until(moment, moment + lasting)
            if until >= moment + lasting:
                return moment
            moment = self.next_opening(until)
        return None

    def freeze_at(self, at: datetime) -> Optional[Freeze]:
        """The one that an instant is in, of several that which ends last."""
        return max((freeze for freeze in self.freezes if freeze.start <= at < freeze.end),
                   key=lambda freeze: freeze.end, default=None)

    def freeze_from(self, at: datetime) -> Optional[Freeze]:
        """The one that begins at an instant."""
        return next((freeze for freeze in self.freezes if freeze.start == at), None)

    def zone_at(self, at: datetime) -> tzinfo:
        """In which to tell people of an instant: that of a window which is open then or closes then, else of any."""
        near = [window.zone for moment in (at, at - _SECOND) for window in self.windows if window.openings_at(moment)]
        return [*near, *(each.zone for each in self.windows), *(each.zone for each in self.freezes), UTC][0]

    def _openings_at(self, at: datetime) -> List[Opening]:
        return [opening for window in self.windows for opening in window.openings_at(at)]

    def _open_until(self, at: datetime, limit: datetime) -> datetime:
        """The end of what is open at this instant, or the limit where that comes first. Openings that touch are one."""
        limit = min([limit, *(freeze.start for freeze in self.freezes if freeze.start > at)])
        reached = limit if self.always else at
        while reached < limit:
            openings = self._openings_at(reached)
            if not openings:
                break
            reached = max(opening.end for opening in openings)
        return min(reached, limit)


@dataclass(frozen=True)
class Answer:
    """Whether a change may start at an instant.

    until: when it closes, None where it does not within a year, or where the change may not start.
    opens: when a change of this length may start; None where it may not within a year.
    why:   for people, in local time and UTC.
    """

    allowed: bool
    until: Optional[datetime]
    opens: Optional[datetime]
    why: str


def next_start(calendars: Sequence[Calendar], at: datetime, lasting: timedelta) -> Optional[datetime]:
    """From when what lasts so long may start under all of these; None where it may not within a year."""
    moment = at
    while moment <= at + HORIZON:
        before = moment
        for each in calendars:
            found = each.next_start(moment, lasting)
            if found is None:
                return None
            moment = found
        if moment == before:
            return moment
    return None


def ask(calendars: Sequence[Calendar], at: datetime, end: datetime) -> Answer:
    """Whether what starts at this instant and is expected to end at that one may, under all of these calendars."""
    opens = next_start(calendars, at, end - at)
    for each in calendars:
        if not each.may_start(at, end):
            return Answer(False, None, opens, _why_not(each, at, end, opens))
    closing = [(until, each) for each in calendars for until in (each.closes(at),) if until is not None]
    if closing:
        until, first = min(closing, key=lambda each: each[0])
        return Answer(True, until, at, "open until %s" % _told(first, until))
    return Answer(True, None, at, "open for longer than a year" if any(not each.always for each in calendars)
                  else "no maintenance window is configured")


def first_instant(wall: datetime, zone: tzinfo) -> datetime:
    """The first instant, in UTC, at which the clock of a zone shows this time or a later one. wall: naive."""
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(instant, zone) == wall:
        return instant
    # The clock leaps over it (PEP 495): fold=0 counts with what holds before the leap and so gets behind it
    early, late = wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant
    while late - early > _SECOND:
        middle = early + timedelta(seconds=(late - early) // _SECOND // 2)
        early, late = (early, middle) if _wall(middle, zone) >= wall else (middle, late)
    return late


def last_instant(wall: datetime, zone: tzinfo) -> datetime:
    """As first_instant, but the second one of two at which the clock shows this time."""
    instant = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return instant if _wall(instant, zone) == wall else first_instant(wall, zone)


def instant_text(at: datetime, zone: tzinfo = UTC) -> str:
    """'Sun 2026-10-25 02:30 CEST, Europe/Berlin (2026-10-25 00:30 UTC)'."""
    universal = at.astimezone(UTC)
    if zone is UTC:
        return "%s UTC" % _shown(universal)
    local = at.astimezone(zone)
    return "%s %s, %s (%s UTC)" % (_shown(local), local.tzname(), zone, _shown(universal).partition(" ")[2])


def _why_not(calendar: Calendar, at: datetime, end: datetime, opens: Optional[datetime]) -> str:
    if not calendar.always and not calendar.windows:
        return "no maintenance window holds for it"
    frozen, closes = calendar.freeze_at(at), calendar.closes(at) or end
    after = calendar.freeze_from(closes)
    if frozen is not None:
        why = "frozen until %s: %s" % (instant_text(frozen.end, frozen.zone), frozen.reason)
        following = "the next window"
    elif closes == at:
        why, following = "no window is open", "the next"
    elif after is not None:
        why = "it is expected to last until %s, and a freeze (%s) begins at %s" % (
            _told(calendar, end), after.reason, instant_text(after.start, after.zone))
        following = "the next window that is long enough"
    else:
        why = "it is expected to last until %s, and the window closes at %s" % (
            _told(calendar, end), _told(calendar, closes))
        following = "the next that is long enough"
    if opens is None:
        never = "no window of the next year is long enough for %s" % duration((end - at).total_seconds())
        return "%s; %s" % (why, never) if frozen is not None else never
    if frozen is not None and opens == frozen.end:
        return why
    return "%s; %s opens at %s" % (why, following, _told(calendar, opens))


def _told(calendar: Calendar, at: datetime) -> str:
    return instant_text(at, calendar.zone_at(at))


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _shown(at: datetime) -> str:
    return "%s %s" % (WEEKDAYS[at.weekday()].capitalize(), at.strftime("%Y-%m-%d %H:%M"))


def _refuse_naive(at: datetime) -> None:
    if at.tzinfo is None:
        raise ValueError("an instant without a zone: %s" % at)
