# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of our packages can go without any of somebody else's."""
from __future__ import annotations

from typing import Iterable, List, Mapping, Tuple

from ..manager import Index
from ..model import Package


def removable(opened: Index, packages: Mapping[str, Package], installed_by_us: Iterable[str]) -> Tuple[str, ...]:
    """opened: an index of no repository. What an interrupted transaction has not erased is no package of its own."""
    ours = sorted(name for name in set(installed_by_us) if name in packages and packages[name].there)
    if not ours or _is_alone(opened, ours, ours):
        return tuple(ours)
    # One more each time: somebody's package may do with either of two, and not without both
    together: List[str] = []
    for name in ours:
        if _is_alone(opened, [*together, name], ours):
            together.append(name)
    return tuple(together)


def _is_alone(opened: Index, names: Iterable[str], ours: Iterable[str]) -> bool:
    """Whether nothing of others goes with these; what the manager refuses to remove (dnf.conf(5), protected_packages)
    does not go, now or later."""
    told = opened.simulate_removal(names)
    return not told.problem and set(told.removes) <= set(ours)
