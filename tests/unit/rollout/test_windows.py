# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Maintenance windows by the clock of their zone, over both change nights of a year, and what is refused of them."""
from __future__ import annotations

import datetime as dt
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Optional
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import windows_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.windows import (
    UTC,
    Calendar,
    Window,
    ask,
    first_instant,
    instant_text,
    next_start,
)

BERLIN, NEW_YORK, LORD_HOWE, CAIRO = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"
NIGHTLY: List[str] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    """'2026-03-28 21:00' in UTC."""
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc)


def entry(days: Any, start: str, duration: str, zone: str = BERLIN, **more: Any) -> Dict[str, Any]:
    return dict({"days": days, "start": start, "duration": duration, "zone": zone}, **more)


def freeze(since: Any, until: Any, **more: Any) -> Dict[str, Any]:
    return dict({"from": since, "to": until, "reason": "year's end"}, **more)


def calendar(*windows: Dict[str, Any], freezes: Any = (), groups: Any = ()) -> Calendar:
    return windows_of(list(windows), list(freezes)).calendar(groups)


# What is asked for, the instant from which the next opening is looked for, and that opening and its end, in UTC
OPENINGS = [
    ("summer", entry("sat", "22:00", "8h"), "2026-07-01 00:00", "2026-07-04 20:00", "2026-07-05 04:00"),
    ("winter", entry("sat", "22:00", "8h"), "2026-01-01 00:00", "2026-01-03 21:00", "2026-01-04 05:00"),
    ("Berlin, clocks go forward: nine hours of wall clock",
     entry("sat", "22:00", "8h"), "2026-03-27 00:00", "2026-03-28 21:00", "2026-03-29 05:00"),
    ("Berlin, clocks go back: seven hours of wall clock",
     entry("sat", "22:00", "8h"), "2026-10-23 00:00", "2026-10-24 20:00", "2026-10-25 04:00"),
    ("Berlin, the start is in the gap", entry("sun", "02:30", "2h"), "2026-03-28 12:00", "2026-03-29 01:00",
     "2026-03-29 03:00"),
    ("Berlin, the start is the gap's first instant", entry("sun", "02:00", "2h"), "2026-03-28 12:00",
     "2026-03-29 01:00", "2026-03-29 03:00"),
    ("Berlin, the start is after the gap", entry("sun", "03:00", "2h"), "2026-03-28 12:00", "2026-03-29 01:00",
     "2026-03-29 03:00"),
    ("Berlin, the start is before the gap", entry("sun", "01:59", "2h"), "2026-03-28 12:00", "2026-03-29 00:59",
     "2026-03-29 02:59"),
    ("Berlin, the start is twice there", entry("sun", "02:30", "2h"), "2026-10-24 12:00", "2026-10-25 00:30",
     "2026-10-25 02:30"),
    ("Berlin, the hour after that which is twice there", entry("sun", "03:00", "2h"), "2026-10-24 12:00",
     "2026-10-25 02:00", "2026-10-25 04:00"),
    ("Berlin, all of the short day", entry("sun", "00:00", "24h"), "2026-03-28 12:00", "2026-03-28 23:00",
     "2026-03-29 23:00"),
    ("Berlin, the long day has an hour more", entry("sun", "00:00", "24h"), "2026-10-24 12:00", "2026-10-24 22:00",
     "2026-10-25 22:00"),
    ("New York, clocks go forward", entry("sat", "22:00", "8h", NEW_YORK), "2026-03-06 00:00", "2026-03-08 03:00",
     "2026-03-08 11:00"),
    ("New York, clocks go back", entry("sat", "22:00", "8h", NEW_YORK), "2026-10-30 00:00", "2026-11-01 02:00",
     "2026-11-01 10:00"),
    ("New York, the start is in the gap", entry("sun", "02:30", "1h", NEW_YORK), "2026-03-07 12:00",
     "2026-03-08 07:00", "2026-03-08 08:00"),
    ("New York, the start is twice there", entry("sun", "01:30", "1h", NEW_YORK), "2026-10-31 12:00",
     "2026-11-01 05:30", "2026-11-01 06:30"),
    ("Lord Howe, clocks go forward by half an hour", entry("sat", "22:00", "8h", LORD_HOWE), "2026-10-02 00:00",
     "2026-10-03 11:30", "2026-10-03 19:30"),
    ("Lord Howe, clocks go back by half an hour", entry("sat", "22:00", "8h", LORD_HOWE), "2026-04-03 00:00",
     "2026-04-04 11:00", "2026-04-04 19:00"),
    ("Lord Howe, the start is in the gap", entry("sun", "02:15", "1h", LORD_HOWE), "2026-10-03 00:00",
     "2026-10-03 15:30", "2026-10-03 16:30"),
    ("Lord Howe, the start is twice there", entry("sun", "01:45", "1h", LORD_HOWE), "2026-04-04 00:00",
     "2026-04-04 14:45", "2026-04-04 15:45"),
    ("Cairo, midnight is in the gap", entry("fri", "00:00", "2h", CAIRO), "2026-04-23 00:00", "2026-04-23 22:00",
     "2026-04-24 00:00"),
    ("Cairo, the hour before midnight is twice there", entry("thu", "23:30", "2h", CAIRO), "2026-10-29 00:00",
     "2026-10-29 20:30", "2026-10-29 22:30"),
    ("the weekday is that of the start: Sunday's early hours are Saturday's", entry("sat", "22:00", "6h"),
     "2026-07-05 01:59", "2026-07-05 01:59", "2026-07-05 02:00"),
    ("and Saturday's are nobody's", entry("sat", "22:00", "6h"), "2026-07-04 01:00", "2026-07-04 20:00",
     "2026-07-05 02:00"),
    ("the weekday is the zone's: Monday in Auckland is Sunday in UTC", entry("mon", "06:00", "1h", "Pacific/Auckland"),
     "2026-07-04 00:00", "2026-07-05 18:00", "2026-07-05 19:00"),
    ("the end is not in it", entry("sat", "22:00", "8h"), "2026-07-05 04:00", "2026-07-11 20:00", "2026-07-12 04:00"),
    ("the second Saturday, of a month that begins on one", entry("2nd sat", "22:00", "8h"), "2026-08-01 00:00",
     "2026-08-08 20:00", "2026-08-09 04:00"),
    ("the second Saturday, of a month that begins the day after", entry("2nd sat", "22:00", "8h"), "2026-11-01 00:00",
     "2026-11-14 21:00", "2026-11-15 05:00"),
    ("the fourth is not the last where there are five", entry("4th sat", "22:00", "8h"), "2026-08-16 00:00",
     "2026-08-22 20:00", "2026-08-23 04:00"),
    ("the last of five", entry("last sat", "22:00", "8h"), "2026-08-23 12:00", "2026-08-29 20:00", "2026-08-30 04:00"),
    ("the last of a month that ends on one", entry("last sat", "22:00", "8h"), "2026-10-23 12:00", "2026-10-31 21:00",
     "2026-11-01 05:00"),
    ("the last of four, in February", entry("last sun", "22:00", "8h"), "2026-02-01 00:00", "2026-02-22 21:00",
     "2026-02-23 05:00"),
    ("the first one of the next month", entry("1st mon", "01:00", "1h", "UTC"), "2026-08-04 00:00",
     "2026-09-07 01:00", "2026-09-07 02:00"),
    ("the last day of a year", entry("thu", "22:00", "4h", "UTC"), "2026-12-30 00:00", "2026-12-31 22:00",
     "2027-01-01 02:00"),
    ("the 29th of February", entry("tue", "00:00", "30m", "UTC"), "2028-02-28 12:00", "2028-02-29 00:00",
     "2028-02-29 00:30"),
    ("of several days the next one", entry(["tue", "2nd sat"], "22:00", "1h30m", "UTC"), "2026-08-05 00:00",
     "2026-08-08 22:00", "2026-08-08 23:30"),
    ("two days that touch are one opening", entry(["sat", "sun"], "00:00", "24h", "UTC"), "2026-08-07 00:00",
     "2026-08-08 00:00", "2026-08-10 00:00"),
    ("two days that overlap are one opening", entry(["sat", "sun"], "00:00", "30h", "UTC"), "2026-08-07 00:00",
     "2026-08-08 00:00", "2026-08-10 06:00"),
    ("in the middle it is open already", entry(["sat", "sun"], "00:00", "30h", "UTC"), "2026-08-09 05:00",
     "2026-08-09 05:00", "2026-08-10 06:00"),
]


