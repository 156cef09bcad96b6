# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of a license do to a guest in memory: its service, its files, its GPUs."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import assignments, daemons
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.daemons import Daemon
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.catalogue import CONFIGURATION, TOKEN_FILE, UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.vgpu.policy import Policy


@dataclass
class World(world.World):
    """A guest whose driver brings the service.

    settings: what is noted of our values: {key: {'before', 'ours'}}.
    outdated: whether the service runs without what we wrote last.
    masked:   whether the unit is masked.
    licensed: whether the GPUs have a license.
    others:   tokens of others.
    grants:   whether the license server gives one to whoever asks with a token.
    """

    capability = CAPABILITY

    settings: Dict[str, Any] = field(default_factory=dict)
    outdated: bool = False
    masked: bool = False
    licensed: bool = False
    others: Tuple[str, ...] = ()
    grants: bool = True

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        absent = policy.state == "absent"
        if not (self.is_touched if absent else there.vgpu_manager):
            return Observation()
        unit = self.unit(UNIT)
        seen = Observation(
            daemon=Daemon("", unit.known, unit.enabled, self.masked, unit.active, "since" if unit.active else ""),
            outdated=self.outdated and unit.active,
            text=self.files.get(CONFIGURATION),
            ours=CONFIGURATION in self.originals,
            token=self.files.get(TOKEN_FILE, ""),
            others=self.others,
            noted={assignments.MEMORY: dict(self.settings), daemons.ENABLED: list(self.enabled)},
        )
        if absent:
            return replace(seen, restore=tuple(restore_step("vgpu", path, self.files.get(path), before)
                                               for path, before in sorted(self.originals.items())))
        return replace(
            seen, loaded=there.driver_loaded, licensed=int(self.licensed),
            unlicensed=() if self.licensed or not there.driver_loaded else ("GPU 0 (0000:01:00.0)",),
            error="" if there.driver_loaded else "no driver is loaded")

    @property
    def is_touched(self) -> bool:
        return bool(self.originals or self.enabled or self.settings or self.outdated)

    def of_others(self) -> Dict[str, Any]:
        return dict(super().of_others(), masked=self.masked, tokens=self.others)

    def shortcoming(self, policy: Policy) -> str:
        is_asked = assignments.values(self.files.get(CONFIGURATION, "")).get("FeatureType") != "0"
        if policy.state != "absent" and policy.token and self.facts.vgpu_manager and self.facts.driver_loaded:
            return "the GPUs have no license" if is_asked and not self.licensed else ""
        return ""

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        super().come_true(foretold)
        if foretold.get("driver_loaded"):
            self.units.setdefault(UNIT, world.Unit(known=True))

    def boot(self) -> None:
        super().boot()
        self.outdated = self.licensed = False
        if self.unit(UNIT).active:
            self._fetch()

    def _fetch(self) -> None:
        settings = assignments.values(self.files.get(CONFIGURATION, ""))
        knows = TOKEN_FILE in self.files or self.others or settings.get("ServerAddress")
        self.licensed = bool(knows and self.grants and settings.get("FeatureType") != "0")

    # words

    def say_installed(self, version: str) -> None:
        self.facts = self.facts.but(driver_installed=version, driver_boots=version, driver_userspace=version,
                                    driver_loaded=version)
        self.units[UNIT] = world.Unit(known=True)

    def say_tokens(self, *paths: str) -> None:
        self.others = paths

    def say_masked(self) -> None:
        self.masked = True

    def say_licensed(self, answer: str) -> None:
        self.licensed = answer == "yes"

    # verbs

    def token_write(self, step: Step) -> None:
        self.originals.setdefault(step.subject, self.files.get(step.subject))
        assert step.change["before"]["token"] == (self.files.get(TOKEN_FILE) or None)
        self.files[step.subject] = step.change["after"]["token"]
        self.outdated = self.unit(UNIT).active

    def file_write(self, step: Step) -> None:
        super().file_write(step)
        self.outdated = self.unit(UNIT).active

    def settings_write(self, step: Step) -> None:
        there, changes = assignments.values(self.files[CONFIGURATION]), step.change["after"]
        assert all(there.get(key) != value for key, value in changes.items()), "nothing is changed"
        self.settings = assignments.noted_after(self.settings, there, changes)
        self.files[CONFIGURATION] = assignments.edited(self.files[CONFIGURATION], changes)
        self.outdated = self.unit(UNIT).active

    def file_restore(self, step: Step) -> None:
        super().file_restore(step)
        self.outdated = self.unit(UNIT).active

    def settings_restore(self, step: Step) -> None:
        self.outdated = self.unit(UNIT).active
        self.files[CONFIGURATION] = assignments.edited(self.files[CONFIGURATION], step.change["after"])
        self.settings = {}

    def service_start(self, step: Step) -> None:
        assert not self.masked, "a masked unit does not start"
        super().service_start(step)
        self.outdated = False
        self._fetch()

    def service_restart(self, step: Step) -> Disruption:
        assert self.unit(UNIT).active
        self.outdated = False
        self._fetch()
        return Disruption.service_restart

    def license_wait(self, step: Step) -> None:
        assert self.unit(UNIT).active, "nobody fetches a license"
        assert self.licensed, "no license comes"
