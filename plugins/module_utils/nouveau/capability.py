# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeping nouveau away from the GPUs, as a capability: the blacklist, the initramfs and the loaded module."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import observe
from .planner import NAME, facts_after, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, facts_after)
