# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user wants of the kernel's settings."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from ..core.errors import GpuOpsError

ARGUMENTS: Dict[str, Any] = {
    "lines": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


@dataclass(frozen=True)
class Policy:
    lines: Tuple[str, ...]
    state: str


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    for line in parameters["lines"]:
        if "=" not in line:
            raise GpuOpsError("sysctl.no_setting", "the line '%s' in `lines`" % line, "a line as 'vm.swappiness = 10'",
                              "correct `lines`", "lines")
    return Policy(tuple(parameters["lines"]), parameters["state"])
