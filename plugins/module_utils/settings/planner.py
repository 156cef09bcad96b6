# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what the GPUs are set to to what they are to be set to. Pure. A GPU is a step of its own."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.boot_unit import removal, unit_steps
from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Step
from ..core.refusal import Refusal
from ..hardware.boards import ecc_is_always_on
from ..hardware.holders import POD
from ..hardware.reset_plan import AMPERE, HOPPER, Resettable, beginning_with, together
from ..hardware.reset_plan import refusals as refusals_of_reset
from . import boot
from .model import (
    CLOCKS,
    ECC,
    KEPT_BY_PERSISTENCE,
    SETTINGS,
    TITLES,
    VOLTA,
    Change,
    Entry,
    Gpu,
    matches,
    may_match,
    told,
    wanted_of,
)
from .observation import NAME, Observation
from .policy import Policy

CHANGE = "settings.change"
UNLOCK = "settings.unlock"
FORGET = "settings.forget"
CHANGE_ECC = "settings.change_ecc"
KEEP_ECC = "settings.keep_ecc"
# What somebody has set, and what a boot would bring
_LATER = "ECC after the next reset"


@dataclass(frozen=True)
class Group:
    """GPUs that are reset together. wanted: {UUID: ECC mode} of those of which it is known."""

    gpus: Tuple[Gpu, ...]
    wanted: Mapping[str, bool]

    @property
    def resettable(self) -> Tuple[Resettable, ...]:
        return tuple(gpu.reset for gpu in self.gpus if gpu.reset is not None)

    @property
    def changing(self) -> Tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if _changes_ecc(gpu, self.wanted.get(gpu.uuid)))


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    return beginning_with(observation.unfinished, _planned(observation, policy, facts))


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    """A layout that is made anew may have other numbers."""
    divided = any(step.action == CHANGE_ECC and step.parameters["divided"] for step in planned.steps)
    return facts.but(mig_changes=True) if divided else facts


