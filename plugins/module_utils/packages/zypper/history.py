# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What zypper's history shows of our transactions, and of one that was stopped.

zypper writes its command down before rpm begins, and a line for each package once rpm is done with it; each line ends
with the word that the caller gave it (zypper(8), --userdata). A transaction of ours has a word of its own. No line says
that a transaction has ended, so what it was to bring is noted with us before it begins.

Of a package that is there in the version that was coming, and of which no line says so, rpm may have run none of its
scripts, and may have left the version before beside it (rpm/database.py). It is installed once more when the
transaction is finished: by rpm, as zypper has it do it, since zypper itself would go on to the rest.

rpm brings its database to the disk, nobody zypper's history: a power cut can leave the packages without a line. Where
the host has booted since a transaction was noted and the history does not know it, what was coming and is there came by
it, unless a later line says that it came by another. All of it is in doubt then (rpm/unsynced.py).
"""
from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import CommandResult, Host
from ...core.journal import Journal, PackageChange
from ...core.lock import package_manager_works
from ...core.plan import Step
from ...core.steps import Executor
from ..apt import running
from ..model import Package
from ..rpm import database, unsynced
from . import asking, configuration
from .transaction import specs

FINISH = "zypper.finish"
# What our last transaction was to change, until it has
MEMORY = "zypper"
_HISTORY = "/var/log/zypp/history"
_OURS = "gpuops."
_SECONDS = 3600
# What reads a log that logrotate(8) has compressed
_READERS = {".xz": "xz", ".gz": "gzip", ".bz2": "bzip2"}


@dataclass(frozen=True)
class Line:
    """A line of the history. kind: 'command', 'install' or 'remove'; word: what the caller gave it."""

    kind: str
    word: str
    name: str = ""
    version: str = ""

    @property
    def after(self) -> Optional[str]:
        """Version of its package by then."""
        return self.version if self.kind == "install" else None


@dataclass(frozen=True)
class Unfinished:
    """What a transaction that was stopped has left.

    leftovers: {name: 'version'} of packages beside those that came in their place, see rpm/database.py.
    doubtful:  {package: version} of what came, and of which nobody knows whether its scripts were run.
    """

    leftovers: Mapping[str, str] = field(default_factory=dict)
    doubtful: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.leftovers or self.doubtful)


def lines(host: Host) -> List[Line]:
    """Oldest first, of the log and the one before it; none where zypper has never changed anything."""
    path = configuration.option(host, "history.logfile", _HISTORY)
    return parse(_rotated(host, path) + (host.read(path) or ""))


def _rotated(host: Host, path: str) -> str:
    """The text of the log before this one (logrotate(8), dateext), '' where there is none that can be read."""
    found = {each: host.stat(each) for each in (*host.glob(path + "-*"), *host.glob(path + ".*"))}
    ages = [(there.st_mtime_ns, each) for each, there in found.items() if there is not None]
    if not ages:
        return ""
    newest = max(ages)[1]
    reader = _READERS.get(newest[newest.rindex("."):] if "." in newest else "")
    if reader is None:
        return host.read(newest) or ""
    done = host.run([reader, "--decompress", "--stdout", host.path(newest)], check=False)
    return done.stdout if done.rc == 0 else ""


def parse(text: str) -> List[Line]:
    """Pure. 'date|command|who|words|word', 'date|install|name|version|arch|who|repository|checksum|word',
    'date|remove |name|version|arch|who|word' (libzypp's zypp/HistoryLog.cc)."""
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        kind = fields[1].strip() if len(fields) > 4 and not line.startswith("#") else ""
        if kind == "command":
            found.append(Line(kind, fields[-1]))
        elif kind in ("install", "remove"):
            found.append(Line(kind, fields[-1], database.short_name(fields[2], fields[4]), fields[3]))
    return found


def known(host: Host, step: Step) -> List[str]:
    """Words of those transactions of the history that were the step's."""
    mark = _mark(step)
    return sorted({line.word for line in lines(host) if line.word.startswith(mark)})


def _mark(step: Step) -> str:
    """The beginning of the word of a step's transactions."""
    promise = json.dumps([step.capability, step.action, step.parameters["request"], step.change["after"]],
                         sort_keys=True)
    return _OURS + hashlib.sha256(promise.encode()).hexdigest()[:16] + "."


def evidence(
    host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
) -> Dict[str, PackageChange]:
    """What the step's transaction demonstrably changed, as long as it is so still.

    Who wrote the last line of a package has made it what that line says. Where that is not what it is, rpm was stopped
    before zypper could write one: then it became so by the transaction whose command stands in the history.
    """
    mark, told = _mark(step), lines(host)
    words = {line.word for line in told if line.word.startswith(mark)}.difference(opened["known"])
    note = Journal(host).recall(MEMORY)
    lost = note.get("word", "").startswith(mark) and _is_lost(host, note, told)
    if not words and not lost:
        return {}
    last = {name: line for line in told if line.name for name in database.names_of(line.name, line.version)}
    there = {name: package.version for name, package in packages.items() if package.there}
    after = {name if version is None else database.called(packages, name, version): version
             for name, version in step.change["after"].items()}
    changes = {name: PackageChange(opened["there"].get(name), version) for name, version in after.items()
               if there.get(name) == version and (words or name in _coming(packages, note))}
    return {name: change for name, change in changes.items() if change.before != change.after
            and (name not in last or last[name].after != change.after or last[name].word in words)}


def begin(host: Host, journal: Journal, step: Step, after: Mapping[str, Optional[str]]) -> str:
    """Note what a transaction is about to bring; the word for its lines."""
    word = "%s%d" % (_mark(step), time.time_ns())
    packages = database.installed(host)
    coming = {name: version for name, version in after.items()
              if version is not None and not _is_there(packages, name, version)}
    journal.remember(MEMORY, {"word": word, "coming": coming, "boot": host.boot()})
    return word


def end(host: Host, journal: Journal) -> None:
    """Forget a transaction that has ended, unless something of it is left to finish; its lines are on the disk first.

    One that outlasts the waiting for it brings more. A package manager is at work then, and so is one of somebody else
    that has begun since: all that was to come is there by then.
    """
    packages, note = database.installed(host), journal.recall(MEMORY)
    if not note or unfinished(host, packages) or package_manager_works(host) and not all(
            _is_there(packages, name, version) for name, version in note["coming"].items()):
        return
    host.sync()
    journal.remember(MEMORY, {})


def unfinished(host: Host, packages: Mapping[str, Package]) -> Unfinished:
    """What our last transaction has left, what of ours a power cut may have taken, and what anybody's has left beside
    what came."""
    left = {name: packages[name].version for name in database.leftovers(packages)}
    return Unfinished(left, {**_doubtful(host, packages), **unsynced.doubtful(host, packages),
                             **database.twice(packages)})


def _doubtful(host: Host, packages: Mapping[str, Package]) -> Dict[str, str]:
    """{package: version} of what was coming by our last transaction, is there, and has no line."""
    note = Journal(host).recall(MEMORY)
    if not note:
        return {}
    told = lines(host)
    began = next((number for number, line in enumerate(told) if line.word == note["word"]), None)
    if began is None:
        return {}
    # Whoever has installed it since has finished it
    came = {(line.name, line.version) for line in told[began:] if line.kind == "install"}
    return {name: version for name, version in _coming(packages, note).items()
            if (database.without_version(name, version), version) not in came}


def _is_lost(host: Host, note: Mapping[str, Any], told: Sequence[Line]) -> bool:
    """Whether a power cut may have taken the lines of a transaction that was noted."""
    return note.get("boot", host.boot()) != host.boot() and all(line.word != note["word"] for line in told)


def _coming(packages: Mapping[str, Package], note: Mapping[str, Any]) -> Dict[str, str]:
    """{package as the database calls it: version} of what was coming, and is there."""
    return {database.called(packages, name, version): version for name, version in note["coming"].items()
            if _is_there(packages, name, version)}


def _is_there(packages: Mapping[str, Package], name: str, version: str) -> bool:
    found = database.called(packages, name, version)
    return found in packages and packages[found].version == version


def finish_step(
    capability: str, left: Unfinished, requires: Tuple[str, ...] = (), files: Optional[Mapping[str, str]] = None
) -> Step:
    """Pure: end what a stopped transaction began, before anything else is asked of zypper.

    files: {package: path} of those that are on the host.
    """
    return Step(
        capability=capability,
        action=FINISH,
        subject="unfinished packages",
        why="A package transaction was stopped before its end.",
        change={"before": {**dict.fromkeys(left.leftovers, "left over"), **dict.fromkeys(left.doubtful, "unfinished")},
                "after": {**dict.fromkeys(left.leftovers), **left.doubtful}},
        parameters={"files": dict(files)} if files else {},
        depends_on=requires,
    )


def finish(host: Host, journal: Journal, step: Step) -> None:
    """Executor of finish_step: first what was to be erased, as rpm would have done it, then the scripts."""
    packages = database.installed(host)
    over = [name for name in database.leftovers(packages) if name in step.change["after"]]
    if over:
        # By their whole names, so that what came stays; that has the files by now
        _rpm(host, "-e", "--nodeps", *database.labels(packages, over))
    again = {name: version for name, version in step.change["after"].items() if version is not None
             and name in packages and packages[name].version == version}
    if again:
        files = database.whole_files(host, {
            name: path for name, path in step.parameters.get("files", {}).items() if name in again})
        words = specs({name: version for name, version in again.items() if name not in files})
        with unsynced.once_more(host, journal, again):
            _rpm(host, "-U", "--replacepkgs", "--oldpackage", "--nodeps", *files.values(), *_fetched(host, words))
    journal.remember(MEMORY, {})


def _fetched(host: Host, words: List[str]) -> Tuple[str, ...]:
    """Files of these packages, which zypper has or fetches."""
    if not words:
        return ()
    done = asking.zypper(host, "download", *words)
    files = asking.fetched(done, words)
    if not files:
        raise _not_finished(done, asking.told(done), "zypper download " + " ".join(words))
    return files


def _rpm(host: Host, *words: str) -> None:
    """In a session of its own: when time is up, the waiting ends and not rpm."""
    done = running.configure(host, ["rpm", *database.changing(host), *words], _SECONDS)
    if done.rc != 0:
        raise _not_finished(done, " | ".join(done.stdout.splitlines()[-3:]) or "no output", "rpm " + " ".join(words))


def _not_finished(done: CommandResult, told: str, by_hand: str) -> GpuOpsError:
    return GpuOpsError(
        "packages.zypper_not_finished",
        found="what a stopped transaction began cannot be ended: %s" % told,
        wanted="packages whose scripts have been run, each in one version",
        remedy="see that `%s` works on this host" % by_hand,
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


EXECUTORS: Dict[str, Executor] = {FINISH: finish}