@pytest.mark.parametrize("window, since, opens, closes", [case[1:] for case in OPENINGS],
                         ids=[case[0] for case in OPENINGS])
def test_the_next_opening_and_its_end(window: Dict[str, Any], since: str, opens: str, closes: str) -> None:
    of_host = calendar(window)
    found = of_host.next_opening(at(since))
    assert found == at(opens) and of_host.closes(at(opens)) == at(closes)
    assert of_host.may_start(at(opens), at(closes))
    assert not of_host.may_start(at(opens), at(closes) + timedelta(seconds=1))
    assert not of_host.is_open(at(closes))


@pytest.mark.parametrize("said, short", [
    ("second saturday", "2nd sat"), ("First Monday", "1st mon"), ("LAST  sunday", "last sun"),
    ("4th friday", "4th fri"), ("third wed", "3rd wed"), ("tuesday", "tue"), ("thursday", "thu")])
def test_days_may_be_written_in_full(said: str, short: str) -> None:
    assert windows_of([entry(said, "22:00", "8h")], []) == windows_of([entry(short, "22:00", "8h")], [])


def test_the_table_has_both_change_nights_of_three_zones() -> None:
    assert len(OPENINGS) >= 30
    for zone in ("Berlin", "New York", "Lord Howe"):
        assert {part for name, *_rest in OPENINGS if name.startswith(zone)
                for part in ("forward", "back", "gap", "twice") if part in name} == {"forward", "back", "gap", "twice"}


