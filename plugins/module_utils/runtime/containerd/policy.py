# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the container runtime."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping

from ...core.errors import GpuOpsError

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "runtime": {"type": "str", "default": "auto", "choices": ["auto", "containerd"]},
    "handler": {"type": "str", "default": "nvidia"},
    "handler_binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
    "default_handler": {"type": "bool", "default": False},
    "cdi": {"type": "bool", "default": True},
    "config_file": {"type": "path", "default": ""},
}


@dataclass(frozen=True)
class RuntimePolicy:
    """
    present:         whether the handler is wanted; otherwise what we did is undone.
    handler:         its name, which a RuntimeClass refers to.
    handler_binary:  absolute path of NVIDIA's runtime.
    default_handler: whether pods without a RuntimeClass use it too.
    cdi:             whether the runtime is to inject CDI devices itself, where it can.
    config_file:     the root configuration file, '' to take the daemon's own.
    """

    present: bool
    handler: str
    handler_binary: str
    default_handler: bool
    cdi: bool
    config_file: str


def policy_of(parameters: Mapping[str, Any]) -> RuntimePolicy:
    policy = RuntimePolicy(
        present=parameters["state"] == "present",
        handler=parameters["handler"],
        handler_binary=parameters["handler_binary"],
        default_handler=parameters["default_handler"],
        cdi=parameters["cdi"],
        config_file=parameters["config_file"] or "",
    )
    # A RuntimeClass's handler is a DNS label (Kubernetes API, node.k8s.io/v1)
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", policy.handler) or policy.handler in ("runc", "crun"):
        raise GpuOpsError(
            found="handler: '%s'" % policy.handler,
            wanted="a lower-case name of letters, digits and '-' that is not runc or crun",
            remedy="use 'nvidia', the name that NVIDIA's own components expect",
        )
    for name in ("handler_binary", "config_file"):
        value = getattr(policy, name)
        if value and not value.startswith("/"):
            raise GpuOpsError(
                found="%s: '%s'" % (name, value), wanted="an absolute path", remedy="write the whole path",
            )
    return policy
