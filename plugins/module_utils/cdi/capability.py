# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The CDI specification as a capability: it describes the devices that are there."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import observe
from .planner import NAME, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS)
