# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""IMEX as a capability: the hosts of an NVLink clique share the memory of their GPUs."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import NAME, observe
from .planner import plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS)
