# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a policy to what each GPU is to be. Pure.

Whether the instances of a GPU fit beside each other is not judged here.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from ..hardware.mig import Mig, Profile
from . import profiles
from .configuration import Entry, Instances
from .filling import balanced, most_of
from .former import Former
from .model import Board, Target, Wanted
from .placement import placed_now
from .policy import BALANCED, Policy
from .selection import Choice, choices, filtered, listed, named


def targets(policy: Policy, boards: Sequence[Board]) -> Tuple[Dict[str, Target], Tuple[str, ...]]:
    """({UUID: what this GPU is to be}, notes for people). A GPU that is not among them stays as it is.

    Raises GpuOpsError with everything that stands against it, of all GPUs; of equal GPUs it is said once.
    A driver before 550 tells no profile before MIG mode is on: then the target is the mode alone, and a note says so.
    """
    if not policy.managed:
        return {}, ()
    chosen, named_in_vain = choices(policy.entries, boards, policy.option)
    refusals = [*named_in_vain, *_refuse_without_mig(policy, boards, chosen)]
    notes = [*_idle_entries(policy, boards), *_left_out(chosen)]
    if not chosen and not refusals:
        if boards and all(board.mig is None for board in boards):
            notes.append("Left as they are, without MIG: %s." % listed(boards))
        else:
            refusals.append(_for_no_gpu(policy, boards))
    found: Dict[str, Target] = {}
    for kind in _kinds(policy, chosen):
        target = kind.target()
        found.update((board.uuid, target) for board in kind.boards)
        refusals.extend(kind.refusals)
        notes.extend(kind.notes)
    if refusals:
        raise GpuOpsError.because(tuple(dict.fromkeys(refusals)))
    return found, tuple(dict.fromkeys(notes))


def given_back(boards: Sequence[Board], former: Mapping[str, Former]) -> Dict[str, Target]:
    """{UUID: what is to be left of this GPU} where something of ours is: what was there before us, as far as it still
    is."""
    found = {}
    for board in boards:
        before = former.get(board.uuid)
        if board.mig is None or before is None or before.is_all_of(board.mig):
            continue
        left = tuple(Wanted(each.profile, each.compute, each.start)
                     for each in placed_now(board.mig) if before.had(each))
        found[board.uuid] = Target(True, left) if before.mode else Target(False, ())
    return found


def _for_no_gpu(policy: Policy, boards: Sequence[Board]) -> Refusal:
    """A file for the boards of a fleet is no slip on those of its hosts that cannot be divided."""
    otherwise = ("give the Node another layout" if policy.label else
                 "without `%s` MIG is left as it is on this host" % ("config" if policy.config else "layout"))
    return Refusal(
        "mig.layout_for_no_gpu",
        found="no entry of %s is for a GPU of this host, which has: %s" % (policy.called, listed(boards)),
        wanted="an entry without a device filter, or with that of such a board",
        remedy="add one; %s" % otherwise,
        option=policy.option,
    )


def _idle_entries(policy: Policy, boards: Sequence[Board]) -> List[str]:
    """Of a file for many boards most entries are for none of this host; of a layout they may be a slip."""
    idle = [entry for entry in policy.entries if not filtered(entry, boards)]
    return ["No GPU of this host has a device id of %s (%s)." % (entry.where, ", ".join(entry.filters))
            for entry in idle if policy.option == "layout"]


def _refuse_without_mig(policy: Policy, boards: Sequence[Board], chosen: Sequence[Choice]) -> List[Refusal]:
    """GPUs that are to be divided and cannot be. Those that no entry names are left out, unless all are such."""
    without = [choice for choice in chosen if choice.board.mig is None and choice.entry.enabled]
    refusals = []
    for entry in dict.fromkeys(choice.entry for choice in without if choice.by_name):
        there = [choice.board.named() for choice in without if choice.by_name and choice.entry == entry]
        refusals.append(Refusal(
            "mig.without_mig",
            found="%s names %s, which cannot be divided" % (entry.where, ", ".join(there)),
            wanted="GPUs with MIG",
            remedy="take it out of `%s`" % policy.option,
            option=policy.option,
        ))
    if policy.option == "layout" and without and not refusals and all(board.mig is None for board in boards):
        refusals.append(Refusal(
            "mig.nowhere",
            found="no GPU of this host has MIG: %s" % listed(boards),
            wanted="GPUs that can be divided, for %s" % policy.called,
            remedy="leave `%s` out for this host, so that MIG is not managed; an RTX PRO has MIG in display mode "
                   "compute, with a VBIOS that knows it" % policy.option,
            option=policy.option,
        ))
    return refusals


def _left_out(chosen: Sequence[Choice]) -> List[str]:
    without = [choice.board.named() for choice in chosen if choice.board.mig is None and choice.entry.enabled]
    return ["Left as they are, without MIG: %s." % ", ".join(without)] if without else []


