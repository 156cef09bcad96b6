# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps to a CDI specification that describes the devices, now and after a boot."""
from __future__ import annotations

from typing import List, Tuple

from ..core.facts import HostFacts
from ..core.plan import Disruption, Kept, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, service_step
from ..core.versions import version_key
from ..hardware.driver_container import is_in_container
from . import boot, links
from .observation import DRIVER_ROOT, Observation, unnamed_nodes
from .policy import Policy

NAME = "cdi"
GENERATE = "cdi.generate"
REMOVE = "cdi.remove"
DISCARD = "cdi.discard"
LINK = "links.create"
UNLINK = "links.remove"
# The toolkit has brought refresh units since then (its release notes)
UNITS_SINCE = (1, 18)


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if not policy.present:
        return Plan(steps=tuple(_removal(observation)))
    refusals = facts.refusals_of_the_sick() or _refuse_root(observation, facts)
    if refusals:
        return Plan(refusals=refusals)
    kept = () if policy.remove_others else tuple(_kept(path) for path in observation.elsewhere
                                                 if path not in observation.conflicting)
    notes = [] if policy.remove_others else [_conflict(observation, path) for path in observation.elsewhere
                                             if path in observation.conflicting]
    waits_for = _waits_for(facts)
    if waits_for:
        return Plan(kept=kept, notes=(*notes, "The CDI specification waits for %s." % waits_for), complete=False)
    steps = _others_steps(observation, policy)
    undivided = _lacks_mig_devices(observation, facts)
    if undivided:
        notes.append("The CDI specification waits for MIG devices: every GPU is in MIG mode, and none has one.")
    else:
        steps.extend(_generation(observation, facts))
    steps.extend(_link_steps(observation, policy, facts))
    if policy.refresh_at_boot and _has_units(observation, facts):
        steps.extend(_unit_steps(observation, facts))
    steps.extend(_boot_steps(observation, policy, facts))
    return Plan(steps=tuple(steps), kept=kept, notes=tuple(notes), complete=not undivided)


def _refuse_root(observation: Observation, facts: HostFacts) -> Tuple[Refusal, ...]:
    if not (facts.driver_userspace and is_in_container(observation.driver_root)):
        return ()
    return (Refusal(
        "cdi.root_of_a_container",
        "%s has %s=%s, and driver %s is on the host" % (
            boot.REFRESH_ENVIRONMENT, DRIVER_ROOT, observation.driver_root, facts.driver_userspace),
        "a specification of the driver that the kernel has loaded", "take that line out of the file"),)


def _kept(path: str) -> Kept:
    return Kept(path, "it describes GPUs under the same kind, and names that only it has stay in use")


def _conflict(observation: Observation, path: str) -> str:
    return "%s names the same devices as %s: containers get none of them until one file is removed." % (
        path, observation.path)


def _others_steps(observation: Observation, policy: Policy) -> List[Step]:
    if not policy.remove_others:
        return []
    why = "It describes GPUs too, and nobody keeps it up to date."
    return [
        # What a boot takes away anyhow is not kept to be put back
        Step(NAME, DISCARD, path, why, change={"before": observation.texts[path], "after": None})
        if path.startswith(("/run/", "/var/run/")) else file_step(NAME, path, observation.texts[path], None, why)
        for path in observation.elsewhere
    ]


