# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: from what the GPUs are divided into to what they are to be divided into, by the smallest change.

A GPU is a step of its own, and so is a change of its MIG mode: what is not touched goes on. What is in use is never
destroyed: its holders are named, and where they are pods, the node is drained first.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.boot_unit import removal, unit_steps
from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.plan import REBOOT, Disruption, Plan, Requirement, Step
from ..core.refusal import Refusal
from ..core.steps import service_step
from ..hardware import mig_layout
from ..hardware.boards import may_be_divided
from ..hardware.holders import FABRIC_MANAGER_UNIT, POD, WATCHERS
from ..hardware.mig import Mig
from ..hardware.reset_plan import beginning_with
from . import boot
from .model import Board, Target
from .observation import Observation
from .placement import Arrangement, Impossible, Placed, arrange, as_placed, placed_now
from .policy import Policy
from .profiles import name_of
from .selection import filtered, named, numbers_of
from .target import given_back, targets

NAME = "mig"
MODE = "mig.mode"
DIVIDE = "mig.divide"
NODES = "mig.nodes"
FORGET = "mig.forget"
_IDLE_FILE = ("There is a file of MIG layouts, and neither a name nor a label of the Node chooses one of them: MIG is "
              "left as it is.",)
_WORDS = {True: "on", False: "off"}


@dataclass(frozen=True)
class Change:
    """What becomes of a GPU.

    placed:       its instances afterwards, None where MIG mode is off then or nobody can tell them yet.
    refusals:     with {gpus} in place of the GPU's name, so that those of GPUs that stand alike are one.
    requirement:  what must come from outside before its instances can be made.
    holders:      who has what goes, by name.
    """

    board: Board
    enabled: bool
    steps: Tuple[Step, ...] = ()
    placed: Optional[Tuple[Placed, ...]] = None
    refusals: Tuple[Refusal, ...] = ()
    requirement: Optional[Requirement] = None
    holders: Tuple[str, ...] = ()


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    return beginning_with(observation.unfinished, _planned(observation, policy, facts))


