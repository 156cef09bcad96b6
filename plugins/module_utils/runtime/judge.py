# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the runtime's own program says of the files as they would be written."""
from __future__ import annotations

from typing import Sequence

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.plan import Plan
from ..core.refusal import Refusal
from .backends.known import BACKENDS
from .model import Observation
from .planner import FORGET
from .policy import Policy


def judge(host: Host, observation: Observation, policy: Policy, plan: Plan) -> Sequence[Refusal]:
    """Nobody is asked on a host whose files stay and whose daemon goes on."""
    service = observation.service
    if service is None or all(step.action == FORGET for step in plan.steps):
        return ()
    try:
        BACKENDS[service.backend].judge(host, service, observation.reading, policy)
    except GpuOpsError as error:
        return error.refusals
    return ()
