# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The license of a vGPU guest as a capability: without one its GPUs become slow, then useless."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS, secret_executors
from .observation import NAME, observe
from .planner import plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(
    NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, secret_executors=secret_executors)
