# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every capability of a host, in the order in which they are planned and applied."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .activation.capability import CAPABILITY as ACTIVATION
from .agent.capability import CAPABILITY as AGENT
from .cdi.capability import CAPABILITY as CDI
from .core import kept
from .core.applying import WRITER_ARGUMENTS
from .core.approval import differences
from .core.arguments import complaints
from .core.capability import Capability, plan_of
from .core.durations import expected_of
from .core.errors import GpuOpsError
from .core.facts import HostFacts
from .core.host import Host
from .core.journal import Journal
from .core.lock import HostLock, unlooked
from .core.plan import REBOOT, Disruption, Plan, Requirement, Step, digest, render, split_by_disruption
from .core.startup import await_startup
from .driver.capability import CAPABILITY as DRIVER
from .fabric.capability import CAPABILITY as FABRIC
from .hardware.awaited import foreseen
from .hardware.holders import pods_seen
from .hardware.node import host_facts_and_health
from .hardware.report import compact, read_host
from .imex.capability import CAPABILITY as IMEX
from .mig.capability import CAPABILITY as MIG
from .nouveau.capability import CAPABILITY as NOUVEAU
from .repair.capability import CAPABILITY as REPAIR
from .rollout.change import change_of, runtime_of
from .runtime.capability import CAPABILITY as RUNTIME
from .runtime.low_level import in_use
from .settings.capability import CAPABILITY as SETTINGS
from .toolkit.capability import CAPABILITY as TOOLKIT
from .validation.arguments import ARGUMENTS, OF_HOST
from .validation.on_host import examine
from .validation.proof import kept_proof
from .validation.status import FAILED
from .vgpu.capability import CAPABILITY as VGPU
from .writing import boards_of

CAPABILITIES: Tuple[Capability[Any, Any], ...] = (
    NOUVEAU, DRIVER, TOOLKIT, REPAIR, ACTIVATION, VGPU, FABRIC, IMEX, SETTINGS, MIG, RUNTIME, CDI, AGENT)
# The option of every writer that says how much of a plan is done
ALLOWED = "allowed_disruption"

Part = Union[Step, Requirement]

# Which pods with devices have to leave a node for a plan. With some, the cluster components stop too: they offer and
# watch the devices that change.
DRAINS = NO_POD, SOME_PODS, ALL_PODS = ("none", "pods", "node")


def read_facts(host: Host) -> HostFacts:
    """All that the capabilities plan with."""
    return host_facts_and_health(host).but(low_level_runtimes=in_use(host))


def plan_host(host: Host, parameters: Mapping[str, Any], is_alone: bool = False) -> Dict[str, Any]:
    """{'plan', 'text', 'digest', 'change', 'refusals', 'deferred', 'disruption', 'drain', 'pods', 'holders',
    'capabilities', 'converged', 'waiting', 'may_disturb', 'driver_loaded', 'unfinished', 'expected_seconds',
    'waited_for', 'observation', 'gpus', 'devices'}: the plans of all capabilities that have parameters, chained on the
    facts each one leaves, once no other run works on the host ('lock_timeout'). is_alone: whether this run holds the
    host's lock.

    With 'approved_plan', what it does not cover is a refusal: the host or the policy is not the one that was approved.
    With 'gpus_only', nothing is planned on a host without a GPU for the driver.
    With 'validation', the host is checked in the same call where nothing is to be done: {'checks', 'validated'}.
    With 'keep', a plan that has something to be done stays on the host: 'kept_as'.
    """
    if is_alone:
        return _plan_host(host, parameters, "")
    waited = HostLock(host, "", "gpu_plan").await_others(parameters.get("lock_timeout") or 0)
    with unlooked(host):
        return _plan_host(host, parameters, waited)


