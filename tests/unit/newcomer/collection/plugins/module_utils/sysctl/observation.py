# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the file with the kernel's settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from .policy import Policy

NAME, FILE = "sysctl", "/etc/sysctl.d/90-gpuops.conf"


@dataclass(frozen=True)
class Observation:
    text: Optional[str]
    restorable: Tuple[Step, ...]

    def to_dict(self) -> Dict[str, Any]:
        return {"text": self.text, "restorable": [step.to_dict() for step in self.restorable]}


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    return Observation(host.read(FILE), tuple(restore_steps(NAME, host, journal)))
