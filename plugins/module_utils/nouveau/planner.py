# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to a host where nouveau leaves the GPUs alone. Pure."""
from __future__ import annotations

from dataclasses import replace
from typing import List, Tuple

from ..core.facts import HostFacts
from ..core.plan import REBOOT, Disruption, Kept, Plan, Requirement, Step
from ..core.refusal import Refusal
from ..core.steps import command_step, file_step, managed, restore_step
from .observation import FILE, NOUVEAU, NOVA, Initramfs, Observation
from .policy import Policy

NAME = "nouveau"
REBUILD = "initramfs.rebuild"
TEXT = managed("""\
# nouveau, or nova, and NVIDIA's driver cannot share a GPU.
blacklist nouveau
options nouveau modeset=0
blacklist nova_core
blacklist nova_drm
""")


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return Plan(steps=tuple(_absent(observation)))
    refusals = _refuse_image(observation, facts)
    if refusals:
        return Plan(refusals=refusals)
    if facts.immutable:
        observation = replace(observation, initramfs=())
    if observation.loaded and _serves_a_display_alone(facts):
        others = " and ".join(observation.loaded)
        observation = replace(observation, loaded={})
        cards = "; ".join("%s (10de:%s)" % (gpu.address, gpu.device_id) for gpu in facts.other_gpus)
        return Plan(steps=tuple(_present(observation)), kept=(
            Kept(others, "it is loaded for a display card alone, %s; the next boot leaves it out" % cards),))
    return Plan(steps=tuple(_present(observation)), requirements=_requirements(observation))


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    """What only a reboot unloads is there still for those who are planned next: they end with that reboot too."""
    if policy.state == "absent" or planned.reboot_required:
        return facts
    return facts.but(nouveau_loaded=False)


def _refuse_image(observation: Observation, facts: HostFacts) -> Tuple[Refusal, ...]:
    """An initramfs that comes with the system's image is not ours to make anew. Where nouveau stays away from the
    GPUs in spite of it, the kernel's arguments see to that."""
    rebuilt = [step.subject for step in _present(observation) if step.action == REBUILD] if facts.immutable else []
    if not rebuilt or not facts.nouveau_loaded:
        return ()
    return (Refusal(
        "nouveau.system_is_an_image", "%s; the initramfs of kernel %s loads nouveau" % (
            facts.image_found, ", ".join(rebuilt)),
        "a boot that leaves the GPUs to NVIDIA's driver",
        "give the kernel the arguments `rd.driver.blacklist=nouveau modprobe.blacklist=nouveau` by what sets them "
        "there (`rpm-ostree kargs`, a MachineConfig, the boot loader's configuration of the image), or build the "
        "blacklist into the image"),)


def _serves_a_display_alone(facts: HostFacts) -> bool:
    return bool(facts.other_gpus) and not facts.nouveau_loaded


def _present(observation: Observation) -> List[Step]:
    steps: List[Step] = []
    wanted = observation.text == TEXT or (observation.text is None and observation.elsewhere)
    if not wanted:
        steps.append(file_step(NAME, FILE, observation.text, TEXT, "nouveau must not take the GPUs at the next boot."))
    requires = tuple(step.id for step in steps)
    theirs = wanted and observation.text is None
    steps += [_rebuild(each, observation, "It loads nouveau before it has read the blacklist.", requires)
              for each in observation.initramfs
              if each.nouveau and (not wanted or (each.older and not (theirs and each.theirs)))]
    for name in _idle(observation):
        steps.append(command_step(
            NAME, "module.unload", name, ["modprobe", "-r", name],
            "%s holds the GPUs, and nothing uses it." % name,
            change={"before": {name: "loaded"}, "after": {name: None}}, requires=requires, timeout=60))
    return steps


def _in_use(observation: Observation) -> Tuple[str, ...]:
    """Loaded modules that cannot be unloaded: nova_core stays while nova_drm is in use."""
    return tuple(name for together in (NOUVEAU, NOVA) for name in together
                 if name in observation.loaded and any(observation.loaded.get(each, 0) > 0 for each in together))


def _idle(observation: Observation) -> Tuple[str, ...]:
    return tuple(name for name in NOUVEAU + NOVA if name in observation.loaded and name not in _in_use(observation))


def _requirements(observation: Observation) -> Tuple[Requirement, ...]:
    names = _in_use(observation)
    if not names:
        return ()
    return (Requirement(
        NAME, REBOOT, ", ".join(names), "%s is in use (a console or a display) and cannot be unloaded."
        % " with ".join(names), Disruption.reboot,
        {"before": dict.fromkeys(names, "loaded"), "after": dict.fromkeys(names)}),)


def _absent(observation: Observation) -> List[Step]:
    steps: List[Step] = []
    if observation.original:
        steps.append(restore_step(NAME, FILE, observation.text, observation.before_us))
    if observation.original or observation.text is None:
        requires = tuple(step.id for step in steps)
        steps += [_rebuild(each, observation, "It still holds our blacklist.", requires)
                  for each in observation.initramfs if each.ours]
    return steps


def _rebuild(each: Initramfs, observation: Observation, why: str, requires: Tuple[str, ...]) -> Step:
    argv = ["update-initramfs", "-u", "-k", each.kernel]
    if observation.tool == "dracut":
        # Which file it writes by itself differs between distributions
        argv = ["dracut", "--force", each.path, each.kernel]
    return command_step(
        NAME, REBUILD, each.kernel, argv, why, Disruption.none,
        change={"before": {each.path: "made before"}, "after": {each.path: "made anew"}}, requires=requires,
        timeout=1200)
