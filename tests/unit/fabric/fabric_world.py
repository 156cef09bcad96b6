# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the fabric do to a host in memory: its daemon, its configuration, and GPUs that register."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import assignments, daemons
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.daemons import Daemon
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import FABRIC_MANAGER_NVLSM, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.catalogue import (
    CONFIGURATION,
    INFINIBAND,
    MODULES_FILE,
    UNIT,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.observation import (
    LOADABLE,
    LOADED,
    MISSING,
    PENDING,
    REGISTERED,
    Observation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boards import works_on_without_fabric_manager

# As a package brings it, in part
SHIPPED = """\
# Fabric Manager logging levels
LOG_LEVEL=4
LOG_FILE_NAME=/var/log/fabricmanager.log

# Mode of the fabric
FABRIC_MODE=0
# UNIX_SOCKET_PATH=
"""


@dataclass
class World(world.World):
    """A host whose fabric manager comes with the driver.

    version:   of the installed fabric manager, '' if none.
    settings:  what is noted of our values: {key: {'before', 'ours'}}.
    outdated:  whether the daemon runs without what we wrote last.
    modules:   {kernel module of InfiniBand: LOADED, LOADABLE or MISSING}.
    programs:  {what NVLink 5 needs beside: whether it is there}.
    waiting:   GPUs that are not registered.
    degraded:  GPUs whose fabric is not healthy.
    noted:     the driver that was loaded when GPUs were last waited for.
    """

    capability = CAPABILITY

    version: str = ""
    settings: Dict[str, Any] = field(default_factory=dict)
    outdated: bool = False
    modules: Dict[str, str] = field(default_factory=lambda: dict.fromkeys(INFINIBAND, LOADABLE))
    programs: Dict[str, bool] = field(default_factory=lambda: {"nvlsm": False, "ibstat": False})
    waiting: Tuple[str, ...] = ()
    degraded: Tuple[Tuple[str, str], ...] = ()
    noted: Tuple[str, ...] = ()

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        absent = policy.state == "absent"
        if not absent and not (policy.managed and (there.fabric or there.imex)):
            return Observation()
        noted = {assignments.MEMORY: dict(self.settings), daemons.ENABLED: list(self.enabled),
                 REGISTERED: list(self.noted)}
        seen = Observation() if absent else Observation(
            noted=noted,
            loaded=(there.driver_loaded, there.module_loaded) if there.driver_loaded else ("", ""),
            waiting=self.waiting, degraded=self.degraded)
        if not absent and not there.fabric:
            return seen
        unit, text = self.unit(UNIT), self.files.get(CONFIGURATION)
        seen = replace(
            seen,
            daemon=Daemon(self.version, unit.known, unit.enabled, False, unit.active, "since" if unit.active else ""),
            outdated=self.outdated and unit.active,
            settings=None if text is None else assignments.values(text),
            keys=() if text is None else assignments.keys(text),
            noted=noted,
            kernel=there.kernel,
        )
        if absent:
            return replace(seen, restore=tuple(
                restore_step("fabric", path, self.files.get(path), before) for path, before in self.originals.items()))
        if there.fabric != FABRIC_MANAGER_NVLSM:
            return seen
        return replace(seen, files=self.state((MODULES_FILE,)), programs=dict(self.programs),
                       modules=dict(self.modules))

    @property
    def is_touched(self) -> bool:
        return bool(self.originals or self.enabled or self.settings or self.noted)

    def shortcoming(self, policy: Policy) -> str:
        if policy.state == "present" and policy.managed and self.facts.fabric and self.facts.driver_loaded:
            text = self.files.get(CONFIGURATION, "")
            wrong = [key for key, value in policy.config.items() if assignments.values(text).get(key) != value]
            if self.version == self.facts.driver_loaded and (not self.unit(UNIT).active or wrong or self.outdated):
                return "the fabric manager does not run as configured: %s" % wrong
        return ""

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        """Packages replace the configuration file, and a driver that is exchanged starts the daemon again."""
        before = self.facts.driver_loaded
        super().come_true(foretold)
        if foretold.get("driver_changes") or foretold.get("driver_userspace"):
            self._install(self.facts.driver_userspace)
        if before and self.facts.driver_loaded != before:
            self.outdated = False
            self.waiting = ()

    def _install(self, version: str) -> None:
        if version != self.version and self.facts.fabric:
            self.version = version
            self.files[CONFIGURATION] = SHIPPED
            self.units.setdefault(UNIT, world.Unit(known=True))
            self.programs = dict.fromkeys(self.programs, True)

    def boot(self) -> None:
        super().boot()
        self.outdated = False
        loads = self.files.get(MODULES_FILE, "")
        self.modules = {name: state if state == MISSING else LOADED if name in loads else LOADABLE
                        for name, state in self.modules.items()}

    # verbs

    def module_load(self, step: Step) -> None:
        assert self.modules[step.subject] == LOADABLE, "%s cannot be loaded" % step.subject
        self.modules[step.subject] = LOADED

    def settings_write(self, step: Step) -> None:
        there, changes = assignments.values(self.files[CONFIGURATION]), step.change["after"]
        assert all(there.get(key) != value for key, value in changes.items()), "nothing is changed"
        self.settings = assignments.noted_after(self.settings, there, changes)
        self.files[CONFIGURATION] = assignments.edited(self.files[CONFIGURATION], step.change["after"])
        self.outdated = self.unit(UNIT).active

    def settings_restore(self, step: Step) -> None:
        self.files[CONFIGURATION] = assignments.edited(self.files[CONFIGURATION], step.change["after"])
        self.settings = {}

    def service_start(self, step: Step) -> None:
        self._runs()
        super().service_start(step)

    def service_restart(self, step: Step) -> Disruption:
        self._runs()
        assert self.unit(UNIT).active
        outlives = works_on_without_fabric_manager(gpu.device_id for gpu in self.facts.gpus)
        return Disruption.service_restart if outlives else Disruption.gpu_reset

    def _runs(self) -> None:
        assert self.version == self.facts.driver_loaded, "it ends beside another driver"
        if self.facts.fabric == FABRIC_MANAGER_NVLSM:
            assert set(self.modules.values()) == {LOADED}, "it finds no switches"
        self.outdated = False
        self.noted = PENDING

    def fabric_wait(self, step: Step) -> None:
        assert not self.facts.fabric or self.unit(UNIT).active, "nobody configures the fabric"
        self.waiting = ()
        self.noted = (self.facts.driver_loaded, self.facts.module_loaded)

    def fabric_forget(self, step: Step) -> None:
        self.noted = ()

    # what scenarios say

    def say_installed(self, version: str, *fabric_manager: str) -> None:
        """The driver is there and loaded, with a fabric manager of its version or another one, or 'none'."""
        self.facts = self.facts.but(driver_installed=version, driver_boots=version, driver_userspace=version,
                                    driver_loaded=version)
        other = fabric_manager[0] if fabric_manager else version
        if other != "none":
            self._install(other)

    def say_lacks(self, *names: str) -> None:
        """Modules of the kernel, or programs, are not there."""
        self.modules.update({name: MISSING for name in names if name in self.modules})
        self.programs.update({name: False for name in names if name in self.programs})

    def say_waiting(self, *gpus: str) -> None:
        self.waiting = gpus

    def say_degraded(self, found: str, remedy: str) -> None:
        self.degraded = ((found, remedy),)

    def say_replaced(self) -> None:
        """The package is unpacked again."""
        self.files[CONFIGURATION] = SHIPPED
