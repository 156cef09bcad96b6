# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Long-lived processes that outlive the command that started them, found again by a file with their identity."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Union


class LabError(RuntimeError):
    """Something the laboratory cannot do; the message says what was found, what was wanted and the remedy."""


def run(argv: Sequence[Union[str, Path]], feed: Optional[str] = None, check: bool = True) -> str:
    """Run a command and return its standard output; its standard error is part of the `LabError` when it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, input=feed, stdin=None if feed is not None else subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if check and done.returncode != 0:
        raise LabError("%s ended with %d: %s" % (" ".join(words), done.returncode, done.stderr.strip()))
    return done.stdout


def wait_for(what: str, ready: Callable[[], bool], seconds: float, hint: str = "", pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise LabError("%s: not there after %.0f s%s" % (what, seconds, hint and "; see %s" % hint))
        time.sleep(pause)


class Daemon:
    """One background process of a lab.

    A process number alone may have been given to a stranger since; with the start time it names one process only.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.identity_file = directory / ("%s.pid" % name)
        self.log_file = directory / ("%s.log" % name)

    @property
    def pid(self) -> Optional[int]:
        """The process number while the process lives."""
        try:
            identity = json.loads(self.identity_file.read_text())
        except (OSError, ValueError):
            return None
        return identity["pid"] if start_time(identity["pid"]) == identity["started"] else None

    def start(self, argv: Sequence[Union[str, Path]], environment: Optional[Dict[str, str]] = None) -> None:
        if self.pid is not None:
            return
        self.identity_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                             start_new_session=True, env={**os.environ, **(environment or {})},
                             preexec_fn=self._sign)

    def _sign(self) -> None:
        """The new process writes its identity itself, before it becomes the program: so no program runs unrecorded,
        even when the starter is killed in this very moment."""
        scratch = self.identity_file.with_suffix(".new")
        scratch.write_text(json.dumps({"pid": os.getpid(), "started": start_time(os.getpid())}))
        scratch.replace(self.identity_file)

    def stop(self, seconds: float = 5.0, first: signal.Signals = signal.SIGTERM) -> None:
        pid = self.pid
        if pid is not None:
            end_process(pid, seconds, first)
        self.identity_file.unlink(missing_ok=True)

    def log_tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def start_time(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; nothing for one that is gone or a zombie."""
    try:
        fields = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def end_process(pid: int, seconds: float, first: signal.Signals = signal.SIGTERM) -> None:
    """End one process, forcibly when it does not go in time."""
    started = start_time(pid)
    for number, patience in ((first, seconds), (signal.SIGKILL, 5.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            _reap(pid)
            if start_time(pid) != started or started is None:
                return
            time.sleep(0.02)


def _reap(pid: int) -> None:
    """A child of this very process would stay a zombie; strangers are reaped by init."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def children(pid: int) -> List[int]:
    try:
        return [int(word) for word in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()]
    except OSError:
        return []
