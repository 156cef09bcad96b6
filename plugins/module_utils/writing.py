# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a capability to its own module.

It knows no capability by name but by what it is given: most of the time of a call on a host is Python that imports, and
all capabilities together are five times as much of it as most of them alone.
"""
from __future__ import annotations

from typing import Any, Mapping, Sequence

from .core.capability import Capability
from .core.facts import HostFacts
from .core.host import Host
from .core.module import run_writer
from .hardware.awaited import foreseen
from .hardware.node import host_facts, host_facts_and_health
from .runtime.low_level import in_use

# The option of those that plan for hardware which is not there yet
BOARDS = "boards"


def write(capability: Capability[Any, Any]) -> None:
    """Main function of a capability's own module."""
    read = _READERS.get(capability.name, host_facts)
    run_writer(capability, lambda host, parameters: foreseen(read(host), boards_of(parameters)))


def boards_of(options: Mapping[str, Any]) -> Sequence[str]:
    """Boards that a capability is to plan for; what is taken back needs none."""
    return () if options.get("state") == "absent" else options.get(BOARDS) or ()


def _facts_and_runtimes(host: Host) -> HostFacts:
    return host_facts(host).but(low_level_runtimes=in_use(host))


# Who plans with more than host_facts: what the GPUs answer, which takes a minute where one hangs, or what starts
# containers
_READERS = {"toolkit": _facts_and_runtimes,
            **dict.fromkeys(("repair", "activation", "vgpu", "fabric", "imex", "settings", "mig", "cdi"),
                            host_facts_and_health)}
