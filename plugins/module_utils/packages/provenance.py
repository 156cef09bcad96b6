# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What our transactions brought, changed and removed: shown by the package manager's own logs, never guessed.

A package is ours when the simulated transaction named it, apt's history has that very transaction, and dpkg's log has
the package's change within it. Whatever else appeared meanwhile, by an administrator's hand or by the same dependency
asked for by somebody else, is not ours; and what cannot be shown to be ours is not ours either.

A transaction of ours is known by its request: an entry of the history that was not there when the step was opened and
that asks for nothing but names and versions of the request. It lasts from its Start-Date to its End-Date, or, when it
was killed, to the next entry. Both logs are apt's and dpkg's defaults (apt.conf Dir::Log::History, dpkg.cfg log); on a
host that keeps none, nothing is ours, and an uninstallation leaves the packages where they are.

What was there when the step was opened is not what we brought, whatever the logs say: their times are of whole seconds,
and of a clock that may be set meanwhile, so that the changes of others can seem to lie within a transaction of ours.
Where the clock was set back, what dpkg's log has at any time is taken for done within it.

dpkg brings its database to the disk, nobody the logs: a power cut can leave the packages without the evidence. Where
the host has booted since the step was opened and the history has no newer entry of anybody's, what the simulation
named, what was not there at the opening and is there now in the simulated version came by us.

A dependency that somebody has asked for since (apt marks it as chosen by hand) is that person's from then on, and so is
one that stayed when all the others were removed, because a package of theirs needed it.
"""
from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal, PackageChange
from ..core.plan import Step
from ..core.steps import CONTROLLER_ACTIONS, PACKAGES_DOWNLOAD, PACKAGES_INSTALL, PACKAGES_REMOVE
from .apt import conffiles, database, running, units
from .apt.transaction import install_words, words
from .model import Package

HISTORY = "/var/log/apt/history.log"
DPKG_LOG = "/var/log/dpkg.log"
# What our requests have chosen by hand, {capability: names}
MEMORY = "packages"
# What came by us as a dependency and counts as chosen by hand, since apt could not mark it yet, {capability: names}
UNMARKED = "packages_unmarked"
_CHANGE = re.compile(r"^(\S+ \S+) (install|upgrade|remove|purge) ([^\s:]+):(\S+) (\S+) (\S+)$", re.MULTILINE)
_NONE = "<none>"


@dataclass(frozen=True)
class Entry:
    """A transaction in apt's history.

    start, end: local time 'YYYY-MM-DD hh:mm:ss'; end is that of the next entry, or '', when apt could not write it.
    """

    start: str
    end: str

    @property
    def backwards(self) -> bool:
        """Whether the clock was set back meanwhile, by hand, by NTP or at the end of summer: then no time tells."""
        return "" < self.end < self.start


class Provenance:
    """The engine's hook (core.capability.Transactions)."""

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        """Make the host's lists those that the plan was made from, mend what the scripts of packages rely on, and say
        how far the history went by then.

        Whoever has just fetched the packages has renewed the lists for it.
        """
        units.renew_records(host, [name for name, version in step.change["after"].items() if version is None])
        request = step.parameters["request"]
        if step.parameters.get("update_cache") and (not _fetched(step, done) or _lacking(host, request)):
            refresh(host, request)
        if step.action == PACKAGES_INSTALL:
            host.fetches(running.to_fetch(host, *install_words(request, bool(step.parameters.get("allow_downgrade")))))
        account = Journal(host).packages(step.capability)
        conffiles.renew(host, {*account, *step.change["after"]})
        packages = database.installed(host)
        return {"known": known(host, step),
                "account": {name: asdict(change) for name, change in account.items()},
                "boot": host.boot(),
                "newest": _newest(host),
                "there": {name: packages[name].version
                          for name in {*step.change["after"], *step.parameters.get("automatic", ())}
                          if name in packages and packages[name].there}}

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        """Account for what came and went by the transaction.

        It goes on top of the account as it was when the step was opened, so a second time changes nothing. What an
        older release has opened left nothing to show.
        """
        if "known" not in opened:
            return
        packages = database.installed(host)
        came = evidence(host, step, opened, packages)
        account = {
            name: change for name, change in merged(_account(opened), came).items()
            if change.after is None or (name in packages and packages[name].there)}
        if _is_removed(step, packages):
            came_by_us = {name: packages[name].version for name, change in account.items() if change.before is None}
            go = database.removable(host, packages, came_by_us)
            account = {name: change for name, change in account.items() if name not in came_by_us or name in go}
        journal.set_packages(step.capability, account)
        left = {name for name in journal.recall(UNMARKED).get(step.capability, ()) if name in account}
        _keep_automatic(host, step, opened, came, left)
        # apt marks nothing while dpkg is interrupted: what it could not mark says nothing of who chose it
        left = {*left, *came}.intersection(account).difference(_chosen(step), database.automatic(host))
        _remember(journal, UNMARKED, step.capability, left)
        chosen = set(journal.recall(MEMORY).get(step.capability, _account(opened))).intersection(_account(opened))
        if step.action != PACKAGES_REMOVE:
            chosen |= _chosen(step)
        # A removal names dependencies too, and what has gone may come again as one
        _remember(journal, MEMORY, step.capability, chosen.intersection(account))
        if opened["boot"] != host.boot():
            conffiles.renew(host, account)


