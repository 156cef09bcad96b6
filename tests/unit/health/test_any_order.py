# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whatever happens in whatever order: what may never be said, and what may never be forgotten."""
from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, Callable, Dict, List, Tuple

import pytest
from health_world import PLACES, HealthWorld, gpu, parts
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import satisfies
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.assess import assess
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import XIDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import Finding
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import State

HUNG = NvmlReading(error="nvmlInit had not answered after 60 s", hung="nvmlInit")
FAILED = NvmlReading(error="Unknown Error (nvmlInit)")
UNTRIED = NvmlReading(error="no driver is loaded")
UNREAD: List[Dict[str, Any]] = [
    {"records": None}, {"nvml": HUNG}, {"nvml": FAILED}, {"nvml": UNTRIED}, {"nvml": None}, {"compute": None},
    {"bus": None}]
EVENTS = sorted(number for number, meaning in XIDS.items() if meaning.kind == "event")


# 1,000 runs, and as many rounds

def healthy(world: HealthWorld, dice: random.Random) -> Dict[str, Any]:
    """Something that happens on a host that is well; what the next look cannot read."""
    happens = dice.randrange(15)
    if happens == 0:
        world.boot()
    elif happens == 1:
        world.load()
    elif happens == 2:
        world.compute(level=dice.choice(["quick", "standard", "long"]))
    elif happens == 3:
        world.xid(dice.choice(EVENTS), dice.randrange(2), "pid=%d, name=train, Fault" % dice.randrange(1 << 15))
    elif happens == 4:
        world.xid(dice.choice([13, 31]), dice.randrange(2), "pid=7, name=train, Fault")
    elif happens == 5:
        devices = dice.sample(["MIG-a", "MIG-b", "MIG-c"], dice.randrange(4))
        world.sets(0, mig=parts(*devices) if dice.random() < 0.5 else None,
                   remap_pending=dice.choice([False, None]), remap_failed=dice.choice([False, None]))
    elif happens == 6:
        world.sets(1, ecc_uncorrected=dice.randrange(5), recovery_action=dice.choice([0, None]))
    elif happens == 7:
        world.sequence += dice.randrange(1000)
        world.log("something else")
    elif happens == 8:
        world.did(dice.choice(["service", "reset", "reload"]), dice.choice(["", "gpu GPU-0"]))
    elif happens == 9:
        # Somebody sets the clock back, which that of the boot does not follow; or three days go by
        back = dice.choice([3600, 0])
        world.clock += -back if back else 86400 * 3
        world.booted -= back
    elif happens == 10:
        # Another driver's option, or MIG on an A100: links that are off, and clocks that nobody has slowed down
        off = dice.choice([(), (1,)])
        again = dice.choice([world.boot, world.load])
        again()
        world.sets(0, links_up=(0,) if off else (0, 1), links_down=off)
    elif happens == 11:
        world.sets(dice.randrange(2), clock_reasons=dice.choice([0, 1, 2, 4, 0x10, 0x100, None]))
    elif happens == 12:
        # For a moment, as with any change of clocks
        slowed = replace(world.gpus[0], clock_reasons=0x48)
        return {} if world.state.failing else {"nvml": NvmlReading(gpus=(slowed, world.gpus[1]))}
    elif happens == 13:
        return dice.choice([{"records": None}, {"nvml": UNTRIED}, {"nvml": None}, {"compute": None}, {"bus": None}])
    return {}


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_healthy_runs_find_nothing(first: int) -> None:
    """Each of other things in another order, by its seed."""
    for seed in range(first, first + 100):
        world, dice = HealthWorld(), random.Random(seed)
        for _each in range(12):
            world.round(**healthy(world, dice))
            assert world.found() == [] and world.state.history == (), seed
            assert world.state.verdict in ("well", "unknown"), seed
        world.round()
        assert world.state.verdict == "well", seed


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_rounds_of_healthy_hosts_find_nothing(seed: int) -> None:
    """A host that goes on for long."""
    world, dice = HealthWorld(), random.Random(seed)
    for _each in range(100):
        world.round(**healthy(world, dice))
        assert world.found() == [] and world.state.history == ()
        assert world.state.verdict in ("well", "unknown")
    world.round()
    assert world.state.verdict == "well"


# any order

Happening = Tuple[str, Callable[[HealthWorld], None]]
SICKENS: List[Happening] = [
    ("sickens", lambda world: world.xid(119)), ("sickens", lambda world: world.xid(63)),
    ("sickens", lambda world: world.xid(79, 1)), ("sickens", lambda world: world.xid(74)),
    ("sickens", lambda world: world.fail("GPU-1")),
    ("sickens", lambda world: world.sets(0, remap_pending=True)),
    ("heals", lambda world: world.sets(0, remap_pending=False)),
    ("sickens", lambda world: world.sets(1, error="GPU is lost", error_code=15)),
    ("heals", lambda world: world.gpus.__setitem__(1, gpu(1))),
]
REMEDIES: List[Happening] = [
    ("reset GPU-0", lambda world: world.mend("reset")), ("reset GPU-1", lambda world: world.mend("reset", 1)),
    ("reset GPU-0", lambda world: world.did("reset", "gpu GPU-0", compute=None) and None),
    ("board_reset", lambda world: world.mend("board_reset")), ("reload", lambda world: world.load()),
    ("reboot", lambda world: world.boot())]
