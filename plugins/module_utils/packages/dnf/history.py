# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dnf's history shows of our transactions, and of one that was stopped.

dnf writes a transaction down with all its packages before rpm begins, and its end afterwards (dnf(8), history). The
module that carries it out leaves no command line there, so a transaction of ours is known by its packages: one that was
not there when the step was opened, that nobody gave a command line, and that makes of what was asked for what was asked
for. Of what else it changes that counts which the simulation named, in whatever version it came: repositories move on
between a plan and its execution. The history says what was intended, the database what came of it: both count.

Of a transaction without an end, rpm may have added a package and run none of its scripts, and may have left the version
before beside it (rpm/database.py). So what came by it is installed once more when it is finished. A transaction that
comes later, of dnf-automatic say, finishes of it what it changes itself, and nothing else.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any, Container, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from ...core.errors import GpuOpsError
from ...core.host import CommandResult, Host, Stamps
from ...core.journal import Journal, PackageChange
from ...core.plan import Step
from ...core.steps import PACKAGES_REMOVE, Executor
from .. import torn
from ..apt import running
from ..model import Package
from ..rpm import database, unsynced
from . import configuration
from .asking import ask, own
from .program import AGAIN, COMES, GOES
from .transaction import specs

FINISH = "dnf.finish"
_SECONDS = 3600


@dataclass(frozen=True)
class Entry:
    """A transaction. ended: whether dnf lived to see its end.

    after:   {package: version, or None where it went} of what it was to change.
    before:  {package: version} of what it was to replace or remove.
    command: what somebody typed behind 'dnf', '' where a program made it.
    """

    number: str
    ended: bool
    after: Mapping[str, Optional[str]]
    before: Mapping[str, str]
    command: str = ""


@dataclass(frozen=True)
class Unfinished:
    """What a transaction that was stopped has left.

    leftovers: {name: 'name-version'} of packages beside those that came in their place, see rpm/database.py.
    doubtful:  {package: version} of what came, and of which nobody knows whether its scripts were run.
    """

    leftovers: Mapping[str, str] = field(default_factory=dict)
    doubtful: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.leftovers or self.doubtful)


def entries(host: Host) -> List[Entry]:
    """Oldest first; none where dnf has never changed anything."""
    as_it_is = _stamps(host)
    return list(_entries(host, as_it_is)) if as_it_is else []


# A plan asks several times, and dnf's library takes longer to start than to answer
@functools.lru_cache(maxsize=1)
def _entries(host: Host, _as_it_is: Stamps) -> Tuple[Entry, ...]:
    with host.scratch() as scratch:
        told = ask(host, scratch, "history", history=configuration.history(host))["transactions"]
    return tuple(parse(each) for each in told)


def _stamps(host: Host) -> Stamps:
    database_file = configuration.history(host)
    return host.stamps(database_file, database_file + "-wal")


def parse(told: Mapping[str, Any]) -> Entry:
    """Pure: an entry of program.TEXT's answer."""
    after: Dict[str, Optional[str]] = {}
    before: Dict[str, str] = {}
    for kind, name, arch, version in told["items"]:
        short = database.short_name(name, arch)
        if kind in (COMES, AGAIN):
            after[short] = version
        elif kind:
            before[short] = version
            if kind == GOES:
                after.setdefault(short, None)
    return Entry(told["id"], told["ended"], after, before, told["command"])


def automatic(host: Host) -> FrozenSet[str]:
    """Packages that nobody has chosen by hand, as dnf keeps it."""
    packages = database.stamps(host)
    as_it_is = _stamps(host) + packages
    return _automatic(host, as_it_is) if packages else _automatic.__wrapped__(host, as_it_is)


@functools.lru_cache(maxsize=1)
def _automatic(host: Host, _as_it_is: Stamps) -> FrozenSet[str]:
    with host.scratch() as scratch:
        told = ask(host, scratch, "automatic", cache=scratch + "/cache", beside_system=False, repositories=[],
                   without=[], files=[], history=configuration.history(host))
    return frozenset(each for name, arch, version in told["packages"]
                     for each in database.names_of(database.short_name(name, arch), version))


def known(host: Host) -> List[str]:
    return [entry.number for entry in entries(host)]


def evidence(
    host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
) -> Dict[str, PackageChange]:
    """What the step's transaction demonstrably changed, as long as it is so still."""
    planned: Mapping[str, Optional[str]] = step.change["after"]
    changes: Dict[str, PackageChange] = {}
    for entry in entries(host):
        entry = _named(entry, {*planned, *step.parameters["request"]})
        if entry.number in opened["known"] or not is_of(entry, step):
            continue
        for name in [each for each in planned if each in entry.after]:
            version = entry.after[name]
            first = opened["there"].get(name) if name not in changes else changes[name].before
            changes[name] = PackageChange(first, version)
    return {name: change for name, change in changes.items()
            if (packages[name].version if name in packages else None) == change.after
            and change.before != change.after}


