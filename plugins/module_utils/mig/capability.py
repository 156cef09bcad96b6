# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MIG as a capability: every GPU is divided as the policy says, now and after a boot."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS
from .observation import observe
from .planner import DIVIDE, MODE, NAME, facts_after, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, facts_after,
                        assumptions=("assume_pods_evicted",),
                        independent=(MODE, DIVIDE, "service.stop", "service.start"))
