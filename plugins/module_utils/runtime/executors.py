# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a runtime's configuration, have the daemon take it in, and put everything back when it does not serve."""
from __future__ import annotations

import time
from typing import Any, Dict, FrozenSet, List, Optional

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step, digest
from ..core.steps import Executor
from .detection import again
from .kinds import KINDS
from .model import MEMORY, RELOAD, RESTART, WAIT, Kind, Service
from .planner import APPLY, EDIT, REMOVE, WRITE
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


def _change(host: Host, journal: Journal, step: Step, text: Optional[str]) -> None:
    _check_unchanged(host, journal, step)
    if digest(text) != step.parameters["after"]:
        raise _refused(host, journal, step, "the change comes out otherwise than it was planned")
    _keep(host, journal, step.subject, text)
    if text is None:
        host.remove(step.subject)
        _remove_folders(host, journal, step.subject)
    else:
        like = step.parameters.get("like")
        host.write(step.subject, text, (host.mode(like) if like else None) or 0o644)
    if not step.parameters["present"]:
        journal.forget_original(step.subject)


def _check_unchanged(host: Host, journal: Journal, step: Step) -> None:
    if digest(host.read(step.subject)) != step.parameters["before"]:
        raise _refused(host, journal, step, "another program has changed it since it was read")


def _refused(host: Host, journal: Journal, step: Step, why: str) -> GpuOpsError:
    """What was written so far goes back, so that a half-made change is never waiting for the next restart."""
    restored = _undo(host, journal)
    return GpuOpsError(
        found="%s: %s" % (step.subject, why),
        wanted="the file that the plan was made for",
        remedy="run again: the new plan is made on the file as it is now; nothing of this run was left behind",
        restored=restored,
    )


def apply(host: Host, journal: Journal, step: Step) -> None:
    """Have the daemon take its files in and wait until it serves; else the files go back, and it takes those in."""
    kind = KINDS[step.parameters["kind"]]
    service = _service(host, step)
    verb = step.action.rpartition(".")[2]
    wanted = frozenset(step.parameters["handlers"])
    running = kind.answer(host, service).containers
    failure = _apply(host, kind, service, verb, wanted, running)
    if failure:
        restored = _undo(host, journal)
        second = failure
        if restored:
            second = _apply(host, kind, service, _verb_after_failure(host, service, verb), frozenset(), frozenset())
        raise GpuOpsError(
            found="%s does not come up with the new configuration: %s" % (kind.title, failure),
            wanted="a %s that answers within %d s, with its handlers and its running containers"
                   % (kind.title, READY_SECONDS),
            remedy="%s; see journalctl -u %s" % (_state_after(kind, restored, second), service.unit),
            restored=restored,
        )
    now = _service(host, step)
    _remember(journal, undo=None, verified={"pid": now.pid, "digest": kind.effective_digest(host, now)})


def _apply(
    host: Host, kind: Kind, service: Service, verb: str, wanted: FrozenSet[str], running: FrozenSet[str]
) -> str:
    """'' when the daemon serves with its files, the handlers and the containers; else what is wrong."""
    try:
        kind.inspect(host, service)
        if verb != WAIT:
            host.systemctl(verb, service.unit)
    except GpuOpsError as error:
        return error.found
    deadline = time.monotonic() + READY_SECONDS
    while True:
        problem = _shortcoming(host, kind, service, wanted, running)
        if not problem or time.monotonic() > deadline:
            return problem
        time.sleep(PAUSE_SECONDS)


def _shortcoming(
    host: Host, kind: Kind, service: Service, wanted: FrozenSet[str], running: FrozenSet[str]
) -> str:
    answer = kind.answer(host, service)
    if answer.problem:
        return answer.problem
    if answer.handlers is not None and wanted - answer.handlers:
        return "the running %s does not know the handlers %s" % (kind.title, ", ".join(sorted(
            wanted - answer.handlers)))
    try:
        lost = kind.lost(host, service, sorted(running - answer.containers))
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


def _keep(host: Host, journal: Journal, path: str, after: Optional[str]) -> None:
    """Write down what was there: before our first change for good, before this change until the daemon is back."""
    journal.keep_original(MEMORY, path)
    undo = _undoing(journal)
    now = host.read(path)
    entry = undo.get(path)
    if entry is None or digest(now) not in (entry["after"], digest(entry["text"])):
        stat = host.stat(path)
        entry = {"text": now, "mode": 0o600 if stat is None else stat.st_mode & 0o7777}
    undo[path] = dict(entry, after=digest(after))
    _remember(journal, undo=undo)


def _undo(host: Host, journal: Journal) -> List[str]:
    """Put back what we wrote since the daemon last came up; a file that somebody changed after us stays."""
    restored = []
    for path, entry in reversed(list(_undoing(journal).items())):
        if digest(host.read(path)) != entry["after"]:
            continue
        if entry["text"] is None:
            host.remove(path)
            _remove_folders(host, journal, path)
            journal.forget_original(path)
        else:
            host.write(path, entry["text"], entry["mode"])
        restored.append(path)
    _remember(journal, undo=None)
    return sorted(restored)


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


def _state_after(kind: Kind, restored: List[str], second: str) -> str:
    if not restored:
        return "its configuration is not of this run, so nothing was put back"
    if second:
        return "the files were put back, and %s still does not come up (%s)" % (kind.title, second)
    return "the files were put back and %s is up again with them" % kind.title


EXECUTORS: Dict[str, Executor] = {
    WRITE: write, EDIT: edit, REMOVE: remove, **dict.fromkeys(APPLY.values(), apply),
}
