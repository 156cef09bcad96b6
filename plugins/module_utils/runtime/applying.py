# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have the daemon take its files in, and put everything back when it does not serve with them.

The daemon is disturbed as the step says and no more. A reload that it does not take in is undone, not followed by a
restart that nobody has agreed to; it is remembered, and the next plan asks for the restart under its own name.
Only where a daemon has died of it is it started again: that disturbs nothing that still runs.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, FrozenSet, List

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.waiting import wait_for
from .backend import Backend
from .backends.known import BACKENDS
from .memory import recall, remember
from .model import RELOAD, RESTART, WAIT, Answer, Service
from .writing import service_of, settled, stuck_files, taken_in, undo

READY_SECONDS = 60.0
PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Expectation:
    """What the daemon has to say once it has taken its files in.

    known:   handlers that it knows, gone: handlers that it knows no more.
    running: containers that are still there, unless they ended by themselves.
    """

    known: FrozenSet[str] = frozenset()
    gone: FrozenSet[str] = frozenset()
    running: FrozenSet[str] = frozenset()

    def unknown(self, backend: Backend[Any], answer: Answer) -> str:
        """How its handlers differ from its files', '' when they do not or it does not tell."""
        if answer.handlers is None:
            return ""
        told = [("does not know", self.known - answer.handlers), ("still knows", self.gone & answer.handlers)]
        return "; ".join("the running %s %s the handlers %s" % (backend.title, verb, ", ".join(sorted(names)))
                         for verb, names in told if names)


def apply(host: Host, journal: Journal, step: Step) -> None:
    """Have the daemon take its files in and wait until it serves; else the files go back, and it takes those in."""
    backend = BACKENDS[step.parameters["kind"]]
    service, runtime = service_of(host, step), step.parameters["runtime"]
    verb = step.action.rpartition(".")[2]
    wanted = frozenset(step.parameters["handlers"])
    ours = wanted.union(recall(journal, runtime).get("handlers", ()), step.parameters["ours"])
    defined = backend.handlers(host, service)
    expected = Expectation(wanted, frozenset() if defined is None else ours - wanted - defined,
                           backend.answer(host, service).containers)
    remember(journal, runtime, handlers=sorted(ours))
    failure = _apply(host, backend, service, verb, expected)
    if failure:
        ignored = verb == RELOAD and bool(expected.unknown(backend, backend.answer(host, service)))
        taken_in(host, journal, runtime)
        restored, stuck = undo(host, journal, runtime)
        second = failure
        if restored:
            second = _apply(host, backend, service, _verb_after_failure(host, service, verb), Expectation())
        settled(journal, runtime, stuck)
        if ignored:
            remember(journal, runtime, reload_ignored=service.pid)
        raise GpuOpsError(
            "runtime.does_not_come_up",
            found="%s does not come up with the new configuration: %s" % (backend.title, failure),
            wanted="a %s that answers within %d s, with its handlers and its running containers"
                   % (backend.title, READY_SECONDS),
            remedy=_state_after(backend, restored, stuck, second) + "; " + (
                "a reload is not enough for this process: run again, and the plan will be to restart %s" % service.unit
                if ignored else "see `journalctl -u %s`" % service.unit),
            restored=restored,
        )
    now = service_of(host, step)
    remember(journal, runtime, undo=None, reload_ignored=None, handlers=sorted(wanted),
             verified={"pid": now.pid, "digest": backend.effective_digest(host, now)})


def _apply(host: Host, backend: Backend[Any], service: Service, verb: str, expected: Expectation) -> str:
    """'' when the daemon serves with its files, the handlers and the containers; else what is wrong."""
    try:
        backend.inspect(host, service)
        if verb != WAIT:
            host.systemctl(verb, service.unit)
    except GpuOpsError as error:
        return error.found
    problem, _ready = wait_for(lambda: _shortcoming(host, backend, service, expected), lambda told: not told,
                               READY_SECONDS, PAUSE_SECONDS)
    return problem


def _shortcoming(host: Host, backend: Backend[Any], service: Service, expected: Expectation) -> str:
    answer = backend.answer(host, service)
    told = answer.problem or expected.unknown(backend, answer)
    if told:
        return told
    try:
        lost = backend.lost(host, service, sorted(expected.running - answer.containers))
    except GpuOpsError as error:
        return error.found
    return "containers that ran before are lost: %s" % ", ".join(name[:12] for name in lost) if lost else ""


def _verb_after_failure(host: Host, service: Service, verb: str) -> str:
    """A daemon that died of a reload has to be started again."""
    if verb == RELOAD and host.unit(service.unit).get("ActiveState") != "active":
        return RESTART
    return verb


def _state_after(backend: Backend[Any], restored: List[str], stuck: List[str], second: str) -> str:
    if stuck:
        return stuck_files(stuck)
    if not restored:
        return "its configuration is not of this run, so nothing was put back"
    if second:
        return "the files were put back, and %s still does not come up (%s)" % (backend.title, second)
    return "the files were put back and %s is up again with them" % backend.title
