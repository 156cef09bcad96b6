# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The NVIDIA container toolkit as a capability: packages of one version and its configuration."""
from __future__ import annotations

from ..core.capability import Capability
from ..packages import torn
from ..packages.apt import credentials
from ..packages.provenance import Provenance
from .executors import EXECUTORS
from .judge import judge
from .observation import observe
from .planner import NAME, facts_after, plan
from .policy import ARGUMENTS, policy_of

CAPABILITY = Capability(NAME, ARGUMENTS, policy_of, observe, plan, {**torn.EXECUTORS, **EXECUTORS}, facts_after, judge,
                        secret_executors=credentials.executors, transactions=Provenance())
