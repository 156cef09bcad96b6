# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user says of a rollout, checked: limits, canaries, units, windows. Pure, but for the database of time zones.

zoneinfo of the standard library reads that of the system or, without one, that of the Python package tzdata.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any, Collection, Dict, Iterable, List, Mapping, Match, Optional, Tuple
from zoneinfo import ZoneInfo

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from .windows import ORDINALS, UTC, WEEKDAYS, Day, Freeze, Window, Windows, first_instant, last_instant

EVERY_KIND, NO_CANARY = CANARIES = ("every_kind", "none")
PARALLEL, ROLLING = MODES = ("parallel", "rolling")
WINDOWS, FREEZES = "windows", "freezes"
OPTIONS = ("limit", "domain_limit", "canaries", "soak", "expected_duration", "unit_mode", "unit_modes", "max_failures",
           "max_unreachable", "seed", WINDOWS, FREEZES)
# An empty word, as a form gives where nobody has answered, is no answer; but here it is a slip that opened all windows,
# as an answer counts more than what the inventory says
COLLECTIONS = ("unit_modes", WINDOWS, FREEZES)
WINDOW_KEYS = ("days", "start", "duration", "zone", "groups")
FREEZE_KEYS = ("from", "to", "reason", "zone", "groups")

_LIMIT = re.compile(r"([0-9]+)(%?)")
# 'sat', 'saturday', '2nd sat' and 'second saturday'
_ORDINAL_WORDS = {"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th"}
_WEEKDAY_WORDS = {each[:3]: each for each in (
    "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")}
_DAY = re.compile(r"(?:(%s) )?(%s)" % (
    "|".join((*ORDINALS, *_ORDINAL_WORDS)), "|".join((*_WEEKDAY_WORDS.values(), *WEEKDAYS))))
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DURATION = re.compile(r"(?=.)(?:([0-9]+)d)? ?(?:([0-9]+)h)? ?(?:([0-9]+)m)?")
_MOMENT = re.compile(r"(2[01][0-9]{2}-[0-9]{2}-[0-9]{2})(?: ([0-9]{2}:[0-9]{2}))?")
_LONGEST = timedelta(days=7)
_LONGEST_TEXT = 60
_OF_ALL = "all"
# Names of the database that are no place: what they mean is a matter of the machine
_OF_THE_MACHINE = ("localtime", "posixrules", "Factory")