def _plan_host(host: Host, parameters: Mapping[str, Any], waited: str) -> Dict[str, Any]:
    starting = await_startup(host)
    named = (board for each in CAPABILITIES for board in boards_of(parameters.get(each.name) or {}))
    now = facts = foreseen(read_facts(host), tuple(dict.fromkeys(named)))
    notes = ("Not all of the host has started yet: %s." % ", ".join(starting),) if starting else ()
    total = Plan(host=facts.hostname, notes=notes)
    wanted = {} if parameters.get("gpus_only") and not facts.gpus else parameters
    planned: List[Tuple[Plan, Sequence[Part]]] = []
    later, is_booted, needs_boot = Disruption.none, False, False
    approved = None if parameters.get("approved_plan") is None else kept.approved(host, parameters["approved_plan"])
    for capability in CAPABILITIES:
        given = wanted.get(capability.name)
        if given is not None:
            options, allowed = options_of(capability, given)
            # Whatever a capability in between says of its own loads, and where an approved boot is put off now
            reloads = facts.driver_reloads or is_booted or (needs_boot and _was_to_reload(approved, capability.name))
            plan, facts = plan_of(capability, options, host, facts.but(driver_reloads=reloads), now)
            is_booted = is_booted or _boots(plan, allowed)
            needs_boot = needs_boot or _boots(plan, Disruption.reboot)
            later = max(later, later_of(plan, allowed))
            planned.append((plan, deferred_of(plan, allowed)))
            total = total.merged(plan)
    facts = facts.but(driver_reloads=facts.driver_reloads or is_booted)
    if approved is not None:
        total = replace(total, refusals=total.refusals + differences(total, approved))
    unfinished = _unfinished(host, parameters)
    is_done = not (total.steps or total.requirements or total.refusals or unfinished)
    observation = read_host(host)
    told = told_of(planned)
    if approved is not None or not _answers_anew(now, facts, told["deferred"]):
        later = Disruption.none
    is_kept = parameters.get("keep") and not (is_done or total.refusals)
    return {
        "plan": total.to_dict(),
        "text": render(total, {part.id for _plan, put_off in planned for part in put_off}),
        "digest": digest(total.promise()),
        "change": change_of(total, now, facts, runtime_of(observation["services"]),
                            compact(observation)["fabric_cliques"]).to_dict(),
        "refusals": [refusal.to_dict() for refusal in total.refusals],
        **told,
        "holders": list(pods_seen(host)) if ALL_PODS in (told["drain"], _drain_of(later)) else [],
        "converged": is_done,
        "waiting": list(total.waiting),
        "may_disturb": later.name,
        "driver_loaded": now.driver_loaded,
        "unfinished": unfinished,
        "expected_seconds": None if is_done else _expected(host, planned),
        "waited_for": waited,
        "observation": observation,
        "gpus": len(observation["pci"]["gpus"]),
        "devices": observation["devices"],
        **_validation(host, wanted.get("validation"), is_done),
        **({"kept_as": kept.keep(host, total)} if is_kept else {}),
    }


def later_of(plan: Plan, allowed: Disruption) -> Disruption:
    """The most disturbing class that is done, of what may come of a plan."""
    return max((each for each in plan.may_come if each <= max(allowed, Disruption.runtime_restart)),
               default=Disruption.none)


