# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that NVIDIA's installer (the runfile) has put on a host: what there is of it, and how it goes.

The installer knows no packages. It lists below /var/lib/nvidia what it has made and what it has overwritten, file by
file as it goes; nvidia-uninstall, which is the installer itself, removes the ones, puts the others back, and takes its
module from DKMS. The list goes last. It unloads the driver too, unless it is told not to: that is not its business, as
nobody has been asked to let go of the GPUs. Its exit code is 0 whatever comes of it, and it is among the files that it
removes (nvidia-installer 590.48.01, backup.c and nvidia-installer.c). How it is run, and what it would leave, is in
runfile_removal.py.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step
from ..hardware.runfile import MEMORY
from ..packages.space import Space

NAME = "driver"
REMOVE = "runfile.remove"
UNINSTALLER = "/usr/bin/nvidia-uninstall"
LIST = "/var/lib/nvidia/log"
# By its name it knows what it is to do
COPY = "/var/cache/gpuops/nvidia-uninstall"
CACHE = "/var/cache"
# Files of installers, VERSION-SHA256.run, whole as soon as they have that name
STORE = "/var/cache/gpuops/runfile"
# There from before the first file of a driver comes by us until its last one has, or all were taken back; it has the
# names of the files
HALF = STORE + "/half"
# What is unpacked there while it is installed, while it is judged, and where the source of its module is laid out, or
# goes
WORK, JUDGED = STORE + "/work", STORE + "/judged"
BESIDE = "/usr/src/.gpuops-nvidia"
# In the source of a module that we have given DKMS: which of the two kernel modules it is
MARK = ".gpuops"
SCHEMA = 1
_VERSION = re.compile(r"\((\d[\d.]*)\)\s*$|^(\d[\d.]*)\s*$")
_CACHED = re.compile(r"(.+)-([0-9a-f]{64})\.run")


@dataclass(frozen=True)
class Installer:
    """What there is of NVIDIA's installer beside the driver that it has brought.

    cached:     {SHA-256: version} of the files that were fetched; one that is to be installed from is whole, too.
    has_store:  whether their directory is there: a stopped run may have left that alone, or what is none of them.
    is_half:    whether an installation of ours was stopped.
    has_work:   whether what it had unpacked is there: that goes before a file is unpacked again.
    strays:     files of somebody else that it has moved out of its way, and of which nothing tells from where.
    sources:    {version: open or proprietary} of the modules' sources that DKMS can build; '' of those of others.
    ours:       the driver that came by us, '' for none.
    file:       the file that it came from: 'sha256', and the 'flavour' that was installed of it; {} where unknown.
    user_space: version of libnvidia-ml.so.1, '' without one.
    is_there:   whether the file that the policy names on this host is there; of one elsewhere nothing is known.
    unpacks:    whether there is a tar to unpack it with: minimal systems of rpm may have none.
    space:      where it writes, None where it has nothing to write.
    """

    cached: Mapping[str, str] = field(default_factory=dict)
    has_store: bool = False
    is_half: bool = False
    has_work: bool = False
    strays: Tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    ours: str = ""
    file: Mapping[str, str] = field(default_factory=dict)
    user_space: str = ""
    is_there: bool = True
    unpacks: bool = True
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


def is_whole(host: Host, version_of: str, sha256: str) -> bool:
    """Whether a file is in the store as it was fetched: every byte is read, half a gigabyte."""
    file = cached_path(version_of, sha256)
    return host.is_file(file) and host.sha256(file) == sha256


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
