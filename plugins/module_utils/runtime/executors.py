# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a runtime's configuration, have the daemon take it in, and put everything back when it does not serve.

The daemon is disturbed as the step says and no more. A reload that it does not take in is undone, not followed by a
restart that nobody has agreed to; it is remembered, and the next plan asks for the restart under its own name.
Only where a daemon has died of it is it started again: that disturbs nothing that still runs.
"""
from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

from ..core.errors import GpuOpsError, HostFailed
from ..core.host import Host, Ownership
from ..core.journal import Journal
from ..core.plan import Step, digest
from ..core.steps import Executor
from .detection import again
from .kinds import KINDS
from .model import MEMORY, RELOAD, RESTART, WAIT, Answer, Kind, Service, came_up_with
from .planner import APPLY, EDIT, FORGET, REMOVE, WRITE
from .policy import RuntimePolicy

READY_SECONDS = 60.0
PAUSE_SECONDS = 0.2


def write(host: Host, journal: Journal, step: Step) -> None:
    """Our own file, no more open than the file beside it is."""
    _change(host, journal, step, step.change["after"])


def edit(host: Host, journal: Journal, step: Step) -> None:
    """Our lines in somebody else's file."""
    kind = KINDS[step.parameters["kind"]]
    _check_unchanged(host, journal, step)
    _change(host, journal, step, kind.edited(step.subject, host.read(step.subject), step.parameters["edit"]))


def remove(host: Host, journal: Journal, step: Step) -> None:
    _change(host, journal, step, None)


def forget(host: Host, journal: Journal, step: Step) -> None:
    """End a removal that was killed before its record was gone."""
    if not host.exists(step.subject):
        _remove_folders(host, journal, step.subject)
    journal.forget_original(step.subject)


def _change(host: Host, journal: Journal, step: Step, text: Optional[str]) -> None:
    _check_unchanged(host, journal, step)
    if digest(text) != step.parameters["after"]:
        raise _refused(host, journal, step, "the change comes out otherwise than it was planned", RUN_AGAIN)
    try:
        _keep(host, journal, step, text)
        _put(host, journal, step, text)
    except HostFailed as error:
        raise _refused(host, journal, step, "it cannot be written: %s" % error.reason, SEE_THE_DISK) from error
    if not step.parameters["present"]:
        journal.forget_original(step.subject)


def _put(host: Host, journal: Journal, step: Step, text: Optional[str]) -> None:
    if text is None:
        host.remove(step.subject)
        _remove_folders(host, journal, step.subject)
    else:
        like = step.parameters.get("like")
        host.write(step.subject, text, ownership=host.ownership(like) if like else None)


def _check_unchanged(host: Host, journal: Journal, step: Step) -> None:
    if digest(host.read(step.subject)) != step.parameters["before"]:
        raise _refused(host, journal, step, "another program has changed it since it was read", RUN_AGAIN)


RUN_AGAIN = "run again: the new plan is made on the file as it is now"
SEE_THE_DISK = "see whether it is immutable (lsattr), read-only or on a full disk (findmnt, df), and run again"


def _refused(host: Host, journal: Journal, step: Step, why: str, remedy: str) -> GpuOpsError:
    """What was written so far goes back, so that a half-made change is never waiting for the next restart."""
    restored, stuck = _undo(host, journal)
    return GpuOpsError(
        found="%s: %s" % (step.subject, why),
        wanted="the file that the plan was made for, changed as planned",
        remedy="%s; %s" % (remedy, _stuck(stuck) if stuck else "nothing of this run was left behind"),
        restored=restored,
    )


@dataclass(frozen=True)
class Expectation:
    """What the daemon has to say once it has taken its files in.

    known:   handlers that it knows, gone: handlers that it knows no more.
    running: containers that are still there, unless they ended by themselves.
    """

    known: FrozenSet[str] = frozenset()
    gone: FrozenSet[str] = frozenset()
    running: FrozenSet[str] = frozenset()

    def deaf(self, kind: Kind, answer: Answer) -> str:
        """How its handlers differ from its files', '' when they do not or it does not tell."""
        if answer.handlers is None:
            return ""
        told = [("does not know", self.known - answer.handlers), ("still knows", self.gone & answer.handlers)]
        return "; ".join("the running %s %s the handlers %s" % (kind.title, verb, ", ".join(sorted(names)))
                         for verb, names in told if names)


def apply(host: Host, journal: Journal, step: Step) -> None:
    """Have the daemon take its files in and wait until it serves; else the files go back, and it takes those in."""
    kind = KINDS[step.parameters["kind"]]
    service = _service(host, step)
    verb = step.action.rpartition(".")[2]
    wanted = frozenset(step.parameters["handlers"])
    ours = wanted.union(journal.recall(MEMORY).get("handlers", ()), step.parameters["ours"])
    defined = kind.handlers(host, service)
    expected = Expectation(wanted, frozenset() if defined is None else ours - wanted - defined,
                           kind.answer(host, service).containers)
    _remember(journal, handlers=sorted(ours))
    failure = _apply(host, kind, service, verb, expected)
    if failure:
        deaf = verb == RELOAD and bool(expected.deaf(kind, kind.answer(host, service)))
        restored, stuck = _undo(host, journal)
        second = failure
        if restored:
            second = _apply(host, kind, service, _verb_after_failure(host, service, verb), Expectation())
        if deaf:
            _remember(journal, deaf=service.pid)
        raise GpuOpsError(
            found="%s does not come up with the new configuration: %s" % (kind.title, failure),
            wanted="a %s that answers within %d s, with its handlers and its running containers"
                   % (kind.title, READY_SECONDS),
            remedy="%s; %s" % (_state_after(kind, restored, stuck, second), AFTER_DEAF % service.unit if deaf
                               else "see journalctl -u %s" % service.unit),
            restored=restored,
        )
    now = _service(host, step)
    _remember(journal, undo=None, deaf=None, handlers=sorted(wanted),
              verified={"pid": now.pid, "digest": kind.effective_digest(host, now)})


