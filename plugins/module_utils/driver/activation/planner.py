# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the installed driver to the loaded one. Pure.

Facts may be of the future: where a plan is made for a host on which nothing is installed yet, units and programs that
the driver's packages bring are taken to be there, as those packages leave them.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping, Optional, Tuple

from ...core.facts import HostFacts
from ...core.plan import DRIVER, REBOOT, Disruption, Plan, Refusal, Requirement, Step
from ...core.steps import command_step, file_step, managed, service_step
from .observation import (
    FABRIC_MANAGER,
    MODULES_FILE,
    PERSISTENCED,
    SERVICES,
    UNIT,
    UNIT_FILE,
    UNLOAD_ORDER,
    Observation,
    Service,
)
from .policy import Policy

NAME = "activation"
REMOVE_NODES = "devices.remove"
LOADED = ("nvidia", "nvidia_uvm", "nvidia_modeset")
# NVIDIA/nvidia-modprobe: with -u, minors are those of the unified memory device, so the nodes take two calls.
CONTROL_MINOR = 255
UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
UVM_NODE_COMMAND = ["nvidia-modprobe", "-u", "-c", "0"]
MODULES_TEXT = managed("".join("%s\n" % name.replace("_", "-") for name in LOADED))


def plan(seen: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return _absent(seen, policy)
    refusals = _refusals(facts)
    if refusals:
        return Plan(refusals=tuple(refusals))
    if not facts.driver_installed:
        return Plan(requirements=(_no_driver(facts),))
    steps = _boot_steps(seen, facts)
    if facts.nouveau_loaded:
        return Plan(steps=tuple(steps), requirements=(_reboot(
            "nouveau", "nouveau is loaded and holds the GPUs.", {"nouveau": "loaded"}, {"nouveau": None}),))
    if facts.driver_loaded and facts.driver_loaded != facts.driver_installed:
        busy = _busy(seen, policy)
        if busy:
            return Plan(steps=tuple(steps), requirements=(_reboot(
                "driver %s" % facts.driver_installed,
                "Driver %s is loaded and cannot be unloaded: %s." % (facts.driver_loaded, "; ".join(busy)),
                {"nvidia": facts.driver_loaded}, {"nvidia": facts.driver_installed}),))
        return Plan(steps=tuple(steps + _exchange(seen, policy, facts)))
    steps += _load_steps(seen, facts, dict.fromkeys(seen.modules), Disruption.none)
    steps += _node_steps(seen, facts, reloaded=False)
    steps += _service_steps(seen, policy, facts, stopped=())
    return Plan(steps=tuple(steps), notes=tuple(_notes(seen, policy, facts)))


def facts_after(policy: Policy, facts: HostFacts, made: Plan) -> HostFacts:
    if made.refusals:
        return facts
    if policy.state == "absent":
        return facts.but(driver_loaded="") if made.steps or made.requirements else facts
    return facts.but(driver_loaded=facts.driver_installed, nouveau_loaded=False)


def _refusals(facts: HostFacts) -> List[Refusal]:
    if not facts.gpus:
        return [Refusal(NAME, "no NVIDIA GPU on the PCI bus (vendor 10de, class 0300 or 0302)", "a GPU for the driver",
                        "check 'lspci -d 10de:' and the host's passthrough, or take the host out of this play")]
    return []


def _no_driver(facts: HostFacts) -> Requirement:
    """Check mode on a bare host shows that a driver is missing still; to go on without one is refused at once."""
    return Requirement(
        NAME, DRIVER, "kernel %s" % facts.kernel, "The driver that is to be loaded is not installed yet.",
        change={"before": {"nvidia": None}, "after": {"nvidia": "installed"}})


def _reboot(subject: str, why: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Requirement:
    return Requirement(NAME, REBOOT, subject, why, Disruption.reboot, {"before": before, "after": after})


# what the next boot does


def _boot_steps(seen: Observation, facts: HostFacts) -> List[Step]:
    steps = _file(seen, MODULES_FILE, MODULES_TEXT, "No display asks for these modules on a server: load them at boot.")
    if not seen.modprobe and seen.on_disk:
        return steps
    written = _file(seen, UNIT_FILE, unit_text(len(facts.gpus)),
                    "Containers need the device nodes before anything on the host has opened a GPU.")
    steps += written
    if not seen.services.get(UNIT, Service()).enabled:
        steps.append(service_step(
            NAME, "enable", UNIT, "It makes the device nodes at boot.", Disruption.none, "disabled", "enabled",
            tuple(step.id for step in written)))
    return steps


def _file(seen: Observation, path: str, text: str, why: str) -> List[Step]:
    before = seen.files.get(path)
    return [] if before == text else [file_step(NAME, path, before, text, why)]


def unit_text(gpus: int) -> str:
    return managed(
        "[Unit]\nDescription=Device nodes of NVIDIA GPUs\n"
        "After=systemd-modules-load.service\n"
        "Before=containerd.service crio.service kubelet.service\n"
        "ConditionPathExists=/proc/driver/nvidia/version\n\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n%s\n"
        "[Install]\nWantedBy=multi-user.target\n"
        % "".join("ExecStart=/usr/bin/%s\n" % " ".join(argv) for argv in (gpu_node_command(gpus), UVM_NODE_COMMAND))
    )


def gpu_node_command(gpus: int) -> List[str]:
    argv = ["nvidia-modprobe"]
    for minor in (*range(gpus), CONTROL_MINOR):
        argv += ["-c", str(minor)]
    return argv


# loading


def _load_steps(
    seen: Observation, facts: HostFacts, loaded: Mapping[str, Any], disruption: Disruption,
    requires: Tuple[str, ...] = (),
) -> List[Step]:
    wanted = list(LOADED) + [name for name in reversed(UNLOAD_ORDER) if name in seen.unloaded and name not in LOADED]
    steps: List[Step] = []
    for name in wanted:
        if name not in loaded:
            steps.append(command_step(
                NAME, "module.load", name, ["modprobe", name.replace("_", "-")], "Driver %s is installed for kernel %s."
                % (facts.driver_installed, facts.kernel), disruption,
                {"before": {name: None}, "after": {name: facts.driver_installed}}, requires=requires, timeout=300))
            requires = (steps[-1].id,)
    return steps


def _node_steps(seen: Observation, facts: HostFacts, reloaded: bool, requires: Tuple[str, ...] = ()) -> List[Step]:
    if seen.on_disk and not seen.modprobe:
        return []
    steps = []
    for subject, nodes, argv in (
        ("GPUs", gpu_nodes(len(facts.gpus)), gpu_node_command(len(facts.gpus))),
        ("unified memory", UVM_NODES, UVM_NODE_COMMAND),
    ):
        missing = [name for name in nodes if reloaded or name not in seen.nodes]
        if missing:
            steps.append(command_step(
                NAME, "devices.create", subject, argv, "Programs and containers reach the GPUs through these nodes.",
                Disruption.driver_reload if reloaded else Disruption.none,
                {"before": dict.fromkeys(missing), "after": dict.fromkeys(missing, "node")},
                requires=requires, timeout=120))
    return steps


def gpu_nodes(gpus: int) -> Tuple[str, ...]:
    return tuple("/dev/nvidia%d" % minor for minor in range(gpus)) + ("/dev/nvidiactl",)


def _service_steps(
    seen: Observation, policy: Policy, facts: HostFacts, stopped: Tuple[str, ...], requires: Tuple[str, ...] = ()
) -> List[Step]:
    """Enable and start what the policy wants, start again what was stopped for the reload."""
    steps: List[Step] = []
    back = set(stopped) | set(seen.stopped)
    disruption = Disruption.driver_reload if stopped else Disruption.none
    for unit in reversed(SERVICES):
        state = _state(seen, unit)
        wanted = unit in _wanted(policy, facts) and state.known
        if wanted and not state.enabled:
            steps.append(service_step(NAME, "enable", unit, "It runs after every boot.", Disruption.none,
                                      "disabled", "enabled"))
        if unit in stopped or ((wanted or unit in back) and state.known and not state.active):
            why = "It was stopped for the exchange of the driver." if unit in back else "The policy wants it to run."
            steps.append(service_step(NAME, "start", unit, why, disruption, "stopped", "running", requires))
    return steps


def _wanted(policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    wanted = (PERSISTENCED,) if policy.persistence else ()
    return wanted + ((FABRIC_MANAGER,) if policy.fabric_manager == "auto" and facts.nvswitches else ())


def _state(seen: Observation, unit: str) -> Service:
    """A unit's state; before the driver is installed, as its package will leave it."""
    state = seen.services.get(unit, Service())
    if state.known or seen.on_disk:
        return state
    if unit == PERSISTENCED:
        return Service(known=True, enabled=True)
    return Service(known=unit == FABRIC_MANAGER)


# exchanging a loaded driver


def _exchange(seen: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
    stopped = _running_services(seen)
    steps = _stop_steps(stopped)
    steps += _unload_steps(seen, facts.driver_loaded, tuple(step.id for step in steps))
    again = tuple(name for name in UNLOAD_ORDER if name in seen.modules)
    seen = replace(seen, unloaded=seen.unloaded + again)
    steps += _load_steps(seen, facts, {}, Disruption.driver_reload, (steps[-1].id,))
    requires = (steps[-1].id,)
    steps += _node_steps(seen, facts, reloaded=True, requires=requires)
    return steps + _service_steps(seen, policy, facts, stopped, requires)


def _running_services(seen: Observation) -> Tuple[str, ...]:
    """Services that may have a device open by the time the driver is exchanged: packages restart enabled ones."""
    return tuple(unit for unit in SERVICES if _state(seen, unit).known and (
        seen.services.get(unit, Service()).active or seen.services.get(unit, Service()).enabled))


def _stop_steps(units: Tuple[str, ...]) -> List[Step]:
    return [service_step(NAME, "stop", unit, "It keeps the kernel modules in use.", Disruption.driver_reload,
                         "running", "stopped") for unit in units]


def _unload_steps(seen: Observation, version: Optional[str], requires: Tuple[str, ...]) -> List[Step]:
    steps: List[Step] = []
    for name in UNLOAD_ORDER:
        if name in seen.modules:
            steps.append(command_step(
                NAME, "module.unload", name, ["rmmod", name], "The loaded driver makes way.",
                Disruption.driver_reload, {"before": {name: version}, "after": {name: None}},
                requires=requires, timeout=120))
            requires = (steps[-1].id,)
    return steps


def _busy(seen: Observation, policy: Policy) -> List[str]:
    """Everything that keeps the modules in use and that we may not stop."""
    strangers = [holder for holder in seen.holders
                 if holder.unit not in SERVICES and not (holder.pod and policy.pods_leave)]
    reasons = ["%s has %s open" % (holder.named(), ", ".join(holder.devices)) for holder in strangers]
    if not seen.holders and seen.modules.get("nvidia_drm", 0) > 0:
        reasons.append("nvidia_drm is used by a console or a display")
    return reasons


# absent


def _absent(seen: Observation, policy: Policy) -> Plan:
    steps: List[Step] = []
    requirements: Tuple[Requirement, ...] = ()
    if MODULES_FILE in seen.originals and seen.modules:
        busy = _busy(seen, policy)
        if busy:
            requirements = (_reboot("unloaded driver", "The driver cannot be unloaded: %s." % "; ".join(busy),
                                    {"nvidia": "loaded"}, {"nvidia": None}),)
        else:
            units = tuple(unit for unit in SERVICES if seen.services.get(unit, Service()).active)
            steps += _stop_steps(units)
            steps += _unload_steps(seen, "loaded", tuple(step.id for step in steps))
            steps += _dead_node_steps(seen, (steps[-1].id,))
    elif MODULES_FILE in seen.originals:
        steps += _dead_node_steps(seen, ())
    steps += [service_step(NAME, "disable", unit, "An earlier run enabled it.", Disruption.none, "enabled", "disabled")
              for unit in seen.enabled if seen.services.get(unit, Service()).enabled]
    steps += [
        Step(NAME, "file.restore", path, "It is as it was before our first change of it.",
             change={"before": seen.files.get(path), "after": text})
        for path, text in sorted(seen.originals.items())]
    return Plan(steps=tuple(steps), requirements=requirements)


def _dead_node_steps(seen: Observation, requires: Tuple[str, ...]) -> List[Step]:
    """The kernel does not take back nodes that nvidia-modprobe made; a container runtime would still hand them out."""
    if not seen.nodes:
        return []
    return [Step(NAME, REMOVE_NODES, "GPUs", "No driver answers behind these nodes any more.",
                 change={"before": dict.fromkeys(seen.nodes, "node"), "after": dict.fromkeys(seen.nodes)},
                 after=requires)]


def _notes(seen: Observation, policy: Policy, facts: HostFacts) -> List[str]:
    notes = []
    if seen.on_disk and not seen.modprobe:
        notes.append("nvidia-modprobe is not installed: device nodes appear only when a program opens a GPU as root.")
    for unit in _wanted(policy, facts):
        if seen.on_disk and not _state(seen, unit).known:
            notes.append("%s is not installed, so it is not started." % unit)
    return notes
