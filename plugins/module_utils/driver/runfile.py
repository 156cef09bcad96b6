# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that NVIDIA's installer (the runfile) has put on a host: what there is of it, and how it goes.

The installer knows no packages. It lists below /var/lib/nvidia what it has made and what it has overwritten, file by
file as it goes; nvidia-uninstall, which is the installer itself, removes the ones, puts the others back, and takes its
module from DKMS. The list goes last. It unloads the driver too, unless it is told not to: that is not its business, as
nobody has been asked to let go of the GPUs. Its exit code is 0 whatever comes of it, and it is among the files that it
removes (nvidia-installer 590.48.01, backup.c and nvidia-installer.c).
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step
from ..hardware.runfile import MEMORY
from ..packages.space import Space

NAME = "driver"
REMOVE = "runfile.remove"
UNINSTALLER = "/usr/bin/nvidia-uninstall"
LIST, DIRECTORIES = "/var/lib/nvidia/log", "/var/lib/nvidia/dirs"
# By its name it knows what it is to do
COPY = "/var/cache/gpuops/nvidia-uninstall"
CACHE = "/var/cache"
# Files of installers, VERSION-SHA256.run, whole as soon as they have that name
STORE = "/var/cache/gpuops/runfile"
# There from before the first file of a driver comes by us until its last one has, or all were taken back; it has the
# names of the files
HALF = STORE + "/half"
# What is unpacked there while it is installed, and where the source of its module is laid out
WORK = STORE + "/work"
BESIDE = "/usr/src/.gpuops-nvidia"
# In the source of a module that we have given DKMS: which of the two kernel modules it is
MARK = ".gpuops"
SCHEMA = 1
_VERSION = re.compile(r"\((\d[\d.]*)\)\s*$|^(\d[\d.]*)\s*$")
_CACHED = re.compile(r"(.+)-([0-9a-f]{64})\.run")
# Where files of a driver are installed (nvidia-installer 590.48.01, files.c, set_destinations())
_PLACES = ("/usr", "/etc", "/lib")
_ENTRY = re.compile(r"(?m)^\d+: (/.*)$")
_SECONDS = 900
# A file is written and listed within
_MOMENTS = 60


@dataclass(frozen=True)
class Installer:
    """What there is of NVIDIA's installer beside the driver that it has brought.

    cached:     {SHA-256: version} of the files that were fetched.
    is_half:    whether an installation of ours was stopped.
    sources:    {version: open or proprietary} of the modules' sources that DKMS can build; '' of those of others.
    ours:       the driver that came by us, '' for none.
    file:       the file that it came from: 'sha256', and the 'flavour' that was installed of it; {} where unknown.
    user_space: version of libnvidia-ml.so.1, '' without one.
    is_there:   whether the file that the policy names on this host is there; of one elsewhere nothing is known.
    space:      where it writes, None where it has nothing to write.
    """

    cached: Mapping[str, str] = field(default_factory=dict)
    is_half: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    ours: str = ""
    file: Mapping[str, str] = field(default_factory=dict)
    user_space: str = ""
    is_there: bool = True
    space: Optional[Space] = None

    def has(self, version: str, sha256: str) -> bool:
        """Whether a file was fetched, and as that of this driver: under another one's name nothing would find it."""
        return self.cached.get(sha256) == version

    def came_otherwise(self, version: str, file: Mapping[str, str]) -> bool:
        """Whether this driver came by us, of another file or in another flavour; of those of others nobody knows."""
        return self.ours == version and dict(self.file) != dict(file)


def version(host: Host) -> str:
    """The version of the driver that can be taken away, 'unknown' where a removal was stopped after its list; '' where
    there is none, or nothing that could remove it."""
    listed = host.read(LIST)
    if listed is None:
        return "unknown" if host.exists(COPY) else ""
    if not any(map(host.is_executable, (UNINSTALLER, COPY))):
        return ""
    found = _VERSION.search(listed.split("\n", 1)[0])
    return found.group(1) or found.group(2) if found else "unknown"


def cached(host: Host) -> Dict[str, str]:
    """{SHA-256: version} of the files in the store."""
    found = (_CACHED.fullmatch(name) for name in host.list(STORE))
    return {each.group(2): each.group(1) for each in found if each}


def cached_path(version_of: str, sha256: str) -> str:
    return "%s/%s-%s.run" % (STORE, version_of, sha256)


def source_directory(version_of: str) -> str:
    """Where DKMS looks for it; the installer has given it that name too (misc.c, dkms_gen_tarball())."""
    return "/usr/src/nvidia-%s" % version_of


