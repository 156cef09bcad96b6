# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who may read and change a host."""
from __future__ import annotations

import os

from .errors import GpuOpsError
from .host import Host

# Why somebody has to be root
TO_WRITE = "it changes drivers, services and files of the system"
TO_READ = "what others may not read looks to them as if it were not there"


def require_root(host: Host, why: str = TO_WRITE) -> None:
    """Raises GpuOpsError unless this process is root's."""
    if not host.is_root():
        raise not_root(why)


def not_root(why: str) -> GpuOpsError:
    return GpuOpsError(
        "host.no_root",
        found="what works on this host runs as uid %d" % os.geteuid(),
        wanted="the rights of root: %s" % why,
        remedy="set `become: true` on the play or the task (`ansible_become` in the inventory), and use `sudo` on the "
               "host itself; nothing was changed",
    )


def asked_by() -> str:
    """Who logged in here, for people."""
    return os.environ.get("SUDO_USER") or "uid %d" % os.geteuid()
