# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Other programs that work on the packages of a host."""
from __future__ import annotations

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.lock import package_manager_works, package_managers
from ..core.waiting import wait_for

# For how long they may work before nothing is planned or built here
LOCK_SECONDS = 600.0
_PAUSE = 1.0


def await_others(host: Host) -> None:
    """Wait until no package manager works: what it changes is neither whole nor torn meanwhile.

    For between transactions of ours, which hold the same locks. Raises GpuOpsError that names whose they are when the
    time is over.
    """
    _works, free = wait_for(lambda: package_manager_works(host), lambda works: not works, LOCK_SECONDS, _PAUSE)
    if not free:
        raise GpuOpsError(
            "packages.manager_at_work",
            found="a package manager is at work: %s; waited %.0f s for it" % (
                package_managers(host) or "nobody can tell whose", LOCK_SECONDS),
            wanted="packages that nobody changes while they are read, or built with",
            remedy="let it end (unattended upgrades, dnf-automatic, PackageKit and other installations hold its locks),"
                   " and run again")
