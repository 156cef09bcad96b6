# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every kind of container runtime has in common, as data, and the adapter that a kind is."""
from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import digest
from .cri import CriClient, CriStatus
from .policy import RuntimePolicy

MEMORY = "runtime"

RESTART = "restart"
RELOAD = "reload"
# The distribution itself picks the files up, such as k0s
WAIT = "wait"


@dataclass(frozen=True)
class Service:
    """
    kind:         'containerd', 'crio' or 'docker'.
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

    kind: str
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

    def to_dict(self) -> Dict[str, Any]:
        """What a plan depends on: which process it happens to be is left out."""
        return {
            "kind": self.kind, "distribution": self.distribution, "unit": self.unit, "active": self.active,
            "release": list(self.release), "root": self.root, "socket": self.socket,
        }


@dataclass(frozen=True)
class Problem:
    """Why the configuration cannot be changed."""

    found: str
    wanted: str
    remedy: str

    @classmethod
    def of(cls, error: GpuOpsError) -> Problem:
        return cls(error.found, error.wanted, error.remedy)


@dataclass(frozen=True)
class Edit:
    """A file before and after; None is no file.

    before, after: whole texts; they may hold secrets and are never shown.
    shown_*:       what a plan may show of them.
    parameters:    how the change is worked out again on the file when it is made (see Kind.edited), JSON-able;
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


@dataclass(frozen=True)
class RuntimeObservation:
    """
    service:  the runtime, None when there is none.
    problem:  what stands against any change, None if nothing does.
    edits:    files to change, in the order of their writing, judged by the runtime's own program.
    pending:  whether the daemon may not know the files as they are.
    leftover: files on record as changed by us in which nothing of ours is left: an earlier removal was killed.
    restart:  whether a reload has proved not to be enough for the process that runs.
    handlers: handlers in the files as they are.
    cdi:      whether the runtime injects CDI devices itself, None when it cannot.
    notes:    what a person should know.
    """

    service: Optional[Service]
    problem: Optional[Problem]
    edits: Tuple[Edit, ...] = ()
    pending: bool = False
    handlers: Tuple[str, ...] = ()
    cdi: Optional[bool] = None
    notes: Tuple[str, ...] = ()
    leftover: Tuple[str, ...] = ()
    restart: bool = False

    def to_dict(self) -> Dict[str, Any]:
        """Without the texts of files: they may hold registry credentials."""
        return {
            "service": None if self.service is None else self.service.to_dict(),
            "problem": None if self.problem is None else self.problem.found,
            "edits": [[edit.path, digest([edit.before, edit.after])] for edit in self.edits],
            "pending": self.pending,
            "handlers": list(self.handlers),
            "cdi": self.cdi,
            "notes": list(self.notes),
            "leftover": list(self.leftover),
            "restart": self.restart,
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


class Kind:
    """The adapter of one kind of runtime. All reading goes through the host; nothing here writes.

    name:  its word in plans, title: its name for a person.
    """

    name: str = ""
    title: str = ""

    def observe(self, host: Host, journal: Journal, policy: RuntimePolicy, service: Service) -> RuntimeObservation:
        """Compute the edits and have the real program judge them in a scratch copy."""
        raise NotImplementedError

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        """Pure: the text of a file once an edit with these parameters is made; None takes the file away."""
        raise NotImplementedError

    def apply_verb(self, service: Service, edits: Sequence[Edit]) -> str:
        """Pure: how the daemon learns of these edits: RESTART, RELOAD or WAIT. Without any: of files newer than it."""
        return RESTART

    def effective_digest(self, host: Host, service: Service) -> str:
        """What of the files the daemon acts upon, as far as our change goes."""
        raise NotImplementedError

    def inspect(self, host: Host, service: Service) -> None:
        """Have the real program read the files in place. Raises GpuOpsError when the daemon would not start."""

    def handlers(self, host: Host, service: Service) -> Optional[FrozenSet[str]]:
        """Handlers that the files in place define; None where a kind does not tell."""
        return None

    def answer(self, host: Host, service: Service) -> Answer:
        """Ask the running daemon, by the CRI where a kind has no other way."""
        client = CriClient(host.path(service.socket))
        try:
            status = client.status()
            if not status.ready:
                return Answer(status.problem)
            return Answer("", self.running_handlers(status), client.running_containers())
        except GpuOpsError as error:
            return Answer(error.found)

    def lost(self, host: Host, service: Service, containers: Iterable[str]) -> Tuple[str, ...]:
        """Those of these containers that did not end by themselves but were lost."""
        client = CriClient(host.path(service.socket))
        return tuple(name for name in containers if client.was_killed(name))

    def running_handlers(self, status: CriStatus) -> Optional[FrozenSet[str]]:
        """Handlers that a CRI status tells of; None when it tells none."""
        return frozenset(status.handlers) if status.handlers else None


def pending(host: Host, journal: Journal, service: Service, paths: Iterable[str], effective: str) -> bool:
    """Whether the daemon may run with other files than these: one is newer, and not known to say the same.

    effective: Kind.effective_digest of the files as they are.
    """
    if not service.active:
        return False
    stats = [host.stat(path) for path in paths]
    newer = any(stat is not None and stat.st_mtime > service.started for stat in stats)
    memory = journal.recall(MEMORY)
    verified = memory.get("verified", {})
    known = verified.get("pid") == service.pid and verified.get("digest") == effective
    return (newer or not came_up_with(host, service, memory.get("undo", {}))) and not known


def came_up_with(host: Host, service: Service, changes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the daemon was started after all these changes of ours, wherever its clock was set since.

    changes: {path: {'boot', 'up' (seconds since that boot), ...}}
    """
    started = service.started - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
    return all(change.get("boot") != host.boot() or started > change["up"] for change in changes.values())


def started_at(host: Host, pid: int) -> float:
    """When a process was started, in seconds since the epoch; 0 when there is none."""
    fields = (host.read("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
    if len(fields) < 20:
        return 0.0
    since_boot = int(fields[19]) / CLOCK_TICKS
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def environment(host: Host, pid: int) -> Dict[str, str]:
    """Variables that a process was started with; none when there is no process."""
    text = (host.read("/proc/%d/environ" % pid) or "") if pid else ""
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


# USER_HZ, the unit of times in /proc, which is 100 on every architecture that Linux runs GPUs on
CLOCK_TICKS = 100
