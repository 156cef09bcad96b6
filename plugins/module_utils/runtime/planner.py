# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps from a container runtime as it is to one with the handlers, in effect."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Step, digest
from ..core.refusal import Refusal
from .backend import Backend
from .backends.known import BACKENDS
from .model import RELOAD, RESTART, WAIT, Edit, Observation, Service
from .policy import Policy

NAME = "runtime"
WRITE = "runtime_config.write"
EDIT = "runtime_config.edit"
REMOVE = "runtime_config.remove"
FORGET = "runtime_config.forget"
# By the verb of Backend.apply_verb
APPLY = {RESTART: "runtime.restart", RELOAD: "runtime.reload", WAIT: "runtime.wait"}

NO_RUNTIME = Refusal(
    "runtime.none", "no container runtime",
    "containerd 1.6 or newer, CRI-O, Docker, or a Kubernetes distribution that brings one",
    "install one, or leave this host out")


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    service = observation.service
    if observation.refusals:
        return Plan(refusals=observation.refusals)
    if service is None:
        return Plan(refusals=(NO_RUNTIME,)) if policy.present else \
            Plan(notes=("There is no container runtime, so nothing of ours is to be taken out of it.",))
    backend = BACKENDS[service.backend]
    try:
        edits = backend.edits(service, observation.reading, policy)
    except GpuOpsError as error:
        return Plan(refusals=error.refusals)
    if policy.present and edits and not service.active:
        return Plan(refusals=(backend.not_running(service),))
    notes = list(backend.notes(service, observation.reading, policy, edits))
    if policy.present and observation.cdi is None and policy.cdi:
        notes.append("%s %d.%d cannot inject CDI devices itself; the handler does it in mode cdi."
                     % (backend.title, *service.release))
    if policy.present and not facts.toolkit:
        notes.append("The handler works once the container toolkit is installed.")
    # a distribution that watches its files restarts the daemon for each of them, whatever else may be put off
    watched = service.active and backend.apply_verb(service, observation.reading, edits) == WAIT
    disruption = Disruption.runtime_restart if watched else Disruption.none
    steps = [_edit_step(edit, edits, policy, service, backend, disruption) for edit in edits]
    if (steps or observation.pending) and service.active:
        steps.append(_apply_step(policy, observation, service, edits, [step.id for step in steps]))
        against = backend.against_restart(service, observation.reading, edits)
        if against is not None and steps[-1].action == APPLY[RESTART]:
            return Plan(refusals=(against,))
    edited = [edit.path for edit in edits]
    steps.extend(_forget_step(path) for path in observation.as_before if path not in edited)
    return Plan(steps=tuple(steps), notes=tuple(notes))


def _edit_step(
    edit: Edit, edits: Sequence[Edit], policy: Policy, service: Service, backend: Backend[Any], disruption: Disruption
) -> Step:
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
        why=_why(edit, edits, policy, service, backend),
        disruption=disruption,
        change={"before": edit.shown_before, "after": edit.shown_after},
        parameters=parameters,
    )


def _why(edit: Edit, edits: Sequence[Edit], policy: Policy, service: Service, backend: Backend[Any]) -> str:
    if not policy.present:
        return "What we wrote there goes; the rest of the file stays."
    if edit.after is None:
        return "It is not needed any more."
    if edit.path == service.root and edit.before is None and any(not each.parameters for each in edits):
        return "%s reads no other file without it." % backend.title
    if edit.before is None or not edit.parameters:
        return "It gives %s the handler '%s' for pods that ask for GPUs." % (backend.title, policy.handler)
    return "Only these lines are ours; the rest of the file stays as it is."


def _apply_step(
    policy: Policy, observation: Observation, service: Service, edits: Sequence[Edit], requires: List[str]
) -> Step:
    backend = BACKENDS[service.backend]
    verb = backend.apply_verb(service, observation.reading, edits)
    because = {
        RESTART: "%s reads its configuration at its start. Running containers go on.",
        RELOAD: "%s takes its configuration in without a restart.",
        WAIT: "%s is restarted by its distribution, which watches the files.",
    }[verb] % backend.title
    if verb == RELOAD and observation.reload_ignored:
        verb = RESTART
        because = "%s did not take its configuration in by a reload. Running containers go on." % backend.title
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
        depends_on=tuple(requires),
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
    """What an executor finds the same service by; 'kind' is the word for its backend in plans that are stored."""
    return {"kind": service.backend, "runtime": service.name, "root": service.root,
            "socket": service.socket}
