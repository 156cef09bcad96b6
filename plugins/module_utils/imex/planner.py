# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to IMEX in the wanted mode. Pure."""
from __future__ import annotations

import re
from typing import Dict, List, Tuple

from ..core import assignments, daemons
from ..core.daemons import Daemon
from ..core.facts import HostFacts
from ..core.plan import REBOOT, Disruption, Plan, Requirement, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, managed, service_step
from .catalogue import (
    CHANNEL0,
    CHANNEL0_OPTION,
    CONFIGURATION,
    COUNT_OPTION,
    DEFAULT_COUNT,
    MODULE_FILE,
    NODES_FILE,
    READY,
    UNIT,
)
from .observation import DISABLED, MASKED, NAME, Observation
from .policy import HOST, KUBERNETES, Policy

NODES = "nodes.write"
CHANNEL = "channel.create"
WAIT = "imex.wait"
LASTING = ("service.unmask", "service.enable")
ANOTHER = "another"


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return Plan(steps=tuple(_removal(observation)))
    if not facts.imex:
        return Plan()
    if policy.mode != HOST:
        return Plan(steps=tuple(_out_of_the_way(observation, policy)))
    daemon = observation.daemon.packaged(facts)
    refusals = facts.refusals_of_the_sick() or tuple(_refusals(observation, policy, facts, daemon))
    if refusals:
        return Plan(refusals=refusals)
    if not policy.nodes:
        return Plan(complete=False, notes=(
            "IMEX waits for its `nodes`: the hosts of its NVLink clique%s. Where others run it, or nobody needs it, "
            "say so with `mode`." % (" (%s)" % ", ".join(observation.cliques) if observation.cliques else ""),))
    if facts.awaits_gpu:
        steps = _file_steps(observation, policy)
        steps += [step for step in _service_steps(observation, facts, daemon, ()) if step.action in LASTING]
        return Plan(steps=tuple(steps), complete=False, notes=("IMEX %s." % facts.awaited,))
    waits_for = daemon.waits_for(facts)
    if waits_for:
        return Plan(complete=False, notes=("IMEX waits for %s." % waits_for,))
    if observation.error and not _exchanged(observation, facts):
        return Plan(complete=False, notes=("IMEX waits for GPUs that answer: %s." % observation.error,))
    if _is_alone(observation, facts):
        return Plan(notes=("IMEX has nothing to do: no GPU of this host is in a cluster of NVLink hosts.",))
    steps = _file_steps(observation, policy)
    steps += _service_steps(observation, facts, daemon, tuple(
        step.id for step in steps if step.action in (NODES, assignments.WRITE)))
    return Plan(steps=tuple(steps + _channel_steps(observation, policy, facts) + _wait_steps(
        observation, policy, facts, steps)), requirements=_requirements(observation, policy, facts))


def _is_alone(observation: Observation, facts: HostFacts) -> bool:
    """A board of a rack's kind that stands by itself, as in a workstation; only its driver tells."""
    return not (observation.cliques or observation.registering or _exchanged(observation, facts))


def _exchanged(observation: Observation, facts: HostFacts) -> bool:
    """Whether another driver is loaded by then than the one that was asked."""
    kinds = (facts.module_loaded, observation.loaded[1])
    return facts.driver_loaded != observation.loaded[0] or ("" not in kinds and kinds[0] != kinds[1])


# refusals


