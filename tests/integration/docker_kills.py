# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""runtime_kills for Docker: runs on a host that are killed before each of their changes, and what becomes of it."""
from __future__ import annotations

import subprocess
import time
from typing import Any, FrozenSet, Tuple

import runtime_kills

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker.engine import Engine

SOCKET = "/run/docker.sock"


def is_change(event: str, arguments: Tuple[Any, ...]) -> bool:
    if event == "subprocess.Popen":
        return list(arguments[1][:2]) in (["systemctl", "restart"], ["systemctl", "reload"])
    return told(event, arguments)


def handlers() -> FrozenSet[str]:
    """Runtimes of the running daemon and, marked, the default one."""
    deadline = time.monotonic() + runtime_kills.READY_SECONDS
    while True:
        try:
            info = Engine(SOCKET).info()
            return frozenset([*info["Runtimes"], "default " + info["DefaultRuntime"]])
        except GpuOpsError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def reboot() -> None:
    subprocess.run(["systemctl", "restart", "docker"], check=True)
    handlers()


told = runtime_kills.is_change
runtime_kills.ETC = "/etc/docker"
runtime_kills.is_change = is_change
runtime_kills.handlers = handlers
runtime_kills.reboot = reboot

if __name__ == "__main__":
    runtime_kills.main()
