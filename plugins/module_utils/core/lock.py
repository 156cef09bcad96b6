# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run at a time on a host: a lease in /run, so that it ends with the boot at the latest.

  lock.json  who holds it, see Lease. It is read and replaced under flock(2) of 'lock', for moments.
  command    the command that the holder runs, or has run last, see Host.commands_told_in
  look       held under flock(2) by who only looks while he has GPUs open, and by a run, which nobody then looks at
  progress.json  which step the holder is at, see progress.py; it goes when the run ends

A run holds it from before it observes. While a module works, the lease lives as long as the module's process. A
package transaction is carried out by the controller, between two calls of the module: then the lease is handed over,
lives for GRACE_SECONDS and for as long as the package manager's own locks are held, and the next call of the same run
takes it up again; or hands it over once more, where ansible.builtin's module was killed and the package manager works
on. So a killed module frees the host once the command that it ran has ended, for an initramfs must not be written twice
at once; and a killed controller soon after its transaction.

A call that finds its own run at work is a second one: ssh that lost its connection was told to try again. It waits.
Readers take no lock: what they read is replaced as a whole. Who plans waits for the run that is at work: a plan of a
host that changes meanwhile is nobody's.
"""
from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Iterator, List, Optional, Set, Tuple

from .errors import GpuOpsError, HostFailed
from .host import Host
from .progress import PATH as PROGRESS
from .telling import read as read_progress
from .times import since_boot
from .waiting import wait_for

DIRECTORY = "/run/gpuops"
GUARD = DIRECTORY + "/lock"
RECORD = DIRECTORY + "/lock.json"
COMMAND = DIRECTORY + "/command"
LOOK = DIRECTORY + "/look"
GRACE_SECONDS = 120.0
PAUSE_SECONDS = 0.2
# Longer than a look takes, whose calls hang (health/policy.py, patience)
LOOK_SECONDS = 150.0

# Files that apt, dpkg and rpm lock while they work (apt.conf(5), dpkg(1), rpm's lib/rpmlock.c)
PACKAGE_LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock", "/var/cache/apt/archives/lock",
                 "/var/lib/apt/lists/lock", "/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
# Files in which dnf and zypper say who works (dnf's lock.py; libzypp's zypp/ZYppFactory.cc): rpm's lock is held for a
# part of a transaction alone, not while packages are fetched or what was installed is verified
PACKAGE_PROCESSES = ("/var/lib/dnf/rpmdb_lock.pid", "/var/cache/dnf/metadata_lock.pid",
                     "/var/cache/dnf/download_lock.pid", "/run/zypp.pid")


@dataclass(frozen=True)
class Lease:
    """Who holds the host, and how it is told whether he still works.

    token:          the run, the same in all its calls.
    who:            what works on the host, and for whom, for people.
    since:          when the run began, seconds since the epoch.
    pid, started:   the process, and when it started: a process id is given again.
    boot:           the boot that both are of.
    handed_over:    seconds since that boot at which the controller took over, 0 while the process works.
    """

    token: str
    who: str
    since: float
    pid: int
    started: str
    boot: str
    handed_over: float = 0.0

    @property
    def process(self) -> Tuple[str, int, str]:
        return self.boot, self.pid, self.started

    def __str__(self) -> str:
        return "%s (%s), at work since %s" % (
            self.who,
            "package transaction of its controller" if self.handed_over else "process %d" % self.pid,
            _instant(self.since))


class HostLock:
    """The lock, in the hands of one process.

    token: names the run; a call with the same one takes up what was handed over.
    who:   what others are told.
    """

    def __init__(self, host: Host, token: str, who: str) -> None:
        self.host = host
        pid = os.getpid()
        self._mine = Lease(token or "process %d" % pid, who, time.time(), pid, host.process_started(pid), host.boot())
        self._handed_over = False

    @property
    def token(self) -> str:
        """Names the run."""
        return self._mine.token

    @contextlib.contextmanager
    def held(self, timeout: float) -> Iterator[str]:
        """Hold the lock; gives what was waited for, '' when nothing was. At the end it is free, or handed over.

        timeout: seconds to wait for another run, 0 is not to wait. Raises GpuOpsError that names the other run.
        """
        waited = self._wait(timeout, take=True)
        self.host.commands_told_in = COMMAND
        try:
            with unlooked(self.host):
                yield waited
        finally:
            self.host.commands_told_in = ""
            if not self._handed_over:
                self._release()

    def await_others(self, timeout: float) -> str:
        """Wait until no other run works on this host, without taking the lock; as held()."""
        return self._wait(timeout, take=False) if self.host.exists(RECORD) else ""

    def is_taken(self) -> bool:
        """Whether another run works on this host now."""
        if not self.host.exists(RECORD):
            return False
        with self._guard():
            return self._other() is not None

    def hand_over(self) -> None:
        """Leave the lock to the controller until this run's next call."""
        with self._guard():
            self._write(replace(self._mine, handed_over=since_boot()))
        self._handed_over = True

    def _wait(self, timeout: float, take: bool) -> str:
        others: List[Lease] = []

        def ask() -> Optional[Lease]:
            with self._guard():
                other = self._other()
                if other is None and take:
                    self._write(self._mine)
            if other is not None:
                if timeout > 0 and not others:
                    self.host.waits("%s%s" % (other, self._is_at(other)))
                others.append(other)
            return other

        began = time.monotonic()
        other, _free = wait_for(ask, lambda other: other is None, timeout, PAUSE_SECONDS)
        if other is not None:
            passed = time.monotonic() - began
            raise GpuOpsError(
                "host.another_run",
                found="another run: %s%s; waited %.0f s for it, since %s" % (
                    other, self._is_at(other), passed, _instant(time.time() - passed)),
                wanted="one run at a time on a host",
                remedy="run again when it has ended, or give a longer `lock_timeout`",
                option="lock_timeout",
                held_by=asdict(other),
            )
        return str(others[-1]) if others else ""

    def _other(self) -> Optional[Lease]:
        """The lease of another run that lives. A lease of this run is taken up."""
        held = self._read()
        if held is None:
            return None
        if held.token == self._mine.token:
            self._mine = replace(self._mine, since=held.since)
            if held.handed_over or held.process == self._mine.process:
                return None
        if held.boot != self._mine.boot:
            return None
        if not held.handed_over:
            return held if self._lives(held) else self._left_behind(held)
        if package_manager_works(self.host):
            held = replace(held, handed_over=since_boot())
            self._write(held)
        return held if since_boot() - held.handed_over < GRACE_SECONDS else None

    def _is_at(self, other: Lease) -> str:
        """What a run is at, for people; '' where it has not told."""
        progress = read_progress(self.host)
        if progress is None or progress.run != other.token:
            return ""
        return ", at: %s" % progress.lasting(time.time())

    def _lives(self, lease: Lease) -> bool:
        return self.host.process_started(lease.pid) == lease.started

    def _left_behind(self, dead: Lease) -> Optional[Lease]:
        """The lease in the name of the command that outlives its killed module, None when there is none."""
        told = (self.host.read(COMMAND) or "").split()
        if len(told) != 2 or not told[0].isdigit():
            return None
        command = replace(dead, who="a command of the killed %s" % dead.who, pid=int(told[0]), started=told[1])
        return command if self._lives(command) else None

    def _release(self) -> None:
        # What cannot be removed ends with this process
        with contextlib.suppress(HostFailed), self._guard():
            held = self._read()
            if held is not None and held.process == self._mine.process:
                self.host.remove(PROGRESS)
                self.host.remove(RECORD)

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        self.host.make_directory(DIRECTORY, 0o700)
        with self.host.guard(GUARD):
            yield

    def _read(self) -> Optional[Lease]:
        """The lease that is there; one that cannot be understood is nobody's."""
        try:
            return Lease(**json.loads(self.host.read(RECORD) or "null"))
        except (ValueError, TypeError):
            return None

    def _write(self, lease: Lease) -> None:
        self.host.write(RECORD, json.dumps(asdict(lease), sort_keys=True) + "\n", 0o600)