def _planned(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    absent = policy.state == "absent"
    entries = () if absent else policy.entries
    if not entries and not observation.former:
        return Plan(steps=tuple(_removal(observation) if absent else _boot_steps(observation, {})))
    refusals = facts.refusals_of_the_sick()
    if not refusals and (facts.driver_reloads or observation.driver != facts.driver_loaded or not facts.driver_loaded):
        return _unanswered(observation, policy, facts)
    if refusals or (observation.silent and not absent):
        return Plan(refusals=refusals or _silent(observation))
    wanted = {gpu.uuid: _completed(wanted_of(entries, gpu)) for gpu in observation.gpus}
    refusals = tuple(refusal for gpu in observation.gpus for refusal in _refusals(gpu, wanted[gpu.uuid]))
    ecc = {gpu.uuid: mode for gpu in observation.gpus
           for mode in (_ecc_of(gpu, wanted[gpu.uuid], observation.former.get(gpu.uuid, {})),) if mode is not None}
    with_fabric = observation.fabric_runs or facts.fabric_starts
    groups = _groups(observation.gpus, ecc, with_fabric)
    everyone = tuple(gpu.reset for gpu in observation.gpus if gpu.reset is not None)
    refusals += tuple(refusal for group in groups for refusal in refusals_of_reset(
        group.resettable, group.wanted, policy.assume_pods_evicted, everyone, with_fabric))
    if refusals:
        return Plan(refusals=refusals)
    resets = [_ecc_step(group) for group in groups]
    changes = [*resets, *_kept_ecc(observation.gpus, ecc, groups), *(
        step for gpu in observation.gpus
        for step in _changes(gpu, wanted[gpu.uuid], observation.former.get(gpu.uuid, {})))]
    boots = _removal(observation) if absent else _boot_steps(observation, wanted)
    # Last, or a boot before the unit is gone would set what nobody gives back any more
    before = tuple(step.id for step in (*changes, *boots))
    forgets = [step for gpu in observation.gpus
               for step in _forgets(gpu, wanted[gpu.uuid], observation.former.get(gpu.uuid, {}), before)]
    if absent:
        forgets += _forget_all(set(observation.former) - set(wanted), before)
    leaving = {step.id: _pods(group) for step, group in zip(resets, groups)}
    return Plan(steps=(*changes, *boots, *forgets), notes=_notes(observation, entries, wanted, bool(groups)),
                leaving=leaving)


def _completed(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """What is lost without persistence mode brings it."""
    if any(name in wanted for name in KEPT_BY_PERSISTENCE) and not wanted.get("persistence"):
        return {**wanted, "persistence": True}
    return dict(wanted)


def _unanswered(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    """Before the driver that is to be asked is loaded. Nothing that we set outlives a load."""
    if observation.error and facts.driver_loaded and not facts.driver_reloads and not facts.driver_changes:
        return Plan(refusals=(Refusal(
            "settings.no_answer", "NVML does not answer: %s" % observation.error, "GPUs that tell what they are set to",
            "run `nvidia-smi` on this host; `gpu_driver_activation` makes the loaded driver the installed one"),))
    if policy.state == "absent" and not facts.driver_loaded:
        goes = _removal(observation)
        return Plan(steps=(*goes, *_forget_all(observation.former, tuple(step.id for step in goes))))
    return Plan(
        notes=("What the GPUs are set to is planned once driver %s answers."
               % (facts.driver_loaded or "(not installed yet)"),),
        complete=False, may_come=(Disruption.gpu_reset,) if _may_change_ecc(observation, policy, facts) else ())


def _may_change_ecc(observation: Observation, policy: Policy, facts: HostFacts) -> bool:
    """As far as the boards on the PCI bus tell: what they have, and what they are called, only their driver knows."""
    words = [word for entry in policy.entries if ECC in entry.values for word in entry.match]
    return any(ECC in before for before in observation.former.values()) or any(
        may_match(word, gpu.device_id) for gpu in facts.gpus if not ecc_is_always_on(gpu.device_id) for word in words)


def _silent(observation: Observation) -> Tuple[Refusal, ...]:
    return tuple(Refusal(
        "settings.silent", "%s does not answer: %s" % (gpu, why), "every GPU of the host answering, before one is set",
        "read the kernel log for NVRM messages (Xid 79: it has fallen off the bus); drain the node and reboot it, or "
        "take the GPU out") for gpu, why in observation.silent)


# refusals


def _refusals(gpu: Gpu, wanted: Mapping[str, Any]) -> List[Refusal]:
    found: List[Refusal] = []
    if gpu.divided and "compute_mode" in wanted:
        found.append(Refusal(
            "settings.mode_of_divided", "a compute mode for %s, whose MIG mode is on" % gpu.named(),
            "GPUs that are whole: of a divided one each MIG device has its own (nvml.h)",
            "leave `compute_mode` out of the entries of `gpus` that are for it", option="gpus"))
    lacking = [TITLES[name] for name in wanted
               if _lacks(gpu, name) and not (gpu.divided and name == "compute_mode")]
    if lacking:
        found.append(Refusal(
            "settings.not_supported", "%s, %s, has no settable %s" % (gpu.named(), gpu.name, ", ".join(lacking)),
            "settings that the board has", "in `gpus`, name the boards that have them in `match`",
            option="gpus"))
    if wanted.get(ECC) is False and gpu.values.get(ECC) and ecc_is_always_on(gpu.device_id):
        found.append(Refusal(
            "settings.ecc_always_on", "ECC of %s, %s, is to be off" % (gpu.named(), gpu.name),
            "boards whose ECC can be switched: that of A100, H100 and later ones with HBM is always on",
            "leave `ecc` out of the entries of `gpus` that are for it", option="gpus"))
    least, default, most = gpu.power
    limit = wanted.get("power_limit")
    if limit is not None and least is not None and most is not None and not least <= limit <= most:
        found.append(Refusal(
            "settings.power_out_of_range", "a power limit of %d W for %s" % (limit, gpu.named()),
            "%d to %d W, which the board takes; its default is %s" % (least, most, told("power_limit", default)),
            "set `power_limit` to one of them in `gpus`", option="gpus"))
    for name, fastest in zip(CLOCKS, gpu.fastest):
        if name in wanted and not _lacks(gpu, name) and fastest and wanted[name][1] > fastest:
            found.append(Refusal(
                "settings.clocks_out_of_range", "%s of %s for %s" % (
                    TITLES[name], told(name, wanted[name]), gpu.named()),
                "clocks up to %d MHz, which is the board's fastest" % fastest, "set `%s` to them in `gpus`" % name,
                option="gpus"))
    return found


def _lacks(gpu: Gpu, name: str) -> bool:
    if name == "gpu_clocks":
        return gpu.architecture < VOLTA
    if name == "memory_clocks":
        return gpu.architecture < AMPERE
    return gpu.values.get(name) is None


def _notes(
    observation: Observation, entries: Sequence[Entry], wanted: Mapping[str, Mapping[str, Any]], resets: bool
) -> Tuple[str, ...]:
    notes = []
    missing = sorted({word for entry in entries for word in entry.match
                      if not any(matches(word, gpu) for gpu in observation.gpus)})
    if missing:
        notes.append("No GPU of this host is %s." % ", ".join(missing))
    deferred = [gpu.named() for gpu in observation.gpus if gpu.architecture == HOPPER
                and "memory_clocks" in wanted[gpu.uuid]]
    if deferred:
        notes.append("Memory clocks of %s count from the next load of the driver on: Hopper takes them in no other "
                     "form." % ", ".join(deferred))
    if resets:
        notes.append("Clocks that somebody else has locked on GPUs that are reset are lost: no driver tells of them.")
    return tuple(notes)


# ECC


def _ecc_of(gpu: Gpu, wanted: Mapping[str, Any], former: Mapping[str, Change]) -> Optional[bool]:
    """What ECC of a GPU is to be: as it is wanted, else as it was before us where it still is, or waits, as we set it;
    None where it is nothing of ours."""
    if ECC in wanted:
        return bool(wanted[ECC]) if gpu.values.get(ECC) is not None else None
    change = former.get(ECC)
    if change is None or change.before is None or gpu.reset is None:
        return None
    return bool(change.before) if change.ours in (gpu.values.get(ECC), gpu.reset.pending) else None


def _changes_ecc(gpu: Gpu, mode: Optional[bool]) -> bool:
    return mode is not None and gpu.values.get(ECC) != mode


def _groups(gpus: Sequence[Gpu], ecc: Mapping[str, bool], with_fabric: bool) -> List[Group]:
    """GPUs whose ECC changes, each with those that have to be reset with it."""
    groups: List[Group] = []
    for gpu in gpus:
        is_there = any(gpu in group.gpus for group in groups)
        if gpu.reset is not None and _changes_ecc(gpu, ecc.get(gpu.uuid)) and not is_there:
            uuids = together(gpu.reset, with_fabric)
            groups.append(Group(tuple(each for each in gpus if each.uuid in uuids),
                                {uuid: ecc[uuid] for uuid in uuids if uuid in ecc}))
    return groups


def _ecc_step(group: Group) -> Step:
    changing = group.changing
    others = [gpu for gpu in group.gpus if gpu not in changing]
    before, after = {}, {}
    for gpu in changing:
        title = TITLES[ECC] if len(group.gpus) == 1 else "%s of %s" % (TITLES[ECC], gpu.address)
        before[title], after[title] = told(ECC, gpu.values[ECC]), told(ECC, group.wanted[gpu.uuid])
    for gpu in others:
        if gpu.uuid in group.wanted and gpu.reset is not None and gpu.reset.pending != group.wanted[gpu.uuid]:
            title = "%s of %s" % (_LATER, gpu.address)
            before[title], after[title] = told(ECC, gpu.reset.pending), told(ECC, group.wanted[gpu.uuid])
    why = "%s: ECC changes with a reset of the GPU." % ", ".join(gpu.named() for gpu in changing)
    if others:
        why += " NVLink joins it with %s, which is reset with it." % ", ".join(gpu.named() for gpu in others)
    if any(gpu.reset is not None and gpu.reset.pending == group.wanted[gpu.uuid] for gpu in changing):
        why += " The mode was set before, and waits for a reset."
    return Step(
        NAME, CHANGE_ECC, ", ".join(gpu.address for gpu in changing), why, Disruption.gpu_reset,
        change={"before": before, "after": after},
        parameters={"set": dict(group.wanted), "gpus": [[gpu.uuid, gpu.address] for gpu in group.gpus],
                    "divided": any(each.instances for each in group.resettable)})


def _kept_ecc(gpus: Sequence[Gpu], ecc: Mapping[str, bool], groups: Sequence[Group]) -> List[Step]:
    """Of GPUs whose ECC is as it is to be, and would not be after their next reset, whoever's that is."""
    steps = []
    for gpu in gpus:
        mode = ecc.get(gpu.uuid)
        stays = mode is not None and gpu.reset is not None and gpu.values.get(ECC) == mode != gpu.reset.pending
        if stays and not any(gpu in group.gpus for group in groups):
            steps.append(Step(
                NAME, KEEP_ECC, gpu.address,
                "%s: its ECC is as it is to be; another mode was set for its next reset." % gpu.named(),
                change={"before": {_LATER: told(ECC, not mode)}, "after": {_LATER: told(ECC, mode)}},
                parameters={"uuid": gpu.uuid, "set": {ECC: mode}}))
    return steps


def _pods(group: Group) -> Tuple[str, ...]:
    return tuple(sorted({holder[len(POD):] for each in group.resettable for holder in each.holders
                         if holder.startswith(POD)}))


# steps of one GPU


def _changes(gpu: Gpu, wanted: Mapping[str, Any], former: Mapping[str, Change]) -> List[Step]:
    """Set what is wanted, and give back what we set and nobody wants any more, where it is still as we set it.

    Clocks that are given back are unlocked, whatever is noted of them: a boot may have locked them again by our unit.
    """
    back = {name: change.before for name, change in former.items()
            if name not in (*wanted, *CLOCKS, ECC) and change.before is not None
            and _same(change.ours, gpu.values.get(name))}
    final = {**back, **wanted}
    values = {name: final[name] for name in SETTINGS
              if name in final and not _same(final[name], gpu.values.get(name))}
    unlocked = dict.fromkeys(name for name in CLOCKS if name in former and name not in wanted)
    changed = ", ".join(TITLES[name] + (" as before us" if name in back else "") for name in values)
    return [*([_step(gpu, CHANGE, values, changed)] if values else []),
            *([_step(gpu, UNLOCK, unlocked, "nobody wants its clocks locked any more")] if unlocked else [])]


def _step(gpu: Gpu, action: str, values: Mapping[str, Any], why: str) -> Step:
    # What is noted of clocks says nothing of what they are
    before = {TITLES[name]: told(name, gpu.values.get(name)) if action == CHANGE else "as they are" for name in values}
    return Step(
        NAME, action, gpu.address, "%s: %s." % (gpu.named(), why),
        change={"before": before, "after": {TITLES[name]: told(name, value) for name, value in values.items()}},
        parameters={"uuid": gpu.uuid, "set": dict(values), "deferred": gpu.architecture == HOPPER})


def _same(wanted: Any, there: Any) -> bool:
    return list(wanted) == list(there or ()) if isinstance(wanted, list) else wanted == there


def _forgets(
    gpu: Gpu, wanted: Mapping[str, Any], former: Mapping[str, Change], after: Tuple[str, ...]
) -> List[Step]:
    names = sorted(name for name in former if name not in wanted)
    return [_forget_step(gpu.address, gpu.uuid, names, "Nothing of ours is left of them.", after)] if names else []


def _forget_all(uuids: Iterable[str], after: Tuple[str, ...]) -> List[Step]:
    return [_forget_step(uuid, uuid, None, "It does not answer any more.", after) for uuid in sorted(uuids)]


def _forget_step(
    subject: str, uuid: str, names: Optional[Sequence[str]], why: str, after: Tuple[str, ...]
) -> Step:
    """names: settings of which nothing of ours is left, None for all."""
    return Step(NAME, FORGET, subject, why, change={"before": {"settings before us": "noted"},
                                                    "after": {"settings before us": None}},
                parameters={"uuid": uuid, "names": names}, depends_on=after)


# the next boot


def _boot_steps(observation: Observation, wanted: Mapping[str, Mapping[str, Any]]) -> List[Step]:
    """A unit that sets the GPUs up again; none where nothing is lost with a boot."""
    gpus = {gpu.uuid: gpu for gpu in observation.gpus}
    script = observation.files.get(boot.SCRIPT) or ""
    # A boot may bring back one that has fallen off, and it is to come back as it was
    kept = [line for uuid, line in boot.lines_of(script).items()
            if uuid not in gpus and uuid in observation.former and uuid not in observation.elsewhere]
    text = boot.script_text([(uuid, values, gpus[uuid].architecture == HOPPER)
                             for uuid, values in wanted.items()], kept)
    lasting = bool(text)
    texts = {boot.SCRIPT: text, boot.UNIT_FILE: boot.UNIT_TEXT} if lasting else dict.fromkeys(
        (boot.SCRIPT, boot.UNIT_FILE))
    why = "A boot loses what GPUs are set to; the unit sets them up again." if lasting else "Nothing is to be set."
    return unit_steps(NAME, boot.UNIT, texts, observation.files, observation.enabled, why)


def _removal(observation: Observation) -> List[Step]:
    return removal(NAME, boot.UNIT, observation.enabled, observation.restore)
