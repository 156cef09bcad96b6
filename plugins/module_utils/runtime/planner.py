# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps from a container runtime as it is to one with the handlers, in effect."""
from __future__ import annotations

from typing import Any, Dict, List

from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Refusal, Step, digest
from .kinds import KINDS
from .model import RELOAD, RESTART, Edit, Kind, Problem, RuntimeObservation, Service
from .policy import RuntimePolicy

NAME = "runtime"
WRITE = "runtime_config.write"
EDIT = "runtime_config.edit"
REMOVE = "runtime_config.remove"
FORGET = "runtime_config.forget"
# By the verb of Kind.apply_verb
APPLY = {"restart": "runtime.restart", "reload": "runtime.reload", "wait": "runtime.wait"}

NO_RUNTIME = Problem(
    "no container runtime", "containerd 1.6 or newer, CRI-O, Docker, or a Kubernetes distribution that brings one",
    "install one, or leave this host out")


def plan(observation: RuntimeObservation, policy: RuntimePolicy, facts: HostFacts) -> Plan:
    service, problem = observation.service, observation.problem
    if service is None and problem is None and not policy.present:
        return Plan(notes=("There is no container runtime, so nothing of ours is to be taken out of it.",))
    if service is None or problem is not None:
        told = problem or NO_RUNTIME
        return Plan(refusals=(Refusal(NAME, told.found, told.wanted, told.remedy),))
    kind = KINDS[service.kind]
    notes: List[str] = list(observation.notes)
    if policy.present and observation.cdi is None and policy.cdi:
        notes.append("%s %d.%d cannot inject CDI devices itself; the handler does it in mode cdi."
                     % (kind.title, *service.release))
    if policy.present and not facts.toolkit:
        notes.append("The handler works once the container toolkit is installed.")
    steps = [_edit_step(edit, policy, service, kind) for edit in observation.edits]
    if (steps or observation.pending) and service.active:
        steps.append(_apply_step(policy, observation, service, kind, [step.id for step in steps]))
    steps.extend(_forget_step(path) for path in observation.leftover)
    return Plan(steps=tuple(steps), notes=tuple(notes))


def _edit_step(edit: Edit, policy: RuntimePolicy, service: Service, kind: Kind) -> Step:
    # before, after: what the executor compares with, so that what is written is what was judged
    parameters: Dict[str, Any] = {
        **_address(service), "present": policy.present, "before": digest(edit.before), "after": digest(edit.after),
    }
    if edit.after is None:
        action = REMOVE
    elif edit.parameters:
        action = EDIT
        parameters["edit"] = dict(edit.parameters)
    else:
        action = WRITE
    if edit.like:
        parameters["like"] = edit.like
    return Step(
        capability=NAME,
        action=action,
        subject=edit.path,
        why=_why(edit, policy, kind),
        change={"before": edit.shown_before, "after": edit.shown_after},
        parameters=parameters,
    )


def _why(edit: Edit, policy: RuntimePolicy, kind: Kind) -> str:
    if not policy.present:
        return "What we wrote there goes; the rest of the file stays."
    if edit.after is None:
        return "It is not needed any more."
    if not edit.parameters:
        return "It gives %s the handler '%s' for pods that ask for GPUs." % (kind.title, policy.handler)
    if edit.before is None:
        return "%s reads no other file without it." % kind.title
    return "Only these lines are ours; the rest of the file stays as it is."


def _apply_step(
    policy: RuntimePolicy, observation: RuntimeObservation, service: Service, kind: Kind, requires: List[str]
) -> Step:
    verb = kind.apply_verb(service, observation.edits)
    because = {
        "restart": "%s reads its configuration at its start. Running containers go on.",
        "reload": "%s takes its configuration in without a restart.",
        "wait": "%s is restarted by its distribution, which watches the files.",
    }[verb] % kind.title
    if verb == RELOAD and observation.restart:
        verb = RESTART
        because = "%s did not take its configuration in by a reload. Running containers go on." % kind.title
    return Step(
        capability=NAME,
        action=APPLY[verb],
        subject=service.unit,
        why=because if requires else
        "The configuration is newer than the daemon, which therefore does not know it yet.",
        disruption=Disruption.service_restart if verb == RELOAD else Disruption.runtime_restart,
        parameters={
            **_address(service), "handlers": list(policy.entries) if policy.present else [],
            "ours": list(policy.entries),
        },
        after=tuple(requires),
    )


def _forget_step(path: str) -> Step:
    return Step(
        capability=NAME,
        action=FORGET,
        subject=path,
        why="An earlier removal was cut short: nothing of ours is left in it, so its record goes too.",
        change={"before": None, "after": None},
    )


def _address(service: Service) -> Dict[str, Any]:
    """What an executor finds the same service by."""
    return {"kind": service.kind, "runtime": service.distribution or service.kind, "root": service.root,
            "socket": service.socket}
