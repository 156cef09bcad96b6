# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The adapter of one container runtime: what it reads, plans, judges and answers, in one form for all of them."""
from __future__ import annotations

from typing import Any, FrozenSet, Generic, Iterable, Mapping, Optional, Sequence, Tuple, TypeVar

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.refusal import Refusal
from .cri import CriClient, CriStatus
from .model import RESTART, Answer, Edit, Observation, Reading, Service
from .policy import Policy

Read = TypeVar("Read", bound=Reading)


class Backend(Generic[Read]):
    """The adapter of one container runtime. All reading goes through the host; nothing here writes.

    name:  its word in plans, title: its name for a person.
    """

    name: str = ""
    title: str = ""

    def observe(self, host: Host, journal: Journal, policy: Policy, service: Service) -> Observation:
        """Read the files and what decides over them. Raises GpuOpsError where they cannot be read."""
        raise NotImplementedError

    def edits(self, service: Service, reading: Read, policy: Policy) -> Tuple[Edit, ...]:
        """Pure: files to change, in the order of their writing. Raises GpuOpsError where that is not safe."""
        raise NotImplementedError

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        """Pure: the text of a file once an edit with these parameters is made; None takes the file away."""
        raise NotImplementedError

    def notes(
        self, service: Service, reading: Read, policy: Policy, edits: Sequence[Edit]
    ) -> Tuple[str, ...]:
        """Pure: what a person should know beside the steps."""
        return ()

    def judge(self, host: Host, service: Service, reading: Read, policy: Policy) -> None:
        """Have the real program read scratch copies of the files as the edits leave them.

        Raises GpuOpsError when it does not take them, or when they change more for it than they say.
        """
        raise NotImplementedError

    def apply_verb(self, service: Service, reading: Read, edits: Sequence[Edit]) -> str:
        """Pure: how the daemon learns of these edits: RESTART, RELOAD or WAIT. Without any: of files newer than it."""
        return RESTART

    def against_restart(self, service: Service, reading: Read, edits: Sequence[Edit]) -> Optional[Refusal]:
        """Pure: why the daemon must not be restarted for these edits, or for files newer than it; None if it may."""
        return None

    def brought(self, parameters: Mapping[str, Any]) -> FrozenSet[str]:
        """Pure: handlers that an edit with these parameters brings, where the file cannot tell that they are ours."""
        return frozenset()

    def effective_digest(self, host: Host, service: Service) -> str:
        """What of the files the daemon acts upon, as far as our change goes."""
        raise NotImplementedError

    def inspect(self, host: Host, service: Service) -> None:
        """Have the real program read the files in place. Raises GpuOpsError when the daemon would not start."""

    def handlers(self, host: Host, service: Service) -> Optional[FrozenSet[str]]:
        """Handlers that the files in place define; None where a backend does not tell."""
        return None

    def answer(self, host: Host, service: Service) -> Answer:
        """Ask the running daemon, by the CRI where a backend has no other way."""
        client = CriClient(host.path(service.socket))
        try:
            status = client.status()
            if not status.ready:
                return Answer(status.problem)
            return Answer("", self.running_handlers(status), client.running_containers())
        except GpuOpsError as error:
            return Answer(error.found)

    def not_running(self, service: Service) -> Refusal:
        return Refusal(
            "runtime.not_running", "%s is not running" % service.unit,
            "a running %s, so that a change can be proved" % self.title,
            "start it: `systemctl start %s`; `journalctl -u %s` says why it stopped" % (service.unit, service.unit))

    def lost(self, host: Host, service: Service, containers: Iterable[str]) -> Tuple[str, ...]:
        """Those of these containers that did not end by themselves but were lost."""
        client = CriClient(host.path(service.socket))
        return tuple(name for name in containers if client.was_killed(name))

    def running_handlers(self, status: CriStatus) -> Optional[FrozenSet[str]]:
        """Handlers that a CRI status tells of; None when it tells none."""
        return frozenset(status.handlers) if status.handlers else None


def on_read_only_file_system(path: str) -> Refusal:
    return Refusal(
        "runtime.read_only", "%s lies on a file system that is mounted read-only" % path, "a file that can be changed",
        "configure the handler where this file is made, such as the system image")