def _refusals(observation: Observation, policy: Policy, facts: HostFacts, daemon: Daemon) -> List[Refusal]:
    if not policy.nodes:
        return []
    refusals: List[Refusal] = []
    if (facts.driver_loaded or facts.awaits_gpu) and not (daemon.version and daemon.known):
        refusals.append(Refusal(
            "imex.not_installed", "no nvidia-imex", "the daemon that shares the memory of GPUs with other hosts",
            "run `gpu_driver` with its `imex` on `auto`, or set `mode` to `off`", option="mode"))
    elif facts.driver_loaded and not daemon.waits_for(facts) and daemon.version != facts.driver_loaded:
        refusals.append(Refusal(
            "imex.version_mismatch", "IMEX %s beside driver %s" % (daemon.version, facts.driver_loaded),
            "IMEX in exactly the version of the loaded driver: it ends at once with any other",
            "run `gpu_driver`, which brings both in one version"))
    if daemon.masked and not observation.noted.get(MASKED):
        refusals.append(Refusal(
            "imex.masked", "%s is masked, and not by us" % UNIT, "the host's service, as `mode` says",
            "run `systemctl unmask %s`, or set `mode` to `kubernetes` where ComputeDomains run IMEX" % UNIT,
            option="mode"))
    return refusals + _refuse_keys(observation, policy, facts)


