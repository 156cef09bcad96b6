# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what is there to the settings that are wanted. Pure."""
from __future__ import annotations

from ..core.facts import HostFacts
from ..core.plan import Plan
from ..core.steps import file_step, managed
from .observation import FILE, NAME, Observation
from .policy import Policy


def plan(seen: Observation, policy: Policy, facts: HostFacts) -> Plan:
    if policy.state == "absent":
        return Plan(steps=seen.restorable)
    text = managed("".join(line + "\n" for line in policy.lines))
    if seen.text == text:
        return Plan()
    return Plan(steps=(file_step(NAME, FILE, seen.text, text, "The next boot takes these settings."),))