def _answers_anew(before: HostFacts, after: HostFacts, deferred: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what is done of a plan ends with a driver that could not be asked before: one that it loads, or the one
    that is loaded, whose libraries it brings."""
    is_new = after.driver_reloads or after.driver_changes or after.driver_loaded != before.driver_loaded
    return is_new and not any(part["capability"] == ACTIVATION.name for part in deferred)


def _boots(plan: Plan, allowed: Disruption) -> bool:
    """Whether the host is rebooted for it: what its GPUs are set to and divided into is gone with the driver then."""
    return any(part.kind == REBOOT and part.disruption <= allowed for part in plan.requirements)


def _was_to_reload(approved: Optional[Plan], capability: str) -> bool:
    foretold = {} if approved is None else approved.foretold.get(capability, {})
    return bool(foretold.get("driver_reloads", {}).get("after"))


def deferred_of(plan: Plan, allowed: Disruption) -> Tuple[Part, ...]:
    """What a writer that may disturb so much does not do of its plan, and what then is not brought from outside."""
    _done, deferred = split_by_disruption(plan.steps, allowed)
    return (*deferred, *(requirement for requirement in plan.requirements if requirement.disruption > allowed))


def drain_of(plan: Plan, put_off: Sequence[Part]) -> Tuple[str, Tuple[str, ...]]:
    """(which pods have to leave for what is done of a plan, one of DRAINS; their names, where it is some)."""
    parts: Tuple[Part, ...] = (*plan.steps, *plan.requirements)
    done = [part for part in parts if part not in put_off]
    changed = [part.id for part in done if part.id in plan.leaving]
    if changed and not any(isinstance(part, Requirement) for part in done):
        return SOME_PODS, tuple(sorted({pod for each in changed for pod in plan.leaving[each]}))
    return _drain_of(max((part.disruption for part in done), default=Disruption.none)), ()


def _drain_of(disruption: Disruption) -> str:
    return ALL_PODS if disruption > Disruption.service_restart else NO_POD


def told_of(planned: Sequence[Tuple[Plan, Sequence[Part]]]) -> Dict[str, Any]:
    """{'deferred', 'capabilities', 'disruption', 'drain', 'pods', 'returns_to'}: what is not done, in short; of whom
    the rest is, what it disturbs, and the way back from it.

    planned: (a capability's plan, what is put off of it).
    """
    deferred = [part for _plan, put_off in planned for part in put_off]
    ids = {part.id for part in deferred}
    parts: List[Part] = []
    for plan, _put_off in planned:
        parts += [*plan.steps, *plan.requirements]
    drains = [drain_of(plan, put_off) for plan, put_off in planned]
    return {
        "deferred": [{"id": part.id, "capability": part.capability, "disruption": part.disruption.name, "why": part.why}
                     for part in deferred],
        "capabilities": list(dict.fromkeys(part.capability for part in parts if part.id not in ids)),
        "disruption": max((part.disruption for part in parts if part.id not in ids), default=Disruption.none).name,
        "drain": max((drain for drain, _pods in drains), key=DRAINS.index, default=NO_POD),
        "pods": sorted({pod for _drain, pods in drains for pod in pods}),
        "returns_to": next((dict(way) for plan, _put_off in planned for step, way in plan.returns_to.items()
                            if step not in ids), {}),
    }


def _expected(host: Host, planned: Sequence[Tuple[Plan, Sequence[Part]]]) -> Optional[int]:
    """How long what is done of it takes, as far as this host has done the like."""
    done: List[Part] = []
    for plan, put_off in planned:
        done += [part for part in plan.steps if part not in put_off]
        done += [part for part in plan.requirements if part not in put_off]
    return expected_of(done, Journal(host).durations())


def _validation(host: Host, given: Optional[Mapping[str, Any]], is_done: bool) -> Dict[str, Any]:
    """Keys of the result that say how a host stands that needs nothing. Options are checked in any case."""
    options = options_of_validation(given or {})
    if given is None or not is_done:
        return {"checks": [], "validated": False, "proof": {}}
    checks, is_current = examine(host, options)
    return {"checks": [check.to_dict() for check in checks], "proof": kept_proof(host),
            "validated": is_current and all(check.status != FAILED for check in checks)}


def _unfinished(host: Host, parameters: Mapping[str, Any]) -> List[str]:
    """Ids of steps that a run has begun and that none has closed: they are the journal's to close, needed or not."""
    journal = Journal(host)
    return [event["step"]["id"] for capability in CAPABILITIES if parameters.get(capability.name) is not None
            for event in journal.unfinished(capability.name)]


def secrets_of(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Values of capabilities' options that are secrets, which Ansible hides of a module's own options alone."""
    for capability in CAPABILITIES:
        given = parameters.get(capability.name) or {}
        for name, option in capability.arguments.items():
            if option.get("no_log") and given.get(name):
                yield str(given[name])


def options_of(capability: Capability[Any, Any], given: Mapping[str, Any]) -> Tuple[Dict[str, Any], Disruption]:
    """(options as a capability's own module would have them, how much may be disturbed). Raises GpuOpsError."""
    options = _checked(capability.name, {**capability.arguments, ALLOWED: WRITER_ARGUMENTS[ALLOWED]}, given)
    return options, Disruption[options.pop(ALLOWED)]


def options_of_validation(given: Mapping[str, Any]) -> Dict[str, Any]:
    """The same of the validation's half on the host."""
    return _checked("validation", {name: ARGUMENTS[name] for name in OF_HOST}, given)


def _checked(name: str, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters as their own module would have them: checked, converted, defaults filled in."""
    result = ArgumentSpecValidator(dict(arguments)).validate(dict(given))
    if result.error_messages:
        raise GpuOpsError(
            "plan.options_malformed",
            found="; ".join(complaints(result)),
            wanted="the options of the module behind '%s'" % name,
            remedy="correct them; `ansible-doc` shows the module's options",
        )
    return {option: result.validated_parameters.get(option) for option in arguments}
