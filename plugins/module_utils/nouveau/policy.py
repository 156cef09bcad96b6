# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user wants of nouveau."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping

ARGUMENTS: Dict[str, Any] = {"state": {"type": "str", "choices": ["present", "absent"], "default": "present"}}


@dataclass(frozen=True)
class Policy:
    """state: present keeps nouveau away from the GPUs, absent takes that back."""

    state: str = "present"


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    return Policy(state=parameters["state"])
