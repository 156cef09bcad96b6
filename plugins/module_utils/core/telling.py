# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run that holds the host's lock writes what it is at, for whoever follows it or waits for it."""
from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Optional, Sequence

from .durations import Durations, expected
from .errors import GpuOpsError, HostFailed
from .host import Host
from .journal import Journal
from .plan import Step
from .progress import PATH, Progress


class Telling:
    """Writes the progress of one call of a module. What cannot be written is not told, and the run goes on.

    run:     the run, as the host's lock names it.
    resumed: whether the controller has carried out the step that this run told last: the next one is after that.
    """

    def __init__(self, host: Host, run: str, resumed: bool) -> None:
        self.host = host
        former = read(host)
        self._done = former.number if resumed and former is not None and former.run == run else 0
        self._at = Progress(run, since=time.time())
        self._known: Optional[Durations] = None

    def reading(self) -> None:
        """The host is read, and planned."""
        self._write(replace(self._at, since=time.time()))

    def step(self, step: Step, number: int, total: int, after: Sequence[Step] = ()) -> None:
        """A step begins; number and total count those of this call, from 1. after: those that follow it."""
        now = time.time()
        seconds = expected((step, *after), self._durations())
        self._write(Progress(self._at.run, self._done + number, self._done + total, step.action, step.subject, now,
                             until=0.0 if seconds is None else now + seconds))

    def fetches(self, amount: int) -> None:
        """So many bytes are to be fetched by the step that was told last."""
        self._write(replace(self._at, fetches=amount))

    def _durations(self) -> Durations:
        """As they were when the call began: what it does itself is told when it is over."""
        if self._known is None:
            try:
                self._known = Journal(self.host).durations()
            except GpuOpsError:
                self._known = {}
        return self._known

    def _write(self, progress: Progress) -> None:
        self._at = progress
        with contextlib.suppress(HostFailed):
            self.host.write(PATH, progress.to_json() + "\n", 0o600)


def read(host: Host) -> Optional[Progress]:
    """What the run that works on this host is at; None where nothing tells."""
    try:
        return Progress.from_json(host.read(PATH))
    except HostFailed:
        return None
