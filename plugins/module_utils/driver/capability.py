# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver as a capability: one exact version of all its packages, from one source, held.

Its two neighbours, Nouveau and Activation, are named here too, so that the room has one door.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ..core.capability import Capability
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Plan
from ..core.steps import Executor
from ..hardware.node import host_facts
from ..packages.apt import credentials
from ..packages.model import Credentials
from . import executors, observation, planner
from .activation.capability import Activation
from .nouveau.capability import Nouveau
from .observation import Observation
from .policy import SOURCES, Policy, from_parameters

__all__ = ("Activation", "Driver", "Nouveau")

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "staged", "absent"], "default": "present"},
    "source": {"type": "str", "choices": list(SOURCES), "default": "nvidia_repository"},
    "version": {"type": "str", "default": ""},
    "kernel_module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "flavour": {"type": "str", "choices": ["headless", "full"], "default": "headless"},
    "repository_url": {"type": "str", "default": ""},
    "repository_key": {"type": "str", "default": "", "no_log": False},
    "repository_key_fingerprint": {"type": "str", "default": "", "no_log": False},
    "fabric_manager": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
    "extra_packages": {"type": "list", "elements": "str", "default": []},
    "kernel_headers": {"type": "bool", "default": True},
    "lock": {"type": "bool", "default": True},
    "secure_boot": {"type": "str", "choices": ["require_signed", "ignore"], "default": "require_signed"},
}


class Driver(Capability[Policy, Observation]):
    """Packages of the driver."""

    name = planner.NAME
    arguments = ARGUMENTS

    def __init__(self) -> None:
        self._credentials: Optional[Credentials] = None

    def policy(self, parameters: Mapping[str, Any]) -> Policy:
        """The executor of credentials gets them from here: no step, plan or journal carries them."""
        wanted = from_parameters(parameters)
        self._credentials = wanted.credentials
        return wanted

    def observe(self, host: Host, journal: Journal, policy: Policy) -> Observation:
        return observation.observe(host, journal, policy, host_facts(host))

    def plan(self, observation: Observation, policy: Policy, facts: HostFacts) -> Plan:
        return planner.plan(observation, policy, facts)

    def facts_after(self, observation: Observation, policy: Policy, facts: HostFacts, plan: Plan) -> HostFacts:
        return planner.facts_after(observation, policy, facts, plan)

    def executors(self) -> Dict[str, Executor]:
        return {**executors.executors(), credentials.WRITE: credentials.writer(self._credentials)}
