# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU can be filled with, worked out from the profiles that its driver tells. Pure.

Source: pkg/mig/builder of NVIDIA/mig-parted v0.15, behind `nvidia-mig-parted generate-config`.
"""
from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from ..hardware.mig import Mig, Profile

# {compute slices of the board: {slices: instances}}
_BALANCED: Mapping[int, Mapping[int, int]] = {7: {3: 1, 2: 1, 1: 2}, 4: {2: 1, 1: 2}}


def most_of(profile: Profile, mig: Mig) -> int:
    """How many instances of a profile fit beside each other.

    Of use only where its places are known. From placements and engines, not from what the driver tells as their number:
    that is wrong on A30 (pkg/mig/discovery of NVIDIA/mig-parted). Media extensions are there once, so that is how often
    '+me' fits.
    """
    places, end = 0, 0
    for start in sorted(profile.starts):
        if start >= end:
            places, end = places + 1, start + profile.size
    engines = [max(each.engines[kind] for each in mig.profiles) // own
               for kind, own in enumerate(profile.engines) if own]
    return min([places, *engines])


def balanced(mig: Mig) -> Optional[Tuple[Tuple[Profile, int], ...]]:
    """Profiles, and how many of each, of the layout that NVIDIA calls balanced; None where it has none for a board.

    Of several profiles with as many slices it is the one of which most fit.
    """
    base: Dict[int, Profile] = {}
    for profile in mig.profiles:
        if not profile.attributes and (
                profile.slices not in base or most_of(profile, mig) > most_of(base[profile.slices], mig)):
            base[profile.slices] = profile
    counts = _BALANCED.get(max(base, default=0), {})
    if not counts or not base.keys() >= counts.keys():
        return None
    return tuple((base[slices], count) for slices, count in counts.items())
