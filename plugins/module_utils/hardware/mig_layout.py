# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A GPU's instances drawn in their places, for people. Pure."""
from __future__ import annotations

from typing import Iterable, List, Sequence, Tuple

NARROWEST = 5

# (start, units, name)
Part = Tuple[int, int, str]


def drawn(parts: Iterable[Part], units: int, beside: Iterable[Part] = ()) -> str:
    """'|1g.10gb|1g.10gb|2g.20gb        |.......|...': what begins where, as wide as it is large; dots are free.

    beside: what is drawn above or below it, in the same scale.
    """
    placed = sorted(parts)
    return "".join(_cells(placed, units, _width([*placed, *beside]))) + "|"


def _width(parts: Iterable[Part]) -> int:
    """Characters of a unit."""
    return max([NARROWEST, *(-(-(len(name) + 1) // size) for _start, size, name in parts)])


def _cells(parts: Sequence[Part], units: int, width: int) -> List[str]:
    cells, unit = [], 0
    for start, size, name in parts:
        cells += ["|" + "." * (width - 1)] * (start - unit)
        cells.append("|" + name.ljust(size * width - 1))
        unit = start + size
    return cells + ["|" + "." * (width - 1)] * (units - unit)
