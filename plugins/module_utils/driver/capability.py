# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver as a capability: one exact version of all its packages, from one source, held."""
from __future__ import annotations

from ..core.capability import Capability
from .boot_arguments import EXECUTORS as BOOT_EXECUTORS
from .executors import EXECUTORS, secret_executors
from .observing import observe
from .peer_executors import EXECUTORS as PEER_EXECUTORS
from .planner import NAME, facts_after, plan
from .policy import ARGUMENTS, policy_of
from .shared_files import EXECUTORS as SHARED_EXECUTORS
from .staging_executors import Books

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan,
                        {**EXECUTORS, **PEER_EXECUTORS, **BOOT_EXECUTORS, **SHARED_EXECUTORS}, facts_after,
                        secret_executors=secret_executors, transactions=Books())
