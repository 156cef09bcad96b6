# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the container runtime: which one it is, and what its backend reads of it."""
from __future__ import annotations

from dataclasses import replace
from typing import Tuple

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from .backends.known import BACKENDS
from .detection import find
from .memory import MEMORY, recall
from .model import Observation
from .policy import Policy


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    try:
        service = find(host, policy.runtime, policy.config_file)
    except GpuOpsError as error:
        return Observation(None, error.refusals)
    if service is None:
        return Observation(None)
    try:
        observation = BACKENDS[service.backend].observe(host, journal, policy, service)
    except GpuOpsError as error:
        return Observation(service, error.refusals)
    ignoring = recall(journal, service.name).get("reload_ignored")
    return replace(observation, as_before=() if policy.present else _as_before(host, journal),
                   reload_ignored=service.pid != 0 and ignoring == service.pid)


def _as_before(host: Host, journal: Journal) -> Tuple[str, ...]:
    return tuple(original.path for original in journal.originals(MEMORY)
                 if host.read_bytes(original.path) == original.content)
