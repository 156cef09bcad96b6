# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the activation do to a host in memory: its kernel modules, and who keeps them in use."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.observation import (
    FABRIC_MANAGER,
    MODULES_FILE,
    OTHERS,
    PERSISTENCED,
    SERVICES,
    UNIT,
    UNIT_FILE,
    Observation,
    Service,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CONTROL_NODES, UVM_NODES, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import DriverContainer
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import SERVED_BY, Holder

# Which modules a module needs
NEEDS = {"nvidia_uvm": "nvidia", "nvidia_modeset": "nvidia", "nvidia_drm": "nvidia_modeset",
         "nvidia_peermem": "nvidia", "gdrdrv": "nvidia", "nvidia_fs": "nvidia", "zfs_gds": "nvidia"}
POD = "8f0f5c0e-0000-4000-8000-123456789abc"


@dataclass
class World(world.World):
    """A host whose driver is loaded and unloaded.

    modules:  {loaded module: how often the kernel itself uses it}.
    others:   {module of another package: driver that it was built after, '' if before the one on disk, None if it is
              not on disk}.
    nodes:    device nodes in /dev.
    stale:    those of them that an earlier load of nvidia-uvm or gdrdrv had, which is given another major at each.
    minors:   those of the GPUs, () where the loaded driver does not tell.
    modprobe: whether nvidia-modprobe is there.
    programs: who has devices open, beside the driver's own services.
    stopped, unloaded: what an exchange has noted.
    ours:     whether the driver's packages came through us.
    divided:  whether a boot restores a layout of MIG instances.
    instances: whether those are there, which do not outlive the driver.
    undivided: whether an exchange has noted that they are to be made again.
    worn:     whether a repair has given the load up that there is.
    container: a driver container that works here, and what one has left.
    """

    capability = CAPABILITY

    modules: Dict[str, int] = field(default_factory=dict)
    others: Dict[str, Optional[str]] = field(default_factory=dict)
    nodes: Tuple[str, ...] = ()
    stale: Tuple[str, ...] = ()
    minors: Tuple[int, ...] = ()
    modprobe: bool = False
    programs: Tuple[Holder, ...] = ()
    stopped: List[str] = field(default_factory=list)
    unloaded: List[str] = field(default_factory=list)
    ours: bool = False
    divided: bool = False
    instances: bool = False
    undivided: bool = False
    worn: bool = False
    container: DriverContainer = DriverContainer()

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        dependants = {name: tuple(other for other in self.modules if NEEDS.get(other) == name)
                      for name in self.modules}
        opened: Dict[str, int] = {}
        for holder in self._holders():
            for device in holder.devices:
                module = next(name for start, name in SERVED_BY if device.startswith(start))
                opened[module] = opened.get(module, 0) + 1
        return Observation(
            modules={name: uses + len(dependants[name]) + opened.get(name, 0)
                     for name, uses in self.modules.items() if name in observation.UNLOAD_ORDER},
            dependants=dependants, opened=opened,
            others={name: self.others.get(name) for name in OTHERS if name in self.modules or name in self.unloaded},
            on_disk=bool(there.driver_installed or there.driver_userspace), holders=self._holders(),
            services={name: Service(**vars(unit)) for name, unit in self.units.items()},
            nodes=tuple(node for node in self.nodes if node != planner.GDRDRV_NODE),
            gdr_node=planner.GDRDRV_NODE not in self.stale if planner.GDRDRV_NODE in self.nodes else None,
            minors=self.minors, modprobe=self.modprobe, files=self.state((MODULES_FILE, UNIT_FILE)),
            originals=dict(self.originals), unloaded=tuple(self.unloaded), stopped=tuple(self.stopped),
            enabled=tuple(self.enabled), ours=self.ours, divided=self.divided,
            undivided=self.undivided, given_up=self.worn and "nvidia" in self.modules, container=self.container)

    def _holders(self) -> Tuple[Holder, ...]:
        """A service of the driver that runs has a device open."""
        running = [name for name in SERVICES if self.unit(name).active and "nvidia" in self.modules]
        return (*self.programs, *(Holder(10 + number, name[:15], ("/dev/nvidiactl",), name)
                                  for number, name in enumerate(running)))

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        """The driver's packages have come or gone, with their units, as they leave them; and they have restarted what
        runs."""
        loaded = self.facts.driver_loaded
        super().come_true(foretold)
        if foretold.get("driver_userspace") == "":
            self.modprobe = False
            self.units = {name: unit for name, unit in self.units.items() if name not in SERVICES}
        # NVIDIA's installer brings its programs before DKMS builds the module
        self.modprobe = self.modprobe or bool(foretold.get("driver_by_runfile") and self.facts.driver_userspace)
        if not self.facts.driver_installed:
            return
        self.modprobe = True
        for name, unit in ((PERSISTENCED, world.Unit(known=True, enabled=True)), (FABRIC_MANAGER, world.Unit(True))):
            if not (self.unit(name).known or foretold.get("driver_by_runfile")):
                self.units[name] = unit
        if loaded and loaded != self.facts.driver_userspace:
            self.units = {name: replace(unit, active=False, died=True) if name in SERVICES and unit.active else unit
                          for name, unit in self.units.items()}

    def shortcoming(self, policy: Policy) -> str:
        """A layout belongs to a driver that is there."""
        gone = "nvidia" in self.modules and self.divided and not self.instances
        return "MIG instances are gone" if gone and policy.state == "present" else ""

    def suppose(self, policy: Policy) -> None:
        if policy.assume_pods_evicted:
            self.programs = tuple(holder for holder in self.programs if not holder.pod)

    def confirm(self) -> None:
        self.facts = self.facts.but(key_pending="")

    def boot(self) -> None:
        super().boot()
        self.stopped, self.unloaded, self.programs, self.nodes, self.worn = [], [], (), (), False
        self.instances, self.undivided, self.container = self.divided, False, DriverContainer()
        there = self.facts.but(driver_installed=self.facts.driver_boots or self.facts.driver_installed,
                               nouveau_loaded=False)
        self.modules = dict.fromkeys((*planner.LOADED, *there.peer_modules) if MODULES_FILE in self.files else (), 0)
        self.facts = there.but(driver_loaded=there.driver_installed if self.modules else "",
                               module_loaded=there.module_installed if self.modules else "")
        self._have((planner.GDRDRV_NODE,) if "gdrdrv" in self.modules else ())
        if self.modules and self.unit(UNIT).enabled and self.modprobe:
            self._have((*planner.gpu_nodes(range(len(there.gpus))), *UVM_NODES, *planner.MODESET_NODES))

    def _have(self, nodes: Tuple[str, ...]) -> None:
        self.nodes = tuple(dict.fromkeys(self.nodes + nodes))
        self.stale = tuple(node for node in self.stale if node in self.nodes and node not in nodes)
        self.facts = self.facts.but(control_nodes=tuple(
            node for node in CONTROL_NODES if node in self.nodes and node not in self.stale))

    def _note(self, step: Step, noted: List[str]) -> None:
        if step.subject not in noted:
            noted.append(step.subject)

    # verbs

    def module_load(self, step: Step) -> None:
        assert step.subject not in self.modules, "%s is loaded already" % step.subject
        assert self.container == DriverContainer(stranger=self.container.stranger), "a container's driver is there"
        self.modules[step.subject] = 0
        self.unloaded = [name for name in self.unloaded if name != step.subject]
        if step.subject == "gdrdrv":
            self._made_stale((planner.GDRDRV_NODE,))
        if step.subject == planner.UVM:
            self._made_stale(UVM_NODES)
        if step.subject == "nvidia":
            self.minors = tuple(range(len(self.facts.gpus)))
            self.facts = self.facts.but(driver_loaded=self.facts.driver_installed,
                                        module_loaded=self.facts.module_installed)

    def _made_stale(self, nodes: Tuple[str, ...]) -> None:
        self.stale += tuple(node for node in self.nodes if node in nodes and node not in self.stale)
        self._have(())

    def module_unload(self, step: Step) -> Disruption:
        uses = self.observe(Policy(), self.facts).modules[step.subject]
        assert uses == 0, "rmmod: module %s is in use %d times" % (step.subject, uses)
        del self.modules[step.subject]
        self._note(step, self.unloaded)
        if step.subject == "nvidia":
            self.minors, self.worn = (), False
            self.instances, self.undivided = False, self.divided
            self.facts = self.facts.but(driver_loaded="", module_loaded="")
        return Disruption.driver_reload

    def container_unmount(self, step: Step) -> Disruption:
        assert self.container.mounted and not self.container.is_at_work
        self.container = replace(self.container, mounted=False)
        return Disruption.driver_reload if "nvidia" in self.modules else Disruption.none

    def firmware_reset(self, step: Step) -> None:
        assert self.container.firmware
        self.container = replace(self.container, firmware=False)

    def container_forget(self, step: Step) -> None:
        assert tuple(step.change["before"]) == self.container.files
        self.container = replace(self.container, files=())

    def devices_create(self, step: Step) -> None:
        assert ("gdrdrv" if step.change["after"] == {planner.GDRDRV_NODE: "node"} else "nvidia") in self.modules, \
            "no driver makes these nodes"
        self._have(tuple(step.change["after"]))

    def devices_remove(self, step: Step) -> None:
        self.nodes = tuple(node for node in self.nodes if node not in step.change["before"])
        self._have(())

    def service_stop(self, step: Step) -> Optional[Disruption]:
        self._note(step, self.stopped)
        return super().service_stop(step)

    def service_start(self, step: Step) -> None:
        assert "nvidia" in self.modules, "%s fails without a driver" % step.subject
        assert self.instances == self.divided or step.subject not in planner.AFTER_LAYOUT, "%s sees none" % step.id
        super().service_start(step)
        self.stopped = [name for name in self.stopped if name != step.subject]

    def file_restore(self, step: Step) -> None:
        super().file_restore(step)
        self.stopped, self.unloaded, self.undivided = [], [], False

    # what scenarios say

    def say_node(self, path: str) -> None:
        """A program has made it."""
        self._have((path,))

    def say_installed(self, version: str, *module: str) -> None:
        """The driver's packages are there."""
        self.come_true({"driver_installed": version, "driver_boots": version, "driver_userspace": version,
                        "module_installed": module[0] if module else ""})

    def layout_restore(self, step: Step) -> None:
        """The driver is there, and nobody who needs the instances has started yet."""
        assert self.facts.driver_loaded and not self.unit("nvidia-dcgm.service").active
        self.instances, self.undivided = True, False

    def say_divided(self) -> None:
        """A boot restores a layout of MIG instances."""
        self.divided = self.instances = True

    def say_ours(self) -> None:
        """The driver came through us."""
        self.ours = True

    def say_no(self, program: str) -> None:
        assert program == "nvidia-modprobe"
        self.modprobe = False

    def say_module(self, name: str, *states: str) -> None:
        """It is loaded; 'used' by the kernel itself, and of another package 'not built', or 'built VERSION'."""
        self.modules[name] = 1 if states == ("used",) else 0
        if name in OTHERS:
            self.others[name] = None if not states else "" if states[0] == "before" else states[1]

    def say_gone(self, *names: str) -> None:
        """Modules or device nodes are not there any more."""
        self.modules = {name: uses for name, uses in self.modules.items() if name not in names}
        self.nodes = tuple(node for node in self.nodes if node not in names)
        self._have(())

    def say_program(self, name: str, owner: str) -> None:
        """A program has a GPU open: one of a unit, or of a 'pod'."""
        pod = POD if owner == "pod" else ""
        self.programs += (Holder(42, name, ("/dev/nvidia0",), "" if pod else owner, pod),)

    def say_given_up(self) -> None:
        """A repair wants the driver loaded anew."""
        self.worn = True

    def say_container(self, version: str, *states: str) -> None:
        """A driver container has loaded this driver; 'gone': it was killed, and 'ended': as it was told to; 'foreign':
        somebody else has mounted something in its place."""
        self.container = DriverContainer(
            pods=() if states else ("gpu-operator/nvidia-driver-daemonset-7xk2p",), mounted=states in ((), ("gone",)),
            stranger="ext4 /dev/sdb1" if states == ("foreign",) else "", firmware=states != ("foreign",),
            files=("/run/nvidia/nvidia-driver.state",) if states != ("foreign",) else ())
        if states in ((), ("gone",)):
            self.modules.update(dict.fromkeys(planner.LOADED, 0))
            self.facts = self.facts.but(driver_loaded=version, module_loaded="open")

    def say_minors(self, *minors: str) -> None:
        self.minors = tuple(map(int, minors))
