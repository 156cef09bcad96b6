# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The three capabilities of the container runtime: toolkit, runtime handler, CDI specification."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ..core.capability import Capability
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Plan
from ..core.steps import Executor
from ..packages.apt import credentials
from ..packages.model import Credentials
from . import executors, planner
from . import observation as observation_module
from . import policy as policy_module
from .cdi import executors as cdi_executors
from .cdi import observation as cdi_observation
from .cdi import planner as cdi_planner
from .cdi import policy as cdi_policy
from .model import RuntimeObservation
from .policy import RuntimePolicy
from .toolkit import executors as toolkit_executors
from .toolkit import judge as toolkit_judge
from .toolkit import observation as toolkit_observation
from .toolkit import planner as toolkit_planner
from .toolkit import policy as toolkit_policy


class Toolkit(Capability[toolkit_policy.ToolkitPolicy, toolkit_observation.ToolkitObservation]):
    """The NVIDIA container toolkit: packages of one version and its configuration."""

    name = toolkit_planner.NAME
    arguments = toolkit_policy.ARGUMENTS

    def __init__(self) -> None:
        self._credentials: Optional[Credentials] = None

    def policy(self, parameters: Mapping[str, Any]) -> toolkit_policy.ToolkitPolicy:
        """The executor of credentials gets them from here: no step, plan or journal carries them."""
        wanted = toolkit_policy.policy_of(parameters)
        self._credentials = wanted.credentials
        return wanted

    def observe(
        self, host: Host, journal: Journal, policy: toolkit_policy.ToolkitPolicy
    ) -> toolkit_observation.ToolkitObservation:
        return toolkit_judge.observe(host, journal, policy)

    def plan(
        self,
        observation: toolkit_observation.ToolkitObservation,
        policy: toolkit_policy.ToolkitPolicy,
        facts: HostFacts,
    ) -> Plan:
        return toolkit_planner.plan(observation, policy, facts)

    def facts_after(
        self,
        observation: toolkit_observation.ToolkitObservation,
        policy: toolkit_policy.ToolkitPolicy,
        facts: HostFacts,
        plan: Plan,
    ) -> HostFacts:
        return toolkit_planner.facts_after(observation, policy, facts, plan)

    def executors(self) -> Dict[str, Executor]:
        return {**toolkit_executors.EXECUTORS, credentials.WRITE: credentials.writer(self._credentials)}


class Runtime(Capability[RuntimePolicy, RuntimeObservation]):
    """A container runtime with handlers for GPUs."""

    name = planner.NAME
    arguments = policy_module.ARGUMENTS

    def policy(self, parameters: Mapping[str, Any]) -> RuntimePolicy:
        return policy_module.policy_of(parameters)

    def observe(self, host: Host, journal: Journal, policy: RuntimePolicy) -> RuntimeObservation:
        return observation_module.observe(host, journal, policy)

    def plan(self, observation: RuntimeObservation, policy: RuntimePolicy, facts: HostFacts) -> Plan:
        return planner.plan(observation, policy, facts)

    def executors(self) -> Dict[str, Executor]:
        return executors.EXECUTORS


class Cdi(Capability[cdi_policy.CdiPolicy, cdi_observation.CdiObservation]):
    """A CDI specification that describes the devices."""

    name = cdi_planner.NAME
    arguments = cdi_policy.ARGUMENTS

    def policy(self, parameters: Mapping[str, Any]) -> cdi_policy.CdiPolicy:
        return cdi_policy.policy_of(parameters)

    def observe(self, host: Host, journal: Journal, policy: cdi_policy.CdiPolicy) -> cdi_observation.CdiObservation:
        return cdi_observation.observe(host, journal, policy)

    def plan(
        self, observation: cdi_observation.CdiObservation, policy: cdi_policy.CdiPolicy, facts: HostFacts
    ) -> Plan:
        return cdi_planner.plan(observation, policy, facts)

    def executors(self) -> Dict[str, Executor]:
        return cdi_executors.EXECUTORS
