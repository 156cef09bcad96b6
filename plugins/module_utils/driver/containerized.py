# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that a driver container has loaded goes for packages, where that is wanted. Pure.

Packages are fetched, and modules built, while the container still serves. Whoever runs it brings it back, so that it is
taken away by them; from then on the host is as one with another driver loaded. What the container has left is the
activation's: it goes with the modules.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional

from ..core.facts import HostFacts
from ..core.plan import Step
from ..core.refusal import Refusal
from ..hardware.driver_container import HOW, ROOT, DriverContainer, refusal_of_work
from . import rollback
from .policy import Policy


def refusals(container: DriverContainer, policy: Policy, facts: HostFacts) -> List[Refusal]:
    if not container.is_at_work and not _is_left(container, facts):
        return []
    if policy.migrate:
        return [refusal_of_work(container)] if container.is_at_work and policy.state == "present" else []
    return [Refusal(
        "driver.of_a_container",
        "a driver that a driver container brings: %s" % "; ".join(_told(container, facts)),
        "a driver from source %s, and nobody else who brings one" % policy.source,
        "leave this host to that container; or set `migrate` to true, which has the packages fetched while it serves "
        "(`state: staged`), then take it off this node: %s" % HOW, option="migrate")]


def no_way_back(container: DriverContainer, packages: Optional[Step], facts: HostFacts) -> Dict[str, Dict[str, Any]]:
    if packages is None or not _is_left(container, facts):
        return {}
    return rollback.no_way_back([packages], (
        "a driver container's is in no package; `state: absent`, and the labels of its node as they were, bring the "
        "container back"))


def _is_left(container: DriverContainer, facts: HostFacts) -> bool:
    """Where packages have brought a driver since, a mount that is left says nothing of it."""
    return container.mounted and not facts.driver_userspace


def _told(container: DriverContainer, facts: HostFacts) -> List[str]:
    return [*(["%s is loaded" % facts.driver_loaded] if facts.driver_loaded else []),
            *(["its file system is mounted at %s" % ROOT] if container.mounted else []),
            container.who or "nothing of it runs any more"]
