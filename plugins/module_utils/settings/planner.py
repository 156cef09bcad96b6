# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what the GPUs are set to to what they are to be set to. Pure.

A GPU is a step of its own; ECC is another, as it takes a reset of the GPU, after which everything else is set anew.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, service_step
from . import boot
from .model import (
    AMPERE,
    ECC,
    HOPPER,
    KEPT_BY_PERSISTENCE,
    TITLES,
    VOLATILE,
    VOLTA,
    Entry,
    Gpu,
    matches,
    told,
    wanted_of,
)
from .observation import NAME, POD, Observation
from .policy import Policy

CHANGE = "settings.change"
CHANGE_ECC = "settings.ecc"
FORGET = "settings.forget"


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    entries = policy.entries if policy.state == "present" else ()
    if not entries and not observation.former:
        return Plan(steps=tuple(_boot_steps(observation, {}) if policy.state == "present" else _removal(observation)))
    refusals = facts.refusals_of_the_sick()
    if not refusals and (facts.driver_reloads or observation.driver != facts.driver_loaded or not facts.driver_loaded):
        return _unanswered(observation, policy, facts)
    if refusals or observation.silent:
        return Plan(refusals=refusals or _silent(observation))
    wanted = {gpu.uuid: _completed(wanted_of(entries, gpu)) for gpu in observation.gpus}
    refusals = tuple(refusal for gpu in observation.gpus for refusal in (
        *_refusals(gpu, wanted[gpu.uuid]), *_of_reset(observation, policy, gpu, wanted[gpu.uuid])))
    if refusals:
        return Plan(refusals=refusals)
    steps = [step for gpu in observation.gpus
             for step in _gpu_steps(gpu, wanted[gpu.uuid], observation.former.get(gpu.uuid, {}))]
    # What is put off must not come with the next boot
    disruption = max((step.disruption for step in steps), default=Disruption.none)
    kept = _boot_steps(observation, wanted) if policy.state == "present" else [
        *_forget_steps(set(observation.former) - set(wanted)), *_removal(observation)]
    return Plan(steps=(*steps, *(replace(step, disruption=max(disruption, step.disruption)) for step in kept)),
                notes=_notes(observation, entries, wanted), leaving=_leaving(observation, steps))


def _completed(wanted: Mapping[str, Any]) -> Dict[str, Any]:
    """What is lost without persistence mode brings it."""
    if any(name in wanted for name in KEPT_BY_PERSISTENCE) and not wanted.get("persistence"):
        return {**wanted, "persistence": True}
    return dict(wanted)


