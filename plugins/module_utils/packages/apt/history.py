# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What apt's and dpkg's logs show of our transactions, never guessed.

A package came by a transaction of ours when the simulation named it, apt's history has that very transaction, and
dpkg's log has the package's change within it.

A transaction of ours is known by its request: an entry of the history that was not there when the step was opened and
that asks for nothing but names and versions of the request. It lasts from its Start-Date to its End-Date, or, when it
was killed, to the next entry. Both logs are apt's and dpkg's defaults (apt.conf Dir::Log::History, dpkg.cfg log); on a
host that keeps none, nothing is ours, and an uninstallation leaves the packages where they are.

Where the clock was set back, what dpkg's log has at any time is taken for done within it.

dpkg brings its database to the disk, nobody the logs: a power cut can leave the packages without the evidence, or with
a part of it, as each log is written at its own time. Where the host has booted since the step was opened and the
history has the newest entry that it had then, and none of anybody else's since, what the simulation named, what was not
there at the opening and is there now in the simulated version came by us. Logs that were emptied for an image tell
nothing.
"""
from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import PackageChange
from ...core.plan import Step
from ...core.steps import PACKAGES_REMOVE
from ..model import Package
from . import database, running
from .transaction import words

HISTORY = "/var/log/apt/history.log"
DPKG_LOG = "/var/log/dpkg.log"
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


def known(host: Host, step: Step) -> List[str]:
    """When those entries of apt's history began that ask for nothing but what the step asks for."""
    return [entry.start for entry in _entries(host, step)]


def evidence(
    host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
) -> Dict[str, PackageChange]:
    """What the step's transaction demonstrably changed, as long as it is so still."""
    named = set(step.change["after"])
    changes: Dict[str, PackageChange] = {}
    ours = _newer(_entries(host, step), opened["known"])
    for entry in ours:
        for name, change in _changes(host, entry).items():
            if name in named:
                before = changes[name].before if name in changes else opened["there"].get(name, change.before)
                changes[name] = PackageChange(before, change.after)
    if opened["boot"] != host.boot() and not _of_others(host, opened, ours):
        changes = {**{name: PackageChange(opened["there"].get(name), version)
                      for name, version in step.change["after"].items() if opened["there"].get(name) != version},
                   **changes}
    now = {name: package.version for name, package in packages.items() if package.there}
    # Of a package whose unpacking was stopped dpkg knows no version, or still that before
    half = {name for name, package in packages.items() if package.unfinished}
    return {name: change for name, change in changes.items()
            if now.get(name) == change.after or (change.after is not None and name in half)}


def has_marked(host: Host, step: Step, opened: Mapping[str, Any]) -> bool:
    """Whether apt has begun the step's transaction: it marks what is to come before it writes to its history, and
    starts dpkg after that (apt-pkg/deb/dpkgpm.cc, Go)."""
    return bool(_newer(_entries(host, step), opened["known"]))


def refresh(host: Host, request: Mapping[str, Optional[str]]) -> None:
    """Renew the host's lists, so that what was planned can be found in them.

    A source of somebody else that cannot be read keeps its old lists and stops nobody. Raises GpuOpsError when what is
    asked for is not in the lists afterwards.
    """
    done = running.apt_get(host, "update", check=False)
    missing = lacking(host, request)
    if missing and database.discard_torn_lists(host):
        done = running.apt_get(host, "update", check=False)
        missing = lacking(host, request)
    if missing:
        told = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
        raise GpuOpsError(
            "packages.lists_incomplete",
            found="this host's package lists have no %s: %s" % (", ".join(missing), " | ".join(told[:3]) or "no error"),
            wanted="lists in which apt finds what was planned",
            remedy="run `apt-get update` on this host and mend the source that it names",
            rc=done.rc, stderr=done.stderr,
        )


def lacking(host: Host, request: Mapping[str, Optional[str]]) -> List[str]:
    """'name=version' of what is asked for and not in the host's lists."""
    wanted = words({name: version for name, version in request.items() if version is not None})
    listed = host.run(["apt-cache", *database.own(host), "show", *wanted], check=False)
    names, told_versions = (re.findall(r"(?m)^%s: (\S+)" % field, listed.stdout) for field in ("Package", "Version"))
    found = set(zip(names, told_versions))
    return [word for word in wanted if (word.split("=")[0].split(":")[0], word.split("=", 1)[1]) not in found]


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


def starts(host: Host) -> List[str]:
    """When each transaction of apt's history began, whoever's."""
    return [_time(each) for each in re.findall(r"(?m)^Start-Date: (.*)$", _logs(host, HISTORY))]


def _of_others(host: Host, opened: Mapping[str, Any], ours: Iterable[Entry]) -> bool:
    """Whether the history has an entry beside ours that it had not when the step was opened, or may have had one. They
    are counted: after a power cut the clock may be an earlier one. What an older release has opened does not tell."""
    if "starts" not in opened:
        return True
    now = starts(host)
    # Of rotated logs the one before is read too, so it is the oldest that a log loses by that
    is_emptied = not {*opened["starts"][-1:]}.issubset(now)
    return is_emptied or bool(Counter(now) - Counter(opened["starts"]) - Counter(entry.start for entry in ours))


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
