# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to a fabric that is managed and has every GPU registered. Pure.

Packages are the driver's: the fabric manager comes, moves and goes with it. Around an exchange of the loaded driver the
activation stops what runs and starts it again; here is decided what is to run, and how.
"""
from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from ..core import assignments, daemons
from ..core.daemons import Daemon
from ..core.facts import FABRIC_MANAGER_NVLSM, HostFacts
from ..core.plan import Disruption, Kept, Plan, Step
from ..core.refusal import Refusal
from ..core.steps import command_step, file_step, managed, service_step
from ..core.versions import version_key
from ..hardware.boards import works_on_without_fabric_manager
from .catalogue import (
    CONFIGURATION,
    FIRST_KERNEL,
    INFINIBAND,
    KEYS,
    MODE,
    MODULES_FILE,
    PORT_STATUS,
    SHARED,
    UNIT,
)
from .observation import LOADED, MISSING, NAME, REGISTERED, Observation
from .policy import Policy

LOAD = "module.load"
REGISTER = "fabric.wait"
FORGET = "fabric.forget"
MODULES_TEXT = managed("".join("%s\n" % name for name in INFINIBAND))


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return Plan(steps=tuple(_removal(observation)))
    if not facts.fabric or not facts.gpus:
        return _plan_of_rack(observation, policy, facts)
    if not policy.managed:
        return Plan(kept=(Kept(UNIT, "the board needs it, and others run it"),))
    daemon = observation.daemon.packaged(facts)
    refusals = facts.refusals_of_the_sick() or tuple(_refusals(observation, policy, facts, daemon))
    if refusals:
        return Plan(refusals=refusals)
    notes = tuple(_notes(observation, facts))
    waits_for = "" if facts.awaits_gpu else daemon.waits_for(facts)
    if waits_for:
        return Plan(notes=(*notes, "The fabric waits for %s." % waits_for), complete=False)
    steps = _module_steps(observation, facts)
    settings = assignments.write_step(
        NAME, CONFIGURATION, _there(observation, facts), policy.config, observation.noted)
    steps += settings
    steps += _service_steps(observation, facts, daemon, bool(settings), tuple(step.id for step in steps))
    if facts.awaits_gpu:
        kept = tuple(step for step in steps if step.action not in (LOAD, "service.start", "service.restart"))
        return Plan(steps=kept, notes=(*notes, "The fabric %s." % facts.awaited), complete=False)
    notes = (*notes, *_notes_of_shared(observation, policy, facts, steps))
    return Plan(steps=tuple(steps + _register_steps(observation, policy, facts, steps)), notes=notes)


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    starts = any(step.action == "service.start" and step.subject == UNIT for step in planned.steps)
    return facts.but(fabric_starts=True) if starts else facts


def _plan_of_rack(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    """Switches in trays of their own are configured from outside; its GPUs register all the same."""
    if not (facts.imex and facts.driver_loaded and policy.managed):
        return Plan()
    refusals = facts.refusals_of_the_sick()
    if refusals:
        return Plan(refusals=refusals)
    return Plan(steps=tuple(_register_steps(observation, policy, facts, [])), notes=tuple(_notes(observation, facts)))


# refusals


def _refusals(observation: Observation, policy: Policy, facts: HostFacts, daemon: Daemon) -> List[Refusal]:
    refusals = _refuse_lack(observation, facts, daemon) if facts.driver_loaded or facts.awaits_gpu else []
    if not refusals and not daemon.waits_for(facts) and daemon.version != facts.driver_loaded:
        refusals.append(Refusal(
            "fabric.version_mismatch",
            "fabric manager %s beside driver %s" % (daemon.version, facts.driver_loaded),
            "a fabric manager in exactly the version of the loaded driver: it ends at once with any other",
            "run `gpu_driver`, which brings both in one version"))
    if daemon.masked:
        refusals.append(Refusal(
            "fabric.masked", "%s is masked" % UNIT, "the fabric manager that the board needs",
            "run `systemctl unmask %s`, or set `mode` to `unmanaged` where another one configures the fabric" % UNIT,
            option="mode"))
    return refusals + _refuse_keys(observation, policy) + _refuse_modules(observation, facts)


def _refuse_lack(observation: Observation, facts: HostFacts, daemon: Daemon) -> List[Refusal]:
    lacking = [] if daemon.version and daemon.known else ["nvidia-fabricmanager"]
    if facts.fabric == FABRIC_MANAGER_NVLSM and not facts.driver_changes:
        lacking += [{PORT_STATUS: "infiniband-diags"}.get(name, name)
                    for name, is_there in observation.programs.items() if not is_there]
    if not lacking:
        return []
    return [Refusal(
        "fabric.not_installed",
        "no %s; %s" % (", no ".join(lacking), _board(facts)),
        "what configures the board's NVLink fabric: without it no CUDA program starts (error 802)",
        "run `gpu_driver` with its `fabric_manager` on `auto`, install what it says is missing, or set `mode` to "
        "`unmanaged`", option="mode")]


def _board(facts: HostFacts) -> str:
    if facts.awaits_gpu:
        return "the host %s" % facts.awaited
    if facts.nvswitches:
        return "%d NVSwitches on the PCI bus" % facts.nvswitches
    return "switches of NVLink 5 behind network adapters"


def _refuse_keys(observation: Observation, policy: Policy) -> List[Refusal]:
    """The installed file may have keys of a newer version, and lack lines for some that the program knows."""
    known = KEYS.union(observation.keys)
    unknown = sorted(set(policy.config) - known)
    if not unknown:
        return []
    return [Refusal(
        "fabric.config_key_unknown", "`config` has %s" % ", ".join(unknown),
        "keys that the fabric manager knows: %s" % ", ".join(sorted(known)), "correct `config`", option="config")]


def _refuse_modules(observation: Observation, facts: HostFacts) -> List[Refusal]:
    missing = [name for name, state in observation.modules.items() if state == MISSING]
    if not missing or facts.kernel != observation.kernel or facts.awaits_gpu:
        return []
    return [Refusal(
        "fabric.infiniband_module_missing",
        "kernel %s has no module %s" % (facts.kernel, ", ".join(missing)),
        "the modules that lead to the switches of NVLink 5; without them the fabric manager takes the board for an "
        "older one and fails",
        "install the rest of the kernel's modules (Ubuntu: `linux-modules-extra-%s`), or NVIDIA's DOCA-OFED"
        % facts.kernel)]


def _notes(observation: Observation, facts: HostFacts) -> List[str]:
    notes = ["%s. Do: %s." % (found, remedy) for found, remedy in observation.degraded]
    if facts.fabric == FABRIC_MANAGER_NVLSM and version_key(facts.kernel)[:2] < FIRST_KERNEL:
        notes.append("Kernel %s: mlx5_ib of kernels before %d.%d does not reach the switches of NVLink 5, unless it is "
                     "NVIDIA's (DOCA-OFED) or the distribution's with that change." % (facts.kernel, *FIRST_KERNEL))
    return notes


def _notes_of_shared(
    observation: Observation, policy: Policy, facts: HostFacts, steps: Sequence[Step]
) -> List[str]:
    """NVIDIA's own driver container resets the GPUs then (NVIDIA/gpu-driver-container, pull request 909)."""
    values = {**_there(observation, facts), **policy.config}
    is_shared = facts.fabric == FABRIC_MANAGER_NVLSM and str(values.get(MODE)) == SHARED
    if is_shared and any(step.action in ("service.start", "service.restart") for step in steps):
        return ["%s=%s: the GPUs of this board are to be reset once the fabric manager has started, before anybody "
                "uses them (`nvidia-smi -r`)." % (MODE, SHARED)]
    return []