def test_with_no_window_at_all_it_is_always_open() -> None:
    free = calendar()
    assert free.may_start(at("2026-01-01 00:00"), at("2029-01-01 00:00"))
    assert free.next_opening(at("2026-01-01 00:00")) == at("2026-01-01 00:00")
    assert free.closes(at("2026-01-01 00:00")) is None


def test_every_day_all_day_has_no_end_in_utc_and_a_hole_on_the_long_day_elsewhere() -> None:
    assert calendar(entry(NIGHTLY, "00:00", "24h", "UTC")).closes(at("2026-01-01 05:00")) is None
    assert calendar(entry(NIGHTLY, "00:00", "24h")).closes(at("2026-01-01 05:00")) == at("2026-10-25 22:00")


@pytest.mark.parametrize("groups, opens", [
    ((), "2026-07-05 20:00"),
    (("racks",), "2026-07-05 20:00"),
    (("inference",), "2026-07-04 20:00"),
    (("racks", "inference"), "2026-07-04 20:00"),
])
def test_a_window_of_groups_holds_for_their_hosts_alone(groups: Any, opens: str) -> None:
    both = entry("sat", "22:00", "2h", groups=["inference"]), entry("sun", "22:00", "2h")
    assert calendar(*both, groups=groups).next_opening(at("2026-07-01 00:00")) == at(opens)


def test_where_windows_are_configured_a_host_with_none_stays_closed() -> None:
    closed = calendar(entry("sat", "22:00", "2h", groups=["inference"]), groups=["training"])
    assert not closed.is_open(at("2026-07-04 21:00"))
    assert closed.next_opening(at("2026-07-01 00:00")) is None
    assert closed.next_start(at("2026-07-01 00:00"), HOUR) is None
    told = ask([closed], at("2026-07-01 00:00"), at("2026-07-01 01:00"))
    assert told.opens is None and told.why == "no maintenance window holds for it"


