# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The node agent as a capability: this code on the host, the host's policy beside it, and a command for both."""
from __future__ import annotations

from ..core.capability import Capability
from .executors import EXECUTORS, secret_executors
from .observation import observe
from .planner import plan
from .policy import ARGUMENTS, NAME, policy_of

CAPABILITY = Capability(
    NAME, ARGUMENTS, policy_of, observe, plan, EXECUTORS, secret_executors=secret_executors)