# steps


def _there(observation: Observation, facts: HostFacts) -> Dict[str, str]:
    """Values in effect by then; another version of the package replaces its file."""
    return {} if _is_replaced(observation, facts) else dict(observation.settings or {})


def _is_replaced(observation: Observation, facts: HostFacts) -> bool:
    return facts.driver_changes and observation.daemon.version != facts.driver_userspace


def _module_steps(observation: Observation, facts: HostFacts) -> List[Step]:
    if facts.fabric != FABRIC_MANAGER_NVLSM:
        return []
    steps: List[Step] = []
    before = observation.files.get(MODULES_FILE)
    if before != MODULES_TEXT:
        steps.append(file_step(NAME, MODULES_FILE, before, MODULES_TEXT,
                               "The switches of NVLink 5 are reached by InfiniBand, at every boot."))
    steps += [
        command_step(NAME, LOAD, name, ["modprobe", name], "The fabric manager finds no switches without it.",
                     change={"before": {name: None}, "after": {name: "loaded"}}, timeout=120)
        for name, state in observation.modules.items() if state != LOADED]
    return steps


def _service_steps(
    observation: Observation, facts: HostFacts, daemon: Daemon, reconfigured: bool, requires: Tuple[str, ...]
) -> List[Step]:
    steps = []
    if not daemon.enabled:
        steps.append(service_step(NAME, "enable", UNIT, "The board needs it after every boot.", Disruption.none,
                                  "disabled", "enabled"))
    if not daemon.active:
        steps.append(service_step(NAME, "start", UNIT, "No CUDA program starts before it has configured the fabric.",
                                  Disruption.none, "stopped", "running", requires))
    elif reconfigured or observation.outdated:
        steps.append(service_step(NAME, "restart", UNIT, "It reads its configuration when it starts.",
                                  _disruption(facts), "as configured before", "as configured", requires))
    return steps