def _planned(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if not policy.managed or (policy.state == "absent" and not (observation.restore or observation.former)):
        return Plan(steps=tuple(_starts(observation.stopped)), notes=_IDLE_FILE if policy.idle_file else ())
    refusals = facts.refusals_of_the_sick()
    if not refusals and policy.state == "absent" and not observation.former:
        return Plan(steps=(*_starts(observation.stopped), *_removal(observation)))
    if not refusals and (facts.driver_reloads or observation.driver != facts.driver_loaded or not facts.driver_loaded):
        return _unanswered(observation, policy, facts)
    refusals = refusals or _unwell(observation)
    if refusals:
        return Plan(refusals=refusals)
    refusals = _renumbered(observation, policy)
    if refusals:
        return Plan(refusals=refusals)
    try:
        wanted, notes = (given_back(observation.boards, observation.former), ()) if policy.state == "absent" else \
            targets(policy, observation.boards)
    except GpuOpsError as error:
        return Plan(refusals=error.refusals)
    changes = [_change(board, wanted[board.uuid], policy) for board in observation.boards if board.uuid in wanted]
    refusals = _said_once(changes) + _without_fabric(observation, facts, changes) + _beside_another(observation, policy)
    if refusals:
        return Plan(refusals=refusals)
    stops, steps, starts = _without_watchers(observation, changes)
    if not observation.modprobe:
        notes = (*notes, "nvidia-modprobe is not installed: a MIG device has no node before root's nvidia-smi -L.")
    elif observation.nodeless and not steps:
        steps.append(_nodes_step(observation.nodeless))
    forgets = _forget_steps(observation, policy, changes)
    # What is put off must not come with the next boot
    disruption = max((step.disruption for step in steps), default=Disruption.none)
    kept = _removal(observation) if policy.state == "absent" else _boot_steps(observation, changes)
    return Plan(
        # A file that cannot be written keeps nobody stopped
        steps=(*stops, *steps, *starts, *forgets, *(replace(step, disruption=disruption) for step in kept)),
        requirements=tuple(change.requirement for change in changes if change.requirement is not None),
        notes=notes, complete=all(change.placed is not None or not change.enabled for change in changes),
        leaving=_leaving(changes))


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    changes = any(step.action in (MODE, DIVIDE) for step in planned.steps)
    return facts.but(mig_changes=True) if changes else facts


def _unanswered(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    """Before the driver that is to be asked is loaded. Where none is to be, a removal needs no answer."""
    if observation.error and facts.driver_loaded and not facts.driver_reloads and not facts.driver_changes:
        return Plan(refusals=(Refusal(
            "mig.no_answer", "NVML does not answer: %s" % observation.error,
            "GPUs that tell what they can be divided into",
            "run `nvidia-smi` on this host; `gpu_driver_activation` makes the loaded driver the installed one"),))
    if policy.state == "absent" and not facts.driver_loaded:
        return Plan(steps=tuple(_removal(observation)))
    # Instances are made and destroyed without a reset, while those who have their GPU have left it
    may_come = (Disruption.runtime_restart, Disruption.gpu_reset, Disruption.reboot)
    return Plan(
        notes=("What the GPUs are divided into is planned once driver %s answers."
               % (facts.driver_loaded or "(not installed yet)"),),
        complete=False, may_come=may_come if any(may_be_divided(gpu.device_id) for gpu in facts.gpus) else ())


def _unwell(observation: Observation) -> Tuple[Refusal, ...]:
    return tuple(Refusal(
        "mig.silent", "%s does not answer: %s" % (gpu, why), "every GPU of the host answering, before one is divided",
        "read the kernel log for NVRM messages (Xid 79: it has fallen off the bus); drain the node and reboot it, or "
        "take the GPU out; where the call is one of MIG, run this with become, while nobody else divides GPUs")
        for gpu, why in observation.silent)


def _renumbered(observation: Observation, policy: Policy) -> Tuple[Refusal, ...]:
    """A GPU that is gone or has come moves the index of others, and with it what an entry names. One that was exchanged
    in its place has the address of the former one, and one that got another address its own UUID."""
    recorded = boot.gpus_of(observation.files.get(boot.SCRIPT) or "")
    boards = {board.index: board for board in observation.boards}
    refusals = []
    for entry in policy.entries:
        for number in numbers_of(entry) if filtered(entry, observation.boards) else ():
            board, (uuid, address) = boards.get(number), recorded.get(number, ("", ""))
            if board is not None and uuid and board.uuid != uuid and board.address != address:
                refusals.append(Refusal(
                    "mig.renumbered",
                    "%s names GPU %d, which was %s (%s) when the layout was made, and is %s (%s) now" % (
                        entry.where, number, uuid, address, board.uuid, board.address),
                    "an index that means the GPU that it meant: one that has gone or come has moved the others",
                    "bring back the GPU that is missing, or name GPUs by UUID or PCI address in `%s`; once that is "
                    "applied, an index counts as the GPUs are numbered now" % policy.option, option=policy.option))
    return tuple(dict.fromkeys(refusals))


# one GPU


def _change(board: Board, target: Target, policy: Policy) -> Change:
    mig = board.mig
    if mig is None:
        raise ValueError("%s has no MIG" % board.named())
    if not target.enabled:
        return _switched_off(board, mig, policy)
    mode = _mode_step(board, mig, True)
    refused = _refused_mode(board, mig, True, policy)
    if target.instances is None:
        # What a driver tells only in MIG mode cannot be planned before
        return Change(board, True, mode, placed_now(mig) if mig.profiles else None, refused,
                      _boot_for_mode(board, mig, True), holders=_going(board, mig, True, Arrangement((), (), ())))
    there = mig if mig.current else replace(mig, instances=())
    try:
        arrangement = arrange(there, target.instances)
    except Impossible as impossible:
        return Change(board, True, refusals=(_impossible(board, mig, impossible),))
    refused = (*refused, *_in_use(board, arrangement, policy))
    placed = _placed(arrangement)
    holders = _going(board, mig, True, arrangement)
    boot_first = _boot_for_mode(board, mig, True)
    if boot_first is not None:
        return Change(board, True, mode, placed, refused, boot_first, holders)
    divide = _divide_step(board, there, arrangement, placed, mode)
    # One that is switched on for its instances is switched off again where they fail
    mode = tuple(replace(step, parameters={**step.parameters, "divides": bool(divide)}) for step in mode)
    steps = (*mode, *divide)
    return Change(board, True, steps, placed, refused, holders=holders)


def _switched_off(board: Board, mig: Mig, policy: Policy) -> Change:
    arrangement = Arrangement((), mig.instances, ())
    refused = (*_refused_mode(board, mig, False, policy), *_in_use(board, arrangement, policy))
    divide = _divide_step(board, mig, arrangement, (), ())
    mode = _mode_step(board, mig, False, divide)
    # A GPU that keeps its mode for now keeps its instances
    divide = tuple(replace(step, disruption=max(step.disruption, *(each.disruption for each in mode), step.disruption))
                   for step in divide)
    return Change(board, False, (*divide, *mode), refusals=refused,
                  requirement=_boot_for_mode(board, mig, False), holders=_going(board, mig, False, arrangement))


def _divide_step(
    board: Board, mig: Mig, arrangement: Arrangement, placed: Sequence[Placed], earlier: Sequence[Step]
) -> Tuple[Step, ...]:
    if not arrangement.changes:
        return ()
    counts = [(len(arrangement.kept), "kept"), (len(arrangement.destroyed), "destroyed"),
              (len(arrangement.created), "created")]
    told = ", ".join("%d %s" % (count, verb) for count, verb in counts if count)
    return (Step(
        capability=NAME, action=DIVIDE, subject=board.address,
        why="%s: GPU instances %s." % (board.named(), told),
        disruption=Disruption.gpu_reset if arrangement.in_use else Disruption.none,
        change=_drawn(board, mig, placed),
        parameters={"uuid": board.uuid, "before": _as_data(placed_now(mig)), "after": _as_data(placed)},
        depends_on=tuple(step.id for step in earlier)),)


def _mode_step(board: Board, mig: Mig, enabled: bool, earlier: Sequence[Step] = ()) -> Tuple[Step, ...]:
    if mig.current == mig.pending == enabled or _waits_for_boot(board, mig, enabled):
        return ()
    pends = mig.pending == enabled != mig.current
    why = "%s is to %s." % (board.named(), "be divided" if enabled else "be whole again")
    disruption = Disruption.none
    if _boot_for_mode(board, mig, enabled):
        why += " On this generation that takes a reset of the GPU, and this one cannot be reset: a boot brings it."
        # Of no use before that boot, and set it would come with any
        disruption = Disruption.reboot
    elif mig.current != enabled and (board.resets or _holders(board, mig)):
        disruption = Disruption.gpu_reset
    if pends:
        why += " The mode was set before, and waits for a reset of the GPU."
    elif board.resets and board.resettable and mig.current != enabled:
        why += " On this generation that takes a reset of the GPU; the others go on."
    return (Step(
        capability=NAME, action=MODE, subject=board.address, why=why,
        disruption=disruption,
        change={"before": {"MIG mode": _WORDS[mig.current]}, "after": {"MIG mode": _WORDS[enabled]}},
        parameters={"uuid": board.uuid, "enabled": enabled, "resets": board.resettable or not board.resets,
                    "divides": False},
        depends_on=tuple(step.id for step in earlier)),)


def _waits_for_boot(board: Board, mig: Mig, enabled: bool) -> bool:
    """Whether all is done for a mode that only a boot brings."""
    return board.resets and not board.resettable and mig.pending == enabled != mig.current


def _boot_for_mode(board: Board, mig: Mig, enabled: bool) -> Optional[Requirement]:
    if mig.current == enabled or not board.resets or board.resettable:
        return None
    return Requirement(
        NAME, REBOOT, board.address, "%s cannot be reset, so its MIG mode changes with a reboot." % board.named(),
        Disruption.reboot, {"before": {"MIG mode": _WORDS[mig.current]}, "after": {"MIG mode": _WORDS[enabled]}})


def _holders(board: Board, mig: Mig) -> Tuple[str, ...]:
    of_instances = [holder for instance in mig.instances for each in instance.compute for holder in each.holders]
    return tuple(dict.fromkeys((*board.holders, *of_instances)))


def _going(board: Board, mig: Mig, enabled: bool, arrangement: Arrangement) -> Tuple[str, ...]:
    """Who has what goes: the whole GPU with its mode, else instances."""
    if mig.current != enabled:
        return _holders(board, mig)
    return tuple(dict.fromkeys(holder for each in arrangement.in_use for holder in each.holders))


def _staying(holders: Iterable[str], policy: Policy) -> List[str]:
    """Those that no drain takes away."""
    return [holder for holder in holders if not (policy.assume_pods_evicted and holder.startswith(POD))]


def _refused_mode(board: Board, mig: Mig, enabled: bool, policy: Policy) -> Tuple[Refusal, ...]:
    if mig.current == enabled:
        return ()
    staying = _staying(_holders(board, mig), policy)
    if not staying:
        return ()
    return (Refusal(
        "mig.busy", "{gpus} is used by %s" % ", ".join(staying),
        "a GPU that nobody has open while its MIG mode changes",
        "stop them: evict the pods (in a cluster `site` does), stop the services, end the programs"),)


def _in_use(board: Board, arrangement: Arrangement, policy: Policy) -> Tuple[Refusal, ...]:
    found = []
    for each in arrangement.in_use:
        staying = _staying(each.holders or ["process %d" % pid for pid in each.processes], policy)
        if staying:
            found.append(Refusal(
                "mig.instance_in_use",
                "MIG device %s of {gpus} would go, and is used by %s" % (each.uuid, ", ".join(staying)),
                "instances that nobody uses, before they are destroyed",
                "evict the pods (in a cluster `site` does), end the programs, or ask for a layout that "
                "keeps this instance"))
    return tuple(found)


def _impossible(board: Board, mig: Mig, impossible: Impossible) -> Refusal:
    counts = Counter(want.profile for want in impossible.conflict)
    parts, places = [], []
    for number, count in sorted(counts.items()):
        profile = mig.profile(number)
        if profile is not None:
            name = name_of(profile, board)
            starts = sorted({want.start for want in impossible.conflict
                             if want.profile == number and want.start is not None}) or profile.starts
            parts.append("%d x %s" % (count, name))
            places.append("%s takes %d and may begin at %s" % (name, profile.size, ", ".join(map(str, starts))))
    return Refusal(
        "mig.layout_impossible", "on {gpus}, %s do not fit beside each other: of %d units %s"
        % (" + ".join(parts), impossible.units, "; ".join(places)),
        "a layout that fits on the GPU", "leave one of these out; nothing was changed")


def _leaving(changes: Sequence[Change]) -> Dict[str, Tuple[str, ...]]:
    """{step of a GPU: pods whose devices go with it}."""
    pods = {change.board.uuid: tuple(sorted(
        holder[len(POD):] for holder in change.holders if holder.startswith(POD))) for change in changes}
    return {step.id: pods[change.board.uuid] for change in changes for step in change.steps}


def _without_fabric(
    observation: Observation, facts: HostFacts, changes: Sequence[Change]
) -> Tuple[Refusal, ...]:
    """A GPU of an NVSwitch board of Ampere's that is reset joins its fabric again only with the fabric manager's help
    (NVIDIA Fabric Manager User Guide)."""
    reset = [change.board for change in changes if change.board.resets and change.steps]
    if not reset or facts.fabric_starts or observation.fabric in ("", "active"):
        return ()
    return (Refusal(
        "mig.fabric_down", "%s would change, and %s is %s" % (
            named(reset), FABRIC_MANAGER_UNIT, observation.fabric),
        "the fabric manager running: on this generation it takes one GPU out of the fabric for a reset, and back",
        "run `fabric_manager`, or start it; `journalctl -u nvidia-fabricmanager` says why it does not run"),)


def _beside_another(observation: Observation, policy: Policy) -> Tuple[Refusal, ...]:
    """It runs before our unit at a boot, which leaves a GPU alone that is divided already."""
    if not observation.rival or policy.state == "absent":
        return ()
    return (Refusal(
        "mig.another_manager", "nvidia-mig-manager.service is enabled (%s)" % observation.rival,
        "one program that divides the GPUs at a boot",
        "run `systemctl disable --now nvidia-mig-manager.service`; its file of layouts is what `configs` takes"),)


def _said_once(changes: Sequence[Change]) -> Tuple[Refusal, ...]:
    """Of GPUs that stand alike, one refusal that names them all."""
    boards: Dict[Refusal, List[Board]] = {}
    for change in changes:
        for refusal in change.refusals:
            boards.setdefault(refusal, []).append(change.board)
    return tuple(replace(refusal, found=refusal.found.replace("{gpus}", named(alike)))
                 for refusal, alike in boards.items())


# layouts


def _placed(arrangement: Arrangement) -> Tuple[Placed, ...]:
    """The instances once all is done, by start."""
    found = list(arrangement.created)
    for kept in arrangement.kept:
        left = [each for each in kept.instance.compute if each not in kept.destroyed]
        slices = [*(each.slices for each in left), *kept.created]
        found.append(replace(as_placed(kept.instance), compute=tuple(sorted(slices, reverse=True))))
    return tuple(sorted(found, key=lambda each: each.start))


def _drawn(board: Board, mig: Mig, placed: Sequence[Placed]) -> Dict[str, str]:
    before, after = _parts(board, mig, placed_now(mig)), _parts(board, mig, placed)
    return {"before": mig_layout.drawn(before, mig.units, after) + "\n",
            "after": mig_layout.drawn(after, mig.units, before) + "\n"}


def _parts(board: Board, mig: Mig, placed: Sequence[Placed]) -> List[mig_layout.Part]:
    parts = []
    for each in placed:
        profile = mig.profile(each.profile)
        name = "?" if profile is None else name_of(profile, board)
        whole = profile is None or each.compute == (profile.slices,)
        parts.append((each.start, each.size, name if whole else "%s (%s)" % (
            name, " ".join("%dc" % slices for slices in each.compute) or "no compute")))
    return parts


def _as_data(placed: Sequence[Placed]) -> List[List[Any]]:
    """[[profile, start, units, [slices of compute instances]]]."""
    return [[each.profile, each.start, each.size, list(each.compute)] for each in placed]


# what is noted


def _forget_steps(observation: Observation, policy: Policy, changes: Sequence[Change]) -> List[Step]:
    """What is made later on a GPU that has nothing of ours is another's."""
    boards = {board.uuid: board for board in observation.boards if board.mig is not None}
    changed = {change.board.uuid: change for change in changes}
    steps = []
    for uuid, former in sorted(observation.former.items()):
        board, change = boards.get(uuid), changed.get(uuid)
        if change is not None:
            free = not (change.enabled and change.placed is None) and former.is_all(change.enabled, change.placed or ())
        elif board is not None and board.mig is not None:
            free = former.is_all_of(board.mig)
        else:
            free = policy.state == "absent"
        if free:
            steps.append(Step(
                capability=NAME, action=FORGET, subject=board.address if board is not None else uuid,
                why="Nothing of ours is left on it." if board is not None else "It is not there any more.",
                change={"before": {"former state": "noted"}, "after": {"former state": None}},
                parameters={"uuid": uuid},
                depends_on=tuple(step.id for step in change.steps) if change is not None else ()))
    return steps


# nodes, and the next boot


def _nodes_step(files: Sequence[str]) -> Step:
    return Step(
        capability=NAME, action=NODES, subject="MIG devices",
        why="Without its nodes in /dev/nvidia-caps no program can open a MIG device.",
        change={"before": dict.fromkeys(files), "after": dict.fromkeys(files, "node")})


def _boot_steps(observation: Observation, changes: Sequence[Change]) -> List[Step]:
    """A unit that makes the layout anew, as no instance outlives a boot; none where no GPU is divided."""
    layouts = [(change.board.uuid, change.board.mig, change.placed or ()) for change in changes
               if change.enabled and change.board.mig is not None]
    if any(change.enabled and change.placed is None for change in changes):
        return []
    gpus = [(board.index, board.uuid, board.address) for board in observation.boards]
    wanted = {boot.SCRIPT: boot.script_text(layouts, gpus), boot.UNIT_FILE: boot.UNIT_TEXT} if layouts else \
        dict.fromkeys((boot.SCRIPT, boot.UNIT_FILE))
    why = "No GPU instance outlives a boot; the unit makes them again." if layouts else "No GPU is divided any more."
    return unit_steps(NAME, boot.UNIT, wanted, observation.files, observation.enabled, why)


def _without_watchers(
    observation: Observation, changes: Sequence[Change]
) -> Tuple[List[Step], List[Step], List[Step]]:
    """(stops of those who watch GPUs that change, the steps of all GPUs, starts of the same, whatever has failed).

    They stop as soon as one GPU changes, which a GPU that is put off does not.
    """
    steps = [step for change in changes for step in change.steps]
    watching = {unit for change in changes if change.steps for unit in change.board.watchers}
    units = [unit for unit in WATCHERS if unit in watching]
    disruption = max(Disruption.service_restart, min(
        (change.steps[0].disruption for change in changes if change.steps), default=Disruption.none))
    stops = [service_step(NAME, "stop", unit, "It has GPUs open that change.", disruption, "running", "stopped")
             for unit in units]
    ids = tuple(step.id for step in stops)
    steps = [replace(step, depends_on=(*step.depends_on, *ids)) for step in steps]
    return stops, steps, _starts((*units, *observation.stopped), dict.fromkeys(units, disruption))


def _starts(units: Sequence[str], stopped: Mapping[str, Disruption] = MappingProxyType({})) -> List[Step]:
    """stopped: {unit that this plan stops: what that disturbs}. A start comes after no other step: a stop that fails
    may have stopped it."""
    return [service_step(
        NAME, "start", unit, "It watches the GPUs, and learns of their instances when it starts.",
        stopped.get(unit, Disruption.none), "stopped", "running") for unit in reversed(WATCHERS) if unit in units]


def _removal(observation: Observation) -> List[Step]:
    return removal(NAME, boot.UNIT, observation.enabled, observation.restore)
