# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: the steps from containerd as it is to a containerd with the handler, in effect."""
from __future__ import annotations

from typing import Any, Dict, List

from ...core.facts import HostFacts
from ...core.plan import Disruption, Plan, Refusal, Step
from .observation import UNIT, Daemon, Problem, RuntimeObservation
from .policy import RuntimePolicy
from .writer import DROP_IN, Edit

NAME = "runtime"
WRITE = "runtime_config.write"
EDIT = "runtime_config.edit"
REMOVE = "runtime_config.remove"
RESTART = "runtime.restart"

NO_CONTAINERD = Problem("no containerd", "containerd 1.6 or newer", "install containerd")


def plan(observation: RuntimeObservation, policy: RuntimePolicy, facts: HostFacts) -> Plan:
    daemon, problem = observation.daemon, observation.problem
    if daemon is None and not policy.present:
        return Plan(notes=("There is no containerd, so nothing of ours is to be taken out of it.",))
    if daemon is None or problem is not None:
        told = problem or NO_CONTAINERD
        return Plan(refusals=(Refusal(NAME, told.found, told.wanted, told.remedy),))
    notes: List[str] = []
    if policy.present and observation.cdi is None and policy.cdi:
        notes.append("containerd %d.%d cannot inject CDI devices itself; the handler does it in mode cdi."
                     % daemon.release)
    if policy.present and not facts.toolkit:
        notes.append("The handler works once the container toolkit is installed.")
    steps = [_edit_step(edit, policy, daemon) for edit in observation.edits]
    if (steps or observation.pending) and daemon.active:
        steps.append(_restart_step(daemon, [step.id for step in steps]))
    return Plan(steps=tuple(steps), notes=tuple(notes))


def _edit_step(edit: Edit, policy: RuntimePolicy, daemon: Daemon) -> Step:
    parameters: Dict[str, Any] = {}
    if edit.after is None:
        action = REMOVE
    elif edit.path == DROP_IN:
        action = WRITE
        parameters["root"] = daemon.root
    else:
        action = EDIT
        parameters["tables"] = [[list(table), dict(values)] for table, values in edit.tables]
    return Step(
        capability=NAME,
        action=action,
        subject=edit.path,
        why=_why(edit, policy),
        change={"before": edit.shown_before, "after": edit.shown_after},
        parameters=parameters,
    )


def _why(edit: Edit, policy: RuntimePolicy) -> str:
    if not policy.present:
        return "What we wrote there goes; the rest of the file stays."
    if edit.path == DROP_IN:
        return "It gives containerd the handler '%s' for pods that ask for GPUs." % policy.handler
    if edit.before is None:
        return "containerd reads no other file without it."
    return "Only these lines are ours; the rest of the file stays as it is."


def _restart_step(daemon: Daemon, requires: List[str]) -> Step:
    return Step(
        capability=NAME,
        action=RESTART,
        subject=UNIT,
        why="containerd reads its configuration at its start. Running containers go on."
            if requires else "The configuration is newer than the daemon, which therefore does not know it yet.",
        disruption=Disruption.runtime_restart,
        parameters={"root": daemon.root},
        after=tuple(requires),
    )
