# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the installed driver to the loaded one. Pure.

Facts may be of the future: where a plan is made for a host on which nothing is installed yet, units and programs that
the driver's packages bring are taken to be there, as those packages leave them.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import CONTROL_NODES, UVM_NODES, HostFacts
from ..core.plan import AFTERWARDS, DRIVER, REBOOT, Disruption, Plan, Requirement, Step
from ..core.steps import command_step, file_step, managed, restore_step, service_step
from ..hardware.driver_container import FIRMWARE, FIRMWARE_PATH, ROOT, DriverContainer, refusal_of_work
from ..hardware.mig import RESTORE_UNIT
from ..hardware.peer_modules import GDRDRV
from ..hardware.secure_boot import confirmation
from .observation import (
    FABRIC_MANAGER,
    MODULES_FILE,
    OTHERS,
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
LOAD = "module.load"
DIVIDE = "layout.restore"
# Who needs the instances when it starts
AFTER_LAYOUT = ("dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service", "nvidia-mps.service")
REMOVE_NODES = "devices.remove"
UNMOUNT = "container.unmount"
FORGET = "container.forget"
# Of no byte the kernel makes nothing (kernfs_fop_write_iter): a zero is the empty path
FIRMWARE_COMMAND = ["sh", "-c", "printf '\\0' > " + FIRMWARE_PATH]
UVM = "nvidia_uvm"
LOADED = ("nvidia", UVM, "nvidia_modeset")
# NVIDIA/nvidia-modprobe: with -u, minors are those of the unified memory device, so the nodes take two calls.
CONTROL_MINOR = 255
UVM_NODE_COMMAND = ["nvidia-modprobe", "-u", "-c", "0"]
MODESET_NODES = ("/dev/nvidia-modeset",)
MODESET_NODE_COMMAND = ["nvidia-modprobe", "-m"]
# Its package's script makes it at boot and when it is installed, and the module none by itself (NVIDIA/gdrcopy,
# packages/dkms/debian/gdrdrv.init); the number may be another one with each load
GDRDRV_NODE = "/dev/gdrdrv"
GDRDRV_NODE_COMMAND = ["sh", "-c", 'major=$(sed -n "s/^ *\\([0-9]*\\) gdrdrv$/\\1/p" /proc/devices) && '
                       'test "$major" && rm -f /dev/gdrdrv && mknod -m 666 /dev/gdrdrv c $major 0']
# Which minors the driver has given to GPUs, it tells once it is loaded. A program that hangs in it outlives every
# signal, and no time ends a unit of this type by itself: what comes after must not wait for it.
BOOT_NODE_COMMAND = (
    "/bin/sh -c 'exec /usr/bin/nvidia-modprobe -c %d"
    ' $$(sed -n "s/^Device Minor:/-c/p" /proc/driver/nvidia/gpus/*/information)\'' % CONTROL_MINOR)
UNIT_TEXT = managed(
    "[Unit]\nDescription=Device nodes of NVIDIA GPUs\n"
    "After=systemd-modules-load.service\n"
    "Before=nvidia-cdi-refresh.service containerd.service crio.service docker.service kubelet.service\n"
    "ConditionPathExists=/proc/driver/nvidia/version\nJobRunningTimeoutSec=60s\n\n"
    "[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStartSec=50s\nTimeoutStopSec=5s\n%s\n"
    "[Install]\nWantedBy=multi-user.target\n"
    % "".join("ExecStart=%s\n" % command for command in (
        BOOT_NODE_COMMAND, *("/usr/bin/" + " ".join(argv) for argv in (UVM_NODE_COMMAND, MODESET_NODE_COMMAND)))))
MODULES_TEXT = managed("".join("%s\n" % name.replace("_", "-") for name in LOADED))


def plan(observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if _is_unasked(observation, policy, facts):
        return Plan()
    if policy.state == "absent":
        return _absent(observation, policy)
    refusals = facts.refusals_without_gpus() or facts.refusals_of_the_sick()
    if refusals:
        return Plan(refusals=refusals)
    gone = not facts.driver_installed and not _runs_without_files(observation, facts)
    if gone and not facts.driver_boots:
        return Plan(requirements=(_no_driver(facts),))
    if observation.container.is_at_work:
        return Plan(refusals=(refusal_of_work(observation.container),))
    observation = _with_units(observation, facts)
    steps = _boot_steps(observation, facts)
    if facts.awaits_gpu:
        return Plan(steps=tuple(steps + _enable_steps(observation, policy)), complete=False,
                    notes=("Activation %s." % facts.awaited,))
    if facts.key_pending and not facts.loaded_is_installed:
        # Before any other reason for a boot: one that nobody watches would lose the request
        return Plan(steps=tuple(steps + _enable_steps(observation, policy)),
                    requirements=(confirmation(NAME, facts.key_pending),))
    if gone:
        return Plan(steps=tuple(steps + _enable_steps(observation, policy)),
                    requirements=(_boots_with_driver(facts),))
    if facts.nouveau_loaded:
        return Plan(steps=tuple(steps + _enable_steps(observation, policy)), requirements=(_reboot(
            "nouveau", "nouveau (or nova) is loaded and holds the GPUs.", {"nouveau": "loaded"}, {"nouveau": None}),))
    notes = tuple(_notes(observation, policy, facts))
    if facts.driver_loaded and (
            facts.other_module or facts.driver_loaded != (facts.driver_installed or facts.driver_userspace)
            or _other_parameters(observation, facts) or _is_given_up(observation, facts)):
        busy = _busy(observation, policy)
        if busy:
            then = "loaded anew" if _is_given_up(observation, facts) else _installed(facts)
            return Plan(steps=tuple(steps + _enable_steps(observation, policy)), requirements=(_reboot(
                "driver %s" % facts.driver_installed,
                "Driver %s is loaded and cannot be unloaded: %s." % (_loaded(facts), "; ".join(busy)),
                {"nvidia": _loaded(facts)}, {"nvidia": then}),))
        return Plan(steps=tuple(steps + _exchange(observation, policy, facts)), notes=notes)
    left = _left_steps(observation.container, Disruption.driver_reload if facts.driver_loaded else Disruption.none)
    # In the order of an exchange: one that was stopped in between goes on with the plan that was approved
    loads = _load_steps(observation, facts, LOADED, Disruption.none, tuple(step.id for step in left[-1:]))
    requires = tuple(step.id for step in loads[-1:])
    steps += left + loads + _node_steps(observation, facts, reloaded=False, requires=requires)
    services = _service_steps(observation, policy, stopped=(), requires=requires)
    steps += _with_layout(services, requires, Disruption.none) if _is_undivided(observation) else services
    steps += _beside_steps(observation, facts, Disruption.none, requires)
    return Plan(steps=tuple(steps), notes=notes)


def facts_after(observation: Observation, policy: Policy, facts: HostFacts, planned: Plan) -> HostFacts:
    if planned.refusals or _is_unasked(observation, policy, facts):
        return facts
    if policy.state == "absent":
        return facts.but(driver_loaded="", module_loaded="", control_nodes=_control_nodes_left(facts, planned)) \
            if planned.steps or planned.requirements else facts
    if facts.awaits_gpu:
        return facts
    if facts.driver_boots and not facts.driver_installed and _boots_after(planned):
        facts = facts.but(kernel=facts.boot_kernel, driver_installed=facts.driver_boots)
    if not facts.driver_installed:
        return facts
    loads = _boots_after(planned) or any(step.action == LOAD and step.subject == "nvidia" for step in planned.steps)
    # What the GPUs are divided into now is no more what is there then than before a load
    divides = any(step.action == DIVIDE for step in planned.steps)
    return facts.but(
        driver_loaded=facts.driver_installed, module_loaded=facts.module_installed if loads else facts.module_loaded,
        nouveau_loaded=False, key_pending="", control_nodes=_control_nodes(facts, planned),
        driver_reloads=loads or divides, parameters_differ=() if loads else facts.parameters_differ,
        driver_is_worn=facts.driver_is_worn and not loads)


def _boots_after(planned: Plan) -> bool:
    """Whether the plan ends in a boot, one with a confirmation at the console included."""
    return any(requirement.kind in AFTERWARDS for requirement in planned.requirements)


def _is_given_up(observation: Observation, facts: HostFacts) -> bool:
    """Whether a repair wants the loaded driver loaded anew, and the kernel has one on disk."""
    return bool(facts.driver_loaded and facts.driver_installed) and (observation.given_up or facts.driver_is_worn)


def _is_unasked(observation: Observation, policy: Policy, facts: HostFacts) -> bool:
    """Whether nothing is to be done, for what is done for a repair alone; an exchange that was cut off is ended."""
    begun = observation.unloaded or observation.stopped or observation.undivided
    return policy.repair_only and (policy.state == "absent" or not (begun or _is_given_up(observation, facts)))


def _other_parameters(observation: Observation, facts: HostFacts) -> Tuple[str, ...]:
    """Parameters that the modules have only once they are loaded anew; () where that cannot be done now."""
    return tuple(each for each in facts.parameters_differ if each not in observation.taken) \
        if facts.driver_installed else ()


def _loaded(facts: HostFacts) -> str:
    """The loaded driver, with its kernel module or parameters where that is what tells it from the installed one."""
    if facts.parameters_differ and facts.driver_installed:
        return "%s with another %s" % (facts.driver_loaded, ", ".join(
            each.partition("=")[0] for each in facts.parameters_differ))
    return "%s (%s)" % (facts.driver_loaded, facts.module_loaded) if facts.other_module else facts.driver_loaded


def _installed(facts: HostFacts) -> str:
    return "%s (%s)" % (facts.driver_installed, facts.module_installed) if facts.other_module \
        else facts.driver_installed


def _control_nodes(facts: HostFacts, planned: Plan) -> Tuple[str, ...]:
    """Those that are there once the plan is done; our unit makes all of them at a boot."""
    if _boots_after(planned):
        return CONTROL_NODES
    made_new = {name for step in planned.steps if step.action == "devices.create" for name in step.change["after"]}
    return tuple(node for node in CONTROL_NODES if node in facts.control_nodes or node in made_new)


def _control_nodes_left(facts: HostFacts, planned: Plan) -> Tuple[str, ...]:
    """A boot begins with none."""
    gone = {name for step in planned.steps if step.action == REMOVE_NODES for name in step.change["before"]}
    return () if _boots_after(planned) else tuple(node for node in facts.control_nodes if node not in gone)


def _no_driver(facts: HostFacts) -> Requirement:
    """Check mode on a bare host shows that a driver is missing still; to go on without one is refused at once."""
    return Requirement(
        NAME, DRIVER, "kernel %s" % facts.kernel, "The driver that is to be loaded is not installed yet.",
        change={"before": {"nvidia": None}, "after": {"nvidia": "installed"}})


def _runs_without_files(observation: Observation, facts: HostFacts) -> bool:
    """Whether all that is needed is loaded already, though the running kernel's files are gone."""
    return bool(facts.driver_loaded) and facts.driver_loaded == facts.driver_userspace and not facts.other_module and \
        all(name in observation.modules for name in LOADED)


def _boots_with_driver(facts: HostFacts) -> Requirement:
    return _reboot(
        "kernel %s" % facts.boot_kernel,
        "Kernel %s runs and has no module of the driver; driver %s is built for kernel %s, which boots next."
        % (facts.kernel, facts.driver_boots, facts.boot_kernel),
        {"kernel": facts.kernel, "nvidia": facts.driver_loaded or None},
        {"kernel": facts.boot_kernel, "nvidia": facts.driver_boots})


def _reboot(subject: str, why: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Requirement:
    return Requirement(NAME, REBOOT, subject, why, Disruption.reboot, {"before": before, "after": after})


# what the next boot does


def _boot_steps(observation: Observation, facts: HostFacts) -> List[Step]:
    steps = _file(observation, MODULES_FILE, MODULES_TEXT,
                  "No display asks for these modules on a server: load them at boot.")
    if not observation.modprobe and observation.on_disk:
        return steps
    written = _file(observation, UNIT_FILE, UNIT_TEXT,
                    "Containers need the device nodes before anything on the host has opened a GPU.")
    steps += written
    if not observation.services.get(UNIT, Service()).enabled:
        steps.append(service_step(
            NAME, "enable", UNIT, "It makes the device nodes at boot.", Disruption.none, "disabled", "enabled",
            tuple(step.id for step in written)))
    return steps


def _file(observation: Observation, path: str, text: str, why: str) -> List[Step]:
    before = observation.files.get(path)
    return [] if before == text else [file_step(NAME, path, before, text, why)]


def gpu_node_command(minors: Sequence[int]) -> List[str]:
    argv = ["nvidia-modprobe"]
    for minor in (*minors, CONTROL_MINOR):
        argv += ["-c", str(minor)]
    return argv


# loading


def _load_steps(
    observation: Observation, facts: HostFacts, wanted: Sequence[str], disruption: Disruption,
    requires: Tuple[str, ...] = ()
) -> List[Step]:
    steps: List[Step] = []
    for name in wanted:
        if name not in observation.modules:
            why = ("It was unloaded for the exchange of the driver." if name in OTHERS and name in observation.unloaded
                   else "The driver's policy wants it loaded too." if name in facts.peer_modules
                   else "Driver %s is installed for kernel %s." % (_installed(facts), facts.kernel))
            steps.append(command_step(
                NAME, LOAD, name, ["modprobe", name.replace("_", "-")], why, disruption,
                {"before": {name: None}, "after": {name: "loaded" if name in OTHERS else facts.driver_installed}},
                requires=requires, timeout=300))
            requires = (steps[-1].id,)
    return steps


def _brought_back(observation: Observation, facts: HostFacts) -> Tuple[str, ...]:
    """What was unloaded beside the driver's essential modules and can be loaded again, and what a boot loads beside
    them by the driver's policy, which has it built for this driver.

    It comes last: one of them that does not load must not keep the nodes and the driver's services away.
    """
    return tuple(name for name in reversed(UNLOAD_ORDER) if name in facts.peer_modules or (
        name in observation.unloaded and name not in LOADED
        and not (name in OTHERS and observation.others.get(name) is None)))


def _beside_steps(
    observation: Observation, facts: HostFacts, disruption: Disruption, requires: Tuple[str, ...]
) -> List[Step]:
    """A node of somebody else's GDRCopy leads nowhere, too, where its module has another number now."""
    loads = _load_steps(observation, facts, _brought_back(observation, facts), disruption, requires)
    loaded = tuple(step.id for step in loads if step.subject == GDRDRV)
    is_led_to = GDRDRV in observation.modules and observation.gdr_node
    if is_led_to or not (loaded or GDRDRV in observation.modules) or not (
            GDRDRV in facts.peer_modules or observation.gdr_node is not None):
        return loads
    return [*loads, command_step(
        NAME, "devices.create", "GDRCopy", GDRDRV_NODE_COMMAND,
        "GDRCopy reaches its module through this node, and only its package's script makes it.", disruption,
        {"before": {GDRDRV_NODE: None}, "after": {GDRDRV_NODE: "node"}}, requires=loaded or requires, timeout=60)]


def _node_steps(
    observation: Observation, facts: HostFacts, reloaded: bool, requires: Tuple[str, ...] = ()
) -> List[Step]:
    if observation.on_disk and not observation.modprobe:
        return []
    steps = []
    # A driver that is loaded anew numbers its GPUs from 0
    minors = observation.minors if observation.minors and not reloaded else tuple(range(len(facts.gpus)))
    for subject, nodes, argv in (
        ("GPUs", gpu_nodes(minors), gpu_node_command(minors)),
        ("unified memory", UVM_NODES, UVM_NODE_COMMAND),
        ("mode setting", MODESET_NODES, MODESET_NODE_COMMAND),
    ):
        missing = [name for name in nodes if reloaded or name not in observation.nodes or facts.lacks(name)
                   # Loaded by this plan, the module may be given another major than these nodes have
                   or (name in UVM_NODES and UVM not in observation.modules)]
        if missing:
            steps.append(command_step(
                NAME, "devices.create", subject, argv, "Programs and containers reach the GPUs through these nodes.",
                Disruption.driver_reload if reloaded else Disruption.none,
                {"before": dict.fromkeys(missing), "after": dict.fromkeys(missing, "node")},
                requires=requires, timeout=120))
    return steps


def gpu_nodes(minors: Sequence[int]) -> Tuple[str, ...]:
    return tuple("/dev/nvidia%d" % minor for minor in minors) + ("/dev/nvidiactl",)


def _service_steps(
    observation: Observation, policy: Policy, stopped: Tuple[str, ...], requires: Tuple[str, ...] = ()
) -> List[Step]:
    """Enable and start what the policy wants, start again what ran before the reload."""
    steps: List[Step] = []
    disruption = Disruption.driver_reload if stopped else Disruption.none
    for unit in reversed(SERVICES):
        state = observation.services.get(unit, Service())
        wanted = unit in _wanted(policy) and state.known
        if wanted and not state.enabled:
            steps.append(service_step(NAME, "enable", unit, "It runs after every boot.", Disruption.none,
                                      "disabled", "enabled"))
        if unit in stopped or ((wanted or unit in observation.stopped) and state.known and not state.active):
            why = ("The policy wants it to run." if wanted and unit not in observation.stopped + stopped
                   else "It was stopped for the exchange of the driver.")
            steps.append(service_step(NAME, "start", unit, why, disruption, "stopped", "running", requires))
    return steps


def _enable_steps(observation: Observation, policy: Policy) -> List[Step]:
    """What a reboot then starts by itself, so that nothing is left to do after it."""
    return [step for step in _service_steps(observation, policy, stopped=()) if step.action == "service.enable"]


def _wanted(policy: Policy) -> Tuple[str, ...]:
    return (PERSISTENCED,) if policy.persistence else ()


def _may_be_started(policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    """What its package may start when it is exchanged, where it is enabled; on a host without NVSwitches it fails."""
    return _wanted(policy) + ((FABRIC_MANAGER,) if policy.fabric_manager == "auto" and facts.fabric else ())


def _with_units(observation: Observation, facts: HostFacts) -> Observation:
    """Before the driver is installed by packages: with the unit that they will bring, as they leave it. Those of guests
    have none, and NVIDIA's installer makes none."""
    if facts.driver_brings_unit:
        # What is there is not what will be, nvidia-modprobe neither
        observation = replace(observation, on_disk=False)
    if (observation.services.get(PERSISTENCED, Service()).known or observation.guest or observation.on_disk
            or facts.driver_by_runfile):
        return observation
    return replace(observation, services={**observation.services, PERSISTENCED: Service(known=True, enabled=True)})


# exchanging a loaded driver


def _exchange(observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
    stopped = _making_way(observation, policy, facts)
    steps = _stop_steps(stopped) + _unload_steps(observation, _loaded(facts))
    steps += _left_steps(observation.container, Disruption.driver_reload, (steps[-1].id,))
    requires = (steps[-1].id,)
    unloaded = replace(observation, modules={}, unloaded=observation.unloaded + tuple(observation.modules))
    steps += _load_steps(unloaded, facts, LOADED, Disruption.driver_reload, requires)
    requires = (steps[-1].id,)
    steps += _node_steps(observation, facts, reloaded=True, requires=requires)
    services = _service_steps(observation, policy, stopped, requires)
    steps += _with_layout(services, requires, Disruption.driver_reload) if observation.divided else services
    return steps + _beside_steps(unloaded, facts, Disruption.driver_reload, requires)


def _left_steps(container: DriverContainer, disruption: Disruption, requires: Tuple[str, ...] = ()) -> List[Step]:
    """What a driver container has left goes before the host's own driver is loaded.

    Pods that find the driver in it are of no use from then on, and a boot takes all of it: nothing of it comes back.
    """
    steps: List[Step] = []
    if container.mounted:
        steps.append(Step(
            NAME, UNMOUNT, ROOT, "The driver container that has mounted itself there is gone.", disruption,
            change={"before": {ROOT: "driver container"}, "after": {ROOT: None}}, reversible=False,
            depends_on=requires))
    if container.firmware:
        steps.append(command_step(
            NAME, "firmware.reset", FIRMWARE_PATH, FIRMWARE_COMMAND,
            "The kernel finds the driver's firmware where packages put it.", disruption,
            {"before": FIRMWARE, "after": None}, reversible=False,
            requires=tuple(step.id for step in steps[-1:]) or requires, timeout=60))
    if container.files:
        steps.append(Step(
            NAME, FORGET, "driver container",
            "These files say that it is at work: the GPU Operator would take the driver for its own, or wait for it.",
            disruption, change={"before": dict.fromkeys(container.files, "there"),
                                "after": dict.fromkeys(container.files)}, reversible=False,
            depends_on=tuple(step.id for step in steps[-1:]) or requires))
    return steps


def _is_undivided(observation: Observation) -> bool:
    """Whether a layout that an exchange has taken is still to be made again."""
    return observation.divided and observation.undivided


def _with_layout(services: List[Step], requires: Tuple[str, ...], disruption: Disruption) -> List[Step]:
    """MIG instances come before who watches or shares them."""
    restored = Step(
        NAME, DIVIDE, RESTORE_UNIT, "No MIG instance outlives a reload of the driver; the unit makes them again.",
        disruption, change={"before": "gone", "after": "as recorded"}, depends_on=requires)
    before = [step for step in services if step.subject not in AFTER_LAYOUT]
    return [*before, restored, *(step for step in services if step.subject in AFTER_LAYOUT)]


def _making_way(observation: Observation, policy: Policy, facts: HostFacts) -> Tuple[str, ...]:
    """Services that may have a device open by the time the driver is exchanged.

    Those that run, or ran until their user space was exchanged; and those that their packages may start when they are
    exchanged. What else is enabled and does not run stays as it is.
    """
    def makes_way(state: Service, wanted: bool) -> bool:
        return state.known and (state.active or (state.enabled and (state.died or wanted)))

    started = _may_be_started(policy, facts)
    return tuple(unit for unit in SERVICES if makes_way(observation.services.get(unit, Service()), unit in started))


def _stop_steps(units: Tuple[str, ...]) -> List[Step]:
    return [service_step(NAME, "stop", unit, "It keeps the kernel modules in use.", Disruption.driver_reload,
                         "running", "stopped") for unit in units]


def _unload_steps(observation: Observation, version: Optional[str]) -> List[Step]:
    steps: List[Step] = []
    requires: Tuple[str, ...] = ()
    for name in UNLOAD_ORDER:
        if name in observation.modules:
            steps.append(command_step(
                NAME, "module.unload", name, ["rmmod", name], "The loaded driver makes way.",
                Disruption.driver_reload, {"before": {name: version}, "after": {name: None}},
                requires=requires, timeout=120))
            requires = (steps[-1].id,)
    return steps


def _busy(observation: Observation, policy: Policy) -> List[str]:
    """Everything that keeps the modules in use and that we may not stop."""
    strangers = [holder for holder in observation.holders
                 if holder.unit not in SERVICES and not (holder.pod and policy.assume_pods_evicted)]
    reasons = ["%s has %s open" % (holder.named(), ", ".join(holder.devices)) for holder in strangers]
    for name in UNLOAD_ORDER:
        reasons += ["kernel module %s uses %s" % (other, name) for other in observation.dependants.get(name, ())
                    if other not in UNLOAD_ORDER and name in observation.modules]
    for name, uses in sorted(observation.unexplained().items()):
        reasons.append("nvidia_drm is used by a console or a display" if name == "nvidia_drm" else
                       "%s is in use %d times more than its open devices explain" % (name, uses))
    return reasons


# absent


def _absent(observation: Observation, policy: Policy) -> Plan:
    steps: List[Step] = []
    requirements: Tuple[Requirement, ...] = ()
    ours = MODULES_FILE in observation.originals or observation.ours
    if ours and observation.modules:
        busy = _busy(observation, policy)
        if busy:
            requirements = (_reboot("unloaded driver", "The driver cannot be unloaded: %s." % "; ".join(busy),
                                    {"nvidia": "loaded"}, {"nvidia": None}),)
        else:
            units = tuple(unit for unit in SERVICES if observation.services.get(unit, Service()).active)
            steps += _stop_steps(units)
            steps += _unload_steps(observation, "loaded")
            steps += _dead_node_steps(observation, (steps[-1].id,))
    elif ours:
        steps += _dead_node_steps(observation, ())
    steps += [service_step(NAME, "disable", unit, "An earlier run enabled it.", Disruption.none, "enabled", "disabled")
              for unit in observation.enabled if observation.services.get(unit, Service()).enabled]
    steps += [restore_step(NAME, path, observation.files.get(path), text)
              for path, text in sorted(observation.originals.items())]
    return Plan(steps=tuple(steps), requirements=requirements)


def _dead_node_steps(observation: Observation, requires: Tuple[str, ...]) -> List[Step]:
    """The kernel does not take back nodes that nvidia-modprobe made; a container runtime would still hand them out."""
    if not observation.nodes:
        return []
    return [Step(NAME, REMOVE_NODES, "GPUs", "No driver answers behind these nodes any more.",
                 change={"before": dict.fromkeys(observation.nodes, "node"), "after": dict.fromkeys(observation.nodes)},
                 depends_on=requires)]


def _notes(observation: Observation, policy: Policy, facts: HostFacts) -> List[str]:
    notes = []
    if observation.on_disk and not observation.modprobe:
        notes.append("nvidia-modprobe is not installed: device nodes appear only when a program opens a GPU as root.")
    kept = [each for each in facts.parameters_differ if each in observation.taken]
    if kept:
        notes.append("The driver was loaded with %s and reports another value: where an initramfs loads it, make that "
                     "anew; else the driver takes no such value." % ", ".join(kept))
    if observation.container.stranger:
        notes.append("%s has %s mounted, which is no driver container's file system: it stays." % (
            ROOT, observation.container.stranger))
    for unit in _wanted(policy):
        if (observation.on_disk or facts.driver_by_runfile) and not observation.services.get(unit, Service()).known:
            notes.append("%s is not installed, so it is not started." % unit)
    if not facts.driver_installed:
        notes.append("Driver %s is loaded, and kernel %s has no modules on disk any more: nothing can be loaded again "
                     "before a reboot%s." % (facts.driver_loaded, facts.kernel, (
                         " into kernel %s, which has driver %s" % (facts.boot_kernel, facts.driver_boots)
                         if facts.driver_boots and facts.boot_kernel != facts.kernel else "")))
    elif facts.other_module or facts.driver_loaded != facts.driver_installed:
        there = {*observation.modules, *observation.unloaded}
        notes += [note for name in OTHERS if name in there and name not in facts.peer_modules
                  for note in _note_of(observation, facts, name)]
    return notes


def _note_of(observation: Observation, facts: HostFacts, name: str) -> List[str]:
    """What is to be known, before the exchange, of a module that the driver's packages do not bring."""
    built = observation.others.get(name)
    if built is None:
        return ["%s is loaded, and kernel %s has no such module on disk: it does not come back after the exchange; "
                "install the package that builds it." % (name, facts.kernel)]
    if built != facts.driver_installed:
        return ["%s was not built after driver %s: it is loaded last, and may not load before it is rebuilt "
                "(dkms build --force, then dkms install --force)." % (name, facts.driver_installed)]
    return []