def _is_removed(step: Step, packages: Mapping[str, Package]) -> bool:
    """Whether a removal has done all that it was to do: what cannot go even then is needed by packages of others."""
    return step.action == PACKAGES_REMOVE and not any(
        name in packages and packages[name].there for name in step.change["after"])


def _remember(journal: Journal, memory: str, capability: str, names: Iterable[str]) -> None:
    journal.remember(memory, {**journal.recall(memory), capability: sorted(names)})


def installed_by_us(host: Host, journal: Journal, capability: str, packages: Mapping[str, Package]) -> Dict[str, str]:
    """{package: version there now} of what is ours, transactions that nobody has accounted for yet included."""
    account = journal.packages(capability)
    chosen = {*journal.recall(MEMORY).get(capability, account), *journal.recall(UNMARKED).get(capability, ())}
    for event in journal.unfinished(capability):
        step = Step.from_dict(event["step"])
        if step.action in CONTROLLER_ACTIONS and "known" in event.get("transaction", {}):
            account = merged(_account(event["transaction"]), evidence(host, step, event["transaction"], packages))
            chosen.update(step.change["after"])
    here = [name for name, change in sorted(account.items())
            if change.before is None and name in packages and packages[name].there]
    automatic = database.automatic(host) if here else frozenset()
    return {name: packages[name].version for name in here if name in chosen or name in automatic}


def _fetched(step: Step, done: Iterable[str]) -> bool:
    return any(each.startswith("%s/%s/" % (step.capability, PACKAGES_DOWNLOAD)) for each in done)


def followers(host: Host, journal: Journal, capability: str) -> FrozenSet[str]:
    """Packages that nobody has chosen by hand, as they are marked once the transactions of a capability that are open
    still are settled: a plan that is made before that is the plan of the run that does it."""
    names = set(database.automatic(host))
    for event in journal.unfinished(capability):
        step = Step.from_dict(event["step"])
        if step.action in CONTROLLER_ACTIONS and "known" in event.get("transaction", {}):
            came = {name for name, version in step.change["after"].items()
                    if version is not None and name not in event["transaction"]["there"]}
            names.update(step.parameters.get("automatic", ()), came.difference(_chosen(step)))
    return frozenset(names)


def _chosen(step: Step) -> FrozenSet[str]:
    """What a step asks for, and not only as a dependency in one version."""
    return frozenset(step.parameters["request"]).difference(step.parameters.get("automatic", ()))