# A freeze, whether all is open beside it, and its first and last second in UTC
FREEZES = [
    ("whole days of the windows' zone", freeze("2026-12-20", "2026-12-31"), "2026-12-19 23:00", "2026-12-31 23:00"),
    ("a date as YAML reads it", freeze(dt.date(2026, 12, 20), dt.date(2026, 12, 20)), "2026-12-19 23:00",
     "2026-12-20 23:00"),
    ("another zone", freeze("2026-12-20", "2026-12-31", zone=NEW_YORK), "2026-12-20 05:00", "2027-01-01 05:00"),
    ("minutes", freeze("2026-12-20 18:30", "2026-12-21 06:15"), "2026-12-20 17:30", "2026-12-21 05:15"),
    ("the short day", freeze("2026-03-29", "2026-03-29"), "2026-03-28 23:00", "2026-03-29 22:00"),
    ("the long day", freeze("2026-10-25", "2026-10-25"), "2026-10-24 22:00", "2026-10-25 23:00"),
    ("from an hour that is twice there, its first", freeze("2026-10-25 02:30", "2026-10-25 12:00"),
     "2026-10-25 00:30", "2026-10-25 11:00"),
    ("to an hour that is twice there, its second", freeze("2026-10-24 12:00", "2026-10-25 02:30"),
     "2026-10-24 10:00", "2026-10-25 01:30"),
    ("to an hour that is not there", freeze("2026-03-28 12:00", "2026-03-29 02:30"), "2026-03-28 11:00",
     "2026-03-29 01:00"),
]


@pytest.mark.parametrize("frozen, first, end", [case[1:] for case in FREEZES], ids=[case[0] for case in FREEZES])
def test_nothing_starts_in_a_freeze_or_lasts_into_it(frozen: Dict[str, Any], first: str, end: str) -> None:
    beside = entry(NIGHTLY, "00:00", "100h")
    of_host = calendar(beside, freezes=[frozen])
    assert of_host.closes(at(first) - HOUR) == at(first)
    assert not of_host.is_open(at(first)) and not of_host.is_open(at(end) - timedelta(seconds=1))
    assert of_host.next_opening(at(first)) == at(end) and of_host.is_open(at(end))
    assert not of_host.may_start(at(first) - HOUR, at(first) + timedelta(seconds=1))
    assert of_host.may_start(at(first) - HOUR, at(first))


def test_without_windows_only_the_freeze_is_closed() -> None:
    of_host = calendar(freezes=[freeze("2026-12-20", "2026-12-31", zone="UTC", groups=["racks"])], groups=["racks"])
    assert of_host.closes(at("2026-12-01 00:00")) == at("2026-12-20 00:00")
    assert of_host.next_opening(at("2026-12-20 00:00")) == at("2027-01-01 00:00")
    others = calendar(freezes=[freeze("2026-12-20", "2026-12-31", zone="UTC", groups=["racks"])], groups=["other"])
    assert others.is_open(at("2026-12-24 00:00"))


def test_freezes_that_follow_each_other_are_one() -> None:
    of_host = calendar(freezes=[freeze("2026-12-20", "2026-12-24", zone="UTC"),
                                freeze("2026-12-24", "2026-12-28", zone="UTC")])
    assert of_host.next_opening(at("2026-12-21 00:00")) == at("2026-12-29 00:00")


@pytest.mark.parametrize("hours, since, starts", [
    (2, "2026-07-04 20:00", "2026-07-04 20:00"),
    (8, "2026-07-04 20:00", "2026-07-04 20:00"),
    (2, "2026-07-05 02:00", "2026-07-05 02:00"),
    (2, "2026-07-05 02:01", "2026-07-05 10:00"),
    (3, "2026-07-05 02:01", "2026-07-11 20:00"),
    (9, "2026-07-01 00:00", None),
])
def test_the_next_start_is_in_a_window_that_is_long_enough(hours: int, since: str, starts: Optional[str]) -> None:
    of_host = calendar(entry("sat", "22:00", "8h"), entry("sun", "12:00", "2h"))
    assert of_host.next_start(at(since), hours * HOUR) == (at(starts) if starts else None)


