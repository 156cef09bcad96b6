# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of IMEX do to a host in memory: its daemon in three modes, its files, its channel."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import assignments, daemons
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.daemons import Daemon
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.catalogue import (
    CHANNEL0_OPTION,
    CONFIGURATION,
    COUNT_OPTION,
    MODULE_FILE,
    NODES_FILE,
    READY,
    UNIT,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.observation import DISABLED, MASKED, Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.planner import nodes_text
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.policy import HOST, Policy

# As a package brings it, in part
SHIPPED = "LOG_LEVEL=4\nIMEX_WAIT_FOR_QUORUM=RECOVERY\n"
CLIQUE = "a1b2c3d4-0000-4000-8000-72727272000a.2"


@dataclass
class World(world.World):
    """A host of a rack whose IMEX comes with the driver.

    version:  of the installed IMEX, '' if none.
    settings: what is noted of our values: {key: {'before', 'ours'}}.
    outdated: whether the daemon runs without what we wrote last.
    masked:   whether the unit is masked.
    noted:    how the unit was before we masked it, '' where we did not.
    disabled: whether we disabled it.
    channel0: whether the channel's node is there.
    channels: number of channels of the loaded driver.
    others_count: what it has where our file names none.
    cliques:  of its GPUs.
    """

    capability = CAPABILITY

    version: str = ""
    settings: Dict[str, Any] = field(default_factory=dict)
    outdated: bool = False
    masked: bool = False
    noted: str = ""
    disabled: bool = False
    channel0: bool = False
    channels: str = "2048"
    others_count: str = "2048"
    cliques: Tuple[str, ...] = (CLIQUE,)
    registering: bool = False
    error: str = ""
    broken: bool = False

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        absent = policy.state == "absent"
        if not (self.is_touched if absent else there.imex):
            return Observation()
        unit, text = self.unit(UNIT), self.files.get(CONFIGURATION)
        seen = Observation(
            daemon=Daemon(self.version, unit.known, unit.enabled and not self.masked, self.masked, unit.active,
                          "since" if unit.active else ""),
            outdated=self.outdated and unit.active,
            nodes=self.files.get(NODES_FILE),
            settings=None if text is None else assignments.values(text),
            keys=() if text is None else assignments.keys(text),
            noted={assignments.MEMORY: dict(self.settings), daemons.ENABLED: list(self.enabled), MASKED: self.noted,
                   DISABLED: self.disabled},
            options=self.files.get(MODULE_FILE),
            restore=tuple(restore_step("imex", path, self.files.get(path), before)
                          for path, before in sorted(self.originals.items())),
        )
        if absent or policy.mode != HOST:
            return seen
        loaded = bool(there.driver_loaded)
        return replace(
            seen, ready="" if not unit.active else "NOT READY" if self.broken else READY, channel0=self.channel0,
            channels=self.channels if loaded else "",
            loaded=(there.driver_loaded, there.module_loaded) if loaded else ("", ""),
            cliques=self.cliques if loaded else (), registering=self.registering, error=self.error)

    @property
    def is_touched(self) -> bool:
        return bool(self.originals or self.enabled or self.settings or self.noted or self.disabled)

    def of_others(self) -> Dict[str, Any]:
        return dict(super().of_others(), masked=self.masked)

    def shortcoming(self, policy: Policy) -> str:
        unit = self.unit(UNIT)
        if policy.state == "absent" or not self.facts.imex:
            return ""
        if policy.mode != HOST:
            return "it runs" if unit.active else ""
        if policy.nodes and self.facts.driver_loaded == self.version and self.cliques:
            if self.files.get(NODES_FILE) != nodes_text(policy.nodes) or not unit.active or self.outdated:
                return "it does not run with this list of nodes"
        return ""

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        before = self.facts.driver_loaded
        super().come_true(foretold)
        if foretold.get("driver_changes") or foretold.get("driver_userspace"):
            self._install(self.facts.driver_userspace)
        if self.facts.driver_loaded != before:
            self._loaded()

    def _install(self, version: str) -> None:
        if version != self.version and self.facts.imex:
            self.version = version
            self.files.setdefault(CONFIGURATION, SHIPPED)
            self.files.setdefault(NODES_FILE, "")
            self.units.setdefault(UNIT, world.Unit(known=True))

    def _loaded(self) -> None:
        """A driver reads its options when it is loaded."""
        options = dict(word.split("=") for word in self.files.get(MODULE_FILE, "").split() if "=" in word)
        self.channel0 = options.get(CHANNEL0_OPTION) == "1"
        self.channels = options.get(COUNT_OPTION, self.others_count)
        self.outdated = False

    def boot(self) -> None:
        super().boot()
        if self.masked:
            self.units[UNIT] = replace(self.unit(UNIT), active=False)
        self._loaded()

    # verbs

    def nodes_write(self, step: Step) -> None:
        self.originals.setdefault(step.subject, self.files.get(step.subject))
        text = nodes_text(tuple(step.change["after"]["nodes"].split()))
        assert self.files.get(step.subject) != text, "nothing is changed"
        self.files[step.subject] = text
        self.outdated = self.unit(UNIT).active

    def settings_write(self, step: Step) -> None:
        there, changes = assignments.values(self.files[CONFIGURATION]), step.change["after"]
        assert all(there.get(key) != value for key, value in changes.items()), "nothing is changed"
        self.settings = assignments.noted_after(self.settings, there, changes)
        self.files[CONFIGURATION] = assignments.edited(self.files[CONFIGURATION], changes)
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
        return Disruption.gpu_reset

    def service_stop(self, step: Step) -> Disruption:
        super().service_stop(step)
        return Disruption.gpu_reset

    def _runs(self) -> None:
        assert not self.masked, "a masked unit does not start"
        assert self.version == self.facts.driver_loaded, "it ends beside another driver"
        assert self.files.get(NODES_FILE), "it ends without nodes"
        self.outdated = False

    def service_mask(self, step: Step) -> None:
        if not self.noted:
            self.noted = "enabled" if self.unit(UNIT).enabled else "disabled"
        self.masked = True

    def service_unmask(self, step: Step) -> None:
        self.masked, self.noted = False, ""

    def service_enable(self, step: Step) -> None:
        assert not self.masked, "a masked unit is not enabled"
        ours = list(self.enabled)
        super().service_enable(step)
        if self.disabled:
            self.disabled, self.enabled = False, ours

    def service_disable(self, step: Step) -> None:
        self.disabled = self.disabled or step.subject not in self.enabled
        super().service_disable(step)

    def channel_create(self, step: Step) -> None:
        self.channel0 = True

    def imex_wait(self, step: Step) -> None:
        assert self.unit(UNIT).active, "it does not run"
        self.broken = False

    # what scenarios say

    def say_installed(self, version: str, *imex: str) -> None:
        """The driver is there and loaded, with IMEX of its version or another one, or 'none'."""
        self.facts = self.facts.but(driver_installed=version, driver_boots=version, driver_userspace=version,
                                    driver_loaded=version)
        other = imex[0] if imex else version
        if other != "none":
            self._install(other)

    def say_channels(self, count: str) -> None:
        """By somebody else's options, which the loaded driver has read."""
        self.channels = self.others_count = count

    def say_masked(self) -> None:
        """By somebody else."""
        self.masked = True

    def say_alone(self) -> None:
        self.cliques = ()

    def say_registering(self) -> None:
        self.registering, self.cliques = True, ()

    def say_error(self, error: str) -> None:
        self.error, self.cliques = error, ()

    def say_broken(self) -> None:
        """The daemon runs and is not ready."""
        self.broken = True
