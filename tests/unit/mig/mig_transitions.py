# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Seeded transitions from one layout to another, some with a failing call of NVML, and what must hold after each."""
from __future__ import annotations

import random
from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mig_boards import profiles
from mig_host import MigHost

CALLS = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy",
         "nvmlComputeInstanceDestroy", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetMigMode")
# nvml.h: NO_PERMISSION, GPU_IS_LOST, IN_USE, INSUFFICIENT_RESOURCES, UNKNOWN
CODES = (4, 15, 19, 23, 999)

# (profile, start, slices of compute instances, UUIDs of MIG devices)
Instance = Tuple[int, int, Tuple[int, ...], Tuple[str, ...]]


def drawn_layout(random_: random.Random, board: str) -> List[Dict[str, Any]]:
    """Option 'layout': instances of any profiles that may or may not fit."""
    known = profiles(board)
    instances = []
    for profile in random_.choices(known, k=random_.randrange(0, 6)):
        instance: Dict[str, Any] = {"profile": str(profile.id)}
        if random_.random() < 0.15:
            instance["start"] = random_.choice(profile.starts)
        if random_.random() < 0.15 and profile.slices > 1:
            instance["compute"] = ["1c"] * random_.randrange(1, profile.slices + 1)
        instances.append(instance)
    return [{"instances": instances}]


def instances(host: MigHost, gpu: int = 0) -> List[Instance]:
    return [(each["profile"], each["start"],
             tuple(sorted((compute["slices"] for compute in each["compute"]), reverse=True)),
             tuple(sorted(compute["uuid"] for compute in each["compute"])))
            for each in host.migs()[gpu]["instances"]]


def multiset(found: Sequence[Instance]) -> Counter[Tuple[int, Tuple[int, ...]]]:
    return Counter((profile, compute) for profile, _start, compute, _uuids in found)


def wanted_multiset(board: str, layout: List[Dict[str, Any]]) -> Counter[Tuple[int, Tuple[int, ...]]]:
    by_id = {profile.id: profile for profile in profiles(board)}
    found: Counter[Tuple[int, Tuple[int, ...]]] = Counter()
    for each in layout[0]["instances"]:
        profile = by_id[int(each["profile"])]
        compute = (1,) * len(each["compute"]) if "compute" in each else (profile.slices,)
        found[profile.id, compute] += 1
    return found


class Transition:
    """One step of a walk from layout to layout; the host remembers where the last one ended."""

    def __init__(self, host: MigHost, board: str, seed: int, faults: bool) -> None:
        self.host, self.board = host, board
        self.random = random.Random(seed)
        self.layout = drawn_layout(self.random, board)
        self.fault: Optional[Dict[str, Any]] = None
        if faults and self.random.random() < 0.4:
            self.fault = {"call": self.random.choice(CALLS), "code": self.random.choice(CODES),
                          "nth": self.random.randrange(1, 8), "times": self.random.choice((1, 1, 1, 0))}

    def go(self) -> str:
        """What became of it: 'made', 'refused', 'restored' or 'partly'. AssertionError where it may not be so."""
        before = instances(self.host)
        written = self.host.writes()
        if self.fault:
            self.host.fault("call", 0, **self.fault)
        answer = self.host.apply(layout=self.layout)
        self.host.clear_faults()
        after = instances(self.host)
        writes = self.host.writes() - written
        error = answer.get("error")
        told = "%s -> %s, fault %s: %s" % (before, self.layout, self.fault, error and error["msg"])
        if error is None:
            assert multiset(after) == wanted_multiset(self.board, self.layout), told
            self._judge_kept(before, after, told)
            if not self.fault:
                assert writes == _difference(before, after), told
            return "made"
        if before == after:
            assert self.fault or not writes, told
            return "refused" if not writes else "restored"
        places = [each[:3] for each in after]
        assert self.fault, told
        if [each[:3] for each in before] == places:
            return "restored"
        assert "could not be made again" in error["found"] or multiset(after) == wanted_multiset(
            self.board, self.layout), told
        return "partly"

    def _judge_kept(self, before: Sequence[Instance], after: Sequence[Instance], told: str) -> None:
        """As many stay as of each kind are in both, unless one in the way of another has to go."""
        common = multiset(before) & multiset(after)
        kept = set(before) & set(after)
        if common == multiset(before):
            fixed = any("start" in each for each in self.layout[0]["instances"])
            assert fixed or kept <= set(before), told


def _difference(before: Sequence[Instance], after: Sequence[Instance]) -> int:
    """Calls that at least are needed from one to the other, instance by instance."""
    old = {(profile, start): set(uuids) for profile, start, _compute, uuids in before}
    new = {(profile, start): set(uuids) for profile, start, _compute, uuids in after}
    gone = sum(len(uuids - new.get(place, set())) + (place not in new) for place, uuids in old.items())
    come = sum(len(uuids - old.get(place, set())) + (place not in old) for place, uuids in new.items())
    return gone + come