def test_a_unit_waits_for_a_window_of_all_its_hosts() -> None:
    first, second = calendar(entry(["sat", "sun"], "20:00", "4h")), calendar(entry(["sun", "mon"], "22:00", "4h"))
    assert next_start([first, second], at("2026-07-01 00:00"), 2 * HOUR) == at("2026-07-05 20:00")
    assert next_start([first, second], at("2026-07-01 00:00"), 3 * HOUR) is None


@pytest.mark.parametrize("since, lasting, allowed, why", [
    ("2026-07-04 20:00", 8, True, "open until Sun 2026-07-05 06:00 CEST, Europe/Berlin (2026-07-05 04:00 UTC)"),
    ("2026-07-04 21:00", 8, False,
     "it is expected to last until Sun 2026-07-05 07:00 CEST, Europe/Berlin (2026-07-05 05:00 UTC), and the window "
     "closes at Sun 2026-07-05 06:00 CEST, Europe/Berlin (2026-07-05 04:00 UTC); "
     "the next that is long enough opens at Sat 2026-07-11 22:00 CEST, Europe/Berlin (2026-07-11 20:00 UTC)"),
    ("2026-07-01 12:00", 1, False,
     "no window is open; the next opens at Sat 2026-07-04 22:00 CEST, Europe/Berlin (2026-07-04 20:00 UTC)"),
    ("2026-07-01 12:00", 9, False, "no window of the next year is long enough for 9 h 0 min"),
    ("2026-12-24 12:00", 1, False,
     "frozen until Fri 2027-01-01 00:00 CET, Europe/Berlin (2026-12-31 23:00 UTC): year's end; "
     "the next window opens at Sat 2027-01-02 22:00 CET, Europe/Berlin (2027-01-02 21:00 UTC)"),
    ("2026-12-19 21:00", 3, False,
     "it is expected to last until Sun 2026-12-20 01:00 CET, Europe/Berlin (2026-12-20 00:00 UTC), and a freeze "
     "(year's end) begins at Sun 2026-12-20 00:00 CET, Europe/Berlin (2026-12-19 23:00 UTC); "
     "the next window that is long enough opens at Sat 2027-01-02 22:00 CET, Europe/Berlin (2027-01-02 21:00 UTC)"),
])
def test_people_are_told_in_their_time_and_in_utc(since: str, lasting: int, allowed: bool, why: str) -> None:
    of_host = calendar(entry("sat", "22:00", "8h"), freezes=[freeze("2026-12-20", "2026-12-31")])
    told = ask([of_host], at(since), at(since) + lasting * HOUR)
    assert (told.allowed, told.why) == (allowed, why)
    assert told.until == of_host.closes(at(since)) or not told.allowed
    assert told.opens == of_host.next_start(at(since), lasting * HOUR)


def test_where_it_opens_with_the_end_of_the_freeze_that_is_told_once() -> None:
    of_host = calendar(freezes=[freeze("2026-12-20", "2026-12-31", zone="UTC")])
    assert ask([of_host], at("2026-12-24 12:00"), at("2026-12-24 13:00")).why == (
        "frozen until Fri 2027-01-01 00:00 UTC: year's end")
    assert ask([of_host], at("2026-12-19 23:00"), at("2026-12-20 01:00")).why == (
        "it is expected to last until Sun 2026-12-20 01:00 UTC, and a freeze (year's end) begins at "
        "Sun 2026-12-20 00:00 UTC; the next window that is long enough opens at Fri 2027-01-01 00:00 UTC")


def test_without_windows_people_are_told_so() -> None:
    told = ask([calendar()], at("2026-07-01 12:00"), at("2026-07-01 13:00"))
    assert told.allowed and told.why == "no maintenance window is configured"


@pytest.mark.parametrize("instant, zone, text", [
    ("2026-10-25 00:30", BERLIN, "Sun 2026-10-25 02:30 CEST, Europe/Berlin (2026-10-25 00:30 UTC)"),
    ("2026-10-25 01:30", BERLIN, "Sun 2026-10-25 02:30 CET, Europe/Berlin (2026-10-25 01:30 UTC)"),
    ("2026-10-25 01:30", "UTC", "Sun 2026-10-25 01:30 UTC"),
    ("2026-07-05 18:00", "Asia/Kathmandu", "Sun 2026-07-05 23:45 +0545, Asia/Kathmandu (2026-07-05 18:00 UTC)"),
])
def test_an_hour_that_is_twice_there_is_told_apart(instant: str, zone: str, text: str) -> None:
    assert instant_text(at(instant), UTC if zone == "UTC" else ZoneInfo(zone)) == text