def has_ended(host: Host, step: Step, opened: Mapping[str, Any]) -> bool:
    """Whether dnf lived to see the end of the step's transactions."""
    names = {*step.change["after"], *step.parameters["request"]}
    ours = [entry for entry in entries(host) if entry.number not in opened["known"]
            and is_of(_named(entry, names), step)]
    return bool(ours) and all(entry.ended for entry in ours)


def _named(entry: Entry, names: Container[str]) -> Entry:
    """With those names that a plan or the database has: dnf's history does not tell which may be there in several
    versions."""
    after = {}
    for name, version in entry.after.items():
        longer = database.long_name(name, version or entry.before.get(name, ""))
        after[longer if name not in names and longer in names else name] = version
    return replace(entry, after=after)


def is_of(entry: Entry, step: Step) -> bool:
    """Pure: whether it makes of what a step asks for, as far as it changes that, what the step asks for."""
    removes = step.action == PACKAGES_REMOVE
    asked = {name: None if removes else version for name, version in step.parameters["request"].items()}
    done = {name: version for name, version in entry.after.items() if name in asked}
    return bool(done) and not entry.command and all(asked[name] == version for name, version in done.items())


def unfinished(host: Host, packages: Mapping[str, Package]) -> Unfinished:
    """What the last transaction has left, if it has no end, what is ours of those before it, and what of ours a power
    cut may have taken."""
    left = {name: packages[name].version for name in database.leftovers(packages)}
    return Unfinished(left, {**doubtful(entries(host), packages, torn.coming(Journal(host))),
                             **unsynced.doubtful(host, packages), **database.twice(packages)})


def doubtful(told: Sequence[Entry], packages: Mapping[str, Package], ours: Container[str]) -> Dict[str, str]:
    """Pure: {package: version} that came by a transaction without an end, and that none with an end has changed since.

    told: oldest first. A mark (dnf(8), mark) is an entry too, and has no packages: it finishes nothing.
    ours: names of packages that came by us. Of others the last transaction alone counts: hosts live on for years with
    what a power cut has left of theirs, and this is not asked to mend it.
    """
    found: Dict[str, str] = {}
    ended: Set[str] = set()
    with_packages = [_named(entry, packages) for entry in told if entry.after or entry.before]
    for entry in reversed(with_packages):
        if entry.ended:
            ended.update(entry.after, entry.before)
            continue
        found.update((name, version) for name, version in entry.after.items()
                     if version is not None and name not in ended and (entry is with_packages[-1] or name in ours)
                     and name in packages and packages[name].version == version)
    return found


def finish_step(
    capability: str, left: Unfinished, requires: Tuple[str, ...] = (), files: Optional[Mapping[str, str]] = None
) -> Step:
    """Pure: end what a stopped transaction began, before anything else is asked of dnf.

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
        words = database.labels(packages, over)
        _run(host, ["rpm", *database.changing(host), "-e", "--nodeps", *words], "rpm -e --nodeps " + " ".join(words))
    again = {name: version for name, version in step.change["after"].items() if version is not None
             and name in packages and packages[name].version == version}
    if again:
        with unsynced.once_more(host, journal, again):
            _reinstall(host, again, packages, step.parameters.get("files", {}))


def _reinstall(
    host: Host, again: Mapping[str, str], packages: Mapping[str, Package], files: Mapping[str, str]
) -> None:
    """files: {package: path} of those that are on the host. Raises GpuOpsError that names what dnf has left out."""
    before = known(host)
    words = specs(again, database.whole_files(host, files))
    done = _run(host, ["dnf", *own(host), "--assumeyes", "--setopt=*.skip_if_unavailable=1", "reinstall", *words],
                "dnf reinstall " + " ".join(words))
    # It ends well as long as it finds one of them (dnf(8), reinstall)
    finished = {name for entry in entries(host) if entry.number not in before and entry.ended
                for name in _named(entry, packages).after}
    lacking = sorted(set(again).difference(finished))
    if lacking:
        raise GpuOpsError(
            "packages.left_unfinished",
            found="a stopped transaction brought %s, and dnf cannot install that once more" % ", ".join(
                specs({name: again[name] for name in lacking})),
            wanted="packages whose scripts have been run",
            remedy="have newer versions come (`dnf upgrade %s`), or name a repository that has these" % (
                " ".join(lacking)),
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


def _run(host: Host, argv: Sequence[str], by_hand: str) -> CommandResult:
    """In a session of its own: when time is up, the waiting ends and not rpm."""
    done = running.configure(host, argv, _SECONDS)
    if done.rc != 0:
        raise GpuOpsError(
            "packages.not_finished",
            found="what a stopped transaction began cannot be ended: %s" % (
                " | ".join(done.stdout.splitlines()[-3:]) or "no output"),
            wanted="packages whose scripts have been run, each in one version",
            remedy="see that `%s` works on this host" % by_hand,
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)
    return done


EXECUTORS: Dict[str, Executor] = {FINISH: finish}
