# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Many hosts in few words, as cluster tools write them: gpu[001-412,420].example. Pure."""
from __future__ import annotations

import re
from typing import Dict, Iterable, List, Sequence, Set, Tuple

# The last number of a name's first label; of an address, which has labels of digits alone, the last one of all
_NUMBERED = re.compile(r"([^.]*?)([0-9]+)([^0-9.]*(?:\..*)?)", re.DOTALL)
_ADDRESS = re.compile(r"([0-9.]*\.)([0-9]+)()")

# What a reader of ranges takes for their own
_MEANT = frozenset(",[]")

# (what is before the number, after it, first, last): each as it is written, so that 001 stays 001; '' without a number
_Run = Tuple[str, str, str, str]


def listed(hosts: Iterable[str], longest: int = 0) -> str:
    """The hosts in ranges, sorted, each once. longest: characters, then the rest is counted; 0 is no limit.

    A name with a comma or a bracket of its own stays as it is.
    """
    runs = _runs(set(hosts))
    text = _text(runs)
    if not longest or len(text) <= longest:
        return text
    kept = 1
    while kept < len(runs) and len(_text(runs[:kept + 1])) <= longest:
        kept += 1
    more = sum(map(_size, runs[kept:]))
    shown = _text(runs[:kept])
    return "%s and %d more" % (shown, more) if more else shown


def _runs(names: Set[str]) -> List[_Run]:
    families: Dict[Tuple[str, str], List[str]] = {}
    alone: List[_Run] = []
    for name in names:
        found = _ADDRESS.fullmatch(name) or _NUMBERED.fullmatch(name)
        if found is None or _MEANT.intersection(name):
            alone.append((name, "", "", ""))
        else:
            families.setdefault((found.group(1), found.group(3)), []).append(found.group(2))
    numbered = [(before, after, first, last) for (before, after), numbers in families.items()
                for first, last in _ranges(numbers)]
    return sorted([*alone, *numbered], key=lambda run: (run[0], run[1], int(run[2] or 0), run[2]))


def _ranges(numbers: Sequence[str]) -> List[Tuple[str, str]]:
    """Neighbours together. Numbers of one width are, where one of that width begins with a zero, apart from others."""
    padded = {len(number) for number in numbers if len(number) > 1 and number.startswith("0")}
    by_width: Dict[int, List[str]] = {}
    for number in numbers:
        by_width.setdefault(len(number) if len(number) in padded else 0, []).append(number)
    found: List[Tuple[str, str]] = []
    for alike in by_width.values():
        alike.sort(key=int)
        first = last = alike[0]
        for number in alike[1:]:
            if int(number) != int(last) + 1:
                found.append((first, last))
                first = number
            last = number
        found.append((first, last))
    return found


def _text(runs: Sequence[_Run]) -> str:
    parts: List[str] = []
    waiting: List[_Run] = []
    for run in runs:
        if waiting and (run[:2] != waiting[0][:2] or not waiting[0][2]):
            parts.append(_family(waiting))
            waiting = []
        waiting.append(run)
    return ", ".join([*parts, *([_family(waiting)] if waiting else [])])


def _family(runs: Sequence[_Run]) -> str:
    before, after, first, last = runs[0]
    if len(runs) == 1 and first == last:
        return before + first + after
    ranges = [first if first == last else "%s-%s" % (first, last) for _before, _after, first, last in runs]
    return "%s[%s]%s" % (before, ",".join(ranges), after)


def _size(run: _Run) -> int:
    return int(run[3]) - int(run[2]) + 1 if run[2] else 1
