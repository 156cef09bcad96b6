# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order of dotted driver and toolkit versions, and ranges of them."""
from __future__ import annotations

import operator
import re
from typing import Any, Callable, Dict, Iterable, Sequence, Tuple

_BOUND = re.compile(r"(>=|<=|>|<)\s*(\d{3}(?:\.\d{1,3}){0,2})")
_COMPARED: Dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def version_key(version: str) -> Tuple[int, ...]:
    """Numbers of a dotted version, the packaging revision behind '-' left out: '580.126.09-1' gives (580, 126, 9)."""
    upstream = version.split(":", 1)[-1].split("-", 1)[0]
    return tuple(int(number) for number in re.findall(r"\d+", upstream))


def branch_of(version: str) -> int:
    """Driver branch of a version: 580 for '580.126.09'."""
    return version_key(version)[0]


Bound = Tuple[str, Tuple[int, ...]]


def bounds_of(text: str) -> Tuple[Bound, ...]:
    """Bounds of a range of versions, such as '>=580.95.05,<590': ((sign, numbers), ...); () where it is none.

    A bound is about as many numbers as it has: every 580 is within '<=580', and none within '>580'.
    """
    bounds = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part.strip())
        if match is None:
            return ()
        bounds.append((match.group(1), version_key(match.group(2))))
    return tuple(bounds)


def within(version: str, bounds: Iterable[Bound]) -> bool:
    """Whether a version keeps all bounds of a range."""
    numbers = version_key(version)
    return all(_COMPARED[sign](numbers[:len(bound)], bound) for sign, bound in bounds)


def is_empty(bounds: Sequence[Bound]) -> bool:
    """Whether no version can keep a lower and an upper bound of a range both."""
    lower = [each for each in bounds if each[0].startswith(">")]
    upper = [each for each in bounds if each[0].startswith("<")]
    return any(_apart(above, below) for above in lower for below in upper)


def _apart(above: Bound, below: Bound) -> bool:
    (sign_above, low), (sign_below, high) = above, below
    length = min(len(low), len(high))
    if low[:length] != high[:length]:
        return low[:length] > high[:length]
    return (sign_above == ">" and len(low) == length) or (sign_below == "<" and len(high) == length)