def _disruption(facts: HostFacts) -> Disruption:
    outlives = works_on_without_fabric_manager(gpu.device_id for gpu in facts.gpus)
    return Disruption.service_restart if outlives else Disruption.gpu_reset


def _register_steps(
    observation: Observation, policy: Policy, facts: HostFacts, steps: List[Step]
) -> List[Step]:
    """GPUs register some time after the fabric manager, or their driver, has started."""
    begins = tuple(step.id for step in steps if step.action in ("service.start", "service.restart"))
    exchanged = any(_is_another(facts, driver) for driver in (observation.loaded, observation.noted.get(REGISTERED))
                    if driver)
    if not (begins or exchanged or observation.waiting):
        return []
    why = "; ".join(observation.waiting) if observation.waiting and not exchanged else \
        "GPUs register with their fabric once it is configured"
    return [Step(NAME, REGISTER, "GPUs", "%s." % why,
                 change={"before": {"registration": "open"}, "after": {"registration": "completed, success"}},
                 parameters={"limit": policy.registration_timeout, "unit": UNIT if facts.fabric else ""},
                 depends_on=begins)]


def _is_another(facts: HostFacts, driver: Sequence[str]) -> bool:
    """driver: version and kernel module, '' where it does not tell."""
    version, module = driver
    return facts.driver_loaded != version or ("" not in (module, facts.module_loaded) and facts.module_loaded != module)


# absent


def _removal(observation: Observation) -> List[Step]:
    daemon = observation.daemon
    steps = daemons.removal_steps(NAME, UNIT, None if daemon.masked else daemon.enabled, observation.noted)
    steps += assignments.restore_step(NAME, CONFIGURATION, observation.settings or {}, observation.noted)
    if observation.noted.get(REGISTERED):
        steps.append(Step(NAME, FORGET, "GPUs", "Nobody waits for their registration any more.",
                          change={"before": {"registration": "noted"}, "after": {"registration": None}}))
    return [*steps, *observation.restore]
