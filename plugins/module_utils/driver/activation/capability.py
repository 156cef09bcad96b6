# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The loaded driver as a capability: it is the installed one."""
from __future__ import annotations

from typing import Any, Dict, Mapping

from ...core.capability import Capability
from ...core.facts import HostFacts
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Plan
from ...core.steps import Executor
from ...hardware.node import host_facts
from . import executors, observation, planner
from .observation import Observation
from .policy import Policy, from_parameters


class Activation(Capability[Policy, Observation]):
    """Kernel modules, device nodes and daemons of the installed driver."""

    name = planner.NAME
    arguments: Dict[str, Any] = {
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "persistence": {"type": "bool", "default": True},
        "fabric_manager": {"type": "str", "choices": ["auto", "absent"], "default": "auto"},
        "pods_leave": {"type": "bool", "default": False},
    }
    assumptions = ("pods_leave",)

    def policy(self, parameters: Mapping[str, Any]) -> Policy:
        return from_parameters(parameters)

    def observe(self, host: Host, journal: Journal, policy: Policy) -> Observation:
        return observation.observe(host, journal, host_facts(host))

    def plan(self, observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
        return planner.plan(observation, policy, facts)

    def facts_after(self, observation: Observation, policy: Policy, facts: HostFacts, plan: Plan) -> HostFacts:
        return planner.facts_after(policy, facts, plan)

    def executors(self) -> Dict[str, Executor]:
        return executors.executors()