def _account(opened: Mapping[str, Any]) -> Dict[str, PackageChange]:
    return {name: PackageChange(**change) for name, change in opened["account"].items()}


def known(host: Host, step: Step) -> List[str]:
    """When those entries of apt's history began that ask for nothing but what the step asks for."""
    return [entry.start for entry in _entries(host, step)]


def evidence(
    host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
) -> Dict[str, PackageChange]:
    """What the step's transaction demonstrably changed, as long as it is so still."""
    named = set(step.change["after"])
    changes: Dict[str, PackageChange] = {}
    for entry in _newer(_entries(host, step), opened["known"]):
        for name, change in _changes(host, entry).items():
            if name in named:
                before = changes[name].before if name in changes else opened["there"].get(name, change.before)
                changes[name] = PackageChange(before, change.after)
    if not changes and opened["boot"] != host.boot() and _newest(host) <= opened["newest"]:
        changes = {name: PackageChange(None, step.change["after"][name]) for name in named.difference(opened["there"])}
    now = {name: package.version for name, package in packages.items() if package.there}
    # Of a package whose unpacking was stopped dpkg knows no version, or still that before
    half = {name for name, package in packages.items() if package.unfinished}
    return {name: change for name, change in changes.items()
            if now.get(name) == change.after or (change.after is not None and name in half)}


def merged(
    account: Mapping[str, PackageChange], came: Mapping[str, PackageChange]
) -> Dict[str, PackageChange]:
    """The account with what came since; a package that is as it was before us leaves it."""
    result = dict(account)
    for name, change in came.items():
        before = result[name].before if name in result else change.before
        if before == change.after:
            result.pop(name, None)
        else:
            result[name] = PackageChange(before, change.after)
    return result


def refresh(host: Host, request: Mapping[str, Optional[str]]) -> None:
    """Renew the host's lists, so that what was planned can be found in them.

    A source of somebody else that cannot be read keeps its old lists and stops nobody. Raises GpuOpsError when what is
    asked for is not in the lists afterwards.
    """
    done = running.apt_get(host, "update", check=False)
    lacking = _lacking(host, request)
    if lacking and database.discard_torn_lists(host):
        done = running.apt_get(host, "update", check=False)
        lacking = _lacking(host, request)
    if lacking:
        told = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        raise GpuOpsError(
            "packages.lists_incomplete",
            found="this host's package lists have no %s: %s" % (", ".join(lacking), " | ".join(told[:3]) or "no error"),
            wanted="lists in which apt finds what was planned",
            remedy="run `apt-get update` on this host and mend the source that it names",
            rc=done.rc, stderr=done.stderr,
        )


def _lacking(host: Host, request: Mapping[str, Optional[str]]) -> List[str]:
    """'name=version' of what is asked for and not in the host's lists."""
    wanted = words({name: version for name, version in request.items() if version is not None})
    listed = host.run(["apt-cache", *database.own(host), "show", *wanted], check=False)
    names, told_versions = (re.findall(r"(?m)^%s: (\S+)" % field, listed.stdout) for field in ("Package", "Version"))
    found = set(zip(names, told_versions))
    return [word for word in wanted if (word.split("=")[0].split(":")[0], word.split("=", 1)[1]) not in found]


def _keep_automatic(
    host: Host, step: Step, opened: Mapping[str, Any], came: Mapping[str, PackageChange], unmarked: Iterable[str]
) -> None:
    """ansible.builtin.apt marks what it is asked for as chosen by hand; what only follows stays automatic.

    An apt that was killed has marked nothing, and what it left would count as chosen by hand. unmarked: what could not
    be marked before.
    """
    names = set(unmarked).difference(_chosen(step))
    names |= {name for name in step.parameters.get("automatic", ()) if name in opened["there"]}
    names.update(name for name, change in came.items()
                 if change.before is None and change.after is not None and name not in _chosen(step))
    if names:
        host.run(["apt-mark", *database.own(host), "auto", *sorted(names)], check=False)


