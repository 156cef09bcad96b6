# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of containerd: the daemon, its configuration, and the edits that would bring the wanted one.

The edits are worked out here because containerd itself has to judge them, on a scratch copy, before they are planned.
"""
from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import digest
from .configuration import Configuration, handlers, load
from .gate import judge
from .policy import RuntimePolicy
from .writer import DROP_IN, CannotExtend, Edit, absent_edits, difference_from, present_edits, without_ours

UNIT = "containerd.service"
ROOT = "/etc/containerd/config.toml"
SOCKET = "/run/containerd/containerd.sock"
KUBELET = "/var/lib/kubelet/config.yaml"
OTHER_SOCKETS = {
    "/run/crio/crio.sock": "CRI-O",
    "/run/k3s/containerd/containerd.sock": "the containerd of k3s or RKE2",
    "/run/k0s/containerd.sock": "the containerd of k0s",
}


@dataclass(frozen=True)
class Daemon:
    """
    active:  whether the unit runs.
    pid:     its main process, 0 when it does not run.
    started: when it became ready, seconds since the epoch.
    binary:  its program on disk.
    release: (major, minor) of that program.
    root:    its root configuration file.
    socket:  where it answers.
    """

    active: bool
    pid: int
    started: float
    binary: str
    release: Tuple[int, int]
    root: str
    socket: str


@dataclass(frozen=True)
class Problem:
    """Why the configuration cannot be changed."""

    found: str
    wanted: str
    remedy: str


@dataclass(frozen=True)
class RuntimeObservation:
    """
    daemon:   containerd, None when there is none.
    problem:  what stands against any change, None if nothing does.
    edits:    files to change, judged by containerd.
    pending:  whether a file is newer than the daemon, which therefore may not know it.
    handlers: handlers in the files as they are.
    cdi:      whether containerd injects CDI devices itself, None when it cannot (1.6).
    """

    daemon: Optional[Daemon]
    problem: Optional[Problem]
    edits: Tuple[Edit, ...] = ()
    pending: bool = False
    handlers: Tuple[str, ...] = ()
    cdi: Optional[bool] = None

    def to_dict(self) -> Dict[str, Any]:
        """Without the texts of files: they may hold registry credentials."""
        return {
            "daemon": None if self.daemon is None else {
                "active": self.daemon.active, "release": list(self.daemon.release), "root": self.daemon.root,
            },
            "problem": None if self.problem is None else self.problem.found,
            "edits": [[edit.path, digest([edit.before, edit.after])] for edit in self.edits],
            "pending": self.pending,
            "handlers": list(self.handlers),
            "cdi": self.cdi,
        }


def observe(host: Host, journal: Journal, policy: RuntimePolicy) -> RuntimeObservation:
    daemon = find_daemon(host, policy)
    if daemon is None:
        return RuntimeObservation(None, _no_daemon(host))
    try:
        configuration = load(host, daemon.root, daemon.release[0])
    except GpuOpsError as error:
        return RuntimeObservation(daemon, Problem(error.found, error.wanted, error.remedy))
    problem = _obstacle(host, daemon, configuration, policy)
    if problem:
        return RuntimeObservation(daemon, problem)
    ours = host.read(DROP_IN)
    try:
        edits = tuple(
            present_edits(configuration, ours, daemon.root, policy, daemon.release, _systemd_cgroup(host))
            if policy.present else absent_edits(configuration, ours)
        )
        if edits:
            judge(host, daemon.binary, configuration, edits, policy)
    except CannotExtend as error:
        return RuntimeObservation(daemon, Problem(
            "%s holds its tables in a form that further lines cannot join (%s)" % (configuration.holder(), error),
            "a section of the CRI plugin with tables of its own, [plugins.\"%s\"...]" % configuration.cri_id,
            "write inline tables of the section as tables; nothing was changed"))
    except GpuOpsError as error:
        return RuntimeObservation(daemon, Problem(error.found, error.wanted, error.remedy))
    cri = configuration.cri()
    return RuntimeObservation(
        daemon=daemon,
        problem=None,
        edits=edits,
        pending=_pending(host, journal, daemon, configuration),
        handlers=tuple(sorted(handlers(cri))),
        cdi=None if daemon.release < (1, 7) else bool(cri.get("enable_cdi", daemon.release >= (2, 0))),
    )


def find_daemon(host: Host, policy: RuntimePolicy) -> Optional[Daemon]:
    """containerd as systemd runs it: program and configuration are asked of the process, not of the PATH."""
    unit = host.unit(UNIT)
    if unit.get("LoadState") != "loaded":
        return None
    pid = int(unit.get("MainPID", "0"))
    words = (host.read("/proc/%d/cmdline" % pid) or "").split("\0") if pid else []
    program = (host.link("/proc/%d/exe" % pid) or "") if pid else ""
    binary = program.replace(" (deleted)", "") or host.which("containerd") or ""
    release = _release(host, binary) if binary else None
    if release is None:
        return None
    monotonic = int(unit.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    return Daemon(
        active=unit.get("ActiveState") == "active",
        pid=pid,
        started=time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + monotonic,
        binary=binary,
        release=release,
        root=policy.config_file or _option(words, "--config", "-c") or ROOT,
        socket=_option(words, "--address", "-a") or SOCKET,
    )


def effective_digest(configuration: Configuration) -> str:
    """What of the files the daemon acts upon, as far as our change goes."""
    cri = configuration.cri()
    return digest([handlers(cri), cri.get("containerd", {}).get("default_runtime_name"), cri.get("enable_cdi"),
                   cri.get("cdi_spec_dirs")])


def _no_daemon(host: Host) -> Problem:
    others = [name for path, name in OTHER_SOCKETS.items() if host.exists(path)]
    return Problem(
        "no %s%s" % (UNIT, ", but " + " and ".join(others) if others else ""),
        "containerd 1.6 or newer, run by systemd as %s" % UNIT,
        "install containerd, or leave this host's runtime to its distribution",
    )


def _obstacle(host: Host, daemon: Daemon, configuration: Configuration, policy: RuntimePolicy) -> Optional[Problem]:
    checks = (_unsupported_release, _kubelet_elsewhere, _missing_import, _disabled, _old_format, _read_only)
    for check in checks:
        problem = check(host, daemon, configuration)
        if problem:
            return problem
    return _not_to_be_changed(daemon, configuration, policy) if policy.present else None


def _unsupported_release(_host: Host, daemon: Daemon, _configuration: Configuration) -> Optional[Problem]:
    if daemon.release >= (1, 6):
        return None
    return Problem("containerd %d.%d" % daemon.release, "containerd 1.6 or newer", "upgrade containerd")


def _kubelet_elsewhere(host: Host, daemon: Daemon, _configuration: Configuration) -> Optional[Problem]:
    match = re.search(r"(?m)^containerRuntimeEndpoint:\s*[\"']?(?:unix://)?([^\"'\s]+)", host.read(KUBELET) or "")
    if match is None or host.resolve(match.group(1)) == host.resolve(daemon.socket):
        return None
    return Problem("a kubelet that uses %s" % match.group(1), "the containerd at %s" % daemon.socket,
                   "configure the runtime that the kubelet uses, or correct %s" % KUBELET)


def _missing_import(_host: Host, daemon: Daemon, configuration: Configuration) -> Optional[Problem]:
    if not configuration.missing:
        return None
    return Problem("%s imports %s, which is not there: containerd will not start again"
                   % (daemon.root, ", ".join(configuration.missing)),
                   "imports that are there", "put the file back or take it out of 'imports'")


def _disabled(_host: Host, daemon: Daemon, configuration: Configuration) -> Optional[Problem]:
    if not configuration.disabled:
        return None
    return Problem("disabled_plugins names %s in the configuration under %s"
                   % (", ".join(configuration.disabled), daemon.root),
                   "the CRI plugin, which Kubernetes talks to",
                   "take it out of disabled_plugins and restart containerd; the packages of Docker ship it that way")


def _old_format(_host: Host, daemon: Daemon, configuration: Configuration) -> Optional[Problem]:
    supported = (2,) if daemon.release < (2, 0) else (2, 3) if daemon.release < (2, 3) else (2, 3, 4)
    if configuration.version == 0 or configuration.version in supported:
        return None
    wanted = "version = %s for containerd %d.%d" % (" or ".join(map(str, supported)), *daemon.release)
    if configuration.version == 1:
        return Problem("%s is of format version 1 (it has no 'version' key, or says 1)" % daemon.root, wanted,
                       "rewrite it as version 2 (containerd, docs/PLUGINS.md, 'Version header')")
    return Problem("%s: version = %d" % (daemon.root, configuration.version), wanted,
                   "correct the version; containerd refuses this one")


def _read_only(host: Host, daemon: Daemon, configuration: Configuration) -> Optional[Problem]:
    for path in [file.path for file in configuration.files] or [daemon.root]:
        folder = os.path.dirname(host.resolve(path))
        while folder != "/" and not host.is_dir(folder):
            folder = os.path.dirname(folder)
        if os.statvfs(host.path(folder)).f_flag & os.ST_RDONLY:
            return Problem("%s lies on a file system that is mounted read-only" % path, "a file that can be changed",
                           "configure the handler where this file is made, such as the system image")
    return None


def _not_to_be_changed(daemon: Daemon, configuration: Configuration, policy: RuntimePolicy) -> Optional[Problem]:
    if not daemon.active:
        return Problem("%s is not running" % UNIT, "a running containerd, so that a change can be proved",
                       "start it: systemctl start %s; journalctl -u %s says why it stopped" % (UNIT, UNIT))
    base = without_ours(configuration)
    entry = handlers(base.cri()).get(policy.handler)
    difference = difference_from(entry, policy) if entry is not None else ""
    if not difference:
        return None
    return Problem("%s defines the handler '%s' with %s" % (base.source_of(policy.handler), policy.handler, difference),
                   "BinaryName = %s" % policy.handler_binary,
                   "take that entry out (it may be a leftover of the GPU Operator or of nvidia-ctk), or choose "
                   "another handler")


def _pending(host: Host, journal: Journal, daemon: Daemon, configuration: Configuration) -> bool:
    """Whether the daemon may run with other files than these: one is newer, and not known to say the same."""
    if not daemon.active:
        return False
    stats = [host.stat(file.path) for file in configuration.files]
    newer = [stat for stat in stats if stat is not None and stat.st_mtime > daemon.started]
    verified = journal.recall("runtime").get("verified", {})
    known = verified.get("pid") == daemon.pid and verified.get("digest") == effective_digest(configuration)
    return bool(newer) and not known


def _systemd_cgroup(host: Host) -> bool:
    """The kubelet's cgroup driver: runtime and kubelet have to agree."""
    match = re.search(r"(?m)^cgroupDriver:\s*[\"']?(\w+)", host.read(KUBELET) or "")
    return match is not None and match.group(1) == "systemd"


def _release(host: Host, binary: str) -> Optional[Tuple[int, int]]:
    match = re.search(r"\sv?(\d+)\.(\d+)\.\d+", host.run([binary, "--version"], check=False).stdout)
    return (int(match.group(1)), int(match.group(2))) if match else None


def _option(words: Any, *names: str) -> str:
    for position, word in enumerate(words):
        for name in names:
            if word == name and position + 1 < len(words):
                return str(words[position + 1])
            if word.startswith(name + "="):
                return str(word[len(name) + 1:])
    return ""
