# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the wanted GPU instances go, so that as much as possible stays as it is. Pure and exact.

A GPU instance cannot be moved: one whose place is needed is destroyed, with what runs in it, and another one is
created with a new UUID. Of all ways to place what is wanted, this is the one that destroys the fewest instances in use,
then the fewest instances at all, then creates the fewest, then leaves the most places for what may be wanted later; of
equals the one that begins lowest. A board has 4, 8 or 12 units, so all ways are looked at, each taken set of units
once.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Callable, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from ..hardware.mig import ComputeInstance, GpuInstance, Mig, Profile
from .model import Wanted

# What is paid for an instance, compared from the left: destroyed in use, destroyed, created
Cost = Tuple[int, int, int]
_FREE: Cost = (0, 0, 0)
# {slices of a compute instance: it begins at a multiple of so many slices of its GPU instance}, as drivers list them
# (nvidia-smi mig -lcipp; NVIDIA MIG User Guide); a larger one begins at the first
_BEGINS = {1: 1, 2: 2, 3: 4, 4: 4}


class Impossible(Exception):
    """No placement has room for what is wanted.

    conflict: a smallest part of it for which there is none: taking any instance out of it leaves one that fits.
    units:    units of the board.
    """

    def __init__(self, conflict: Tuple[Wanted, ...], units: int) -> None:
        super().__init__("%d instances on %d units" % (len(conflict), units))
        self.conflict = conflict
        self.units = units


@dataclass(frozen=True)
class Kept:
    """A GPU instance that stays, with its compute instances that go, and slices of those that come."""

    instance: GpuInstance
    destroyed: Tuple[ComputeInstance, ...] = ()
    created: Tuple[int, ...] = ()

    @property
    def cost(self) -> Cost:
        return (sum(each.in_use for each in self.destroyed), len(self.destroyed), len(self.created))


@dataclass(frozen=True)
class Placed:
    """A GPU instance that is to come."""

    profile: int
    start: int
    size: int
    compute: Tuple[int, ...]


@dataclass(frozen=True)
class Arrangement:
    """What becomes of a GPU's instances, each by start."""

    kept: Tuple[Kept, ...]
    destroyed: Tuple[GpuInstance, ...]
    created: Tuple[Placed, ...]

    @property
    def changes(self) -> bool:
        return bool(self.destroyed or self.created or any(kept.destroyed or kept.created for kept in self.kept))

    @property
    def in_use(self) -> Tuple[ComputeInstance, ...]:
        """Compute instances in use that go."""
        going = [each for instance in self.destroyed for each in instance.compute]
        going += [each for kept in self.kept for each in kept.destroyed]
        return tuple(each for each in going if each.in_use)


def as_placed(instance: GpuInstance) -> Placed:
    return Placed(instance.profile, instance.start, instance.size,
                  tuple(sorted((each.slices for each in instance.compute), reverse=True)))


def placed_now(mig: Mig) -> Tuple[Placed, ...]:
    """A GPU's instances, by start."""
    return tuple(as_placed(instance) for instance in mig.instances)


def arrange(mig: Mig, wanted: Sequence[Wanted]) -> Arrangement:
    """The cheapest way from a GPU's instances to those that are wanted. Raises Impossible."""
    starts = _best(mig, sorted(wanted, key=_order(mig)))
    if starts is None:
        raise _conflict(mig, wanted)
    there = {(instance.profile, instance.start): instance for instance in mig.instances}
    kept, created = [], []
    for want, start in starts:
        instance = there.pop((want.profile, start), None)
        if instance is None:
            created.append(Placed(want.profile, start, _profile(mig, want).size, want.compute))
        else:
            kept.append(recomputed(instance, want.compute, _profile(mig, want).slices))
    return Arrangement(
        tuple(sorted(kept, key=lambda each: each.instance.start)),
        tuple(sorted(there.values(), key=lambda each: each.start)),
        tuple(sorted(created, key=lambda each: each.start)))


def recomputed(instance: GpuInstance, slices: Sequence[int], whole: int) -> Kept:
    """A GPU instance that keeps as many of its compute instances as are wanted and leave room for the others, those in
    use before others. whole: its compute slices."""
    wanted = tuple(sorted(slices, reverse=True))
    ways = []
    for kept in _parts(instance.compute):
        left = Counter(each.slices for each in kept)
        coming = Counter(wanted) - left
        free = frozenset(range(whole)).difference(*(range(each.start, each.start + each.slices) for each in kept))
        if not left - Counter(wanted) and _has_room(free, tuple(sorted(coming.elements(), reverse=True))):
            going = tuple(each for each in instance.compute if each not in kept)
            ways.append(Kept(instance, going, tuple(sorted(coming.elements(), reverse=True))))
    # What fits nowhere is left to the driver, which has the last word
    return min(ways, key=lambda way: (way.cost, [each.start for each in way.destroyed]),
               default=Kept(instance, instance.compute, wanted))


