# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps to a CDI specification that describes the devices, now and after a boot."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from ...core.facts import HostFacts
from ...core.plan import Disruption, Plan, Step
from ...core.steps import service_step
from .observation import CdiObservation
from .policy import CdiPolicy

NAME = "cdi"
GENERATE = "cdi.generate"
REMOVE = "cdi.remove"


def plan(observation: CdiObservation, policy: CdiPolicy, facts: HostFacts) -> Plan:
    if not policy.present:
        return Plan(steps=tuple(_removal(observation)))
    notes = [_note(observation, path) for path in observation.elsewhere]
    waits_for = _waits_for(facts)
    if waits_for:
        return Plan(notes=tuple(notes + ["The CDI specification waits for %s." % waits_for]))
    steps = _generation(observation, facts)
    if policy.refresh_at_boot:
        steps.extend(_unit_steps(observation))
    return Plan(steps=tuple(steps), notes=tuple(notes))


def _note(observation: CdiObservation, path: str) -> str:
    if path in observation.conflicting:
        return "%s names the same devices as %s: containers get none of them until one file is removed." % (
            path, observation.path)
    return "%s describes GPUs under the same kind; names that only it has stay in use." % path


def _waits_for(facts: HostFacts) -> str:
    if not facts.gpus:
        return "a GPU: there is none on the PCI bus"
    if not facts.toolkit:
        return "the container toolkit"
    if not facts.driver_loaded:
        return "a loaded driver"
    if facts.driver_userspace and facts.driver_userspace != facts.driver_loaded:
        return "the activation of driver %s (loaded: %s)" % (facts.driver_userspace, facts.driver_loaded)
    return ""


def _generation(observation: CdiObservation, facts: HostFacts) -> List[Step]:
    reasons = _reasons(observation, facts)
    if not reasons:
        return []
    before: Optional[Dict[str, Any]] = None
    if observation.spec is not None:
        before = {"driver": observation.spec.driver, "gpus": observation.spec.gpus, "outdated": "; ".join(reasons)}
    return [
        Step(
            capability=NAME,
            action=GENERATE,
            subject=observation.path,
            why="Containers get their GPUs by this specification: %s." % "; ".join(reasons),
            change={"before": before, "after": {"driver": facts.driver_loaded, "gpus": len(facts.gpus)}},
        )
    ]


def _reasons(observation: CdiObservation, facts: HostFacts) -> List[str]:
    if observation.spec is None:
        return ["there is none"]
    # Said in the same words before the exchange of a driver and after it, as the plan of then is held to that of now.
    if observation.spec.driver and observation.spec.driver != facts.driver_loaded:
        return ["it is for driver %s" % observation.spec.driver]
    return list(observation.reasons) if observation.driver == facts.driver_loaded else []


def _unit_steps(observation: CdiObservation) -> List[Step]:
    """A package that is not installed yet brings the units, and may enable them before we come to it."""
    steps = []
    for unit, is_there, is_enabled, is_active in observation.units:
        if not is_there and observation.toolkit:
            continue
        if not is_enabled:
            steps.append(service_step(NAME, "enable", unit, "/var/run is empty after a boot; the unit fills it again.",
                                      Disruption.none, "not enabled", "enabled"))
        if unit.endswith(".path") and not is_active:
            steps.append(service_step(NAME, "start", unit, "It sees a new driver or toolkit.",
                                      Disruption.none, "not active", "active"))
    return steps


def _removal(observation: CdiObservation) -> List[Step]:
    steps = [
        service_step(NAME, "disable", unit, "We enabled it.", Disruption.none, "enabled", "not enabled")
        for unit, is_there, is_enabled, _is_active in observation.units
        if unit in observation.enabled_by_us and is_there and is_enabled
    ]
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
    return steps
