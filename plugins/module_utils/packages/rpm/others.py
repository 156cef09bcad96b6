# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Other programs that work on rpm's packages."""
from __future__ import annotations

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.lock import package_manager_works, package_managers
from ...core.waiting import wait_for

# For how long they may work before nothing is planned here
LOCK_SECONDS = 600.0
_PAUSE = 1.0


def await_others(host: Host) -> None:
    """A transaction without an end may be one at work. Raises GpuOpsError that names whose when the time is over."""
    _works, free = wait_for(lambda: package_manager_works(host), lambda works: not works, LOCK_SECONDS, _PAUSE)
    if not free:
        raise GpuOpsError(
            "packages.rpm_at_work",
            found="a transaction is at work: %s; waited %.0f s for it" % (
                package_managers(host) or "a package manager", LOCK_SECONDS),
            wanted="packages that nobody changes while a plan is made",
            remedy="let it end (dnf-automatic, PackageKit and other installations hold rpm's lock), and run again")