def test_what_is_no_instant_is_no_question() -> None:
    with pytest.raises(ValueError):
        calendar().is_open(datetime(2026, 7, 1))
    with pytest.raises(ValueError):
        calendar().may_start(at("2026-07-01 12:00"), at("2026-07-01 11:00"))


# What is wrong with an entry, and the code of its refusal
WRONG_WINDOWS: List[Any] = [
    ("sat 22:00", "entry_malformed"),
    (entry("sat", "22:00", "8h", colour="red"), "entry_key_unknown"),
    ({"days": "sat", "start": "22:00", "duration": "8h"}, "entry_key_missing"),
    ({"days": "sat", "start": "22:00", "zone": BERLIN}, "entry_key_missing"),
    (entry("caturday", "22:00", "8h"), "window_days"),
    (entry("fifth saturday", "22:00", "8h"), "window_days"),
    (entry([], "22:00", "8h"), "window_days"),
    (entry(6, "22:00", "8h"), "window_days"),
    (entry(["sat", None], "22:00", "8h"), "window_days"),
    (entry("5th sat", "22:00", "8h"), "window_days"),
    (entry("0th sat", "22:00", "8h"), "window_days"),
    (entry("sat", 1320, "8h"), "window_start"),
    (entry("sat", "24:00", "8h"), "window_start"),
    (entry("sat", "22:60", "8h"), "window_start"),
    (entry("sat", "22", "8h"), "window_start"),
    (entry("sat", "10pm", "8h"), "window_start"),
    (entry("sat", "22:00", 8), "window_duration"),
    (entry("sat", "22:00", "8"), "window_duration"),
    (entry("sat", "22:00", ""), "window_duration"),
    (entry("sat", "22:00", "-8h"), "window_duration"),
    (entry("sat", "22:00", "eight hours"), "window_duration"),
    (entry("sat", "22:00", "0h"), "window_duration_range"),
    (entry("sat", "22:00", "25h"), "window_duration_range"),
    (entry(["sat", "sat", "2nd sat"], "22:00", "25h"), "window_duration_range"),
    (entry(["sat", "sun"], "22:00", "49h"), "window_duration_range"),
    (entry(NIGHTLY, "22:00", "99999999999999d"), "window_duration_range"),
    (entry("sat", "22:00", "8h", "Mars/Olympus"), "zone_unknown"),
    (entry("sat", "22:00", "8h", "../../etc/passwd"), "zone_unknown"),
    (entry("sat", "22:00", "8h", "/etc/localtime"), "zone_unknown"),
    (entry("sat", "22:00", "8h", "Europe"), "zone_unknown"),
    (entry("sat", "22:00", "8h", ""), "zone_unknown"),
    (entry("sat", "22:00", "8h", "zone.tab"), "zone_unknown"),
    (entry("sat", "22:00", "8h", "a\0b"), "zone_unknown"),
    (entry("sat", "22:00", "8h", "localtime"), "zone_unknown"),
    (entry("sat", "22:00", "8h", 2), "zone_unknown"),
    (entry("sat", "22:00", "8h", groups="racks"), "groups_malformed"),
    (entry("sat", "22:00", "8h", groups=[1]), "groups_malformed"),
]


