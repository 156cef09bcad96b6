# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeping nouveau away from the GPUs, as a capability."""
from __future__ import annotations

from typing import Any, Dict, Mapping

from ...core.capability import Capability
from ...core.facts import HostFacts
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Plan
from ...core.steps import Executor
from . import executors, observation, planner
from .observation import Observation
from .policy import Policy, from_parameters


class Nouveau(Capability[Policy, Observation]):
    """The blacklist, the initramfs and the loaded module."""

    name = planner.NAME
    arguments: Dict[str, Any] = {"state": {"type": "str", "choices": ["present", "absent"], "default": "present"}}

    def policy(self, parameters: Mapping[str, Any]) -> Policy:
        return from_parameters(parameters)

    def observe(self, host: Host, journal: Journal, policy: Policy) -> Observation:
        return observation.observe(host, journal, policy)

    def plan(self, observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
        return planner.plan(observation, policy, facts)

    def facts_after(self, observation: Observation, policy: Policy, facts: HostFacts, plan: Plan) -> HostFacts:
        return planner.facts_after(policy, facts, plan)

    def executors(self) -> Dict[str, Executor]:
        return executors.executors()