def _refuse_keys(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    """The installed file has the keys of its version; nobody else knows them all."""
    unknown = sorted(set(policy.config) - set(observation.keys))
    if observation.settings is None or facts.driver_changes or not unknown:
        return []
    return [Refusal("imex.config_key_unknown", "`config` has %s" % ", ".join(unknown),
                    "keys that IMEX knows: %s" % ", ".join(observation.keys), "correct `config`", option="config")]


# the host's service


def _file_steps(observation: Observation, policy: Policy) -> List[Step]:
    steps: List[Step] = []
    if observation.nodes != nodes_text(policy.nodes):
        steps.append(Step(
            NAME, NODES, NODES_FILE, "Every host of the domain has the same list.",
            change={"before": {"nodes": ANOTHER}, "after": {"nodes": " ".join(policy.nodes)}}))
    steps += assignments.write_step(NAME, CONFIGURATION, observation.settings or {}, policy.config,
                                    observation.noted)
    text = _options_text(policy)
    if text and observation.options != text:
        steps.append(file_step(NAME, MODULE_FILE, observation.options, text,
                               "The driver makes the channels of IMEX when it is loaded."))
    elif not text:
        steps += [step for step in observation.restore if step.subject == MODULE_FILE]
    return steps


def nodes_text(nodes: Tuple[str, ...]) -> str:
    return "".join("%s\n" % node for node in nodes)


def _options_text(policy: Policy) -> str:
    options: Dict[str, int] = {}
    if policy.channel0:
        options[CHANNEL0_OPTION] = 1
    if policy.channel_count:
        options[COUNT_OPTION] = policy.channel_count
    return managed("options nvidia %s\n" % " ".join("%s=%d" % item for item in options.items())) if options else ""


def _service_steps(
    observation: Observation, facts: HostFacts, daemon: Daemon, written: Tuple[str, ...]
) -> List[Step]:
    steps: List[Step] = []
    if daemon.masked:
        steps.append(service_step(NAME, "unmask", UNIT, "We masked it for another mode.", Disruption.none,
                                  "masked", "not masked"))
    if not _is_enabled(observation):
        steps.append(service_step(NAME, "enable", UNIT, "The domain lacks this host after a boot without it.",
                                  Disruption.none, "disabled", "enabled", tuple(step.id for step in steps)))
    requires = (*written, *(step.id for step in steps if step.action == "service.unmask"))
    if not daemon.active:
        steps.append(service_step(NAME, "start", UNIT, "It shares the memory of the clique's GPUs.", Disruption.none,
                                  "stopped", "running", requires))
    elif written or observation.outdated:
        # Work that has imported memory of another host ends with the daemon
        steps.append(service_step(NAME, "restart", UNIT, "It reads its files when it starts.", Disruption.gpu_reset,
                                  "as configured before", "as configured", requires))
    return steps


def _is_enabled(observation: Observation) -> bool:
    """Whether a boot starts it once it is not masked; while it is, systemd does not tell."""
    return observation.daemon.enabled or (observation.daemon.masked and observation.noted.get(MASKED) == "enabled")


def _channel_steps(observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
    if not policy.channel0 or (observation.channel0 and not _exchanged(observation, facts)):
        return []
    return [Step(NAME, CHANNEL, CHANNEL0, "Programs share memory through a channel; the loaded driver has made none.",
                 change={"before": {CHANNEL0: None}, "after": {CHANNEL0: "node"}})]


def _wait_steps(
    observation: Observation, policy: Policy, facts: HostFacts, steps: List[Step]
) -> List[Step]:
    begins = tuple(step.id for step in steps if step.action in ("service.start", "service.restart"))
    if not (begins or _exchanged(observation, facts) or observation.ready != READY):
        return []
    return [Step(NAME, WAIT, UNIT, "Memory can be shared once the daemon is ready.",
                 change={"before": {"daemon": "not ready"}, "after": {"daemon": READY}},
                 parameters={"limit": policy.ready_timeout}, depends_on=begins)]


def _requirements(observation: Observation, policy: Policy, facts: HostFacts) -> Tuple[Requirement, ...]:
    wanted, there = str(policy.channel_count), _channels_by_then(observation, facts)
    if not policy.channel_count or there in ("", wanted):
        return ()
    return (Requirement(
        NAME, REBOOT, "%s IMEX channels" % wanted,
        "The loaded driver has %s channels and takes another number when it is loaded again." % there,
        Disruption.reboot, {"before": {"channels": there}, "after": {"channels": wanted}}),)


def _channels_by_then(observation: Observation, facts: HostFacts) -> str:
    """The driver reads its options when it is loaded; one that is about to be loaded reads those of an earlier run."""
    if not _exchanged(observation, facts):
        return observation.channels
    found = re.search(r"\b%s=(\d+)" % COUNT_OPTION, observation.options or "")
    # What the loaded one has without our file, another one will have as well
    return found.group(1) if found else observation.channels or DEFAULT_COUNT


# other modes


def _out_of_the_way(observation: Observation, policy: Policy) -> List[Step]:
    daemon, steps = observation.daemon, list(observation.restore)
    steps += assignments.restore_step(NAME, CONFIGURATION, observation.settings or {}, observation.noted)
    if daemon.active:
        why = "ComputeDomains run IMEX themselves." if policy.mode == KUBERNETES else "The policy has it off."
        steps.append(service_step(NAME, "stop", UNIT, why, Disruption.gpu_reset, "running", "stopped"))
    if policy.mode == KUBERNETES and not daemon.masked:
        steps.append(service_step(NAME, "mask", UNIT, "Two daemons of one host disturb each other.", Disruption.none,
                                  "not masked", "masked"))
    if policy.mode != KUBERNETES:
        if daemon.masked and observation.noted.get(MASKED):
            steps.append(service_step(NAME, "unmask", UNIT, "We masked it for another mode.", Disruption.none,
                                      "masked", "not masked"))
        if _is_enabled(observation):
            steps.append(service_step(NAME, "disable", UNIT, "The policy has it off.", Disruption.none,
                                      "enabled", "disabled", tuple(
                                          step.id for step in steps if step.action == "service.unmask")))
    return steps


# absent


def _removal(observation: Observation) -> List[Step]:
    daemon, noted = observation.daemon, observation.noted
    steps: List[Step] = []
    if noted.get(MASKED) and daemon.masked:
        steps.append(service_step(NAME, "unmask", UNIT, "We masked it.", Disruption.none, "masked", "not masked"))
    steps += daemons.removal_steps(
        NAME, UNIT, None if daemon.masked and not noted.get(MASKED) else _is_enabled(observation), noted,
        tuple(step.id for step in steps))
    if noted.get(DISABLED) and not _is_enabled(observation) and daemon.known:
        steps.append(service_step(NAME, "enable", UNIT, "We disabled it.", Disruption.none, "disabled", "enabled"))
    steps += assignments.restore_step(NAME, CONFIGURATION, observation.settings or {}, noted)
    return [*steps, *observation.restore]
