# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's own actions."""
from __future__ import annotations

from typing import Dict

from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor
from ..packages import provenance
from ..packages.apt import running

LOG_LINES = 12


def configure_packages(host: Host, journal: Journal, step: Step) -> None:
    """Finish what dpkg began, as far as that goes: what is left is a matter of the transaction that follows."""
    running.configure(host, step.parameters["argv"], step.parameters["timeout"])


def finish_packages(host: Host, journal: Journal, step: Step) -> None:
    done = running.configure(host, step.parameters["argv"], step.parameters["timeout"])
    if done.rc != 0:
        raise GpuOpsError(
            found="packages do not configure: %s; %s" % (" | ".join(done.stdout.splitlines()[-3:]), _last_log(host)),
            wanted="a package database in order",
            remedy="when the kernel module does not build, choose another version of the driver or of the kernel",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


def build_module(host: Host, journal: Journal, step: Step) -> None:
    """Build and install the module for one kernel; dkms answers with its log, so show its end."""
    try:
        host.run(step.parameters["argv"], timeout=step.parameters["timeout"])
    except CommandFailed as failure:
        raise GpuOpsError(
            found="the kernel module does not build for kernel %s: %s" % (step.subject, _last_log(host)),
            wanted="a module for every kernel that can be booted",
            remedy="choose a driver that knows this kernel, or remove the kernel; do not boot it before",
            **failure.details) from failure


def _last_log(host: Host) -> str:
    logs = host.glob("/var/lib/dkms/nvidia*/*/build/make.log")
    newest = max(logs, key=lambda name: host.stat(name).st_mtime if host.stat(name) else 0, default="")  # type: ignore
    lines = (host.read(newest) or "").splitlines() if newest else []
    return "%s: %s" % (newest, " | ".join(lines[-LOG_LINES:])) if newest else "no build log"


def download_packages(host: Host, journal: Journal, step: Step) -> None:
    provenance.refresh(host, step.change["after"])
    running.apt_get(host, *step.parameters["argv"], timeout=step.parameters["timeout"])


def forget_repository(host: Host, journal: Journal, step: Step) -> None:
    for path in step.parameters["files"]:
        host.remove(path)


def executors() -> Dict[str, Executor]:
    return {
        "dpkg.configure": configure_packages,
        "dpkg.finish": finish_packages,
        "dkms.build": build_module,
        "packages.download": download_packages,
        "repository.forget": forget_repository,
    }
