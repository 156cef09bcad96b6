# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Removing a driver of NVIDIA's installer, or half of one: by nvidia-uninstall, with what that would leave.

It takes what its list has as long as it finds it as it was noted, skips the rest, and removes the list all the same:
nothing knows of the rest then (nvidia-installer 590.48.01, backup.c, check_backup_log_entries(), do_uninstall())
  a file      of the noted checksum: not one that a power cut has torn
  a link      with the noted target, and only where that is there: not one whose file has gone before, in a removal
              that was stopped
  the list    with every entry whole; of one that is torn it removes nothing at all (read_backup_log_file())
A file is there before the list has it (command-list.c, execute_command_list()). So what it would leave goes before it
runs, by the list that is still there: whatever is stopped, the next run does it once more.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, List, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..hardware.runfile import MEMORY
from . import runfile
from .runfile import BESIDE, COPY, HALF, JUDGED, LIST, STORE, UNINSTALLER, WORK
from .runfile_plan import refuse_moved_aside

_KEPT = os.path.dirname(LIST)
_DIRECTORIES = _KEPT + "/dirs"
# What lay in the way of the driver's files, moved aside (backup.c, do_backup()): numbers from 100 on
_ASIDE = _KEPT + "/[1-9]*"
_LINK, _FILE = 0, 1
_HEAD = re.compile(r"[^\n\0]+\n[^\n\0]+\n")
# A line with number and path, one with the checksum or the link's target; of a link that was moved aside one more
_ENTRY = re.compile(r"(?:(?P<aside>2)|(?!2:)(?P<number>\d+)): (?P<path>/[^\n\0]*)\n(?P<told>[^\n\0]+)\n"
                    r"(?(aside)[^\n\0]+\n)")
# Where files of a driver are installed (files.c, set_destinations()), and what others have there
_PLACES, _OF_OTHERS = ("/usr", "/etc", "/lib"), ("/usr/src", "/usr/local")
# Files that it makes of others, and copies then (files.c, process_template_file())
_TEMPLATES = WORK + "/template-*"
_SECONDS = 900
# A file is written and listed within
_MOMENTS = 60
_PIECE, _PAGE = 1 << 20, 1 << 12


@dataclass(frozen=True)
class _Span:
    """From the beginning of a stopped installation of ours until moments after its last entry, in seconds since 1970.
    What lay there before, and was put back, is as old as it was."""

    begin: float
    end: float

    def has(self, host: Host, path: str) -> bool:
        found = None if host.link(path) is not None else host.stat(path)
        return found is not None and self.begin < found.st_mtime <= self.end


