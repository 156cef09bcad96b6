# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A rollout for people: in which order, how many at once, how long, and why not. A few lines for any fleet. Pure."""
from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import groupby
from typing import Dict, Iterable, Iterator, List, Mapping, Sequence, Tuple

from ..core.progress import duration
from ..core.refusal import Refusal
from .model import UNKNOWN_DOMAIN, Cause, Decision, Place, Rollout, Unit, some

# Lines of each of its parts
MOST_GROUPS = 20
MOST_REASONS = 8
# What the order itself brings with it, where something of it goes on
_OF_THE_ORDER = (Cause.canary, Cause.group, Cause.slots, Cause.turn)


def render(rollout: Rollout, decision: Decision) -> str:
    """Text without a line break at its end, forty lines at most."""
    changed = sum(len(unit.hosts) for unit in rollout.units)
    lines = ["%s of %d to be changed in turn, %d beside, %d refused" % (
        _count(changed, "host"), len(rollout.of_run), len(rollout.beside), len(rollout.refused))]
    lines += ["  " + line for line in (*_places(rollout, decision), *_stopped(decision))]
    lines += ["  " + line for line in _cut(list(_groups(rollout)), MOST_GROUPS, "%d groups more")]
    if rollout.units:
        jobs = {job for unit in rollout.units for job in unit.jobs}
        hit = "%s to end or wait" % _count(len(jobs), "job") if jobs else "no job on them"
        lines.append("  expected: %s of changes, beside the time until a window opens; %s" % (
            duration(lasting(rollout)), hit))
    lines += ["  " + line for line in _cut(list(_waits(decision)), MOST_REASONS, "%d reasons more")]
    lines += ["  " + line for line in _cut(list(_refusals(rollout.refused)), MOST_REASONS, "%d reasons more")]
    return "\n".join(lines)


def head(rollout: Rollout, decision: Decision) -> List[str]:
    """How it stands, for who is told of its units elsewhere: what stops it, what the first one waits for, and how many
    go at once. Six lines at most, what matters most first."""
    goes_on = bool(decision.may_start or decision.under_way)
    waits = [each for each in decision.waiting
             if each.cause is not Cause.stopped and not (goes_on and each.cause in _OF_THE_ORDER)]
    return [*_stopped(decision), *list(_waits(replace(decision, waiting=tuple(waits))))[:1],
            *_places(rollout, decision)]


def _stopped(decision: Decision) -> List[str]:
    return ["stopped: %s; do: %s [%s]" % (each.found, each.remedy, each.code) for each in decision.stopped]


def _places(rollout: Rollout, decision: Decision) -> List[str]:
    if not rollout.units:
        return []
    if not rollout.is_counted:
        return ["at once: as many as the play takes (`gpu_serial` of gpuops.nvidia.site), as they are in no cluster"]
    return ["at once: %d in all%s" % (rollout.limits.total, _domains(rollout.limits.domains)),
            "places: %s" % decision.slots]


def lasting(rollout: Rollout) -> int:
    """Seconds until the last unit is expected to end, where each begins as soon as the places in all let it, canaries
    before all others and watched as long as they are to be."""
    hosts, total = rollout.hosts, rollout.limits.total
    now, at_work = 0, 0
    ends: List[Tuple[int, int]] = []
    for place, units in groupby(rollout.units, key=lambda unit: unit.place):
        for unit in units:
            size = sum(1 for name in unit.hosts if hosts[name].in_service)
            while ends and at_work + size > total:
                now, freed = heapq.heappop(ends)
                at_work -= freed
            heapq.heappush(ends, (now + unit.seconds, size))
            at_work += size
        if place is Place.canary:
            now = max([now, *(end for end, _size in ends)]) + int(rollout.policy.soak.total_seconds())
            ends, at_work = [], 0
    return max([now, *(end for end, _size in ends)])


def _groups(rollout: Rollout) -> Iterator[str]:
    """Units that follow each other and are alike are told of together."""
    number = 0
    for _key, alike in groupby(rollout.units, key=_alike):
        units = list(alike)
        members = [name for unit in units for name in unit.hosts]
        kind = "host" if len(members) == len(units) else "unit"
        what = units[0].name if len(units) == 1 else _count(len(units), kind)
        names = "" if len(units) == 1 and len(members) == 1 else ": " + some(members)
        yield "%3d. %s%s; %s; %s%s" % (number + 1, what, names, units[0].why, duration(units[0].seconds),
                                       " each" if len(units) > 1 else "")
        number += len(units)


def _alike(unit: Unit) -> Tuple[object, ...]:
    return unit.place, unit.why, unit.one_by_one, unit.name if len(unit.hosts) > 1 else "", unit.seconds


def _waits(decision: Decision) -> Iterator[str]:
    """The first of each cause."""
    firsts: Dict[str, List[str]] = {}
    for each in decision.waiting:
        firsts.setdefault(each.cause.value, []).append("%s: %s" % (each.unit.name, each.why))
    for told in firsts.values():
        yield "waits: %s%s" % (told[0], " (and %d more)" % (len(told) - 1) if len(told) > 1 else "")


def _refusals(refused: Mapping[str, Refusal]) -> Iterator[str]:
    by_code: Dict[str, List[str]] = {}
    for name, refusal in refused.items():
        by_code.setdefault(refusal.code, []).append(name)
    for code, names in sorted(by_code.items(), key=lambda each: (-len(each[1]), each[0])):
        first = refused[names[0]]
        yield "refused: %s: %s; do: %s [%s]" % (some(names), first.found, first.remedy, code)


def _domains(domains: Mapping[str, int]) -> str:
    by_limit: Dict[int, List[str]] = {}
    for domain, limit in domains.items():
        by_limit.setdefault(limit, []).append(domain or UNKNOWN_DOMAIN)
    return "".join("; %d of failure domain %s" % (limit, some(names)) for limit, names in sorted(by_limit.items()))


def _cut(lines: Sequence[str], most: int, more: str) -> Iterable[str]:
    return lines if len(lines) <= most else [*lines[:most - 1], "     and " + more % (len(lines) - most + 1)]


def _count(number: int, what: str) -> str:
    return "%d %s%s" % (number, what, "" if number == 1 else "s")