AFTER_DEAF = "a reload is not enough for this process: run again, and the plan will be to restart %s"


def _apply(host: Host, kind: Kind, service: Service, verb: str, expected: Expectation) -> str:
    """'' when the daemon serves with its files, the handlers and the containers; else what is wrong."""
    try:
        kind.inspect(host, service)
        if verb != WAIT:
            host.systemctl(verb, service.unit)
    except GpuOpsError as error:
        return error.found
    deadline = time.monotonic() + READY_SECONDS
    while True:
        # Asked for before the daemon is: this process may get no processor for a while after its answer
        late = time.monotonic() > deadline
        problem = _shortcoming(host, kind, service, expected)
        if not problem or late:
            return problem
        time.sleep(PAUSE_SECONDS)


def _shortcoming(host: Host, kind: Kind, service: Service, expected: Expectation) -> str:
    answer = kind.answer(host, service)
    told = answer.problem or expected.deaf(kind, answer)
    if told:
        return told
    try:
        lost = kind.lost(host, service, sorted(expected.running - answer.containers))
    except GpuOpsError as error:
        return error.found
    return "containers that ran before are lost: %s" % ", ".join(name[:12] for name in lost) if lost else ""


def _verb_after_failure(host: Host, service: Service, verb: str) -> str:
    """A daemon that died of a reload has to be started again."""
    if verb == RELOAD and host.unit(service.unit).get("ActiveState") != "active":
        return RESTART
    return verb


def _service(host: Host, step: Step) -> Service:
    """The service of an apply step as it is now."""
    told = step.parameters
    policy = RuntimePolicy(True, "nvidia", "", False, True, told["root"], runtime=told["runtime"])
    service = again(host, policy, told["socket"])
    if service is None:
        raise GpuOpsError("no %s any more" % step.subject, "the runtime that the plan was made for", "plan again")
    return service


def _keep(host: Host, journal: Journal, step: Step, after: Optional[str]) -> None:
    """Write down what was there: before our first change for good, before this change until the daemon is back."""
    path = step.subject
    journal.keep_original(MEMORY, path)
    undo = _undoing(journal)
    if undo:
        service = _service(host, step)
        if service.pid and came_up_with(host, service, undo):
            # an earlier run was killed, and the daemon has come up since: with those files it serves
            undo = {}
    now = host.read(path)
    entry = undo.get(path)
    if entry is None or digest(now) not in (entry["after"], digest(entry["text"])):
        owner = host.ownership(path)
        entry = {"text": now, "owner": None if owner is None else asdict(owner)}
    undo[path] = dict(entry, after=digest(after), boot=host.boot(), up=time.clock_gettime(time.CLOCK_BOOTTIME))
    _remember(journal, undo=undo)


def _undo(host: Host, journal: Journal) -> Tuple[List[str], List[str]]:
    """Put back what we wrote since the daemon last came up; a file that somebody changed after us stays.

    Returns the files that are back, and those that could not be written.
    """
    restored, stuck = [], {}
    for path, entry in reversed(list(_undoing(journal).items())):
        now = digest(host.read(path))
        if now != entry["after"] or now == digest(entry["text"]):
            continue
        try:
            _put_back(host, journal, path, entry)
            restored.append(path)
        except HostFailed:
            stuck[path] = entry
    _remember(journal, undo=stuck)
    return sorted(restored), sorted(stuck)


def _put_back(host: Host, journal: Journal, path: str, entry: Dict[str, Any]) -> None:
    if entry["text"] is None:
        host.remove(path)
        _remove_folders(host, journal, path)
        journal.forget_original(path)
    else:
        host.put_back(path, entry["text"].encode("utf-8", "surrogateescape"), Ownership(**entry["owner"]))


def _remove_folders(host: Host, journal: Journal, path: str) -> None:
    """Directories that only came with a file of ours go with it."""
    for original in journal.originals(MEMORY):
        if original.path == path:
            for folder in reversed(original.folders):
                host.remove_empty_dir(folder)


def _undoing(journal: Journal) -> Dict[str, Dict[str, Any]]:
    undo: Dict[str, Dict[str, Any]] = journal.recall(MEMORY).get("undo") or {}
    return undo


def _remember(journal: Journal, **changes: Any) -> None:
    memory = dict(journal.recall(MEMORY), **changes)
    journal.remember(MEMORY, {key: value for key, value in memory.items() if value})


def _state_after(kind: Kind, restored: List[str], stuck: List[str], second: str) -> str:
    if stuck:
        return _stuck(stuck)
    if not restored:
        return "its configuration is not of this run, so nothing was put back"
    if second:
        return "the files were put back, and %s still does not come up (%s)" % (kind.title, second)
    return "the files were put back and %s is up again with them" % kind.title


def _stuck(paths: List[str]) -> str:
    return "%s could not be put back and is still as this run has written it" % ", ".join(paths)


EXECUTORS: Dict[str, Executor] = {
    WRITE: write, EDIT: edit, REMOVE: remove, FORGET: forget,
    **dict.fromkeys(APPLY.values(), apply),
}