def _link_steps(observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
    """A driver that is still to be loaded makes its nodes anew, perhaps with other numbers.

    Whether they are others is known only then, so an exchange always comes with this step, planned and done alike: as
    long as the specification is another driver's, which is renewed in the same run.
    """
    exchanged = _is_of_another_driver(observation, facts) and not _lacks_mig_devices(observation, facts)
    if not policy.device_links or not (
            observation.unlinked or exchanged or facts.driver_loaded != observation.loaded
            or facts.module_loaded != observation.module):
        return []
    return [Step(NAME, LINK, links.DIRECTORY,
                 "A reload of systemd takes a GPU from running containers where the link of its device is missing.",
                 change={"before": None, "after": {"links": "to NVIDIA's device nodes"}})]


def _is_of_another_driver(observation: Observation, facts: HostFacts) -> bool:
    spec = observation.spec
    return spec is not None and spec.driver not in ("", facts.driver_loaded)


def _lacks_mig_devices(observation: Observation, facts: HostFacts) -> bool:
    return observation.undivided and observation.driver == facts.driver_loaded


def _waits_for(facts: HostFacts) -> str:
    if not facts.gpus:
        return "a GPU: %s" % facts.lack_of_gpus
    if facts.awaits_gpu:
        return "a GPU: the host %s" % facts.awaited
    if not facts.toolkit:
        return "the container toolkit"
    if not facts.driver_loaded:
        return "a loaded driver"
    if facts.driver_userspace and facts.driver_userspace != facts.driver_loaded:
        return "the activation of driver %s (loaded: %s)" % (facts.driver_userspace, facts.driver_loaded)
    return ""


def _generation(observation: Observation, facts: HostFacts) -> List[Step]:
    reasons = _reasons(observation, facts)
    if not reasons:
        return []
    return [
        Step(
            capability=NAME,
            action=GENERATE,
            subject=observation.path,
            why="Containers get their GPUs by this specification: %s." % "; ".join(reasons),
            # The same whether there is none or an old one: the toolkit's units may write one at any moment in between
            change={"before": {"fresh": False},
                    "after": {"driver": facts.driver_loaded, "gpus": len(facts.gpus), "fresh": True}},
        )
    ]


def _reasons(observation: Observation, facts: HostFacts) -> List[str]:
    if observation.spec is None:
        return ["there is none"]
    if _is_of_another_driver(observation, facts):
        return ["it is for driver %s" % observation.spec.driver]
    if facts.driver_userspace and any(map(is_in_container, observation.spec.sources)):
        return ["it has the files of a driver container"]
    if observation.made_before or not _is_installed(observation, facts.toolkit):
        return ["it was made before container toolkit %s came" % facts.toolkit]
    if facts.driver_changes:
        return ["packages of its driver change"]
    if facts.mig_changes:
        return ["what the GPUs are divided into changes"]
    if observation.reasons and observation.driver == facts.driver_loaded:
        return list(observation.reasons)
    return unnamed_nodes(observation.spec, facts.control_nodes)


def _is_installed(observation: Observation, toolkit: str) -> bool:
    """Debian writes '~' where the version of a candidate has '-'."""
    return observation.toolkit.replace("~", "-") == toolkit.replace("~", "-")


def _has_units(observation: Observation, facts: HostFacts) -> bool:
    """Whether the toolkit that will be there brings refresh units; without its service, which an administrator may have
    masked, the other one generates nothing. They see a driver or a toolkit that comes between our runs."""
    if _is_installed(observation, facts.toolkit):
        return any(is_there for unit, is_there, _is_enabled, _is_active in observation.units
                   if unit == boot.REFRESH_SERVICE)
    return version_key(facts.toolkit) >= UNITS_SINCE


def _unit_steps(observation: Observation, facts: HostFacts) -> List[Step]:
    """A package that is not installed yet brings the units, and may enable them before we come to it."""
    steps = []
    for unit, is_there, is_enabled, is_active in observation.units:
        if not is_there and _is_installed(observation, facts.toolkit):
            continue
        if not is_enabled:
            steps.append(service_step(NAME, "enable", unit, "/var/run is empty after a boot; the unit fills it again.",
                                      Disruption.none, "not enabled", "enabled"))
        if unit.endswith(".path") and not is_active:
            steps.append(service_step(NAME, "start", unit, "It sees a new driver or toolkit.",
                                      Disruption.none, "not active", "active"))
    return steps


def _boot_steps(observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
    """Our own unit: none of the toolkit's is sure to have written the specification when containers start."""
    if not policy.refresh_at_boot and not policy.device_links:
        return _boot_removal(observation)
    text = boot.unit_text(observation.generator, policy.refresh_at_boot, policy.device_links)
    steps = []
    for path, wanted in ((boot.UNIT_FILE, text), (boot.RULE_FILE, boot.RULE)):
        if observation.files.get(path) != wanted:
            steps.append(file_step(NAME, path, observation.files.get(path), wanted,
                                   "A boot, or a driver loaded later, finds /dev and /var/run without them."))
    if not observation.boot_enabled:
        requires: Tuple[str, ...] = tuple(step.id for step in steps)
        steps.append(service_step(NAME, "enable", boot.UNIT, "It runs before the container runtime at every boot.",
                                  Disruption.none, "not enabled", "enabled", requires))
    return steps


def _boot_removal(observation: Observation) -> List[Step]:
    steps = []
    if observation.boot_enabled:
        steps.append(service_step(NAME, "disable", boot.UNIT, "It has nothing to do any more.",
                                  Disruption.none, "enabled", "not enabled"))
    steps.extend(file_step(NAME, path, text, None, "It has nothing to do any more.")
                 for path, text in observation.files.items() if text is not None)
    return steps


def _removal(observation: Observation) -> List[Step]:
    there = {unit: is_there and is_enabled for unit, is_there, is_enabled, _is_active in observation.units}
    there[boot.UNIT] = observation.boot_enabled
    steps = [
        service_step(NAME, "disable", unit, "We enabled it.", Disruption.none, "enabled", "not enabled")
        for unit, is_enabled in there.items() if unit in observation.enabled_by_us and is_enabled
    ]
    if observation.links:
        steps.append(Step(NAME, UNLINK, links.DIRECTORY, "We made them.",
                          change={"before": {"links": "to NVIDIA's device nodes"}, "after": None}))
    if observation.spec is not None and observation.generated:
        steps.append(
            Step(
                capability=NAME,
                action=REMOVE,
                subject=observation.path,
                why="We wrote it; without it no container gets a GPU by name.",
                change={"before": {"driver": observation.spec.driver, "gpus": observation.spec.gpus}, "after": None},
            )
        )
    return steps + list(observation.restore)
