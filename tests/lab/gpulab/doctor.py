# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the machine below must have for a laboratory, and which way the laboratory goes on this one."""
from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from . import cgroups
from .cache import Workshop, cache_root, parts_root
from .hosts import CAP_SYS_RESOURCE, has_capability, remove_tree
from .memory import available_gb
from .parts.gobuilds import toolchain_problem
from .paths import runs_root

# Program: the Debian package that brings it, and whether a running lab needs it (else only `build` does).
PROGRAMS: Dict[str, Tuple[str, bool]] = {
    "systemd-nspawn": ("systemd-container", True), "etcd": ("etcd-server", True), "ip": ("iproute2", True),
    "ssh": ("openssh-client", True), "ssh-keygen": ("openssh-client", True), "openssl": ("openssl", True),
    "unshare": ("util-linux", True), "mount": ("mount", True),
    "mmdebstrap": ("mmdebstrap", False), "gcc": ("gcc", False), "dpkg-deb": ("dpkg", False), "gpg": ("gnupg", False),
}
FILE_SYSTEMS = ("overlay", "tmpfs")
DISK_TO_BUILD_GB = 12
DISK_TO_RUN_GB = 3
MEMORY_GB = 4
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True)
class Finding:
    ok: bool
    text: str
    # Without it no lab comes up; otherwise only something around it does not work.
    needed: bool = True


def findings() -> List[Finding]:
    checks: Tuple[Callable[[], List[Finding]], ...] = (
        _root, _programs, _kernel, _control_groups, _capabilities, _room, _go)
    return [finding for check in checks for finding in check()]


def problems() -> List[str]:
    """What keeps a lab from coming up on this machine."""
    return [finding.text for finding in findings() if finding.needed and not finding.ok]


def report() -> int:
    found = findings()
    for finding in found:
        print("%-8s %s" % ("ok" if finding.ok else "MISSING" if finding.needed else "note", finding.text))
    return 0 if all(finding.ok or not finding.needed for finding in found) else 1


def _root() -> List[Finding]:
    if os.geteuid() == 0:
        return [Finding(True, "running as root")]
    return [Finding(False, "found user id %d, wanted root: hosts are booted with systemd-nspawn; use sudo"
                    % os.geteuid())]


def _programs() -> List[Finding]:
    results = []
    for program, (package, needed) in PROGRAMS.items():
        path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        results.append(Finding(bool(path), "%s: %s" % (program, path) if path else "found no %s: apt install %s%s" % (
            program, package, "" if needed else " (only to build parts)"), needed))
    return results


def _kernel() -> List[Finding]:
    known = Path("/proc/filesystems").read_text().split()
    results = [Finding(name in known, "file system %s" % name if name in known else
                       "found no file system %s in the kernel: modprobe %s" % (name, name)) for name in FILE_SYSTEMS]
    if platform.machine() != "x86_64":
        results.append(Finding(False, "found a %s machine, wanted x86_64: profiles and packages are amd64"
                               % platform.machine()))
    nat = subprocess.run(["iptables", "-w", "-t", "nat", "-S"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         text=True, check=False) if shutil.which("iptables") else None
    if nat is not None and nat.returncode != 0:
        results.append(Finding(False, "found no NAT in the kernel (%s): pods could not reach the API server's service; "
                               "modprobe nft_chain_nat" % nat.stderr.strip()))
    return results


def _control_groups() -> List[Finding]:
    if cgroups.is_unified():
        have = (cgroups.MOUNT / "cgroup.controllers").read_text().split()
        kind = "cgroup v2: hosts run on the unified hierarchy"
    else:
        have = [path.name for path in cgroups.hierarchies()]
        kind = "cgroup v1: hosts run on the legacy hierarchies (systemd.unified_cgroup_hierarchy=0)"
        if "systemd" not in have:
            return [Finding(False, "found cgroup v1 without the hierarchy name=systemd: "
                                   "mkdir /sys/fs/cgroup/systemd; "
                                   "mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd")]
    missing = [name for name in CONTROLLERS if name not in have]
    if missing:
        return [Finding(False, "%s; found no controller %s, which the kubelet needs" % (kind, ", ".join(missing)))]
    return [Finding(True, kind)]


def _capabilities() -> List[Finding]:
    if has_capability(CAP_SYS_RESOURCE):
        return [Finding(True, "CAP_SYS_RESOURCE: containerd may set OOM scores")]
    return [Finding(True, "no CAP_SYS_RESOURCE: hosts' containerd gets restrict_oom_score_adj = true")]


def _room() -> List[Finding]:
    place = cache_root()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free >> 30
    wanted = DISK_TO_RUN_GB if parts_root().is_dir() else DISK_TO_BUILD_GB
    memory = available_gb()
    return [
        Finding(free >= wanted, "%d GB of disk free below %s%s" % (
            free, place, "" if free >= wanted else ", wanted %d GB: GPUOPS_CACHE names another place" % wanted)),
        Finding(memory >= MEMORY_GB, "%d GB of memory available%s" % (
            memory, "" if memory >= MEMORY_GB else ", wanted %d GB: the control plane takes 0.7, a joined host 0.4"
            % MEMORY_GB), needed=memory < 2),
    ]


def _go() -> List[Finding]:
    problem = toolchain_problem()
    text = problem + " (only to build parts)" if problem else "Go builds all programs"
    return [Finding(not problem, text, needed=False)]


def prune(shop: Workshop) -> None:
    """Remove built parts of former inputs, except those that a running lab's hosts stand on."""
    kept = {shop.path(name).name for name in shop.parts}
    records = "".join(path.read_text() for path in runs_root().glob("*/hosts/*/machine.json"))
    records += "".join(str(path.resolve()) for path in runs_root().glob("*/control-plane/kubernetes"))
    records += "".join(path.read_text() for path in runs_root().glob("*/packages/roots.json"))
    for path in sorted(parts_root().iterdir()):
        stale = path.name not in kept and path.name not in records and not path.name.startswith(".building-")
        if stale and path.is_dir():
            print("removing %s" % path)
            remove_tree(path)
            for suffix in (".log", ".lock"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