@pytest.mark.parametrize("wrong, code", WRONG_WINDOWS, ids=repr)
def test_a_window_with_a_slip_is_refused(wrong: Any, code: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        windows_of([entry("sun", "22:00", "8h"), wrong], [])
    (refusal,) = refused.value.refusals
    assert (refusal.code, refusal.option) == ("rollout." + code, "windows")
    assert "entry 2 of `windows`" in refusal.found


@pytest.mark.parametrize("wrong, code", [
    ({"from": "2026-12-20", "reason": "x"}, "entry_key_missing"),
    ({"from": "2026-12-20", "to": "2026-12-31"}, "entry_key_missing"),
    (freeze("20.12.2026", "2026-12-31"), "freeze_moment"),
    (freeze("2026-02-30", "2026-12-31"), "freeze_moment"),
    (freeze("2026-12-20", 7), "freeze_moment"),
    (freeze("1026-12-20", "2026-12-31"), "freeze_moment"),
    (freeze("2026-12-20", "9999-12-31"), "freeze_moment"),
    (freeze("2026-12-20", datetime(2026, 12, 31, 22, 0)), "freeze_moment"),
    (freeze("2026-12-20", "2026-12-19"), "freeze_backwards"),
    (freeze("2026-12-20 12:00", "2026-12-20 12:00"), "freeze_backwards"),
    (freeze("2026-12-20", "2026-12-31", reason=" "), "freeze_reason"),
    (freeze("2026-12-20", "2026-12-31", zone="Mars/Olympus"), "zone_unknown"),
    (freeze("2026-12-20", "2026-12-31", groups="racks"), "groups_malformed"),
], ids=repr)
def test_a_freeze_with_a_slip_is_refused(wrong: Any, code: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        windows_of([entry("sun", "22:00", "8h")], [wrong])
    assert [each.code for each in refused.value.refusals] == ["rollout." + code]
    assert "entry 1 of `freezes`" in refused.value.found and refused.value.refusals[0].option == "freezes"


@pytest.mark.parametrize("windows", [[], [entry("sun", "22:00", "8h"), entry("sun", "22:00", "8h", NEW_YORK)]])
def test_a_freeze_says_its_zone_where_the_windows_do_not_have_one(windows: Any) -> None:
    with pytest.raises(GpuOpsError) as refused:
        windows_of(windows, [freeze("2026-12-20", "2026-12-31")])
    assert refused.value.code == "rollout.freeze_without_zone"


@pytest.mark.parametrize("windows, freezes", [({"days": "sat"}, []), ("sat", []), ([], "none"), ([], {})])
def test_lists_are_lists(windows: Any, freezes: Any) -> None:
    with pytest.raises(GpuOpsError) as refused:
        windows_of(windows, freezes)
    assert refused.value.code == "rollout.entries_no_list"


def test_all_slips_are_told_at_once() -> None:
    with pytest.raises(GpuOpsError) as refused:
        windows_of([entry("caturday", "25:00", "0h", "Mars/Olympus")], [freeze("x", "y", zone="UTC")])
    assert [each.code.partition(".")[2] for each in refused.value.refusals] == [
        "window_days", "window_start", "window_duration_range", "zone_unknown", "freeze_moment", "freeze_moment"]


ZONES = st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, CAIRO, "UTC", "Asia/Kathmandu", "Pacific/Auckland",
                         "America/Santiago", "Pacific/Chatham"])
DAYS = st.lists(st.sampled_from([*NIGHTLY, "1st mon", "2nd sat", "4th sun", "last fri", "last sun"]), min_size=1,
                max_size=4, unique=True)
INSTANTS = st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31), timezones=st.just(timezone.utc)).map(
    lambda instant: instant.replace(microsecond=0))


@st.composite
def entries(draw: st.DrawFn) -> Dict[str, Any]:
    days = draw(DAYS)
    weekdays = {day.rpartition(" ")[2] for day in days}
    minutes = draw(st.integers(1, 24 * 60 * len(weekdays)))
    return entry(days, "%02d:%02d" % divmod(draw(st.integers(0, 24 * 60 - 1)), 60),
                 "%dh%dm" % divmod(minutes, 60), draw(ZONES))


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    frozen = []
    for _ in range(draw(st.integers(0, 2))):
        first = draw(st.dates(dt.date(2025, 1, 1), dt.date(2027, 12, 1)))
        frozen.append(freeze(first, first + timedelta(days=draw(st.integers(0, 60))), zone=draw(ZONES)))
    return calendar(*draw(st.lists(entries(), max_size=3)), freezes=frozen)


