# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to an agent that has this policy. Pure.

Its code comes first and its command last, so that a command is never without what it runs; what an older command ran
goes after that.
"""
from __future__ import annotations

from typing import List, Sequence, Tuple

from ..core.boot_unit import disabling, removal, unit_steps
from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, service_step
from . import boot, detector, watch
from .observation import A_POLICY, DIRECTORY, Observation
from .policy import NAME, POLICY_FILE, SILENT, Policy

INSTALL = "agent.install"
WRITE = "agent.policy"
TIDY = "agent.tidy"
FORGET = "agent.forget"
UNTELL = "agent.untell"
RELOAD = "agent.reload"
COMMAND_MODE = 0o755


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        holds = any(step.subject == boot.DROP_IN for step in observation.restore)
        return Plan(steps=tuple(_removal(observation, holds)), notes=_reload_notes(observation) if holds else ())
    if not observation.code:
        return Plan(refusals=(Refusal(
            "agent.no_code", "a module that runs without the archive of its collection",
            "the archive that the collection's action plugin ships: it is the agent's code",
            "run `node_agent` through Ansible by its full name, gpuops.nvidia.node_agent"),))
    steps: List[Step] = []
    notes = boot.not_held(policy.boot, observation.others)
    if not observation.is_whole:
        steps.append(Step(
            NAME, INSTALL, observation.code, "The command runs this code, which is that of this release.",
            change={"before": {"archive": None}, "after": {"archive": observation.code}}))
    if not observation.is_current:
        steps.append(Step(
            NAME, WRITE, POLICY_FILE, "What is wanted of this host is known on it.",
            change={"before": A_POLICY if observation.has_policy else None, "after": A_POLICY}))
    if observation.text != observation.command:
        steps.append(file_step(
            NAME, policy.command, observation.text, observation.command,
            "A person on the host needs nothing else.", mode=COMMAND_MODE,
            requires=tuple(step.id for step in steps)))
    steps += unit_steps(
        NAME, boot.UNIT, boot.files(
            policy.boot, policy.command, policy.boot_timeout, policy.node_condition != SILENT), observation.units,
        observation.enabled, "A host that boots is as its policy has it before it takes pods.", "the kubelet")
    steps += _untelling(observation)
    steps += detector.steps(policy.problem_detector, observation.detector)
    steps += _watching(observation, policy, steps)
    notes += _watching_notes(observation, policy)
    steps += observation.restore
    if boot.DROP_IN in observation.units and observation.units[boot.DROP_IN] is not None and policy.boot != boot.HOLD:
        steps += _reloading(observation, steps)
        notes += _reload_notes(observation)
    others = _others(observation)
    if others:
        steps.append(Step(
            NAME, TIDY, DIRECTORY, "Nothing runs it any more.",
            change={"before": {"archives": list(others)}, "after": {"archives": []}},
            parameters={"stays": observation.code}, depends_on=tuple(step.id for step in steps)))
    return Plan(steps=tuple(steps), notes=notes)


def _watching(observation: Observation, policy: Policy, before: Sequence[Step]) -> List[Step]:
    """Its script before its unit, and both before it starts; the other way round where there is to be none."""
    there, wanted = observation.watching, watch.files(policy.watch, policy.command)
    steps = [] if policy.watch else _unwatched(observation)
    steps += [file_step(NAME, path, there.files.get(path), text, "The host's health is watched all the time."
                        if policy.watch else "Nobody watches any more.")
              for path, text in wanted.items() if there.files.get(path) != text]
    if not policy.watch:
        return steps
    if not there.enabled:
        steps.append(service_step(NAME, "enable", watch.UNIT, "It watches from every boot on.", Disruption.none,
                                  "not enabled", "enabled", tuple(step.id for step in steps)))
    if there.code != observation.code or there.files.get(watch.SCRIPT) != wanted[watch.SCRIPT]:
        # It holds nothing of a GPU, so nobody is disturbed
        steps.append(service_step(
            NAME, "restart" if there.runs else "start", watch.UNIT, "It watches by the code of this release.",
            Disruption.none, there.code or None, observation.code, tuple(step.id for step in [*before, *steps])))
    return steps


def _watching_notes(observation: Observation, policy: Policy) -> Tuple[str, ...]:
    before = observation.watching.files.get(watch.UNIT_FILE)
    after = watch.files(policy.watch, policy.command)[watch.UNIT_FILE]
    if not policy.watch or not observation.watching.runs or before in (None, after):
        return ()
    return ("systemd goes on with the former text of %s until the next boot, or until `systemctl daemon-reload`, which "
            "takes GPUs from running containers; it watches all the same." % watch.UNIT,)


def _unwatched(observation: Observation) -> List[Step]:
    steps = disabling(NAME, watch.UNIT, observation.watching.enabled)
    if observation.watching.runs:
        steps.append(service_step(NAME, "stop", watch.UNIT, "Nobody wants it to watch any more.", Disruption.none,
                                  "running", "stopped"))
    return steps


def _others(observation: Observation) -> Tuple[str, ...]:
    """What lies beside the code: of other releases of the collection, or of Python."""
    begins = observation.code.split(".")[0]
    return tuple(name for name in observation.archives if not name.startswith(begins))


def _reloading(observation: Observation, before: Sequence[Step]) -> List[Step]:
    """Where the kubelet does not run, no container has a GPU that a reload would take."""
    return [Step(NAME, RELOAD, boot.KUBELET, "systemd would go on to hold it.",
                 change={"before": {boot.KUBELET: "held"}, "after": {boot.KUBELET: "free to start"}},
                 depends_on=tuple(step.id for step in before))] if observation.held else []


def _untelling(observation: Observation) -> List[Step]:
    """What nobody keeps true any more is not left there."""
    return [Step(NAME, UNTELL, observation.told, "Nobody tells the cluster of this host's GPUs any more.",
                 change={"before": {"conditions and cordon": "of this host"}, "after": {"conditions and cordon": None}})
            ] if observation.told else []


def _reload_notes(observation: Observation) -> Tuple[str, ...]:
    return () if observation.held else (
        "systemd knows of the held %s until the next boot, or until `systemctl daemon-reload`, which takes GPUs from "
        "running containers." % boot.KUBELET,)


def _removal(observation: Observation, holds: bool) -> List[Step]:
    """What a boot runs first, and last the code."""
    steps = _unwatched(observation)
    if observation.health:
        # It reads in the policy where else something is told of it
        steps.append(Step(NAME, FORGET, "health", "Nobody looks at it any more.",
                          change={"before": {"findings": "kept"}, "after": {"findings": None}}))
    steps += removal(NAME, boot.UNIT, observation.enabled, observation.restore)
    # Once nothing is there that would tell it again
    steps += _untelling(observation)
    if holds:
        steps += _reloading(observation, steps)
    if observation.archives:
        steps.append(Step(
            NAME, TIDY, DIRECTORY, "It was the command's code.",
            change={"before": {"archives": list(observation.archives)}, "after": {"archives": []}},
            parameters={"stays": ""}, depends_on=tuple(step.id for step in steps)))
    return steps
