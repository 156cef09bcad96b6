# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host that still starts is looked at when it has: what its units are about to do makes every observation a guess.

A login is possible long before: nvidia-persistenced then loads the driver, and the toolkit's unit writes a CDI
specification, right after somebody has found neither.
"""
from __future__ import annotations

import contextlib
import os
from typing import List, NamedTuple, Set

from .errors import GpuOpsError
from .host import Host
from .times import since_start
from .waiting import wait_for

# After that a job that has not ended hangs, or was begun by somebody
STARTUP_SECONDS = 600
# sd_booted(3): systemd is at work
BOOTED = "/run/systemd/system"
# Of this boot, as /run is: it has started, and who comes next need not ask
STARTED = "/run/gpuops/started"
# Runs of ours wait for each other by the host's lock
BOOT_UNIT = "gpuops-nvidia-boot.service"
LIMIT_SECONDS = 180.0
PAUSE_SECONDS = 0.5

# Roots of hosts
_waited_in_vain: Set[str] = set()


class Jobs(NamedTuple):
    """Units that are being started, and those whose start waits for another job."""

    running: List[str]
    waiting: List[str]


def await_startup(host: Host, limit: float = LIMIT_SECONDS) -> List[str]:
    """Wait until systemd has started what it starts at boot; units that still start when the time is over.

    What waits for the unit that this process belongs to is not waited for: a run may be part of the startup itself.
    That of the boot's own unit waits for nothing: it is ordered after all that it needs, and what else starts may wait
    for it. One that has waited in vain looks once more each time it asks, and waits no more.
    """
    if BOOT_UNIT in _own_units():
        return []
    if not host.is_dir(BOOTED) or not 0 <= _age(host) < STARTUP_SECONDS or host.exists(STARTED):
        return []
    quiet = 0

    def ended(jobs: Jobs) -> bool:
        """Between the end of one job and the begin of those that wait for it systemd may tell of neither: it answers
        before it begins them. What still waits when it is asked again waits for us."""
        nonlocal quiet
        quiet = 0 if jobs.running else quiet + 1
        return quiet > (1 if jobs.waiting else 0)

    jobs, started = wait_for(
        lambda: _starting(host), ended, 0 if host.root in _waited_in_vain else limit, PAUSE_SECONDS)
    if not started:
        _waited_in_vain.add(host.root)
    if started and host.is_root():
        # Where /run is full, who comes next asks too
        with contextlib.suppress(GpuOpsError):
            host.make_directory(os.path.dirname(STARTED), 0o700)
            host.write(STARTED, "")
    return jobs.running


def _own_units() -> Set[str]:
    """Those that this process belongs to, with whatever else is above it."""
    return {part for line in (Host().read("/proc/self/cgroup") or "").splitlines() for part in line.split("/")}


def _age(host: Host) -> float:
    """Seconds since process 1 started: that of a container may be younger than its machine. -1 where nothing tells."""
    started = host.process_started(1)
    return since_start(started) if started else -1


def _starting(host: Host) -> Jobs:
    """Jobs that start a unit (systemctl(1), list-jobs: job, unit, type, state), without our own."""
    try:
        jobs = host.run(["systemctl", "list-jobs", "--no-legend", "--plain"], check=False, timeout=30).stdout
    except GpuOpsError:
        return Jobs([], [])
    ours = {*_own_units(), BOOT_UNIT}
    words = [line.split() for line in jobs.splitlines()]
    starts = [each for each in words if len(each) == 4 and each[2] == "start" and each[1] not in ours]
    running, waiting = (sorted(each[1] for each in starts if each[3] == state) for state in ("running", "waiting"))
    return Jobs(running, waiting)