# the two logs


def _entries(host: Host, step: Step) -> List[Entry]:
    """Those entries of apt's history that ask for nothing but what the step asks for, oldest first."""
    request = step.parameters["request"]
    asked = set(request) if step.action == PACKAGES_REMOVE else set(words(request))
    verb = "remove" if step.action == PACKAGES_REMOVE else "install"
    return [entry for told, entry in parse_history(_logs(host, HISTORY), asked) if verb in told]


def _newer(entries: Iterable[Entry], known: Iterable[str]) -> List[Entry]:
    """Those that were not there when the step was opened.

    known: when those began that were. Several may have begun within a second, so they are counted.
    """
    there = Counter(known)
    newer = []
    for entry in entries:
        if there[entry.start]:
            there[entry.start] -= 1
        else:
            newer.append(entry)
    return newer


def _newest(host: Host) -> str:
    """When the last transaction of apt's history began, whoever's; '' where it has none."""
    starts = re.findall(r"(?m)^Start-Date: (.*)$", _logs(host, HISTORY))
    return max(map(_time, starts), default="")


def parse_history(text: str, asked: Iterable[str]) -> List[Tuple[Sequence[str], Entry]]:
    """(words of the command line, entry) of those that ask for some of these packages and for no others."""
    blocks = [dict(re.findall(r"(?m)^([A-Z][A-Za-z-]*): (.*)$", block)) for block in text.split("\n\n")]
    blocks = [block for block in blocks if "Start-Date" in block]
    found = []
    for number, block in enumerate(blocks):
        words = block.get("Commandline", "").split()
        packages = _packages_of(words)
        if packages and packages <= set(asked):
            following = blocks[number + 1]["Start-Date"] if number + 1 < len(blocks) else ""
            end = block.get("End-Date") or following
            found.append((words, Entry(_time(block["Start-Date"]), _time(end))))
    return found


def _packages_of(words: Sequence[str]) -> FrozenSet[str]:
    """Packages behind 'install' or 'remove' on a command line; options and the values of -o are none."""
    verbs = [number for number, word in enumerate(words) if word in ("install", "remove", "purge")]
    if not verbs:
        return frozenset()
    rest = words[verbs[0] + 1:]
    return frozenset(word for number, word in enumerate(rest)
                     if not word.startswith("-") and (number == 0 or rest[number - 1] not in ("-o", "-t", "-c")))


def _changes(host: Host, entry: Entry) -> Dict[str, PackageChange]:
    """What dpkg did during a transaction."""
    native = database.native(host)
    changes: Dict[str, PackageChange] = {}
    for when, verb, name, arch, old, new in _CHANGE.findall(_logs(host, DPKG_LOG)):
        if not entry.backwards and (when < entry.start or (entry.end and when > entry.end)):
            continue
        name = database.full_name(name, arch, native)
        before = _told(old) if verb != "install" else None
        # A removal before an installation is of somebody else, in the same second
        first = changes[name].before if name in changes and verb != "install" else before
        changes[name] = PackageChange(first, None if verb in ("remove", "purge") else _told(new))
    return changes


def _told(version: str) -> Optional[str]:
    return None if version == _NONE else version


def _time(written: str) -> str:
    """'2026-11-22  00:19:08', as apt writes it with two spaces, as dpkg writes it with one."""
    return " ".join(written.split())


def _logs(host: Host, path: str) -> str:
    """A log and the one before it, oldest first; logrotate(8) may have compressed that."""
    texts = []
    for name in (path + ".1.gz", path + ".1", path):
        data = host.read_bytes(name)
        if data is None:
            continue
        try:
            texts.append((gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8", "replace"))
        except (OSError, EOFError, zlib.error):
            continue
    return "\n".join(texts)
