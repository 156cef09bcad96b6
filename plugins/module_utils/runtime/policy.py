# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the container runtime."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from ..core.errors import GpuOpsError

DISTRIBUTIONS = ("k3s", "rke2", "k0s", "microk8s")

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "runtime": {
        "type": "str", "default": "auto", "choices": ["auto", "containerd", "crio", "docker", *DISTRIBUTIONS],
    },
    "handler": {"type": "str", "default": "nvidia"},
    "handler_binary": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
    "handlers": {"type": "dict", "default": {}},
    "default_handler": {"type": "bool", "default": False},
    "cdi": {"type": "bool", "default": True},
    "adopt": {"type": "bool", "default": False},
    "config_file": {"type": "path", "default": ""},
}

# Names of NVIDIA's modes of its runtime, with the programs beside nvidia-container-runtime that serve them
# (nvidia-container-toolkit-operator-extensions)
MODES = {"nvidia-cdi": "nvidia-container-runtime.cdi", "nvidia-legacy": "nvidia-container-runtime.legacy"}
# Handlers that every runtime brings itself
BUILT_IN = ("runc", "crun")


@dataclass(frozen=True)
class Policy:
    """The handlers that are wanted of a container runtime.

    present:         whether the handlers are wanted; otherwise what we did is undone.
    runtime:         'auto', a kind of runtime or a Kubernetes distribution.
    handler:         name of the main handler, which a RuntimeClass refers to.
    handler_binary:  absolute path of NVIDIA's runtime.
    handlers:        (name, absolute path) of further handlers.
    default_handler: whether pods without a RuntimeClass use the main handler too.
    cdi:             whether the runtime is to inject CDI devices itself, where it can.
    adopt:           whether a handler of these names that somebody else defined otherwise is taken over.
    config_file:     the root configuration file, '' to take the daemon's own.
    """

    present: bool
    handler: str
    handler_binary: str
    default_handler: bool
    cdi: bool
    config_file: str
    runtime: str = "auto"
    handlers: Tuple[Tuple[str, str], ...] = ()
    adopt: bool = False

    @property
    def entries(self) -> Dict[str, str]:
        """{handler: binary} of all wanted handlers, the main one first."""
        return {self.handler: self.handler_binary, **dict(self.handlers)}


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    binary = parameters["handler_binary"]
    policy = Policy(
        present=parameters["state"] == "present",
        handler=parameters["handler"],
        handler_binary=binary,
        default_handler=parameters["default_handler"],
        cdi=parameters["cdi"],
        config_file=parameters["config_file"] or "",
        runtime=parameters["runtime"],
        handlers=tuple(
            (str(name), str(path or _beside(binary, str(name))))
            for name, path in (parameters["handlers"] or {}).items()
        ),
        adopt=parameters["adopt"],
    )
    _check_names(policy)
    _check_paths(policy)
    return policy


def _check_paths(policy: Policy) -> None:
    if policy.config_file and not policy.config_file.startswith("/"):
        raise GpuOpsError(
            "runtime.config_file_relative", found="`config_file`: '%s'" % policy.config_file,
            wanted="an absolute path", remedy="write the whole path", option="config_file",
        )
    for name, path in policy.entries.items():
        if not path.startswith("/"):
            raise GpuOpsError(
                "runtime.binary_relative", found="the binary of handler '%s': '%s'" % (name, path),
                wanted="an absolute path",
                remedy="write the whole path in `handler_binary`" if name == policy.handler else
                       "write the whole path in `handlers`",
                option="handler_binary" if name == policy.handler else "handlers",
            )


def _check_names(policy: Policy) -> None:
    for name in (policy.handler, *(name for name, _path in policy.handlers)):
        # A RuntimeClass's handler is a DNS label (Kubernetes API, node.k8s.io/v1)
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) or name in BUILT_IN:
            raise GpuOpsError(
                "runtime.handler_name",
                found=("`handler`: '%s'" if name == policy.handler else "`handlers` names '%s'") % name,
                wanted="a lower-case name of letters, digits and '-' that is not %s" % " or ".join(BUILT_IN),
                remedy="use `nvidia`, the name that NVIDIA's own components expect",
                option="handler" if name == policy.handler else "handlers",
            )
    if policy.handler in dict(policy.handlers):
        raise GpuOpsError(
            "runtime.handler_twice",
            found="'%s' is the `handler`, and in `handlers` too" % policy.handler,
            wanted="every handler once",
            remedy="take it out of `handlers`",
            option="handlers",
        )


def _beside(binary: str, name: str) -> str:
    if name not in MODES:
        raise GpuOpsError(
            "runtime.handler_without_binary",
            found="`handlers` names '%s' without a binary" % name,
            wanted="a binary's absolute path; only %s are known without" % " and ".join(sorted(MODES)),
            remedy="give the path, or correct the name",
            option="handlers",
        )
    return "%s/%s" % (binary.rpartition("/")[0], MODES[name])
