# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The NVLink fabric of a board as a capability: its fabric manager runs as configured, and every GPU is registered."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import NAME, observe
from .planner import facts_after, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, facts_after)