@dataclass
class _Kind:
    """GPUs with the same profiles, for which one entry decides. refusals, notes: what there is to say of them."""

    policy: Policy
    entry: Entry
    boards: List[Board]
    mig: Mig
    refusals: List[Refusal]
    notes: List[str]

    def target(self) -> Target:
        """What these GPUs are to be; of use only where it adds no refusal."""
        if not self.entry.enabled:
            return Target(False, ())
        names_profiles = bool(self.policy.fill or self.entry.instances)
        if names_profiles and not self.mig.profiles and not self.mig.current:
            self.notes.append("The driver tells the profiles of %s only in MIG mode: their instances are planned once "
                              "it is on." % named(self.boards))
            return Target(True, None)
        if self.policy.fill == BALANCED:
            return Target(True, self._balanced())
        if self.policy.fill:
            return Target(True, self._filled())
        return Target(True, None if self.entry.instances is None else self._listed(self.entry.instances))

    def _filled(self) -> Tuple[Wanted, ...]:
        match = self._match(self.policy.fill)
        if match is None:
            return ()
        self._judge_places(match.profile)
        return (_whole(match.profile),) * most_of(match.profile, self.mig)

    def _balanced(self) -> Tuple[Wanted, ...]:
        layout = balanced(self.mig)
        if layout is None:
            self.refusals.append(Refusal(
                "mig.no_balanced_layout",
                found="%s for %s, which %s" % (self.policy.called, named(self.boards), self._has()),
                wanted="a GPU of seven slices with profiles of 1, 2 and 3, or of four with profiles of 1 and 2",
                remedy="%s: all- and one of its profiles; or write a `layout`" % self.policy.correction,
                option=self.policy.option,
            ))
            return ()
        for profile, _count in layout:
            self._judge_places(profile)
        return tuple(_whole(profile) for profile, count in layout for _each in range(count))

    def _listed(self, listed_instances: Sequence[Instances]) -> Tuple[Wanted, ...]:
        wanted: List[Wanted] = []
        # {profile's id: (profile, slices of the compute instances that names ask for)}
        shared: Dict[int, Tuple[Profile, List[int]]] = {}
        for instances in listed_instances:
            match = self._match(instances.profile)
            if match is None:
                continue
            if match.compute is not None:
                shared.setdefault(match.profile.id, (match.profile, []))[1].extend([match.compute] * instances.count)
                continue
            compute = instances.compute or (match.profile.slices,)
            self._judge(match.profile, compute, instances.start)
            wanted.extend([Wanted(match.profile.id, compute, instances.start)] * instances.count)
        for profile, sizes in shared.values():
            for compute in _packed(sizes, profile.slices):
                self._judge(profile, compute, None)
                wanted.append(Wanted(profile.id, compute))
        return tuple(wanted)

    def _match(self, word: str) -> Optional[profiles.Match]:
        match = profiles.match(word, self.boards[0])
        if match is None:
            self.refusals.append(Refusal(
                "mig.profile_unknown",
                found="%s asks for '%s' on %s, which %s" % (self.entry.where, word, named(self.boards), self._has()),
                wanted="a profile of this GPU, by name, shape or id",
                remedy="%s, or choose another layout for this GPU" % self.policy.correction,
                option=self.policy.option,
            ))
        elif match.near:
            self.notes.append("'%s' is taken for %s on %s: drivers differ in the names of a profile." % (
                word, self._name(match.profile), named(self.boards)))
        return match

    def _judge(self, profile: Profile, compute: Tuple[int, ...], start: Optional[int]) -> None:
        """Whether one GPU instance can be so."""
        self._judge_places(profile)
        if start is not None and profile.starts and start not in profile.starts:
            self.refusals.append(Refusal(
                "mig.start_not_offered",
                found="%s: 'start' %d for %s on %s" % (
                    self.entry.where, start, self._name(profile), named(self.boards)),
                wanted="one of %s" % ", ".join(map(str, profile.starts)),
                remedy="correct it in `layout`, or leave it out",
                option="layout",
            ))
        offered = profiles.compute_sizes(profile.slices)
        if sum(compute) > profile.slices or not set(compute) <= set(offered):
            self.refusals.append(Refusal(
                "mig.compute_does_not_fit",
                found="%s: compute instances of %s in %s on %s" % (
                    self.entry.where, _sizes(compute), self._name(profile), named(self.boards)),
                wanted="of %s, and of %d slices together at most" % (_sizes(offered), profile.slices),
                remedy=self.policy.correction,
                option=self.policy.option,
            ))

    def _judge_places(self, profile: Profile) -> None:
        """Whether there is a place for it: without one, every layout would be that of no instances."""
        if not profile.starts:
            self.refusals.append(Refusal(
                "mig.places_untold",
                found="the driver tells no place for %s on %s" % (self._name(profile), named(self.boards)),
                wanted="where an instance may begin, which drivers from 495 on tell, and to root only",
                remedy="run this with become; `gpu_driver` installs a newer driver",
            ))

    def _name(self, profile: Profile) -> str:
        return profiles.name_of(profile, self.boards[0])

    def _has(self) -> str:
        names = ", ".join(map(self._name, self.mig.profiles)) or "none that the driver tells"
        return "%s the profiles %s" % ("has" if len(self.boards) == 1 else "have", names)


def _kinds(policy: Policy, chosen: Sequence[Choice]) -> List[_Kind]:
    """In the order of their first GPU."""
    kinds: Dict[Any, _Kind] = {}
    for choice in chosen:
        board, mig = choice.board, choice.board.mig
        if mig is not None:
            key = (choice.entry, board.name, board.memory_mib, mig.current, mig.profiles)
            kinds.setdefault(key, _Kind(policy, choice.entry, [], mig, [], [])).boards.append(board)
    return list(kinds.values())


def _whole(profile: Profile) -> Wanted:
    """With one compute instance that takes all of it."""
    return Wanted(profile.id, (profile.slices,))


def _sizes(slices: Sequence[int]) -> str:
    return ", ".join("%dc" % size for size in slices)


def _packed(sizes: Sequence[int], slices: int) -> List[Tuple[int, ...]]:
    """Compute instances shared out among GPU instances: each into the first that has room, the greatest first.

    One that has room in none is alone in its own.
    """
    packed: List[Tuple[int, ...]] = []
    for size in sorted(sizes, reverse=True):
        place = next((number for number, there in enumerate(packed) if sum(there) + size <= slices), None)
        if place is None:
            packed.append((size,))
        else:
            packed[place] += (size,)
    return packed
