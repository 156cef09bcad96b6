# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A unit that watches the GPUs of a host all the time. Pure, but for who watches now.

Systemd goes on with the text of a unit that it knows until it is reloaded, and a reload takes GPUs from running
containers. So nothing of it may change: the command's path is in a script, and all else in the policy, which is read
anew when it changes.
"""
from __future__ import annotations

import ipaddress
import json
import shlex
from dataclasses import asdict, dataclass
from typing import Dict, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.lock import DIRECTORY
from ..core.steps import managed
from ..hardware.mig import RESTORE_UNIT
from ..hardware.settings import SETTINGS_UNIT

WORD = "watch"
UNIT = "gpuops-nvidia-watch.service"
UNIT_FILE = "/etc/systemd/system/" + UNIT
WANTS = "/etc/systemd/system/multi-user.target.wants/" + UNIT
SCRIPT = "/var/lib/gpuops/watch"
# A unit runs no script that is not there
FILES = (SCRIPT, UNIT_FILE)
# Held by who watches; it says who that is, see Watcher
LOCK = DIRECTORY + "/watch"

# What opens GPUs at a boot, or changes them, is not to find them in use
_AFTER = ("systemd-modules-load.service", "gpuops-nvidia-devices.service", "nvidia-persistenced.service",
          "nvidia-fabricmanager.service", "nvidia-imex.service", SETTINGS_UNIT, RESTORE_UNIT)


@dataclass(frozen=True)
class Watcher:
    """Who watches. code: the archive that it runs from. pid, started: the process, and when it started, since process
    ids are given again. boot: the boot that both are of."""

    code: str
    pid: int
    started: str
    boot: str

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True) + "\n"


def watcher(host: Host) -> Optional[Watcher]:
    """Who watches now; None where nobody does, or nobody can tell."""
    try:
        found = Watcher(**json.loads(host.read(LOCK) or "null"))
    except (ValueError, TypeError, GpuOpsError):
        return None
    return found if found.boot == host.boot() and host.process_started(found.pid) == found.started else None


def address_of(listen: str) -> Tuple[str, int]:
    """(address, port) of '127.0.0.1:9836' or '[::1]:9836'. Raises GpuOpsError for anything else."""
    address, _colon, port = listen.rpartition(":")
    try:
        found = ipaddress.ip_address(address[1:-1] if address.startswith("[") and address.endswith("]") else address)
        number = int(port) if port.isdecimal() else 0
        if not 0 < number < 1 << 16 or (found.version == 6) != address.startswith("["):
            raise ValueError(listen)
    except ValueError as error:
        raise GpuOpsError(
            "agent.listen_malformed",
            found="'%s' to listen at" % listen,
            wanted="an IP address of this host and a port",
            remedy="give `watch_listen` as 127.0.0.1:9836 or [::1]:9836, or leave it out",
            option="watch_listen",
        ) from error
    return str(found), number


def files(is_wanted: bool, command: str) -> Dict[str, Optional[str]]:
    """{path: text, None where there is to be none}, in the order in which they are written or removed."""
    if is_wanted:
        return {SCRIPT: "#!/bin/sh\n" + managed("exec %s %s\n" % (shlex.quote(command), WORD)), UNIT_FILE: _UNIT}
    return {UNIT_FILE: None, SCRIPT: None}


_UNIT = managed("\n".join([
    "[Unit]",
    "Description=Health of NVIDIA GPUs",
    "After=" + " ".join(_AFTER),
    # As often as the pause below lets it, and never given up: GPUs that nobody watches fail unseen
    "StartLimitIntervalSec=0",
    "",
    "[Service]",
    # It says when it watches: who starts it learns whether it does
    "Type=notify",
    "NotifyAccess=main",
    "ExecStart=/bin/sh " + SCRIPT,
    "Restart=always",
    "RestartSec=30s",
    # A process that hangs in the driver outlives every signal, and is not waited for
    "KillMode=process",
    "TimeoutStopSec=10s",
    # It gives way to work, and is not the first to go where memory is short
    "Nice=5",
    "OOMScoreAdjust=-500",
    # Ten times what it takes, with the library that its child loads
    "MemoryMax=400M",
    "OOMPolicy=continue",
    "",
    "[Install]",
    "WantedBy=multi-user.target",
]) + "\n")
