# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every container runtime has in common, as data, and what is known of its process."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Protocol, Tuple

from ..core.host import Host
from ..core.journal import Journal
from ..core.refusal import Refusal
from ..core.times import of_boot
from .memory import recall

RESTART = "restart"
RELOAD = "reload"
# The distribution itself picks the files up, such as k0s
WAIT = "wait"
# The first line of a file that is wholly ours
HEADER = "# Managed by gpuops.nvidia: the handler for NVIDIA GPUs.\n"


@dataclass(frozen=True)
class Service:
    """A container runtime that was found on the host: its daemon, its program and its root file.

    backend:      'containerd', 'crio' or 'docker'.
    distribution: '', or the Kubernetes distribution that brings the runtime: 'k3s', 'rke2', 'k0s', 'microk8s'.
    unit:         the systemd unit to restart.
    active:       whether the daemon runs.
    pid:          its process, 0 when it does not run.
    started:      when that process was started, seconds since the epoch.
    binary:       its program on disk.
    release:      (major, minor) of that program.
    root:         its root configuration file.
    socket:       where it answers.
    arguments:    its command line: options override files.
    """

    backend: str
    distribution: str
    unit: str
    active: bool
    pid: int
    started: float
    binary: str
    release: Tuple[int, int]
    root: str
    socket: str
    arguments: Tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The word for it in `runtime`, in plans and in what is remembered of it."""
        return self.distribution or self.backend

    def to_dict(self) -> Dict[str, Any]:
        """What a plan depends on: which process it happens to be is left out."""
        return {
            "backend": self.backend, "distribution": self.distribution, "unit": self.unit, "active": self.active,
            "release": list(self.release), "root": self.root, "socket": self.socket,
        }


@dataclass(frozen=True)
class Edit:
    """A file before and after; None is no file.

    before, after: whole texts; they may hold secrets and are never shown.
    shown_*:       what a plan may show of them.
    parameters:    how the change is worked out again on the file when it is made (see Backend.edited), JSON-able;
                   empty for a file that is wholly ours: shown_after is its text.
    like:          a file whose mode, owner and SELinux label a new file of ours takes.
    """

    path: str
    before: Optional[str]
    after: Optional[str]
    shown_before: Optional[str]
    shown_after: Optional[str]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    like: str = ""


class Reading(Protocol):
    """What a backend has read to work its edits out from. Its texts may hold secrets."""

    def to_dict(self) -> Dict[str, Any]:
        """JSON-able, digests in the place of texts."""


@dataclass(frozen=True)
class Observation:
    """What is there of the container runtime, and what stands against any change of it.

    service:        the runtime, None when there is none.
    refusals:       what stands against any change, whatever is wanted.
    reading:        a Reading of its backend; None where the files could not be read.
    pending:        whether the daemon may not know the files as they are, or has more to take in at its next start.
    handlers:       handlers in the files as they are.
    cdi:            whether the runtime injects CDI devices itself, None when it cannot.
    as_before:      files on record as changed by us that are as they were before: a removal ends with their records.
    reload_ignored: whether a reload has proved not to be enough for the process that runs.
    """

    service: Optional[Service]
    refusals: Tuple[Refusal, ...] = ()
    reading: Any = None
    pending: bool = False
    handlers: Tuple[str, ...] = ()
    cdi: Optional[bool] = None
    as_before: Tuple[str, ...] = ()
    reload_ignored: bool = False

    def to_dict(self) -> Dict[str, Any]:
        """Without the texts of files: they may hold registry credentials."""
        return {
            "service": None if self.service is None else self.service.to_dict(),
            "refusals": [refusal.to_dict() for refusal in self.refusals],
            "reading": None if self.reading is None else self.reading.to_dict(),
            "pending": self.pending,
            "handlers": list(self.handlers),
            "cdi": self.cdi,
            "as_before": list(self.as_before),
            "reload_ignored": self.reload_ignored,
        }


@dataclass(frozen=True)
class Answer:
    """What the running daemon says.

    problem:    why it does not serve, '' when it does.
    handlers:   handlers that it has in effect, None when it does not tell.
    containers: ids of running containers.
    """

    problem: str
    handlers: Optional[FrozenSet[str]] = None
    containers: FrozenSet[str] = frozenset()


def pending(
    host: Host, journal: Journal, present: bool, service: Service, paths: Iterable[str], effective: str
) -> bool:
    """Whether the daemon may run with other files than these: one is newer, and not known to say the same.

    present:   whether handlers are wanted. Where they are to go, the daemon is disturbed for changes of ours alone.
    paths:     the files that the daemon reads.
    effective: Backend.effective_digest of the files as they are. Of others that we change, such as the template of one
               that is rendered at the next start, it tells nothing: they are taken in by a start alone.
    """
    if not service.active:
        return False
    read = list(paths)
    stats = [host.stat(path) for path in read]
    newer = present and any(stat is not None and stat.st_mtime > service.started for stat in stats)
    memory = recall(journal, service.name)
    verified = memory.get("verified", {})
    known = verified.get("pid") == service.pid and verified.get("digest") == effective
    changes = memory.get("undo", {})
    if not came_up_with(host, service, {path: change for path, change in changes.items() if path not in read}):
        return True
    return (newer or not came_up_with(host, service, changes)) and not known


def came_up_with(host: Host, service: Service, changes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the daemon was started after all these changes of ours, wherever its clock was set since.

    changes: {path: {'boot', 'up' (seconds since that boot), ...}}; an older release wrote 'time', of the clock, instead
    """
    started = service.started - of_boot()
    return all(service.started > change["time"] if "time" in change else
               change.get("boot") != host.boot() or started > change["up"] for change in changes.values())


def started_at(host: Host, pid: int) -> float:
    """When a process was started, in seconds since the epoch; 0 when there is none."""
    fields = (host.read("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
    if len(fields) < 20:
        return 0.0
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return of_boot() + since_boot


def environment(host: Host, pid: int) -> Dict[str, str]:
    """Variables that a process was started with; none when there is no process."""
    text = (host.read("/proc/%d/environ" % pid) or "") if pid else ""
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)