def _unanswered(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    """Before the driver that is to be asked is loaded. What we set does not outlive a load, but for ECC."""
    if observation.error and facts.driver_loaded and not facts.driver_reloads and not facts.driver_changes:
        return Plan(refusals=(Refusal(
            "settings.no_answer", "NVML does not answer: %s" % observation.error, "GPUs that tell what they are set to",
            "run `nvidia-smi` on this host; `gpu_driver_activation` makes the loaded driver the installed one"),))
    if policy.state == "absent" and not facts.driver_loaded:
        return Plan(steps=(*_forget_steps(observation.former), *_removal(observation)))
    return Plan(complete=False, notes=("What the GPUs are set to is planned once driver %s answers."
                                       % (facts.driver_loaded or "(not installed yet)"),))


def _silent(observation: Observation) -> Tuple[Refusal, ...]:
    return tuple(Refusal(
        "settings.silent", "%s does not answer: %s" % (gpu, why), "every GPU of the host answering, before one is set",
        "read the kernel log for NVRM messages (Xid 79: it has fallen off the bus); drain the node and reboot it, or "
        "take the GPU out") for gpu, why in observation.silent)


# refusals


def _refusals(gpu: Gpu, wanted: Mapping[str, Any]) -> List[Refusal]:
    found: List[Refusal] = []
    lacking = [TITLES[name] for name in wanted if _lacks(gpu, name)]
    if lacking:
        found.append(Refusal(
            "settings.not_supported", "%s, %s, has no settable %s" % (gpu.named(), gpu.name, ", ".join(lacking)),
            "settings that the board has", "in `gpus`, name the boards that have them in `match`",
            option="gpus"))
    least, default, most = gpu.power
    limit = wanted.get("power_limit")
    if limit is not None and least is not None and most is not None and not least <= limit <= most:
        found.append(Refusal(
            "settings.power_out_of_range", "a power limit of %d W for %s" % (limit, gpu.named()),
            "%d to %d W, which the board takes; its default is %s" % (least, most, told("power_limit", default)),
            "set `power_limit` to one of them in `gpus`", option="gpus"))
    for name, fastest in zip(("gpu_clocks", "memory_clocks"), gpu.fastest):
        if name in wanted and not _lacks(gpu, name) and fastest and wanted[name][1] > fastest:
            found.append(Refusal(
                "settings.clocks_out_of_range", "%s of %s for %s" % (
                    TITLES[name], told(name, wanted[name]), gpu.named()),
                "clocks up to %d MHz, which is the board's fastest" % fastest, "set `%s` to them in `gpus`" % name,
                option="gpus"))
    return found


def _of_reset(observation: Observation, policy: Policy, gpu: Gpu, wanted: Mapping[str, Any]) -> List[Refusal]:
    """What is in the way of the reset that ECC takes, set or given back."""
    found: List[Refusal] = []
    if _lacks(gpu, ECC) or not _changes_ecc(gpu, {**observation.former.get(gpu.uuid, {}), **wanted}):
        return found
    if gpu.divided:
        found.append(Refusal(
            "settings.ecc_of_divided", "ECC of %s is to change, whose MIG mode is on" % gpu.named(),
            "a GPU that is whole: ECC takes a reset, and no instance outlives that",
            "switch its MIG mode off first (role mig), or leave `ecc` out of `gpus`", option="gpus"))
    staying = [holder for holder in _holders(observation, gpu.uuid)
               if not (policy.assume_pods_evicted and holder.startswith(POD))]
    if staying:
        found.append(Refusal(
            "settings.busy", "%s is used by %s, and its ECC is to change" % (gpu.named(), ", ".join(staying)),
            "a GPU that nobody has open while it is reset",
            "stop them: evict the pods (in a cluster `site` does), stop the services, end the programs"))
    return found


def _holders(observation: Observation, uuid: str) -> Tuple[str, ...]:
    return observation.holders.get("/dev/nvidia%d" % observation.minors.get(uuid, -1), ())


def _lacks(gpu: Gpu, name: str) -> bool:
    if name == "gpu_clocks":
        return gpu.architecture < VOLTA
    if name == "memory_clocks":
        return gpu.architecture < AMPERE
    return gpu.values.get(name) is None


def _notes(
    observation: Observation, entries: Sequence[Entry], wanted: Mapping[str, Mapping[str, Any]]
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
    return tuple(notes)


# steps of one GPU


def _changes_ecc(gpu: Gpu, wanted: Mapping[str, Any]) -> bool:
    return ECC in wanted and wanted[ECC] != gpu.values.get(ECC)


def _gpu_steps(gpu: Gpu, wanted: Mapping[str, Any], former: Mapping[str, Any]) -> List[Step]:
    """Set what is wanted, and give back what we set and nobody wants any more."""
    back = {name: value for name, value in former.items() if name not in wanted}
    # What had no value that can be set stays as it is
    final = {**{name: value for name, value in back.items() if value is not None or name.endswith("clocks")}, **wanted}
    steps: List[Step] = []
    resets = _changes_ecc(gpu, final)
    if resets:
        lost = [name for name in VOLATILE if name in final]
        steps.append(_step(gpu, CHANGE_ECC, {ECC: final[ECC]}, Disruption.gpu_reset,
                           "%s: ECC changes with a reset of the GPU." % gpu.named(), lost=lost))
    there = _after_reset(gpu) if resets else gpu.values
    volatile = {name: final[name] for name in VOLATILE if name in final and not _same(final[name], there.get(name))}
    if volatile:
        changed = ", ".join(TITLES[name] + (" as before us" if name in back else "") for name in volatile)
        disruption = Disruption.gpu_reset if resets else Disruption.none
        steps.append(_step(replace(gpu, values=there), CHANGE, volatile, disruption,
                           "%s: %s." % (gpu.named(), changed), tuple(step.id for step in steps)))
    if back:
        steps.append(_forget_step(gpu.address, gpu.uuid, sorted(back), "Nothing of ours is left of them.",
                                  tuple(step.id for step in steps)))
    return steps


def _after_reset(gpu: Gpu) -> Mapping[str, Any]:
    """Persistence mode is switched on again by who resets (see ..hardware.reset); the rest is as a driver begins."""
    return {**gpu.values, "power_limit": gpu.power[1], "gpu_clocks": None, "memory_clocks": None,
            "compute_mode": "default"}


def _same(wanted: Any, there: Any) -> bool:
    return list(wanted) == list(there or ()) if isinstance(wanted, list) else wanted == there


def _step(
    gpu: Gpu, action: str, values: Mapping[str, Any], disruption: Disruption, why: str, after: Tuple[str, ...] = (),
    lost: Sequence[str] = ()
) -> Step:
    """lost: settings that the step loses, and that are set again after it."""
    return Step(
        NAME, action, gpu.address, why, disruption,
        change={"before": {TITLES[name]: told(name, gpu.values.get(name)) for name in values},
                "after": {TITLES[name]: told(name, value) for name, value in values.items()}},
        parameters={"uuid": gpu.uuid, "set": dict(values), "lost": list(lost),
                    "deferred": gpu.architecture == HOPPER},
        depends_on=after)


def _leaving(observation: Observation, steps: Sequence[Step]) -> Dict[str, Tuple[str, ...]]:
    """{step that resets a GPU: pods that have it open}."""
    found = {}
    for step in steps:
        if step.action == CHANGE_ECC:
            found[step.id] = tuple(sorted({
                holder[len(POD):] for holder in _holders(observation, step.parameters["uuid"])
                if holder.startswith(POD)}))
    return found


def _forget_steps(uuids: Iterable[str]) -> List[Step]:
    return [_forget_step(uuid, uuid, None, "It does not answer any more.") for uuid in sorted(uuids)]


def _forget_step(
    subject: str, uuid: str, names: Optional[Sequence[str]], why: str, after: Tuple[str, ...] = ()
) -> Step:
    """names: settings of which nothing of ours is left, None for all."""
    return Step(NAME, FORGET, subject, why, change={"before": {"settings before us": "noted"},
                                                    "after": {"settings before us": None}},
                parameters={"uuid": uuid, "names": names}, depends_on=after)


# the next boot


def _boot_steps(observation: Observation, wanted: Mapping[str, Mapping[str, Any]]) -> List[Step]:
    """A unit that sets the GPUs up again; none where nothing is lost with a boot."""
    architectures = {gpu.uuid: gpu.architecture for gpu in observation.gpus}
    lasting = [(uuid, values, architectures[uuid] == HOPPER) for uuid, values in sorted(wanted.items())
               if any(name in values for name in VOLATILE)]
    texts = {boot.SCRIPT: boot.script_text(lasting), boot.UNIT_FILE: boot.UNIT_TEXT} if lasting else \
        dict.fromkeys((boot.SCRIPT, boot.UNIT_FILE))
    why = "A boot loses what GPUs are set to; the unit sets them up again." if lasting else "Nothing is to be set."
    steps = [_disabling()] if observation.enabled and not lasting else []
    steps += [file_step(NAME, path, observation.files.get(path), text, why) for path, text in texts.items()
              if observation.files.get(path) != text]
    if lasting and not observation.enabled:
        steps.append(service_step(NAME, "enable", boot.UNIT, "It runs before the container runtime at every boot.",
                                  Disruption.none, "not enabled", "enabled", tuple(step.id for step in steps)))
    return steps


def _disabling() -> Step:
    return service_step(NAME, "disable", boot.UNIT, "It has nothing to do any more.", Disruption.none, "enabled",
                        "not enabled")


def _removal(observation: Observation) -> List[Step]:
    return ([_disabling()] if observation.enabled else []) + list(observation.restore)
