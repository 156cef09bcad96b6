# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How far a run is on its host, as data and as one line for people. Pure.

The module on the host writes Progress at each step (see telling.py). Whoever follows it from the controller has
COMMAND run there, which also looks at what programs leave while they work: files that a package manager fetches, dpkg's
log, and the log of a module that DKMS builds. Only what is newer than the step counts.

None of it has a secret: a step's action and subject stand in plans, and of the logs only names and versions are taken.
"""
from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, fields
from typing import Dict, List, Optional

PATH = "/run/gpuops/progress.json"
SCHEMA = 1
# Lines that others write on a login (/etc/profile, a banner) do not begin with it
_MARK = "gpuops-progress"
_MEGABYTE = 1000 * 1000
_NAME_CHARACTERS = 120

# Where apt, dnf 4, dnf 5 and zypper put packages that they fetch, unfinished ones included
_FETCHED = "/var/cache/apt/archives /var/cache/dnf /var/cache/libdnf5 /var/cache/zypp/packages"
# DKMS's own tree, and those of modules that are built ahead (driver/staged_build.py)
_BUILT = "/var/lib/dkms /var/cache/gpuops/staged/*/work/tree"
# The time of a last status change counts: apt gives a file that is complete the time of its server.
COMMAND = """p=%(path)s; m=%(mark)s; test -e $p || exit 0
sed "s/^/$m step /" $p; echo; echo $m now $(date +%%s)
find %(fetched)s -type f -name '*.[dr][ep][bm]' -cnewer $p -printf "$m fetched %%s\\n" 2>/dev/null
find /var/log/dpkg.log -cnewer $p -exec tail -n 1 {} + 2>/dev/null | sed "s/^/$m dpkg /"
find %(built)s -maxdepth 4 -path '*/build/make.log' -cnewer $p -exec head -qn 1 {} + 2>/dev/null |
  sed "s/^/$m dkms /"
