# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order of rpm's versions (rpmvercmp of rpm's rpmio/rpmvercmp.c; rpm-version(7)).

Planners are pure and cannot ask rpm; a test has rpm judge thousands of pairs.
"""
from __future__ import annotations

import re
from functools import cmp_to_key
from typing import Iterable, List, Tuple

# Everything else only divides
_PART = re.compile(r"~|\^|[0-9]+|[A-Za-z]+")


def compare(first: str, second: str) -> int:
    """-1, 0 or 1: how the first '[epoch:]version[-release]' stands to the second. A missing epoch is 0.

    Releases are compared where both have one: 'nvidia-driver = 3:580.178.04' is met by every release.
    """
    one, other = split(first), split(second)
    if one[0] != other[0]:
        return -1 if one[0] < other[0] else 1
    release = compare_part(one[2], other[2]) if one[2] and other[2] else 0
    return compare_part(one[1], other[1]) or release


def newest_first(versions: Iterable[str]) -> List[str]:
    return sorted(versions, key=cmp_to_key(compare), reverse=True)


def split(version: str) -> Tuple[int, str, str]:
    """(epoch, version, release); a missing epoch is 0, a missing release ''."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    bare, _dash, release = rest.partition("-")
    return int(epoch) if epoch.isdigit() else 0, bare, release


def joined(epoch: str, version: str, release: str) -> str:
    """As we write it: an epoch of 0 is left out."""
    number = int(epoch) if epoch.isdigit() else 0
    return ("%d:" % number if number else "") + "%s-%s" % (version, release)


def compare_part(first: str, second: str) -> int:
    """A tilde comes before the end, a caret after it and before everything else; digits come after letters."""
    if first == second:
        return 0
    one, other = _PART.findall(first), _PART.findall(second)
    for number in range(max(len(one), len(other))):
        order = _compare_segment(*(parts[number] if number < len(parts) else "" for parts in (one, other)))
        if order:
            return order
    return 0


def _compare_segment(one: str, other: str) -> int:
    """Segments at one place; '' is the end."""
    if one == other:
        return 0
    for sign in ("~", "^"):
        if sign in (one, other):
            mine = one == sign
            against_the_end = "" in (one, other)
            lower = sign == "~" or not against_the_end
            return (-1 if lower else 1) * (1 if mine else -1)
    if "" in (one, other):
        return 1 if one else -1
    if one.isdigit() != other.isdigit():
        return 1 if one.isdigit() else -1
    if one.isdigit():
        low, high = int(one), int(other)
        return (low > high) - (low < high)
    return 1 if one > other else -1
