# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What may be done about findings, and how often."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from ..health.policy import HealthPolicy
from ..health.policy import policy_of as health_policy_of

NAME = "repair"
REPAIRED, IGNORED, ABSENT = STATES = ("repaired", "ignored", "absent")
ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": REPAIRED, "choices": list(STATES)},
    "pending": {"type": "bool", "default": False},
    "tries": {"type": "int", "default": 2},
    "tries_within": {"type": "int", "default": 86400},
    "power_cycle": {"type": "bool", "default": False},
    "health": {"type": "dict", "default": {}},
    "assume_pods_evicted": {"type": "bool", "default": False},
}


@dataclass(frozen=True)
class Policy:
    """state:               one of STATES.
    pending:             whether what hurts no running work is repaired too.
    tries:               how often a remedy is tried on the same part within tries_within seconds, before the next one.
    power_cycle:         whether there is somebody who can switch the host's power off and on.
    health:              how the host is watched.
    assume_pods_evicted: whether to plan as if pods that have GPUs were gone.
    """

    state: str = REPAIRED
    pending: bool = False
    tries: int = 2
    tries_within: int = 86400
    power_cycle: bool = False
    health: HealthPolicy = field(default_factory=HealthPolicy)
    assume_pods_evicted: bool = False


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    refusals: List[Refusal] = [
        Refusal("repair.no_number", "`%s` is %d" % (name, parameters[name]), "a number of at least 1",
                "leave `%s` out, or give it as %d" % (name, ARGUMENTS[name]["default"]), option=name)
        for name in ("tries", "tries_within") if parameters[name] < 1]
    if refusals:
        raise GpuOpsError.because(refusals)
    return Policy(
        parameters["state"], parameters["pending"], parameters["tries"], parameters["tries_within"],
        parameters["power_cycle"], health_policy_of(parameters["health"] or {}), parameters["assume_pods_evicted"])