def by_the_minute(wall: datetime, zone: Any) -> datetime:
    """The first minute at which the clock of the zone shows this time or a later one, by looking at each."""
    minute = (wall - timedelta(hours=30)).replace(tzinfo=timezone.utc)
    while minute.astimezone(zone).replace(tzinfo=None) < wall:
        minute += timedelta(minutes=1)
    return minute


@settings(max_examples=60)
@given(zone=ZONES.map(ZoneInfo), wall=st.one_of(
    st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)),
    *[st.datetimes(datetime(2026, *day), datetime(2026, *day) + timedelta(hours=5)) for day in (
        (3, 8), (3, 29), (4, 5), (4, 24), (9, 27), (10, 4), (10, 25), (10, 30), (11, 1))]))
def test_a_time_of_the_clock_is_the_first_instant_that_shows_it_or_a_later_one(zone: ZoneInfo, wall: datetime) -> None:
    whole = wall.replace(second=0, microsecond=0)
    assert first_instant(whole, zone) == by_the_minute(whole, zone)


@settings(max_examples=200)
@given(written=entries(), since=INSTANTS)
def test_a_window_lasts_as_long_as_it_says_and_begins_on_its_day(written: Dict[str, Any], since: datetime) -> None:
    (window,) = windows_of([written], []).windows
    assert isinstance(window, Window)
    opening = window.opening_after(since)
    assert since < opening.start <= since + timedelta(days=36) and opening.end - opening.start == window.duration
    local = opening.start.astimezone(window.zone)
    shown = "%02d:%02d" % (local.hour, local.minute)
    hours = abs(int(shown[:2]) * 60 + int(shown[3:]) - int(written["start"][:2]) * 60 - int(written["start"][3:]))
    assert local.strftime("%a").lower() in " ".join(written["days"]) and hours <= 60
    assert opening in window.openings_at(opening.start) and opening not in window.openings_at(opening.end)
    assert opening in window.openings_at(opening.end - timedelta(seconds=1))


@settings(max_examples=150)
@given(of_host=calendars(), since=INSTANTS)
def test_the_next_opening_is_open_and_nothing_before_it_is(of_host: Calendar, since: datetime) -> None:
    opens = of_host.next_opening(since)
    assert opens is not None and opens >= since and of_host.is_open(opens)
    assert (opens == since) == of_host.is_open(since)
    span = opens - since
    for part in range(20):
        assert opens == since or not of_host.is_open(since + span * part / 20)
    closes = of_host.closes(opens)
    if closes is not None:
        assert closes > opens and not of_host.is_open(closes)
        assert all(of_host.is_open(opens + (closes - opens) * part / 20) for part in range(20))


@settings(max_examples=150)
@given(of_host=calendars(), since=INSTANTS, lasting=st.integers(0, 72 * 60), less=st.integers(0, 72 * 60))
def test_what_may_start_may_be_shorter_or_start_later(
    of_host: Calendar, since: datetime, lasting: int, less: int
) -> None:
    opens = of_host.next_opening(since)
    assert opens is not None
    for start in (since, opens):
        end, part = start + timedelta(minutes=lasting), timedelta(minutes=min(less, lasting))
        if of_host.may_start(start, end):
            assert of_host.may_start(start, end - part)
            assert start + part == end or of_host.may_start(start + part, end)
        else:
            assert not of_host.may_start(start, end + part) and not of_host.may_start(start - part, end)


@settings(max_examples=100)
@given(of_host=st.lists(calendars(), min_size=1, max_size=2), since=INSTANTS, minutes=st.integers(0, 12 * 60))
def test_the_next_start_is_the_first_at_which_it_may(of_host: Any, since: datetime, minutes: int) -> None:
    lasting = timedelta(minutes=minutes)
    starts = next_start(of_host, since, lasting)
    told = ask(of_host, since, since + lasting)
    assert told.opens == starts and told.allowed == (starts == since)
    if starts is not None:
        assert all(each.may_start(starts, starts + lasting) for each in of_host)
        assert starts == since or not all(
            each.may_start(starts - timedelta(seconds=1), starts - timedelta(seconds=1) + lasting) for each in of_host)
