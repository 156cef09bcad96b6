# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the agent's steps do to a host in memory: archives, the policy, the command."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import boot, detector
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.observation import A_POLICY, Observation
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
    """

    capability = CAPABILITY

    told: str = ""
    code: str = "11111111111111111111.zip"
    archives: List[str] = field(default_factory=list)
    wanted: str = ""

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        restore = tuple(
            restore_step("agent", path, *((A_POLICY, None) if path == POLICY_FILE else (self.files.get(path), before)))
            for path, before in self.originals.items())
        enabled = self.unit(boot.UNIT).enabled
        held = boot.DROP_IN in self.files and not self.unit(boot.KUBELET).active
        if policy.state == "absent":
            order = (boot.DROP_IN, boot.UNIT_FILE, *detector.FILES, POLICY_FILE)
            return Observation(told=self.told, archives=tuple(self.archives), enabled=enabled, held=held, restore=tuple(
                sorted(restore, key=lambda step: order.index(step.subject) if step.subject in order else len(order))))
        return Observation(
            told=self.told if policy.node_condition == SILENT else "",
            code=self.code, python="/usr/bin/python3", archives=tuple(self.archives),
            is_whole=self.code in self.archives, has_policy=POLICY_FILE in self.files,
            is_current=self.files.get(POLICY_FILE) == policy.text, text=self.files.get(policy.command),
            units=self.state(boot.FILES), detector=self.state(detector.files(policy.problem_detector)),
            enabled=enabled, held=held,
            others={unit: self.unit(unit).known for unit in boot.UNITS},
            restore=tuple(step for step in restore if step.subject not in (
                policy.command, POLICY_FILE, *boot.FILES, *detector.files(policy.problem_detector))))

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
        return "" if ran == [self.code] and self.archives == ran else "the command runs %s" % ran

    # verbs

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
