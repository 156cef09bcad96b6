# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the agent's steps do to a host in memory: archives, the policy, the command."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import boot, detector, watch
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.observation import A_POLICY, Observation, Watching
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.policy import POLICY_FILE, SILENT, Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step


@dataclass
class World(world.World):
    """
    code:     the archive that the module runs from.
    archives: those that the host has, each whole.
    wanted:   text of the policy that is carried out.
    told:     the Node of which the host has said something.
    watches:  the archive that the unit which watches runs from, '' while it does not run.
    """

    capability = CAPABILITY

    told: str = ""
    code: str = "11111111111111111111.zip"
    archives: List[str] = field(default_factory=list)
    wanted: str = ""
    watches: str = ""

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        restore = tuple(
            restore_step("agent", path, *((A_POLICY, None) if path == POLICY_FILE else (self.files.get(path), before)))
            for path, before in self.originals.items())
        enabled = self.unit(boot.UNIT).enabled
        held = boot.DROP_IN in self.files and not self.unit(boot.KUBELET).active
        watching = Watching(self.state(watch.FILES), self.unit(watch.UNIT).enabled, self.unit(watch.UNIT).active,
                            self.watches if self.unit(watch.UNIT).active else "")
        if policy.state == "absent":
            order = (boot.DROP_IN, boot.UNIT_FILE, watch.UNIT_FILE, watch.SCRIPT, *detector.FILES, POLICY_FILE)
            return Observation(
                told=self.told, archives=tuple(self.archives), enabled=enabled, held=held, watching=watching,
                restore=tuple(sorted(
                    restore, key=lambda step: order.index(step.subject) if step.subject in order else len(order))))
        return Observation(
            told=self.told if policy.node_condition == SILENT else "",
            code=self.code, python="/usr/bin/python3", archives=tuple(self.archives),
            is_whole=self.code in self.archives, has_policy=POLICY_FILE in self.files,
            is_current=self.files.get(POLICY_FILE) == policy.text, text=self.files.get(policy.command),
            units=self.state(boot.FILES), detector=self.state(detector.files(policy.problem_detector)),
            enabled=enabled, held=held, watching=watching,
            others={unit: self.unit(unit).known for unit in boot.UNITS},
            restore=tuple(step for step in restore if step.subject not in (
                policy.command, POLICY_FILE, *boot.FILES, *watch.FILES, *detector.files(policy.problem_detector))))

    def suppose(self, policy: Policy) -> None:
        self.wanted = policy.text

    def of_others(self) -> Dict[str, Any]:
        return {**super().of_others(), "archives": list(self.archives)}

    @property
    def is_touched(self) -> bool:
        return super().is_touched or bool(self.archives)

    def shortcoming(self, policy: Policy) -> str:
        if policy.state == "absent":
            return ""
        ran = [name for name in self.archives if name in self.files.get(policy.command, "")]
        requires, unit = boot.DROP_IN in self.files, boot.UNIT_FILE in self.files
        if requires and not unit:
            return "the kubelet requires a unit that is not there"
        if policy.watch != self.unit(watch.UNIT).active or (policy.watch and self.watches != self.code):
            return "what watches is '%s'" % (self.watches if self.unit(watch.UNIT).active else "")
        return "" if ran == [self.code] and self.archives == ran else "the command runs %s" % ran

    def boot(self) -> None:
        super().boot()
        self.watches = self._commanded() if self.unit(watch.UNIT).active else ""

    def _commanded(self) -> str:
        """The archive that the script's command runs."""
        command = self.files[watch.SCRIPT].split()[-2]
        return next(name for name in self.archives if name in self.files[command])

    # verbs

    def service_start(self, step: Step) -> None:
        super().service_start(step)
        self.watches = self._commanded()
        assert self.watches == step.change["after"]

    def service_restart(self, step: Step) -> None:
        assert self.unit(step.subject).active
        self.service_start(step)

    def service_stop(self, step: Step) -> None:
        """Nobody is disturbed: it holds nothing of a GPU."""
        assert super().service_stop(step) is not None, "%s does not run" % step.subject

    def file_restore(self, step: Step) -> None:
        if step.subject == POLICY_FILE:
            del self.files[POLICY_FILE], self.originals[POLICY_FILE]
        else:
            super().file_restore(step)

    def agent_untell(self, step: Step) -> None:
        assert step.subject == self.told
        self.told = ""

    def agent_reload(self, step: Step) -> None:
        assert boot.DROP_IN not in self.files, "the kubelet would be held for good"

    def agent_install(self, step: Step) -> None:
        self.archives.append(step.subject)

    def agent_policy(self, step: Step) -> None:
        self.originals.setdefault(step.subject, self.files.get(step.subject))
        self.files[step.subject] = self.wanted

    def agent_tidy(self, step: Step) -> None:
        assert step.change["before"]["archives"] == [name for name in self.archives if name != step.parameters["stays"]]
        self.archives = [step.parameters["stays"]] if step.parameters["stays"] else []

    # what scenarios say

    def say_told(self, node: str) -> None:
        """The host has said something of this Node."""
        self.told = node

    def say_release(self, code: str) -> None:
        """Another one of the collection runs from now on."""
        self.code = code

    def say_dies(self) -> None:
        """What watches has ended, and systemd does not start it any more."""
        self.units[watch.UNIT] = replace(self.unit(watch.UNIT), active=False)
