# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The repair of a host as a capability: what was found of its health is mended, as far as that can be."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS, executors_of
from .observation import observe
from .planner import facts_after, plan
from .policy import ARGUMENTS, NAME, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, facts_after,
                        secret_executors=executors_of, assumptions=("assume_pods_evicted",))
