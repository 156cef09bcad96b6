# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the fabric manager."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping

from ..core import assignments
from ..core.errors import GpuOpsError

AUTO, UNMANAGED = "auto", "unmanaged"

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "mode": {"type": "str", "default": AUTO, "choices": [AUTO, UNMANAGED]},
    "config": {"type": "dict", "default": {}},
    "registration_timeout": {"type": "int", "default": 300},
    "boards": {"type": "list", "elements": "str", "default": []},
}


@dataclass(frozen=True)
class Policy:
    """What is wanted of the fabric manager where the board needs one.

    state:                present runs it, absent takes back what we changed.
    mode:                 AUTO runs it, UNMANAGED leaves it to others.
    config:               {key: value} of its configuration file that are to be so.
    registration_timeout: seconds that its GPUs may take to register.
    """

    state: str = "present"
    mode: str = AUTO
    config: Mapping[str, str] = field(default_factory=dict)
    registration_timeout: int = 300

    @property
    def managed(self) -> bool:
        return self.mode == AUTO


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    try:
        config = assignments.wanted_of(parameters["config"] or {})
    except ValueError as error:
        raise GpuOpsError(
            "fabric.config_malformed",
            found="`config` has %s" % error,
            wanted="a text of one line, or a number, for each key",
            remedy="correct `config`",
            option="config",
        ) from error
    return Policy(
        state=parameters["state"],
        mode=parameters["mode"],
        config=config,
        registration_timeout=parameters["registration_timeout"],
    )
