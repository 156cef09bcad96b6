# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order of Debian package versions (Debian Policy 5.6.12; parseversion and verrevcmp of dpkg's lib/dpkg/version.c).

Planners are pure and cannot ask dpkg; a test has dpkg judge thousands of pairs.
"""
from __future__ import annotations

import re
from functools import cmp_to_key
from typing import Iterable, List, Tuple

_PART = re.compile(r"([^0-9]*)([0-9]*)")


def compare(first: str, second: str) -> int:
    """-1, 0 or 1: how the first version stands to the second. Epoch, upstream version, revision, in this order."""
    one, other = _split(first), _split(second)
    if one[0] != other[0]:
        return -1 if one[0] < other[0] else 1
    return _compare_part(one[1], other[1]) or _compare_part(one[2], other[2])


def newest_first(versions: Iterable[str]) -> List[str]:
    return sorted(versions, key=cmp_to_key(compare), reverse=True)


def _split(version: str) -> Tuple[int, str, str]:
    """(epoch, upstream version, revision); a missing epoch is 0, a missing revision is ''."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, _dash, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch) if epoch.isdigit() else 0, upstream, revision


def _compare_part(first: str, second: str) -> int:
    one, other = _PART.findall(first), _PART.findall(second)
    for number in range(max(len(one), len(other))):
        words, digits = one[number] if number < len(one) else ("", "")
        their_words, their_digits = other[number] if number < len(other) else ("", "")
        if words != their_words:
            return -1 if _weights(words) < _weights(their_words) else 1
        if int(digits or "0") != int(their_digits or "0"):
            return -1 if int(digits or "0") < int(their_digits or "0") else 1
    return 0


def _weights(words: str) -> Tuple[int, ...]:
    """A tilde comes before the end, the end before letters, letters before everything else."""
    return tuple(-1 if sign == "~" else ord(sign) if sign.isalpha() else ord(sign) + 256 for sign in words) + (0,)
