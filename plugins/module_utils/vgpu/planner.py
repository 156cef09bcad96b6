# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to virtual GPUs with a license. Pure."""
from __future__ import annotations

from typing import List, Mapping, Tuple

from ..core import assignments, daemons
from ..core.facts import HostFacts
from ..core.plan import Disruption, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import file_step, managed, service_step
from .catalogue import CONFIGURATION, FEATURE, FEATURES, SERVER, TOKEN_FILE, TOKENS, UNIT, VGPU
from .observation import NAME, Observation
from .policy import Policy, named

TOKEN = "token.write"
WAIT = "license.wait"


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return Plan(steps=tuple(_removal(observation)))
    if not facts.vgpu_manager:
        return Plan()
    refusals = facts.refusals_of_the_sick() or tuple(_refusals(observation, policy, facts))
    if refusals:
        return Plan(refusals=refusals)
    if not _is_known(observation, policy):
        return Plan(complete=False, notes=(
            "The GPUs are virtual ones, and wait for their `token`: without a license they become slow. Where none is "
            "to be asked for, set `feature_type` to 0.",))
    if not facts.driver_loaded:
        return Plan(complete=False, notes=("The license waits for a loaded driver.",))
    files = _file_steps(observation, policy)
    steps = [*files, *_service_steps(observation, policy, facts, tuple(step.id for step in files))]
    return Plan(steps=tuple(steps + _wait_steps(observation, policy, facts, steps)), notes=_notes(observation, policy))


def _settings(observation: Observation, policy: Policy) -> Mapping[str, str]:
    """{key: value} of the configuration file once the plan is done."""
    there = {} if observation.ours else observation.settings
    return {FEATURE: VGPU, **there, **policy.settings}


def _asks(observation: Observation, policy: Policy) -> bool:
    """Whether a license is asked for at all."""
    return _settings(observation, policy)[FEATURE] != "0"


def _is_known(observation: Observation, policy: Policy) -> bool:
    """Whether it is known where a license comes from, where one is needed."""
    return not _asks(observation, policy) or bool(
        policy.token or observation.token or observation.others or observation.licensed
        or _settings(observation, policy).get(SERVER))


def _notes(observation: Observation, policy: Policy) -> Tuple[str, ...]:
    if not policy.token or FEATURE in policy.settings or _asks(observation, policy):
        return ()
    return ("%s says %s=0: no license is asked for in spite of `token`. Set `feature_type`."
            % (CONFIGURATION, FEATURE),)


# refusals


def _refusals(observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
    refusals: List[Refusal] = []
    if facts.driver_loaded and not facts.driver_changes and not observation.daemon.known:
        refusals.append(Refusal(
            "vgpu.not_a_guest_driver",
            "driver %s without %s, and GPUs of vGPU manager %s" % (
                facts.driver_loaded, UNIT, facts.vgpu_manager),
            "the guest driver of NVIDIA's vGPU software, which brings the service that fetches licenses",
            "install the guest driver that came with the vGPU manager, or set `feature_type` to 0 where the GPUs need "
            "no license", option="feature_type"))
    if observation.daemon.masked:
        refusals.append(Refusal(
            "vgpu.masked", "%s is masked" % UNIT, "the service that fetches the license",
            "run `systemctl unmask %s`, or set `feature_type` to 0" % UNIT, option="feature_type"))
    if policy.token and observation.others:
        refusals.append(Refusal(
            "vgpu.other_tokens", "%s beside ours" % ", ".join(observation.others),
            "one token in %s: the service takes any of them" % TOKENS,
            "remove those that are not to be used, or leave `token` empty", option="token"))
    return refusals if _asks(observation, policy) else []


# steps


def _file_steps(observation: Observation, policy: Policy) -> List[Step]:
    steps: List[Step] = []
    if policy.token and observation.token != named(policy.token):
        steps.append(Step(
            NAME, TOKEN, TOKEN_FILE, "The license server knows the guest by this token.",
            change={"before": {"token": observation.token or None}, "after": {"token": named(policy.token)}}))
    if observation.text is not None and not observation.ours:
        return steps + assignments.write_step(
            NAME, CONFIGURATION, observation.settings, policy.settings, observation.noted)
    settings = _settings(observation, policy)
    text = managed("".join("%s=%s\n" % item for item in sorted(settings.items())))
    if observation.text != text:
        steps.append(file_step(NAME, CONFIGURATION, observation.text, text,
                               "The service asks for %s." % FEATURES[int(settings[FEATURE])]))
    return steps


def _service_steps(
    observation: Observation, policy: Policy, facts: HostFacts, written: Tuple[str, ...]
) -> List[Step]:
    daemon, steps = observation.daemon, []
    starts = _asks(observation, policy) and (daemon.known or facts.driver_changes)
    if starts and not daemon.enabled:
        steps.append(service_step(NAME, "enable", UNIT, "A license ends with the boot that fetched it.",
                                  Disruption.none, "disabled", "enabled"))
    if starts and not daemon.active:
        steps.append(service_step(NAME, "start", UNIT, "It fetches the license.", Disruption.none, "stopped",
                                  "running", written))
    elif daemon.active and (written or observation.outdated):
        steps.append(service_step(
            NAME, "restart", UNIT, "It reads its files when it starts; the license is given back and fetched anew, "
            "while work goes on.", Disruption.service_restart, "as configured before", "as configured", written))
    return steps


def _wait_steps(observation: Observation, policy: Policy, facts: HostFacts, steps: List[Step]) -> List[Step]:
    begins = tuple(step.id for step in steps if step.action in ("service.start", "service.restart"))
    is_another = facts.driver_loaded != observation.loaded
    if not _asks(observation, policy) or not (begins or is_another or observation.unlicensed):
        return []
    why = "%s: no license" % ", ".join(observation.unlicensed) if observation.unlicensed and not is_another else \
        "A license takes some seconds"
    return [Step(NAME, WAIT, "GPUs", "%s." % why,
                 change={"before": {"license": "none"}, "after": {"license": "licensed"}},
                 parameters={"limit": policy.timeout}, depends_on=begins)]


# absent


def _removal(observation: Observation) -> List[Step]:
    daemon = observation.daemon
    steps = [*observation.restore,
             *assignments.restore_step(NAME, CONFIGURATION, observation.settings, observation.noted)]
    steps += daemons.removal_steps(NAME, UNIT, None if daemon.masked else daemon.enabled, observation.noted)
    if daemon.active and (steps or observation.outdated):
        steps.append(service_step(
            NAME, "restart", UNIT, "It goes by the files that were there before ours.", Disruption.service_restart,
            "as configured", "as configured before", tuple(step.id for step in steps)))
    return steps
