# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the CDI specification."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "refresh_at_boot": {"type": "bool", "default": True},
}


@dataclass(frozen=True)
class CdiPolicy:
    """
    present:         whether a specification of the GPUs is wanted; otherwise ours is removed.
    refresh_at_boot: whether the toolkit's refresh units are to be enabled: /var/run is empty after a boot.
    """

    present: bool
    refresh_at_boot: bool


def policy_of(parameters: Mapping[str, Any]) -> CdiPolicy:
    return CdiPolicy(parameters["state"] == "present", parameters["refresh_at_boot"])