def sources(host: Host) -> Dict[str, str]:
    beginning, ending = source_directory(""), "/dkms.conf"
    found = (path[len(beginning):-len(ending)] for path in host.glob(source_directory("[0-9]*") + ending))
    return {each: (host.read("%s/%s" % (source_directory(each), MARK)) or "").strip() for each in found}


def recalled(journal: Journal) -> Mapping[str, str]:
    """{'version', 'sha256', 'flavour'} of the driver that the installer has brought by us."""
    told = journal.recall(MEMORY)
    if told and told.get("schema") != SCHEMA:
        raise GpuOpsError(
            "driver.runfile_memory_of_a_newer_release",
            found="what is remembered of NVIDIA's installer has schema %s" % told.get("schema"),
            wanted="schema %d" % SCHEMA,
            remedy="a newer release of gpuops.nvidia has worked on this host: use that one or a newer one")
    return told


def removal(
    there: str, files: Sequence[str], is_loaded: bool, why: str = "Packages take its place"
) -> List[Step]:
    """there: its version, '' for none. files: those that no package owns."""
    if not there:
        return []
    return [Step(
        NAME, REMOVE, "driver %s of NVIDIA's installer" % there,
        "%s: nvidia-uninstall removes what it put there. A module that is loaded stays loaded." % why,
        Disruption.driver_reload if is_loaded else Disruption.none,
        change={"before": {"driver": there}, "after": {"driver": None}}, parameters={"files": list(files)},
        reversible=False)]


def remove(host: Host, journal: Journal, step: Step) -> None:
    """By a copy, which a removal that is stopped leaves; what counts is that the files are gone.

    A file is there before the list has it (command-list.c, execute_command_list()): where an installation of ours was
    stopped, one may be in no list.
    """
    program = host.read_bytes(UNINSTALLER) if host.is_executable(UNINSTALLER) else None
    if program is not None:
        host.write_bytes(COPY, program, mode=0o700)
    unlisted = _unlisted(host)
    done = host.run([host.path(COPY), "--silent", "--skip-module-unload"], check=False, timeout=_SECONDS)
    unlisted()
    left = [path for path in (LIST, *step.parameters["files"]) if host.exists(path)]
    if left:
        raise GpuOpsError(
            "driver.runfile_not_removed",
            found="nvidia-uninstall has left %s: %s" % (
                ", ".join(left), " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it says nothing"),
            wanted="none of the files that NVIDIA's installer brought",
            remedy="see /var/log/nvidia-uninstall.log; remove these files by hand, and run this again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    for each, kind in sources(host).items():
        if kind:
            _remove_source(host, each)
    remove_tree(host, BESIDE)
    remove_tree(host, WORK)
    host.remove(HALF)
    host.remove_empty_dir(STORE)
    host.remove(COPY)
    journal.remember(MEMORY, {})


def _unlisted(host: Host) -> Callable[[], None]:
    """Removes, once the list has gone, the file that a stopped installation of ours had not listed yet: of the names
    that were to come, written since it began and no later than moments after its last entry. What lay there before,
    and was put back, is as old as it was."""
    last = host.stat(LIST) or host.stat(HALF)
    listed = {os.path.basename(path) for path in _ENTRY.findall(host.read(LIST) or "")}
    names = set((host.read(HALF) or "").split()).difference(listed)
    made = (host.read(DIRECTORIES) or "").split()

    def remove_them() -> None:
        if not names or last is None or host.exists(LIST):
            return
        top = host.path("/").rstrip("/")
        found = host.run(
            ["find", *(top + each for each in _PLACES if host.is_dir(each) and not host.link(each)), "-xdev",
             "-path", top + "/usr/src", "-prune", "-o", "(", "-type", "f", "-o", "-type", "l", ")",
             "-newer", host.path(HALF), "!", "-newermt", "@%d" % (last.st_mtime + _MOMENTS), "-print"],
            check=False, timeout=_SECONDS)
        for path in (line[len(top):] for line in found.stdout.splitlines()):
            if os.path.basename(path) in names:
                host.remove(path)
        for directory in sorted(made, key=len, reverse=True):
            host.remove_empty_dir(directory)

    return remove_them


def _remove_source(host: Host, version_of: str) -> None:
    """nvidia-uninstall has DKMS forget it, unless it was stopped; the source itself stays there."""
    known = "nvidia/%s" % version_of
    if host.exists("/var/lib/dkms/" + known):
        host.run(["dkms", "remove", known, "--all"], check=False, timeout=_SECONDS)
    remove_tree(host, source_directory(version_of))


def remove_tree(host: Host, path: str) -> None:
    host.run(["rm", "--recursive", "--force", host.path(path)], timeout=_SECONDS)


EXECUTORS = {REMOVE: remove}
