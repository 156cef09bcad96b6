# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a runtime's configuration, keep what was there, and put it back when the run cannot go on."""
from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, List, Optional, Tuple

from ..core.errors import GpuOpsError, HostFailed
from ..core.host import Host, Ownership
from ..core.journal import Journal
from ..core.plan import Step, digest
from ..core.refusal import Refusal
from ..core.times import since_boot
from .backends.known import BACKENDS
from .detection import rediscover
from .memory import MEMORY, recall, remember, served_with
from .model import Service, came_up_with


def write(host: Host, journal: Journal, step: Step) -> None:
    """Our own file, no more open than the file beside it is."""
    _change(host, journal, step, step.change["after"])


def edit(host: Host, journal: Journal, step: Step) -> None:
    """Our lines in somebody else's file."""
    backend, runtime = BACKENDS[step.parameters["kind"]], step.parameters["runtime"]
    _check_unchanged(host, journal, step)
    # a file that cannot tell whose they are: this may be the last that is known of them before another policy comes
    brought = backend.brought(step.parameters["edit"])
    remember(journal, runtime, handlers=sorted(brought.union(recall(journal, runtime).get("handlers", ()))))
    _change(host, journal, step, backend.edited(step.subject, host.read(step.subject), step.parameters["edit"]))


def remove(host: Host, journal: Journal, step: Step) -> None:
    _change(host, journal, step, None)


def forget(host: Host, journal: Journal, step: Step) -> None:
    """End a removal that was killed before its record was gone."""
    if not host.exists(step.subject):
        _remove_directories(host, journal, step.subject)
    journal.forget_original(step.subject)


def _change(host: Host, journal: Journal, step: Step, text: Optional[str]) -> None:
    _check_unchanged(host, journal, step)
    if digest(text) != step.parameters["after"]:
        raise _undone(host, journal, step.parameters["runtime"], Refusal(
            "runtime.comes_out_otherwise", "%s: the change comes out otherwise than it was planned" % step.subject,
            "the text that was planned and judged", "run again: the new plan is made on the file as it is now"))
    try:
        _keep(host, journal, step, text)
        _put(host, journal, step, text)
    except HostFailed as error:
        raise _undone(host, journal, step.parameters["runtime"], Refusal(
            "runtime.not_writable", "%s: it cannot be written: %s" % (step.subject, error.reason),
            "the file changed as planned",
            "see whether it is immutable (`lsattr`), read-only or on a full disk (`findmnt`, `df`), and run again",
        )) from error
    if not step.parameters["present"]:
        journal.forget_original(step.subject)


def _put(host: Host, journal: Journal, step: Step, text: Optional[str]) -> None:
    if text is None:
        host.remove(step.subject)
        _remove_directories(host, journal, step.subject)
    else:
        like = step.parameters.get("like")
        host.write(step.subject, text, ownership=host.ownership(like) if like else None)


def _check_unchanged(host: Host, journal: Journal, step: Step) -> None:
    if digest(host.read(step.subject)) != step.parameters["before"]:
        raise _undone(host, journal, step.parameters["runtime"], Refusal(
            "runtime.changed_meanwhile", "%s: another program has changed it since it was read" % step.subject,
            "the file that the plan was made for", "run again: the new plan is made on the file as it is now"))


def _undone(host: Host, journal: Journal, runtime: str, refusal: Refusal) -> GpuOpsError:
    """What was written so far goes back, so that a half-made change is never waiting for the next restart."""
    restored, stuck = undo(host, journal, runtime)
    left = stuck_files(stuck) if stuck else "nothing of this run was left behind"
    return GpuOpsError.because([replace(refusal, remedy="%s; %s" % (refusal.remedy, left))], restored=restored)


def stuck_files(paths: List[str]) -> str:
    return "%s could not be put back and is still as this run has written it" % ", ".join(paths)


def service_of(host: Host, step: Step) -> Service:
    """The service that a step was planned for, as it is now."""
    told = step.parameters
    service = rediscover(host, told["runtime"], told["root"], told["socket"])
    if service is None:
        raise GpuOpsError("runtime.gone", found="no %s any more" % step.subject,
                          wanted="the runtime that the plan was made for", remedy="plan again")
    return service


def _keep(host: Host, journal: Journal, step: Step, after: Optional[str]) -> None:
    """Write down what was there: before our first change for good, before this change until the daemon is back."""
    path, runtime = step.subject, step.parameters["runtime"]
    journal.keep_original(MEMORY, path)
    changes = _undoing(journal, runtime)
    if changes:
        service = service_of(host, step)
        if service.pid and came_up_with(host, service, changes):
            # an earlier run was killed, and the daemon has come up since: with those files it serves
            changes = {}
    now = host.read(path)
    entry = changes.get(path)
    if entry is None:
        entry = _former(host, path, now)
    elif digest(now) not in (entry["after"], digest(entry["text"])):
        # somebody has changed it since: his text is what is put back, and not what the daemon serves with
        entry = {**_former(host, path, now), "served": served_with(entry)}
    changes[path] = dict(entry, after=digest(after), **_moment(host))
    remember(journal, runtime, undo=changes)


def _former(host: Host, path: str, text: Optional[str]) -> Dict[str, Any]:
    owner = host.ownership(path)
    return {"text": text, "owner": None if owner is None else asdict(owner)}


def _moment(host: Host) -> Dict[str, Any]:
    return {"boot": host.boot(), "up": since_boot()}


def undo(host: Host, journal: Journal, runtime: str) -> Tuple[List[str], List[str]]:
    """Put back what we wrote since the daemon last came up; a file that somebody changed after us stays.

    Returns the files that are back, and those that could not be written.
    """
    changes = _undoing(journal, runtime)
    restored, stuck = [], []
    for path, entry in reversed(list(changes.items())):
        now = digest(host.read(path))
        if now != entry["after"] or now == digest(entry["text"]):
            continue
        try:
            _put_back(host, journal, path, entry)
            restored.append(path)
        except HostFailed:
            stuck.append(path)
    remember(journal, runtime, undo={
        path: entry for path, entry in changes.items() if digest(host.read(path)) != digest(served_with(entry))})
    return sorted(restored), sorted(stuck)


def taken_in(host: Host, journal: Journal, runtime: str) -> None:
    """The daemon was given the files as they are: what is put back from here on is new to it."""
    remember(journal, runtime, undo={path: dict(entry, served=host.read(path), **_moment(host))
                                     for path, entry in _undoing(journal, runtime).items()})


def settled(journal: Journal, runtime: str, stuck: List[str]) -> None:
    """The daemon was given what was put back; files that could not be are still as they were written."""
    remember(journal, runtime, undo={
        path: entry for path, entry in _undoing(journal, runtime).items() if path in stuck})


def _put_back(host: Host, journal: Journal, path: str, entry: Dict[str, Any]) -> None:
    if entry["text"] is None:
        host.remove(path)
        _remove_directories(host, journal, path)
        journal.forget_original(path)
    else:
        host.put_back(path, entry["text"].encode("utf-8", "surrogateescape"), Ownership(**entry["owner"]))


def _remove_directories(host: Host, journal: Journal, path: str) -> None:
    """Directories that only came with a file of ours go with it."""
    for original in journal.originals(MEMORY):
        if original.path == path:
            for directory in reversed(original.directories):
                host.remove_empty_dir(directory)


def _undoing(journal: Journal, runtime: str) -> Dict[str, Dict[str, Any]]:
    changes: Dict[str, Dict[str, Any]] = recall(journal, runtime).get("undo") or {}
    return changes