def remove(host: Host, journal: Journal, step: Step) -> None:
    """By a copy, which a removal that is stopped leaves; what counts is that the files are gone."""
    refusals = refuse_moved_aside(strays(host))
    if refusals:
        raise GpuOpsError.because(refusals)
    # The program of half an installation may be torn, and its copy is ours
    if host.is_executable(UNINSTALLER) and not (host.exists(HALF) and host.is_executable(COPY)):
        host.write_bytes(COPY, host.read_bytes(UNINSTALLER) or b"", mode=0o700)
    _remove_what_it_would_leave(host)
    done = host.run([host.path(COPY), "--silent", "--skip-module-unload"], check=False, timeout=_SECONDS)
    if not host.exists(LIST):
        _remove_directories(host)
    left = [path for path in (LIST, *step.parameters["files"]) if host.exists(path)]
    if left:
        raise GpuOpsError(
            "driver.runfile_not_removed",
            found="nvidia-uninstall has left %s: %s" % (
                ", ".join(left), " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it says nothing"),
            wanted="none of the files that NVIDIA's installer brought",
            remedy="see /var/log/nvidia-uninstall.log; remove these files by hand, and run this again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    for each, kind in runfile.sources(host).items():
        if kind:
            remove_source(host, each)
    for tree in (BESIDE, WORK, JUDGED):
        remove_tree(host, tree)
    host.remove(HALF)
    host.remove_empty_dir(STORE)
    host.remove(COPY)
    journal.remember(MEMORY, {})


def strays(host: Host) -> Tuple[str, ...]:
    """Files of somebody else that a stopped installation of ours has moved aside, and that its list does not name: a
    file is moved before the list has it, and nvidia-uninstall removes what it finds beside the list."""
    if not host.exists(HALF):
        return ()
    numbers = {str(number) for number, _path, _told in _entries(host.read(LIST) or "")[0]}
    return tuple(path for path in host.glob(_ASIDE) if os.path.basename(path) not in numbers)


def remove_unlisted(host: Host) -> None:
    """Files of a stopped installation of ours that its list has not: of the names that were to come, made of what was
    unpacked, and of its time. Links of these names lead to one of them."""
    span = _span(host)
    names = set((host.read(HALF) or "").split())
    top = host.path("/").rstrip("/")
    skipped = [word for each in _OF_OTHERS for word in ("-path", top + each, "-prune", "-o")]
    found = host.run(
        ["find", *(top + each for each in _PLACES if host.is_dir(each) and not host.link(each)), "-xdev",
         *skipped, "(", "-type", "f", "-o", "-type", "l", ")", "-newer", host.path(HALF),
         "!", "-newermt", "@%d" % span.end, "-print"], check=False, timeout=_SECONDS)
    listed = {path for number, path, _told in _entries(host.read(LIST) or "")[0] if number in (_LINK, _FILE)}
    unpacked = _unpacked(host)
    for path in (line[len(top):] for line in found.stdout.splitlines()):
        name, target = os.path.basename(path), host.link(path)
        if name in names and path not in listed and (
                os.path.basename(target) in names if target is not None else
                any(_is_of(host, path, each) for each in [*unpacked.get(name, ()), *host.glob(_TEMPLATES)])):
            host.remove(path)


def _remove_what_it_would_leave(host: Host) -> None:
    text = host.read(LIST)
    entries, end = _entries(text or "")
    if host.exists(HALF):
        span = _span(host)
        for number, path, _told in entries:
            if number == _FILE and span.has(host, path):
                host.remove(path)
        remove_unlisted(host)
    for number, path, target in entries:
        if number == _LINK and host.link(path) == target and host.stat(path) is None:
            host.remove(path)
    if text is None or not host.exists(HALF):
        return
    if not end:
        host.remove(LIST)
    elif end < len(text):
        host.write(LIST, text[:end], 0o600)


def _span(host: Host) -> _Span:
    begin = host.stat(HALF)
    last = host.stat(LIST) or begin
    return _Span(begin.st_mtime if begin else 0.0, last.st_mtime + _MOMENTS if last else 0.0)


def _entries(text: str) -> Tuple[List[Tuple[int, str, str]], int]:
    """([(number, path, checksum or target)], how far the list can be read)."""
    head = _HEAD.match(text)
    end = head.end() if head else 0
    found: List[Tuple[int, str, str]] = []
    entry = _ENTRY.match(text, end) if head else None
    while entry is not None:
        found.append((int(entry.group("number") or 2), entry.group("path"), entry.group("told")))
        end = entry.end()
        entry = _ENTRY.match(text, end)
    return found, end


def _unpacked(host: Host) -> Dict[str, List[str]]:
    """{name: paths} of the files that were to be copied."""
    top = host.path("/").rstrip("/")
    found: Dict[str, List[str]] = {}
    for line in host.run(["find", host.path(WORK), "-type", "f"], check=False, timeout=_SECONDS).stdout.splitlines():
        found.setdefault(os.path.basename(line), []).append(line[len(top):])
    return found


def _is_of(host: Host, path: str, original: str) -> bool:
    """Whether a file is a copy of another one, or what there was of it when it was stopped: cut short, or with nulls
    where nothing has come yet, as it gets its length first (files.c, copy_file())."""
    sizes = [found.st_size for found in map(host.stat, (path, original)) if found]
    if len(sizes) < 2 or sizes[0] > sizes[1]:
        return False
    for offset in range(0, sizes[0], _PIECE):
        piece, wanted = (host.read_part(each, offset, _PIECE) for each in (path, original))
        if piece != wanted and not all(
                wanted[at:at + _PAGE].startswith(piece[at:at + _PAGE].rstrip(b"\0"))
                for at in range(0, len(piece), _PAGE)):
            return False
    return True


def _remove_directories(host: Host) -> None:
    """Those that it has made; nvidia-uninstall does it where it has a list."""
    for directory in sorted((host.read(_DIRECTORIES) or "").split("\n"), key=len, reverse=True):
        if directory.startswith("/"):
            host.remove_empty_dir(directory)
    host.remove(_DIRECTORIES)
    host.remove_empty_dir(_KEPT)


def remove_source(host: Host, version: str) -> None:
    """nvidia-uninstall has DKMS forget it, unless it was stopped; the source itself stays there."""
    known = "nvidia/%s" % version
    if host.exists("/var/lib/dkms/" + known):
        host.run(["dkms", "remove", known, "--all"], check=False, timeout=_SECONDS)
    clear_source(host, version)


def clear_source(host: Host, version: str) -> None:
    """It is ours by one of the files in it, so it leaves its place as a whole."""
    place = runfile.source_directory(version)
    remove_tree(host, BESIDE)
    if host.exists(place):
        host.rename(place, BESIDE)
        remove_tree(host, BESIDE)


def remove_tree(host: Host, path: str) -> None:
    host.run(["rm", "--recursive", "--force", host.path(path)], timeout=_SECONDS)


EXECUTORS = {runfile.REMOVE: remove}
