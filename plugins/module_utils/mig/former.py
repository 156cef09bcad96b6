# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU was before our first change of it, noted before that: what a removal leaves to whom it belongs.

A GPU on which nothing of ours is left has no such note: what is made there later is somebody else's.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, Mapping, Tuple

from ..core.journal import Journal
from ..hardware.mig import Mig
from .placement import Placed, placed_now

# Of the journal's notes: {UUID: [whether MIG mode was on, [[profile, start] of each instance]]}
FORMER = "former"


@dataclass(frozen=True)
class Former:
    """mode: whether MIG mode was on, or was to be after the next reset. places: (profile, start) of each instance."""

    mode: bool
    places: Tuple[Tuple[int, int], ...] = ()

    def had(self, placed: Placed) -> bool:
        return (placed.profile, placed.start) in self.places

    def is_all(self, enabled: bool, placed: Iterable[Placed]) -> bool:
        """Whether there is nothing of ours on the GPU when it is so."""
        return (self.mode or not enabled) and all(map(self.had, placed))

    def is_all_of(self, mig: Mig) -> bool:
        return self.is_all(mig.current or mig.pending, placed_now(mig))


def former_of(mig: Mig) -> Former:
    return Former(mig.current or mig.pending, tuple((each.profile, each.start) for each in mig.instances))


def read(memory: Mapping[str, Any]) -> Dict[str, Former]:
    return {uuid: Former(mode, tuple((profile, start) for profile, start in places))
            for uuid, (mode, places) in memory.get(FORMER, {}).items()}


def note(
    journal: Journal, capability: str, uuid: str, mig: Mig, enabled: bool, placed: Iterable[Placed]
) -> None:
    """Before a GPU that is so gets this mode and these instances; what only goes brings nothing of ours."""
    known, now = read(journal.recall(capability)), former_of(mig)
    if uuid not in known and not now.is_all(enabled, placed):
        _put(journal, capability, {**known, uuid: now})


def forget(journal: Journal, capability: str, uuid: str) -> None:
    known = read(journal.recall(capability))
    if uuid in known:
        _put(journal, capability, {name: former for name, former in known.items() if name != uuid})


def _put(journal: Journal, capability: str, known: Mapping[str, Former]) -> None:
    others = {key: value for key, value in journal.recall(capability).items() if key != FORMER}
    mine = {uuid: [former.mode, [list(place) for place in former.places]] for uuid, former in known.items()}
    journal.remember(capability, {**others, FORMER: mine} if mine else others)