true""" % {"path": PATH, "mark": _MARK, "fetched": _FETCHED, "built": _BUILT}

# dkms(8) begins a build's log so, 'name-version' or since release 3.1 'name/version'
BUILD = re.compile(r"DKMS .*?make\.log for (\S+) for kernel (\S+)")
# dpkg(1), --log: 'YYYY-MM-DD hh:mm:ss status STATE PACKAGE VERSION', or an action and its package
_DPKG = re.compile(r"\S+ \S+ (?:status (\S+)|(install|upgrade|configure|remove|purge|trigproc)) (\S+?)(?::\S+)? ")
_DPKG_WORDS = {"install": "unpacking", "upgrade": "unpacking", "half-installed": "unpacking",
               "configure": "configuring", "half-configured": "configuring", "remove": "removing",
               "purge": "removing", "trigproc": "triggers of"}
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True)
class Progress:
    """What a run is at.

    run:             the run, as the host's lock names it.
    number, total:   which step of how many, from 1; 0 while the host is read.
    action, subject: those of the step.
    since:           when it began, seconds since the epoch by the clock of the host.
    fetches:         bytes that it has to fetch, 0 where that is not known or there is nothing.
    until:           when the last step is expected to be done, as since; 0 where nobody knows.
    """

    run: str
    number: int = 0
    total: int = 0
    action: str = ""
    subject: str = ""
    since: float = 0.0
    fetches: int = 0
    until: float = 0.0

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: Optional[str]) -> Optional["Progress"]:
        """None for what is not there, cannot be understood, or was written by another release in another form."""
        try:
            data = json.loads(text or "null")
            if data.pop("schema") != SCHEMA:
                return None
            # One of the release before has no `until`
            found = cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})
            return found if all(type(getattr(found, name)) in kinds for name, kinds in _KINDS.items()) else None
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        if not self.number:
            return "reading the host"
        return "step %d of %d, %s %s" % (self.number, self.total, _plain(self.action), _plain(self.subject))

    def lasting(self, now: float) -> str:
        """The same with how long it has been at that; now: seconds since the epoch by the same clock."""
        return "%s, for %s" % (self, duration(now - self.since))


_KINDS = {"run": (str,), "number": (int,), "total": (int,), "action": (str,), "subject": (str,),
          "since": (int, float), "fetches": (int,), "until": (int, float)}


@dataclass(frozen=True)
class Seen:
    """What COMMAND has told.

    now:     seconds since the epoch by the clock of the host.
    fetched: bytes of packages that were written since the step began.
    dpkg:    what dpkg has been doing since, '' where it has done nothing.
    builds:  what DKMS has been building since, 'MODULE for kernel RELEASE' each.
    """

    progress: Progress
    now: float
    fetched: int = 0
    dpkg: str = ""
    builds: str = ""


def parse(told: str) -> Optional[Seen]:
    """What the output of COMMAND says; None where no run is at work, or nothing of it can be understood."""
    lines: Dict[str, List[str]] = {}
    for line in told.splitlines():
        mark, _space, rest = line.strip().partition(" ")
        word, _space, value = rest.partition(" ")
        if mark == _MARK:
            lines.setdefault(word, []).append(value)
    progress = Progress.from_json("".join(lines.get("step", [])))
    times = [value for value in lines.get("now", []) if value.isdigit()]
    if progress is None or not times:
        return None
    sizes = (int(value) for value in lines.get("fetched", []) if value.isdigit())
    built = (BUILD.search(line) for line in lines.get("dkms", []))
    builds = ["%s for kernel %s" % (_plain(found.group(1)), _plain(found.group(2))) for found in built if found]
    return Seen(progress, float(times[0]), sum(sizes), _dpkg("".join(lines.get("dpkg", [])[-1:])), ", ".join(builds))


def render(host: str, run: str, seen: Seen, now: float) -> str:
    """One line for people about a host.

    run: the one that is followed, which may wait for another. now: as seen.now, by the clock of who reads the line.
    """
    at = seen.progress.lasting(seen.now) + _expected(seen, now)
    if seen.progress.run != run:
        return "%s: waits for another run, which is at: %s" % (host, at)
    return "%s: %s%s" % (host, at, "".join(": " + word for word in _at_work(seen)))


def clock(at: float, now: float) -> str:
    """A time of the day where people read it, with the date where that is another. In seconds since the epoch."""
    day, time_of_day = (time.strftime(form, time.localtime(at)) for form in ("%Y-%m-%d", "%H:%M"))
    return time_of_day if day == time.strftime("%Y-%m-%d", time.localtime(now)) else "%s %s" % (day, time_of_day)


def _expected(seen: Seen, now: float) -> str:
    if not seen.progress.until:
        return ""
    until = clock(now + seen.progress.until - seen.now, now)
    return ", %s %s" % ("expected until" if seen.progress.until >= seen.now else "was expected until", until)


def _at_work(seen: Seen) -> List[str]:
    """What the step is at, of those programs that were seen at work: the last of them in a transaction's order."""
    if seen.builds:
        return ["building " + seen.builds]
    if seen.dpkg:
        return [seen.dpkg]
    if seen.fetched and seen.progress.fetches:
        return ["downloading %s of %s MB" % (_megabytes(min(seen.fetched, seen.progress.fetches)),
                                             _megabytes(seen.progress.fetches))]
    if seen.fetched:
        return ["downloading, %s MB so far" % _megabytes(seen.fetched)]
    return []


def duration(seconds: float) -> str:
    """'45 s', '2 min 10 s', '1 h 5 min'; a clock that was set back meanwhile makes it no time."""
    whole = max(0, int(seconds))
    if whole < 60:
        return "%d s" % whole
    if whole < 3600:
        return "%d min %d s" % divmod(whole, 60)
    return "%d h %d min" % divmod(whole // 60, 60)


def _dpkg(line: str) -> str:
    found = _DPKG.match(line + " ")
    if found is None:
        return ""
    word, package = _plain(found.group(1) or found.group(2)), _plain(found.group(3))
    return "%s %s" % (_DPKG_WORDS[word], package) if word in _DPKG_WORDS else "%s is %s" % (package, word)


def _megabytes(amount: int) -> str:
    return "%d" % (amount // _MEGABYTE) if amount >= 10 * _MEGABYTE else "%.1f" % (amount / _MEGABYTE)


def _plain(text: str) -> str:
    """What a host says, without what would move the cursor of a terminal, and not too long."""
    return _UNPRINTABLE.sub("?", text)[:_NAME_CHARACTERS]
