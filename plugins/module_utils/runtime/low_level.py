# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which low-level runtimes the container runtime of this host starts containers with: NVIDIA's has to call the same.

A bare name in config.toml is looked up in the PATH of whoever starts the container, which is the runtime's daemon and
may lack the directory: CRI-O's packages keep theirs in /usr/libexec/crio, k3s and RKE2 in a directory of each release.
"""
from __future__ import annotations

import os
import re
from typing import Any, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import LOW_LEVEL_RUNTIMES
from ..core.host import Host
from .backends.containerd import configuration as containerd
from .backends.crio import configuration as crio
from .detection import find
from .model import Service, environment

# (a release's own directory, the same by a name that stays when it is upgraded)
_RELEASES = (
    (re.compile(r"^(.*/k3s)/data/[0-9a-f]{64}/bin/"), r"\1/data/current/bin/"),
    (re.compile(r"^(.*/rke2)/data/[^/]+/bin/"), r"\1/bin/"),
)


def in_use(host: Host) -> Tuple[str, ...]:
    """Absolute paths, the one that NVIDIA's handler stands in for first; none where no runtime can be told."""
    try:
        service = find(host)
        named = _named(host, service) if service else ()
    except GpuOpsError:
        return ()
    found = [_located(host, name, service) for name in named] if service else []
    return tuple(dict.fromkeys(_lasting(host, path) for path in found if path))


def _named(host: Host, service: Service) -> Tuple[str, ...]:
    """Programs as the configuration has them: absolute, or a bare name."""
    if service.backend == "crio":
        return crio.low_level_runtimes(crio.load_of(host, service)) or LOW_LEVEL_RUNTIMES
    if service.backend == "containerd":
        known = containerd.handlers(containerd.load(host, service.root, service.release[0]).cri())
        return tuple(_program(known[name], name) for name in LOW_LEVEL_RUNTIMES if name in known) or ("runc",)
    return ("runc",)


def _program(handler: Any, name: str) -> str:
    """BinaryName of a handler, whatever the case of its letters (containerd takes any); without one, its own name."""
    options = handler.get("options", {}) if isinstance(handler, Mapping) else {}
    told = [value for key, value in options.items() if key.lower() == "binaryname"] \
        if isinstance(options, Mapping) else []
    program = str(told[-1]) if told and told[-1] else name
    # NVIDIA's runtime in the place of runc's would call itself
    return name if os.path.basename(program).startswith("nvidia-container-runtime") else program


def _located(host: Host, program: str, service: Service) -> Optional[str]:
    if program.startswith("/"):
        return program if host.is_executable(program) else None
    for directory in environment(host, service.pid).get("PATH", "").split(":"):
        path = os.path.join(directory, program)
        if directory.startswith("/") and host.is_executable(path):
            return path
    return host.which(program)


def _lasting(host: Host, path: str) -> str:
    for pattern, name in _RELEASES:
        lasting = pattern.sub(name, path)
        if lasting != path and host.resolve(lasting) == host.resolve(path):
            return lasting
    return path
