# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""zypper's command: how it is called, how it ended, and what its XML says (zypper(8), --xmlout, EXIT CODES)."""
from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import CommandFailed, CommandResult, Host
from ...core.waiting import wait_for

# Also for each repository that is read; libzypp itself ends a transfer that stands still
TIMEOUT_SECONDS = 900
# A driver of a gigabyte comes to five hundred hosts from one mirror
FETCH_SECONDS = 4 * 3600
LOCK_SECONDS = 600
# ZYPPER_EXIT_ERR_PRIVILEGES, ..._NO_REPOS, ..._ZYPP_LOCKED, ..._INF_CAP_NOT_FOUND, ..._INF_RPM_SCRIPT_FAILED
PRIVILEGES, NO_REPOSITORIES, LOCKED, NOT_FOUND, SCRIPT_FAILED = 5, 6, 7, 104, 107
# What is done, and something is said beside it: patches are there (100, 101), a restart is advised (102, 103), a
# repository was left out (106)
DONE = (0, 100, 101, 102, 103, 106)
COMES, GOES = "comes", "goes"
# Sections of a summary (zypper's src/Summary.cc); each may end in '-change-arch'
_SECTIONS = {"to-install": COMES, "to-upgrade": COMES, "to-downgrade": COMES, "to-change-arch": COMES,
             "to-remove": GOES}
_SOLVER = "1"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_HOLDER = re.compile(r"\bpid (\d+)")


@dataclass(frozen=True)
class Item:
    """What becomes of a package. before: its version now, '' where it comes anew."""

    kind: str
    name: str
    arch: str
    version: str
    before: str = ""


@dataclass(frozen=True)
class Answer:
    """What zypper said.

    errors:    its messages of errors, a line each.
    problem:   why its solver finds no solution; '' where it has one.
    items:     what it does, or would do.
    found:     (name, architecture, version, name of the repository) of what a search found.
    addresses: {name of a repository: its addresses}.
    files:     where packages lie that it has fetched.
    download:  bytes to fetch.
    unpacked:  bytes that the disk has more afterwards.
    """

    errors: Tuple[str, ...] = ()
    problem: str = ""
    items: Tuple[Item, ...] = ()
    found: Tuple[Tuple[str, str, str, str], ...] = ()
    addresses: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    files: Tuple[str, ...] = ()
    download: int = 0
    unpacked: int = 0


def own(host: Host) -> List[str]:
    """Words that make zypper work on this host."""
    return [] if host.root == "/" else ["--root", host.root]


def own_environment(host: Host) -> Dict[str, str]:
    """The same for what no option says: where its lock and its log lie."""
    return {} if host.root == "/" else {
        "ZYPP_LOCKFILE_ROOT": host.root, "ZYPP_LOGFILE": host.path("/var/log/zypper.log")}


def argv(host: Host, *words: str) -> List[str]:
    return ["zypper", *own(host), "--non-interactive", "--xmlout", *words]


def zypper(host: Host, *words: str, timeout: float = 0) -> CommandResult:
    """zypper on the host's own state, once nobody else has its lock. timeout: in seconds, 0 for that of a question."""
    return unlocked(host, lambda: host.run(argv(host, *words), check=False, timeout=timeout or TIMEOUT_SECONDS,
                                           env=own_environment(host)))


