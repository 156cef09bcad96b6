# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user wants of the loaded driver."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "persistence": {"type": "bool", "default": True},
    "fabric_manager": {"type": "str", "choices": ["auto", "absent"], "default": "auto"},
    "repair_only": {"type": "bool", "default": False},
    "assume_pods_evicted": {"type": "bool", "default": False},
    "boards": {"type": "list", "elements": "str", "default": []},
}


@dataclass(frozen=True)
class Policy:
    """Whether the installed driver is to be the loaded one, and which of its services run then.

    state:               present loads the installed driver, absent unloads it.
    persistence:         whether the persistence daemon runs.
    fabric_manager:      auto takes the fabric manager of a board that needs it out of the way of an exchange, though it
                         does not run just now, absent only one that runs. It comes back in both.
    repair_only:         whether nothing is done but to load a driver anew that a repair has given up.
    assume_pods_evicted: whether pods that hold GPUs now will have been evicted by then.
    """

    state: str = "present"
    persistence: bool = True
    fabric_manager: str = "auto"
    repair_only: bool = False
    assume_pods_evicted: bool = False


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    return Policy(
        state=parameters["state"],
        persistence=parameters["persistence"],
        fabric_manager=parameters["fabric_manager"],
        repair_only=parameters["repair_only"],
        assume_pods_evicted=parameters["assume_pods_evicted"],
    )
