# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a word names a profile of a GPU. Pure.

A profile's id is the same for every driver; its name is not. Of one board, drivers print '7g.186gb' and '7g.189gb', or
'1g.35gb' and '1g.31gb' (issues 227 and 228 of NVIDIA/mig-parted; GB300 under 590 and 610), and the files that people
keep have the names of one of them. So a word is taken, in this order, as

1. the id: '19';
2. the driver's own name: '1g.10gb+me', 'MIG 1g.10gb+me';
3. the name by NVIDIA's formula, which its Go programs print (pkg/nvlib/device/mig_profile.go of NVIDIA/go-nvlib);
4. the shape without memory, of profiles of one shape the one with the least: '1g', '1g+me', '3g';
5. a name of another driver: of profiles with these slices and attributes the only one whose memory is not further away
   than an eighth of the greater number. Names of one board differ by 11 % at most (35 and 31), boards of the next size
   by 15 % (7g.80gb and 7g.94gb), and two profiles of one shape by half. Whoever uses such a word is told what it means.

'.' may stand for '+', as in labels ('1g.24gb.me.all'), and 'Nc.' in front of a name or a shape asks for a compute
instance of N slices ('1c.3g.20gb').
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from ..hardware.mig import Profile
from .model import Board

_WORD = re.compile(r"(?:(?P<compute>\d+)c\.)?"
                   r"(?P<name>(?P<slices>\d+)g(?:\.(?P<memory>\d+)gb)?(?P<attributes>[+.-][a-z][a-z0-9.,]*)?)")
# Of the greater of two sizes: how far names of one profile may be apart
_NEAR = 8
# Slices of compute instances that leave some of their GPU instance over (NVIDIA MIG User Guide, compute instances)
_SMALLER = (1, 2, 3, 4)


@dataclass(frozen=True)
class Word:
    """A name of a profile, taken apart.

    memory:     in the unit of names, which is a GiB by NVIDIA's formula; None for a shape.
    attributes: as in Profile.
    compute:    slices of one compute instance; None where the name says nothing of it.
    """

    name: str
    slices: int
    memory: Optional[int]
    attributes: str
    compute: Optional[int]


@dataclass(frozen=True)
class Match:
    """The profile that a word names. compute: as in Word. near: whether it is only a name of another driver."""

    profile: Profile
    compute: Optional[int] = None
    near: bool = False


def parse(text: str) -> Optional[Word]:
    """None for what is no name of a profile; an id is none."""
    found = _WORD.fullmatch(_plain(text))
    if found is None:
        return None
    attributes = found.group("attributes") or ""
    return Word(
        name=found.group("name"),
        slices=int(found.group("slices")),
        memory=int(found.group("memory")) if found.group("memory") else None,
        attributes=_sorted("+" + attributes[1:] if attributes.startswith(".") else attributes),
        compute=int(found.group("compute")) if found.group("compute") else None,
    )


def is_id(text: str) -> bool:
    return re.fullmatch(r"[0-9]+", text.strip()) is not None


def match(text: str, board: Board) -> Optional[Match]:
    """The profile of a GPU that a word names; None where it names none, or could mean several."""
    profiles = board.mig.profiles if board.mig else ()
    if is_id(text):
        found = [profile for profile in profiles if profile.id == int(text)]
        return Match(found[0]) if found else None
    word = parse(text)
    if word is None:
        # A driver may have names that follow another grammar
        found = [profile for profile in profiles if _plain(profile.name) == _plain(text)]
        return Match(found[0]) if found else None
    alike = [profile for profile in profiles
             if profile.slices == word.slices and _sorted(profile.attributes) == word.attributes]
    if word.memory is None:
        least = min(alike, key=lambda profile: profile.memory_mib, default=None)
        return Match(least, word.compute) if least else None
    ways: Tuple[Callable[[Profile], bool], ...] = (
        lambda profile: _memory_in(profile.name) == word.memory,
        lambda profile: profile.memory_in_names(board.memory_mib) == word.memory,
        lambda profile: _is_near(word.memory, profile, board),
    )
    for way in ways:
        fitting = [profile for profile in alike if way(profile)]
        if fitting:
            return Match(fitting[0], word.compute, near=way is ways[-1]) if len(fitting) == 1 else None
    return None


def name_of(profile: Profile, board: Board) -> str:
    """The profile's name for people: the driver's own; by NVIDIA's formula where the driver has none."""
    return profile.name or profile.formal_name(board.memory_mib)


def compute_sizes(slices: int) -> Tuple[int, ...]:
    """Slices that a compute instance may have in a GPU instance.

    In one of 4 there is none of 3 (pkg/mig/config/known_configs.go of NVIDIA/mig-parted).
    """
    return (*(size for size in _SMALLER if size < slices and (size, slices) != (3, 4)), slices)


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).removeprefix("mig ")


def _sorted(attributes: str) -> str:
    return attributes[:1] + ",".join(sorted(attributes[1:].split(",")))


def _memory_in(name: str) -> Optional[int]:
    word = parse(name)
    return word.memory if word else None


def _is_near(memory: Optional[int], profile: Profile, board: Board) -> bool:
    sizes = {_memory_in(profile.name), profile.memory_in_names(board.memory_mib)} - {None}
    return memory is not None and any(
        abs(memory - size) * _NEAR <= max(memory, size) for size in sizes if size is not None)
