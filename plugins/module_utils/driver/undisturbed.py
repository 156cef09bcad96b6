# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds of DKMS that nobody disturbs.

DKMS has no lock. For whatever kernel it builds a module, it does so in one directory of the module's version, which it
removes first (dkms, prepare_build()): of two that work at once the second breaks what the first compiles, or both make
one module of two kernels. A kernel's own script has DKMS build below the package manager that installs the kernel, and
headers are unpacked by one: its locks tell of both. What was compiled for another kernel has that in its log.
"""
from __future__ import annotations

from typing import Callable, Set, Tuple

from ..core.errors import GpuOpsError
from ..core.host import CommandResult, Host
from ..core.lock import package_manager_works, package_managers
from ..packages.others import await_others
from .build_log import kernels_of_log

# A build, told whether an earlier one was disturbed
Build = Callable[[bool], CommandResult]


def build_undisturbed(
    host: Host, module: str, kernel: str, build: Build, is_there: Callable[[], bool] = lambda: True,
    tree: str = "/var/lib/dkms", has_changed: Callable[[], bool] = lambda: False
) -> CommandResult:
    """What a build ended in that nobody disturbed; it is done once more where somebody did.

    module: 'name/version'. is_there: whether what was to be built is there. tree: DKMS's, which it is built in.
    has_changed: whether what it was built of is not what it was when the build began.
    Raises GpuOpsError where somebody disturbs it again: how it ended says nothing of the kernel.
    """
    for again in (False, True):
        await_others(host)
        before = _logs_of_others(host, module, kernel, tree)
        done = build(again)
        news = _logs_of_others(host, module, kernel, tree).difference(before)
        failed = done.rc != 0 or not is_there()
        # A log that is not in this kernel's own directory is that of a build which came after a good one
        compiled = sorted({of for path, of, *_stamp in news if failed or "/%s/" % kernel in path})
        changed = has_changed()
        if not (compiled or changed or (failed and package_manager_works(host))):
            return done
        whose = "DKMS for kernel %s" % ", ".join(compiled) if compiled else "what has changed the kernel's headers" \
            if changed else package_managers(host) or "a package manager"
    raise GpuOpsError(
        "driver.build_disturbed",
        found="builds of %s for kernel %s were disturbed twice, last by %s" % (module, kernel, whose),
        wanted="a build that nobody disturbs: DKMS builds for all kernels in one directory",
        remedy="let it end (a kernel is being installed, or unattended upgrades are), and run again",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)


def _logs_of_others(host: Host, module: str, kernel: str, tree: str) -> Set[Tuple[str, str, int, int, int]]:
    """(path, kernel, and what tells the file from others of its name) of logs that name other kernels than this one:
    of the build that is at work or has failed, and of what lies there for this kernel."""
    logs = [*host.glob("%s/%s/build/make.log" % (tree, module)),
            *host.glob("%s/%s/%s/*/log/make.log" % (tree, module, kernel))]
    return {(path, of, made.st_ino, made.st_size, made.st_mtime_ns)
            for path in logs for made in [host.stat(path)] if made is not None
            for of in kernels_of_log(host, path) if of != kernel}
