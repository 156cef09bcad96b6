# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of GPUs as a capability: power, clocks and modes, now and after a boot."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import NAME, observe
from .planner import CHANGE, CHANGE_ECC, KEEP_ECC, UNLOCK, facts_after, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, facts_after,
                        assumptions=("assume_pods_evicted",), independent=(CHANGE, UNLOCK, KEEP_ECC, CHANGE_ECC))