# (process, root of a host) that holds it: the same process may look
_unlooked: Set[Tuple[int, str]] = set()


@contextlib.contextmanager
def looking(host: Host, timeout: float = LOOK_SECONDS) -> Iterator[bool]:
    """For who is about to ask GPUs and to change nothing: whether he may now, which no run then finds in use.

    timeout: for how many seconds he waits for another one that looks; a run is not waited for.
    """
    host.make_directory(DIRECTORY, 0o700)
    with contextlib.ExitStack() as stack:
        lock = HostLock(host, "", "a look")

        def ask() -> Tuple[bool, bool]:
            with contextlib.ExitStack() as tried:
                is_free = (os.getpid(), host.root) in _unlooked or tried.enter_context(host.occupied(LOOK, ""))
                is_taken = lock.is_taken()
                if is_free and not is_taken:
                    stack.push(tried.pop_all())
                return is_free, is_taken

        (is_free, is_taken), _known = wait_for(ask, any, timeout, PAUSE_SECONDS)
        yield is_free and not is_taken


@contextlib.contextmanager
def unlooked(host: Host) -> Iterator[None]:
    """Nobody who only looks asks GPUs in it; who does is waited for, unless a call of his hangs."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(HostFailed):
            if host.exists(LOOK):
                stack.enter_context(host.guard(LOOK, LOOK_SECONDS))
                mine = (os.getpid(), host.root)
                _unlooked.add(mine)
                stack.callback(_unlooked.discard, mine)
        yield


def package_manager_works(host: Host) -> bool:
    """Whether a package manager is at work on this host, whoever's."""
    return bool(_holders(host))


def package_managers(host: Host) -> str:
    """Who holds the locks of the package manager, for people; '' where nobody does."""
    return ", ".join(filter(None, (
        host.process_told(pid) if pid > 0 else "a process of another PID namespace" for pid in _holders(host))))


def _holders(host: Host) -> Tuple[int, ...]:
    """Processes that hold a lock of a package manager; -1 for one that this process cannot see."""
    found = [*map(host.holder, PACKAGE_LOCKS), *(_process_in(host, path) for path in PACKAGE_PROCESSES)]
    return tuple(dict.fromkeys(filter(None, found)))


def _process_in(host: Host, path: str) -> int:
    """The process that a file names, 0 where that has ended: who is killed leaves the file."""
    told = (host.read(path) or "").strip()
    return int(told) if told.isdigit() and host.process_started(int(told)) else 0


def _instant(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