PASSES: List[Happening] = [("passes", lambda world: world.compute()),
                           ("passes", lambda world: world.compute("GPU-0"))]
LOOKS: List[Any] = [("look", {}), ("look", {}), *(("look", each) for each in UNREAD)]
TIME: List[Happening] = [("time", lambda world: setattr(world, "clock", world.clock + 86400))]


def unfold(world: HealthWorld, happenings: List[Any]) -> None:
    for kind, what in happenings:
        if kind == "look":
            world.round(**what)
        else:
            what(world)


def looked_at() -> HealthWorld:
    """Once, so that its GPUs have names."""
    world = HealthWorld()
    world.round()
    return world


def lasting(state: State) -> Dict[str, Finding]:
    """Findings that need a remedy."""
    return {key: each for key, each in state.findings.items() if each.kind in ("pending", "sick")}


def orders(*of: List[Any]) -> Any:
    return st.lists(st.sampled_from([each for group in of for each in group]), min_size=5, max_size=40)


@settings(max_examples=150)
@given(orders(SICKENS, REMEDIES, LOOKS, TIME))
def test_without_a_check_that_passed_nothing_ends(happenings: List[Any]) -> None:
    world = looked_at()
    seen: Dict[str, Finding] = {}
    for happening in happenings:
        unfold(world, [happening])
        seen.update(lasting(world.state))
        assert seen.keys() <= world.state.findings.keys()


@settings(max_examples=150)
@given(orders(SICKENS, PASSES, LOOKS, TIME))
def test_without_a_remedy_nothing_ends(happenings: List[Any]) -> None:
    world = looked_at()
    seen: Dict[str, Finding] = {}
    for happening in happenings:
        unfold(world, [happening])
        seen.update(lasting(world.state))
        assert seen.keys() <= world.state.findings.keys()


@settings(max_examples=300)
@given(orders(SICKENS, REMEDIES, PASSES, LOOKS, TIME))
def test_whatever_ends_had_its_remedy_and_then_a_check_and_was_looked_at(happenings: List[Any]) -> None:
    world = looked_at()
    remedy_at: Dict[str, int] = {}
    last_seen: Dict[str, int] = {}
    passed_at: Dict[str, int] = {}
    for number, (kind, what) in enumerate(happenings):
        before = world.state
        unfold(world, [(kind, what)])
        if (kind, what) in REMEDIES:
            remedy_at[kind] = number
        elif kind == "passes":
            passed_at.update(dict.fromkeys(world.computes, number))
        for key, finding in world.state.findings.items():
            if key not in before.findings or finding.last != before.findings[key].last:
                last_seen[key] = number
        for ended in world.state.history[len(before.history):]:
            assert kind == "look" and what in ({}, {"bus": None})
            done = max(at for each, at in remedy_at.items() for word, _space, uuid in (each.partition(" "),)
                       if satisfies(word, ended.remedy) and uuid in ("", ended.subject.uuid))
            assert last_seen[ended.key] <= done
            assert all(passed_at[uuid] > done for uuid in ([ended.subject.uuid] if ended.subject.uuid else [
                "GPU-0", "GPU-1"]))


@settings(max_examples=150)
@given(orders(SICKENS, REMEDIES, PASSES, LOOKS, TIME))
def test_the_same_look_twice_is_one_and_a_state_is_its_json(happenings: List[Any]) -> None:
    world = HealthWorld()
    for happening in happenings:
        unfold(world, [happening])
        again = State.from_dict(json.loads(json.dumps(world.state.to_dict())))
        assert again == world.state
        look = world.look()
        world.clock += 1
        once = assess(world.state, look, world.policy, world.clock)
        assert assess(once, look, world.policy, world.clock) == once
        assert assess(again, look, world.policy, world.clock) == once


@settings(max_examples=100)
@given(orders(SICKENS, REMEDIES, PASSES, LOOKS), st.randoms(use_true_random=False))
def test_looks_that_come_late_change_nothing(happenings: List[Any], dice: Any) -> None:
    """Two processes look; the one that began first ends last."""
    world = HealthWorld()
    for happening in happenings:
        early = world.look()
        world.clock += 1
        unfold(world, [happening])
        world.round()
        assert assess(world.state, early, world.policy, world.clock) == world.state or early.boot != world.state.boot


def test_places_of_the_world_are_those_of_its_gpus() -> None:
    assert [gpu(index).pci_address for index in (0, 1)] == list(PLACES)