def _parts(compute: Sequence[ComputeInstance]) -> Iterator[Tuple[ComputeInstance, ...]]:
    for count in range(len(compute) + 1):
        yield from combinations(compute, count)


def _has_room(free: FrozenSet[int], sizes: Sequence[int]) -> bool:
    """Whether compute instances of these sizes fit into slices, each where one of its size may begin."""
    if not sizes:
        return True
    places = (frozenset(range(start, start + sizes[0])) for start in range(0, 8, _BEGINS.get(sizes[0], 8)))
    return any(place <= free and _has_room(free - place, sizes[1:]) for place in places)


def _order(mig: Mig) -> Callable[[Wanted], Tuple[int, int, int, Tuple[int, ...], int]]:
    """Equal ones beside each other, those with the fewest places first."""

    def key(want: Wanted) -> Tuple[int, int, int, Tuple[int, ...], int]:
        return (len(_places(mig, want)), -_profile(mig, want).size, want.profile, want.compute,
                -1 if want.start is None else want.start)

    return key


def _best(mig: Mig, wanted: Sequence[Wanted]) -> Optional[List[Tuple[Wanted, int]]]:
    """Each with its start; None where there is no way."""
    if not _media_suffice(mig, wanted):
        return None
    there = {(instance.profile, instance.start): instance for instance in mig.instances}
    spaces = [_units(start, profile.size) for profile in mig.profiles for start in profile.starts]

    def cost(want: Wanted, start: int) -> Cost:
        """Beside a board on which nothing is kept: what is kept has not been destroyed, and is not created."""
        instance = there.get((want.profile, start))
        if instance is None:
            return (0, 0, 1 + len(want.compute))
        changed = recomputed(instance, want.compute, _profile(mig, want).slices).cost
        used = sum(each.in_use for each in instance.compute)
        return (changed[0] - used, changed[1] - 1 - len(instance.compute), changed[2])

    @lru_cache(maxsize=None)
    def rest(number: int, taken: int, least: int) -> Optional[Tuple[Cost, int, Tuple[int, ...]]]:
        """(cost, places lost, starts) of the instances from this one on; least: where an equal one may begin."""
        if number == len(wanted):
            return _FREE, -sum(not taken & units for units in spaces), ()
        want = wanted[number]
        size = _profile(mig, want).size
        ways = []
        for start in _places(mig, want):
            units = _units(start, size)
            if start < least or taken & units:
                continue
            alike = number + 1 < len(wanted) and wanted[number + 1] == want
            after = rest(number + 1, taken | units, start + 1 if alike else 0)
            if after is not None:
                paid = cost(want, start)
                total = (paid[0] + after[0][0], paid[1] + after[0][1], paid[2] + after[0][2])
                ways.append((total, after[1], (start, *after[2])))
        return min(ways, default=None)

    found = rest(0, 0, 0)
    return None if found is None else list(zip(wanted, found[2]))


def _units(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def _profile(mig: Mig, want: Wanted) -> Profile:
    found = mig.profile(want.profile)
    if found is None:
        raise ValueError("the GPU has no profile %d" % want.profile)
    return found


def _places(mig: Mig, want: Wanted) -> Tuple[int, ...]:
    starts = _profile(mig, want).starts
    return starts if want.start is None else tuple(start for start in starts if start == want.start)


def _media_suffice(mig: Mig, wanted: Sequence[Wanted]) -> bool:
    """Whether there are media engines for all: a profile with '+me' has some that others then lack (MIG User Guide).

    Instances of plain profiles never take more than there are, and of those the driver may tell too few (A30).
    """
    profiles = [_profile(mig, want) for want in wanted]
    counts = Counter(profile.id for profile in profiles)
    special = [profile for profile in profiles if profile.attributes.startswith("+me")]
    if any(counts[profile.id] > profile.most for profile in special):
        return False
    return not special or all(
        sum(profile.engines[kind] for profile in profiles) <= max(profile.engines[kind] for profile in mig.profiles)
        for kind in range(1, len(profiles[0].engines)))


def _conflict(mig: Mig, wanted: Sequence[Wanted]) -> Impossible:
    """A smallest part of what is wanted that does not fit either."""
    conflict = sorted(wanted, key=_order(mig))
    number = 0
    while number < len(conflict):
        others = conflict[:number] + conflict[number + 1:]
        if _best(mig, others) is None:
            conflict = others
        else:
            number += 1
    return Impossible(tuple(conflict), mig.units)