def unlocked(host: Host, act: Callable[[], CommandResult], lock_seconds: float = LOCK_SECONDS) -> CommandResult:
    """What zypper ended with, asked again for as long as another one is at work.

    Raises GpuOpsError that names who that is when he has not ended in time.
    """
    done, free = wait_for(act, lambda done: done.rc != LOCKED, lock_seconds, 1.0)
    if not free:
        said = told(done)
        pid = _HOLDER.search(said)
        holder = host.process_told(int(pid.group(1))) if pid else ""
        raise GpuOpsError(
            "packages.zypper_locked",
            found="%s; waited %.0f s%s" % (said, lock_seconds, " for %s" % holder if holder else ""),
            wanted="zypper's lock",
            remedy="let that process end (or stop it: PackageKit, YaST and other installations hold this lock), and "
                   "run again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    return done


def failure(done: CommandResult) -> CommandFailed:
    """For an end that none of the callers expects."""
    return CommandFailed(
        "packages.zypper_failed",
        found="'%s' ended with %d: %s" % (" ".join(done.argv), done.rc, told(done)),
        wanted="exit code 0",
        remedy="install zypper" if done.rc == 127 else
               "run it by hand on this host; its whole output is in this result",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)


def told(done: CommandResult) -> str:
    """What zypper says of its failure, or said last."""
    said = parse(done.stdout)
    lines = [line for line in (said.problem, *said.errors) if line]
    return " | ".join(lines or (done.stderr or done.stdout).strip().splitlines()[-3:]) or "no output"


def parse(text: str) -> Answer:
    """Pure. What has not been written to its end, or has words of other programs in it, is read as far as it goes."""
    errors: List[str] = []
    problem = ""
    items: List[Item] = []
    found: List[Tuple[str, str, str, str]] = []
    addresses: Dict[str, Tuple[str, ...]] = {}
    files: List[str] = []
    sizes = {"download-size": 0, "space-usage-diff": 0}
    for element in _elements(text):
        if element.tag == "message" and element.get("type") == "error":
            errors.append(_line("".join(element.itertext())))
        elif element.tag == "prompt" and element.get("id") == _SOLVER:
            problem = _problem(element.findtext("description") or "") or problem
        elif element.tag.startswith("to-"):
            items.extend(_items(element))
        elif element.tag == "install-summary":
            sizes = {name: int(element.get(name) or 0) for name in sizes}
        elif element.tag == "solvable" and element.get("kind") == "package":
            found.append((element.get("name", ""), element.get("arch", ""), element.get("edition", ""),
                          element.get("repository", "")))
        elif element.tag == "repo":
            addresses[element.get("alias", "")] = tuple(url.text or "" for url in element.iter("url"))
        elif element.tag == "localfile":
            files.append(element.get("path", ""))
    return Answer(tuple(errors), problem, tuple(items), tuple(found), addresses, tuple(files),
                  sizes["download-size"], max(0, sizes["space-usage-diff"]))


def _elements(text: str) -> Iterator[ET.Element]:
    """Those that are complete, each after what is in it."""
    parser: Any = ET.XMLPullParser(["end"])
    try:
        parser.feed(_UNPRINTABLE.sub("", text[max(0, text.find("<?xml")):]))
        yield from (element for _event, element in parser.read_events())
    except ET.ParseError:
        return


def _items(section: ET.Element) -> Iterator[Item]:
    kind = _SECTIONS.get(re.sub(r"(?<=grade)-change-arch$", "", section.tag))
    for each in section.iter("solvable"):
        if kind and each.get("type") == "package":
            yield Item(kind, each.get("name", ""), each.get("arch", ""), each.get("edition", ""),
                       each.get("edition-old", ""))


def _problem(description: str) -> str:
    """What zypper says of a problem, without the solutions that it offers."""
    lines = [_line(line) for line in re.split(r"(?m)^\s*Solution \d+:.*", description)[0].splitlines()]
    return " | ".join(filter(None, lines)) or _line(description)


def _line(text: str) -> str:
    return " ".join(text.split())


def fetched(done: CommandResult, wanted: Sequence[str]) -> Tuple[str, ...]:
    """Where the packages lie that it was to fetch, () where one of them does not: it ends with 0 where a repository
    lacks a file that its index names."""
    files = parse(done.stdout).files
    return files if done.rc in DONE and len(files) == len(wanted) else ()


def complain(done: CommandResult, wanted: Sequence[str]) -> None:
    """Raises what an end says that leaves something undone. wanted: what was asked for."""
    if done.rc in DONE:
        return
    if done.rc == NOT_FOUND:
        raise GpuOpsError(
            "packages.zypper_not_offered",
            found=told(done), wanted=", ".join(wanted),
            remedy="see what this host's repositories have (`zypper search --details NAME`), and that each can be read "
                   "(`zypper refresh`)",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    if done.rc == SCRIPT_FAILED:
        raise GpuOpsError(
            "packages.zypper_script_failed",
            found="packages were installed, and a script of theirs failed: %s" % told(done),
            wanted="packages whose scripts succeed",
            remedy="see what it said (/var/log/zypp/history on this host), mend that, and install the package anew "
                   "(`zypper install --force NAME`)",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    raise failure(done)