@dataclass(frozen=True)
class Limit:
    """How many hosts at most: a number, or so many of a hundred of them."""

    number: int
    percent: bool = False

    def of(self, hosts: int) -> int:
        """Of so many hosts: a percentage is rounded down, never above what was asked for; but one is always let."""
        return max(1, self.number * hosts // 100) if self.percent else self.number

    def __str__(self) -> str:
        return "%d%%" % self.number if self.percent else "%d" % self.number


@dataclass(frozen=True)
class Policy:
    """How a rollout goes.

    limit:             hosts that are out of service at once, in all.
    domain_limit:      the same of each failure domain; None leaves it to limit.
    canaries:          EVERY_KIND, or NO_CANARY.
    soak:              how long a canary is watched before others follow it.
    expected_duration: how long the change of a host takes, while none of its kind has told.
    unit_mode:         PARALLEL: what restarts together is changed at once; ROLLING: one host after another.
    unit_modes:        {clique or job group: its own mode}.
    max_failures:      failed hosts with which it still goes on.
    max_unreachable:   hosts that cannot be reached, with which it still goes on; the only limit that may be 0.
    seed:              another one gives another order of hosts that are alike.
    given:             the options that it was made of.
    """

    limit: Limit = Limit(1)
    domain_limit: Optional[Limit] = None
    canaries: str = EVERY_KIND
    soak: timedelta = timedelta()
    expected_duration: timedelta = timedelta(minutes=30)
    unit_mode: str = PARALLEL
    unit_modes: Mapping[str, str] = field(default_factory=dict)
    max_failures: int = 0
    max_unreachable: Limit = Limit(20, percent=True)
    seed: str = ""
    windows: Windows = Windows()
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def expected(self, told: Optional[int]) -> int:
        """Seconds that the change of a host takes. told: by those of its kind, which a user's word limits: one that was
        slow keeps no other out of every window then."""
        said = int(self.expected_duration.total_seconds())
        if told is None:
            return said
        return min(told, said) if "expected_duration" in self.given else told

    def mode(self, group: str) -> str:
        return self.unit_modes.get(group, self.unit_mode)


def policy_of(options: Mapping[str, Any], groups: Optional[Collection[str]] = None) -> Policy:
    """The policy of options as a user gives them; None or an empty word is the default. Raises GpuOpsError with all
    slips.

    groups: names of all host groups that there are; None where that is not known, as of a policy that was read before.
    """
    given = {name: value for name, value in options.items() if value is not None and not (
        isinstance(value, str) and not value.strip() and name not in COLLECTIONS)}
    refusals: List[Refusal] = []
    unknown = sorted(str(name) for name in given if name not in OPTIONS)
    if unknown:
        refusals.append(Refusal(
            "rollout.option_unknown",
            found="a rollout has no %s" % ", ".join("`%s`" % name for name in unknown),
            wanted="nothing but %s" % ", ".join(OPTIONS),
            remedy="take it out, or correct its name",
        ))
    said: Dict[str, Any] = {"given": given}
    for name, least in (("limit", 1), ("domain_limit", 1), ("max_unreachable", 0)):
        said[name] = _limit(name, given[name], least, refusals) if name in given else None
    # No change takes no time: it would begin in the last minute of a window
    for name, shortest in (("soak", timedelta()), ("expected_duration", timedelta(minutes=1))):
        said[name] = _lasting(name, given[name], shortest, refusals) if name in given else None
    said["canaries"] = _canaries(given.get("canaries", EVERY_KIND), refusals)
    said["unit_mode"] = _mode("unit_mode", given.get("unit_mode", PARALLEL), refusals)
    said["unit_modes"] = _modes(given.get("unit_modes", {}), refusals)
    said["max_failures"] = _max_failures(given.get("max_failures", 0), refusals)
    said["seed"] = str(given.get("seed", ""))
    try:
        said["windows"] = windows_of(given.get(WINDOWS, []), given.get(FREEZES, []), groups)
    except GpuOpsError as error:
        refusals.extend(error.refusals)
    if refusals:
        raise GpuOpsError.because(refusals)
    return Policy(**{name: value for name, value in said.items() if value is not None})


def windows_of(windows: Any, freezes: Any, groups: Optional[Collection[str]] = None) -> Windows:
    """The times at which changes may be made, of lists as a user writes them. Raises GpuOpsError with all slips.

    groups: as those of policy_of.
    """
    refusals: List[Refusal] = []
    opened = [each for where, entry in _entries(WINDOWS, windows, WINDOW_KEYS[:-1], WINDOW_KEYS, refusals)
              for each in (_window(where, entry, groups, refusals),) if each]
    zones = {each.zone for each in opened}
    of_all = zones.pop() if len(zones) == 1 else None
    frozen = [each for where, entry in _entries(FREEZES, freezes, FREEZE_KEYS[:3], FREEZE_KEYS, refusals)
              for each in (_freeze(where, entry, of_all, groups, refusals),) if each]
    if refusals:
        raise GpuOpsError.because([replace(each, option=WINDOWS if "`%s`" % WINDOWS in each.found else FREEZES)
                                   for each in refusals])
    return Windows(tuple(opened), tuple(frozen))


def _limit(option: str, given: Any, least: int, refusals: List[Refusal]) -> Optional[Limit]:
    match = _LIMIT.fullmatch(str(given).strip()) if isinstance(given, (int, str)) and given is not True else None
    if match:
        number = int(match.group(1))
        # None at all is no part of anything, of which one would always be let
        limit = Limit(number, bool(match.group(2)) and number > 0)
        if number >= least and (not limit.percent or number <= 100):
            return limit
    refusals.append(Refusal(
        "rollout.limit_malformed",
        found="`%s` is %s" % (option, _quoted(given)),
        wanted="a number of hosts, or a percentage to '100%', at least 1; `max_unreachable` may be 0",
        remedy="write it so; a percentage is rounded down, to one host at least",
        option=option,
    ))
    return None


def _canaries(given: Any, refusals: List[Refusal]) -> Optional[str]:
    if given in CANARIES:
        return str(given)
    refusals.append(Refusal(
        "rollout.canaries_unknown",
        found="`canaries` is %s" % _quoted(given),
        wanted=" or ".join(CANARIES),
        remedy="set one of them",
        option="canaries",
    ))
    return None


def _modes(given: Any, refusals: List[Refusal]) -> Dict[str, str]:
    if not isinstance(given, Mapping):
        # One mode for all is `unit_mode`
        refusals.append(_unknown_mode("unit_modes", given))
        return {}
    modes = {str(group): _mode("unit_modes", mode, refusals) for group, mode in given.items()}
    return {group: mode for group, mode in modes.items() if mode}


def _mode(option: str, given: Any, refusals: List[Refusal]) -> Optional[str]:
    if given in MODES:
        return str(given)
    refusals.append(_unknown_mode(option, given))
    return None


def _unknown_mode(option: str, given: Any) -> Refusal:
    return Refusal(
        "rollout.unit_mode_unknown",
        found="`%s` has %s" % (option, _quoted(given)),
        wanted="%s, at once, or %s, one host after another" % MODES,
        remedy="set one of them; `unit_modes` is a mapping of cliques and job groups to theirs, {} of none",
        option=option,
    )


def _max_failures(given: Any, refusals: List[Refusal]) -> Optional[int]:
    if isinstance(given, (int, str)) and not isinstance(given, bool) and str(given).strip().isdecimal():
        return int(given)
    refusals.append(Refusal(
        "rollout.max_failures_malformed",
        found="`max_failures` is %s" % _quoted(given),
        wanted="a number of hosts, 0 to stop at the first that fails",
        remedy="write it so",
        option="max_failures",
    ))
    return None


def _entries(
    option: str, entries: Any, needed: Collection[str], known: Collection[str], refusals: List[Refusal]
) -> Iterable[Tuple[str, Mapping[str, Any]]]:
    """(what a refusal calls it, entry) of each that has all keys that it needs, and no other ones."""
    if not isinstance(entries, (list, tuple)):
        refusals.append(Refusal(
            "rollout.entries_no_list",
            found="`%s` is %s" % (option, _told(entries)),
            wanted="a list, of which each entry is a mapping",
            remedy="write it as a list; an empty one, [], is none. Surveys, and -e NAME=VALUE, give text: give a list "
                   "as -e '{\"NAME\": [...]}', or in the inventory",
            option=option,
        ))
        return
    for number, entry in enumerate(entries, 1):
        where = "entry %d of `%s`" % (number, option)
        if not isinstance(entry, Mapping):
            refusals.append(Refusal(
                "rollout.entry_malformed",
                found="%s is %s" % (where, _quoted(entry)),
                wanted="a mapping with %s" % ", ".join(needed),
                remedy="write it as a mapping",
            ))
            continue
        unknown = sorted(str(key) for key in entry if key not in known)
        missing = [key for key in needed if entry.get(key) is None]
        if unknown:
            refusals.append(Refusal(
                "rollout.entry_key_unknown",
                found="%s has %s" % (where, ", ".join(map(_quoted, unknown))),
                wanted="nothing but %s" % ", ".join(known),
                remedy="take it out, or correct its name",
            ))
        if missing:
            refusals.append(Refusal(
                "rollout.entry_key_missing",
                found="%s has no %s" % (where, ", ".join(missing)),
                wanted="%s" % ", ".join(needed),
                remedy="add it; a zone is one of the IANA database, as 'Europe/Berlin', or 'UTC'",
            ))
        if not unknown and not missing:
            yield where, entry


def _window(
    where: str, entry: Mapping[str, Any], known: Optional[Collection[str]], refusals: List[Refusal]
) -> Optional[Window]:
    days = _days(where, entry["days"], refusals)
    start = _start(where, entry["start"], refusals)
    lasting = _duration(where, entry["duration"], len({day.weekday for day in days}), refusals)
    zone = _zone(where, entry["zone"], refusals)
    groups = _groups(where, entry.get("groups"), known, refusals)
    if not days or start is None or lasting is None or zone is None or groups is None:
        return None
    return Window(days, start, lasting, zone, groups)


def _days(where: str, given: Any, refusals: List[Refusal]) -> Tuple[Day, ...]:
    """() where one of them is none."""
    listed = [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else []
    matches = [_DAY.fullmatch(" ".join(day.lower().split())) if isinstance(day, str) else None for day in listed]
    days = tuple(_day(match) for match in matches if match)
    if days and len(days) == len(matches):
        return tuple(dict.fromkeys(days))
    refusals.append(Refusal(
        "rollout.window_days",
        found="%s: the days %s" % (where, _quoted(given)),
        wanted="days of the week, %s, or one of those of a month: %s" % (
            ", ".join(WEEKDAYS), ", ".join("'%s sat'" % each for each in ORDINALS)),
        remedy="name at least one, in full (second saturday) or so; a fifth one is not in every month, and the last "
               "may be what you mean",
    ))
    return ()


def _day(match: Match[str]) -> Day:
    which = match.group(1) or ""
    return Day(WEEKDAYS.index(match.group(2)[:3]), ORDINALS.get(_ORDINAL_WORDS.get(which, which), 0))


def _start(where: str, given: Any, refusals: List[Refusal]) -> Optional[time]:
    match = _TIME.fullmatch(given) if isinstance(given, str) else None
    if match:
        return time(int(match.group(1)), int(match.group(2)))
    refusals.append(Refusal(
        "rollout.window_start",
        found="%s: the start %s" % (where, _quoted(given)),
        wanted="a time from '00:00' to '23:59'",
        remedy="write it so, and in quotes: without them YAML takes 22:00 for the number 1320",
    ))
    return None


def _duration(where: str, given: Any, days: int, refusals: List[Refusal]) -> Optional[timedelta]:
    lasting = _span(given)
    if lasting is None:
        refusals.append(Refusal(
            "rollout.window_duration",
            found="%s: the duration %s" % (where, _quoted(given)),
            wanted="days, hours and minutes, as '8h', '1h30m' or '2d'",
            remedy="write it with its units",
        ))
        return None
    # Of days that are wrong nothing is known but that there is one
    if timedelta() < lasting <= timedelta(days=max(days, 1)):
        return lasting
    refusals.append(Refusal(
        "rollout.window_duration_range",
        found="%s: the duration %s on %d day%s of the week" % (where, _quoted(given), days, "" if days == 1 else "s"),
        wanted="more than nothing, and not more than 24 h for each of its days",
        remedy="shorten it, or name the other days too; without a window it is always open",
    ))
    return None


def _lasting(option: str, given: Any, shortest: timedelta, refusals: List[Refusal]) -> Optional[timedelta]:
    is_none = not isinstance(given, bool) and str(given).strip() == "0"
    lasting = timedelta() if is_none else _span(given)
    if lasting is not None and shortest <= lasting <= _LONGEST:
        return lasting
    refusals.append(Refusal(
        "rollout.duration_malformed",
        found="`%s` is %s" % (option, _quoted(given)),
        wanted="days, hours and minutes, as '10m', '1h30m' or '1d', a week at most; `soak` may be 0",
        remedy="write it with its units",
        option=option,
    ))
    return None


def _span(given: Any) -> Optional[timedelta]:
    """'1d 2h 30m'; None where it is none. What is longer than anybody waits is of one length."""
    match = _DURATION.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        return None
    parts = [int(part or 0) for part in match.groups()]
    return timedelta(minutes=min((parts[0] * 24 + parts[1]) * 60 + parts[2], 10 ** 8))


def _zone(where: str, given: Any, refusals: List[Refusal]) -> Optional[tzinfo]:
    if given == "UTC":
        return UTC
    try:
        if isinstance(given, str) and given not in _OF_THE_MACHINE:
            return ZoneInfo(given)
    # A name that is none, one that leads out of the database or to something else in it, and a directory of it
    except (KeyError, ValueError, OSError):
        pass
    refusals.append(Refusal(
        "rollout.zone_unknown",
        found="%s: the zone %s, which is not in the time zone database of this controller" % (where, _quoted(given)),
        wanted="a name of the IANA database, as 'Europe/Berlin' or 'UTC'",
        remedy="correct the name; where the database itself is missing, install the Python package `tzdata` (an "
               "execution environment may have none)",
    ))
    return None


def _groups(
    where: str, given: Any, known: Optional[Collection[str]], refusals: List[Refusal]
) -> Optional[Tuple[str, ...]]:
    if given is None:
        return ()
    if isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given):
        strange = [each for each in given if known is not None and each not in known and each != _OF_ALL]
        if strange:
            refusals.append(Refusal(
                "rollout.group_unknown",
                found="%s: the inventory has no group %s" % (where, ", ".join(map(_quoted, strange))),
                wanted="names of host groups of the inventory: a freeze of another one keeps no host, and a window "
                       "opens none",
                remedy="correct the name; a group that has hosts at times only is to be there without them, too: "
                       "{all: {children: {NAME: {}}}} in a file of the inventory",
            ))
            return None
        # Every host is in it, and Ansible names it among the groups of none
        return () if _OF_ALL in given else tuple(given)
    refusals.append(Refusal(
        "rollout.groups_malformed",
        found="%s: the groups %s" % (where, _quoted(given)),
        wanted="a list of names of host groups; an empty one holds for all hosts, as ['all'] does",
        remedy="write it as a list",
    ))
    return None


def _freeze(
    where: str, entry: Mapping[str, Any], of_all: Optional[tzinfo], known: Optional[Collection[str]],
    refusals: List[Refusal]
) -> Optional[Freeze]:
    """of_all: the zone of all windows, where they have the same. known: the groups that there are."""
    before = len(refusals)
    zone = of_all if entry.get("zone") is None else _zone(where, entry["zone"], refusals)
    if zone is None and len(refusals) == before:
        refusals.append(Refusal(
            "rollout.freeze_without_zone",
            found="%s has no zone, and there is no one zone of all windows" % where,
            wanted="whose midnight its dates mean",
            remedy="add its zone",
        ))
    since, until = (_moment(where, entry[key], refusals) for key in ("from", "to"))
    groups = _groups(where, entry.get("groups"), known, refusals)
    reason = str(entry["reason"]).strip()
    if not reason:
        refusals.append(Refusal(
            "rollout.freeze_reason",
            found="%s has an empty reason" % where,
            wanted="what whoever waits for its end is told",
            remedy="say why nothing is to be changed",
        ))
    if zone is None or since is None or until is None or groups is None or len(refusals) > before:
        return None
    start = first_instant(since[0], zone)
    end = last_instant(until[0] + timedelta(days=1), zone) if until[1] else last_instant(until[0], zone)
    if start >= end:
        refusals.append(Refusal(
            "rollout.freeze_backwards",
            found="%s ends before it begins: from %s to %s" % (where, _quoted(entry["from"]), _quoted(entry["to"])),
            wanted="an end after the beginning; a date as the end is in it",
            remedy="correct them",
        ))
        return None
    return Freeze(start, end, reason, zone, groups)


def _moment(where: str, given: Any, refusals: List[Refusal]) -> Optional[Tuple[datetime, bool]]:
    """(by the clock, whether the whole day is meant)."""
    text = given.isoformat() if isinstance(given, date) and not isinstance(given, datetime) else given
    match = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    try:
        if match:
            return datetime.fromisoformat("%sT%s" % (match.group(1), match.group(2) or "00:00")), not match.group(2)
    # The 30th of February
    except ValueError:
        pass
    refusals.append(Refusal(
        "rollout.freeze_moment",
        found="%s: %s" % (where, _quoted(given)),
        wanted="a date of this century or the next, as '2026-12-20', or with a time, as '2026-12-20 18:00'",
        remedy="write it so, in quotes where it has a time; what its zone is says zone",
    ))
    return None


def _told(value: Any) -> str:
    """What is there in the place of a list or a mapping; of a text that was to be one its beginning says enough."""
    if not isinstance(value, str):
        return _quoted(value)
    if not value.strip():
        return "empty"
    return "text, %s" % _quoted(value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "...")


def _quoted(value: Any) -> str:
    return "'%s'" % value if isinstance(value, str) else repr(value)
