# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: the blacklist, the loaded module, and what the initramfs of each kernel holds."""
from __future__ import annotations

import os
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..hardware.boot import kernels, module_file
from ..hardware.parameters import configuration_files
from .policy import Policy

FILE = "/etc/modprobe.d/gpuops-nouveau.conf"
# Drivers of the kernel's own that bind NVIDIA GPUs, dependants first; nova since Linux 6.15 (drivers/gpu/nova-core)
NOUVEAU, NOVA = ("nouveau",), ("nova_drm", "nova_core")
_BLACKLIST = re.compile(r"^\s*blacklist\s+nouveau\s*$", re.MULTILINE)
_NOVA_BLACKLIST = re.compile(r"^\s*blacklist\s+nova[-_]core\s*$", re.MULTILINE)
_NO_MODESET = re.compile(r"^\s*options\s+nouveau\s+(?:.*\s)?modeset=0\b", re.MULTILINE)


@dataclass(frozen=True)
class Initramfs:
    """The initramfs of one kernel, and what it does about nouveau.

    kernel:  release that it belongs to.
    path:    its file.
    nouveau: whether it holds such a module, and so may load it before the root file system is there.
    ours:    whether it holds our blacklist.
    older:   whether it was made before the blacklist, ours or that of others, was written; where a clock that jumped
             has left times of the future, whether it holds none.
    theirs:  whether it holds the blacklist of others.
    """

    kernel: str
    path: str
    nouveau: bool
    ours: bool
    older: bool
    theirs: bool = False


@dataclass(frozen=True)
class Observation:
    """Whether nouveau is loaded, and what keeps it from being loaded at the next boot.

    text:        our blacklist file, None when it is not there.
    elsewhere:   whether other files say the same, of nova where a kernel has it.
    original:    whether an earlier run of ours wrote the file.
    before_us:   what was in its place before.
    loaded:      {loaded module of NOUVEAU and NOVA: how often it is in use, other modules of them left out}.
    tool:        program that makes the initramfs: update-initramfs, dracut or ''.
    initramfs:   one entry a bootable kernel that has one.
    """

    text: Optional[str] = None
    elsewhere: bool = False
    original: bool = False
    before_us: Optional[str] = None
    loaded: Mapping[str, int] = field(default_factory=dict)
    tool: str = ""
    initramfs: Tuple[Initramfs, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    originals = {original.path: original for original in journal.originals("nouveau")}
    kept = originals.get(FILE)
    tool = next((name for name in ("update-initramfs", "dracut") if host.which(name)), "")
    others = _blacklists_of_others(host)
    return Observation(
        text=host.read(FILE),
        elsewhere=bool(others),
        original=kept is not None,
        before_us=None if kept is None or kept.content is None else kept.content.decode("utf-8", "replace"),
        loaded=_loaded(host),
        tool=tool,
        initramfs=tuple(_initramfs(host, journal, policy, tool, others)) if tool else (),
    )


def _blacklists_of_others(host: Host) -> Tuple[str, ...]:
    """Files of others that keep nouveau away, nova too where a kernel has it; () when they do not do all of that."""
    texts = {path: host.read(path) or "" for path in configuration_files(host) if path != FILE}
    found = tuple(path for path, text in texts.items() if _BLACKLIST.search(text))
    if not found or not any(map(_NO_MODESET.search, texts.values())):
        return ()
    if not any(map(_NOVA_BLACKLIST.search, texts.values())) and any(
            module_file(host, release, "nova_core") for release in kernels(host)):
        return ()
    return found


def _loaded(host: Host) -> Dict[str, int]:
    found = {}
    for name in NOUVEAU + NOVA:
        directory = "/sys/module/" + name
        if host.exists(directory):
            count = (host.read(directory + "/refcnt") or "").strip()
            others = [other for other in host.list(directory + "/holders") if other in NOVA]
            found[name] = max(int(count) - len(others), 0) if count.isdigit() else 1
    return found


def _initramfs(
    host: Host, journal: Journal, policy: Policy, tool: str, others: Tuple[str, ...]
) -> List[Initramfs]:
    """What each initramfs holds; one that is newer than the blacklist needs no look inside.

    Unless our own file is that of a release before, which kept nouveau away alone and is to be written anew, or one of
    both is of the future: its time then says nothing about which came first.
    """
    text = host.read(FILE)
    complete = text is None or _NOVA_BLACKLIST.search(text) is not None
    known = journal.recall("nouveau").get("initramfs", {})
    written, now = _written(host, others), time.time_ns()
    found = []
    for kernel in kernels(host):
        path = initramfs_path(host, kernel)
        made = host.stat(path) if path else None
        if made is None:
            continue
        older = made.st_mtime_ns < written
        timely = made.st_mtime_ns <= now and (written <= now or written == float("inf"))
        if policy.state == "present" and complete and not older and timely:
            found.append(Initramfs(kernel, path, nouveau=True, ours=True, older=False, theirs=True))
            continue
        nouveau, files = look_inside(host, tool, path, known)
        names = {os.path.basename(name) for name in others}
        # Of one that cannot be read nobody can tell that it was made without our file
        ours = text is not None if files is None else os.path.basename(FILE) in files
        theirs = files is not None and not names.isdisjoint(files)
        if not timely and files is not None:
            older = not (theirs if text is None else ours)
        found.append(Initramfs(kernel, path, nouveau, ours, older, theirs))
    return found


def _written(host: Host, others: Tuple[str, ...]) -> float:
    """When the blacklist came to the host, in nanoseconds; infinity when there is none.

    A file of a package has the time of its build, long before it came here: its status changed when it came.
    """
    ours = host.stat(FILE)
    if ours is not None:
        return ours.st_mtime_ns
    came = [each.st_ctime_ns for each in map(host.stat, others) if each is not None]
    return max(came) if came else float("inf")


def initramfs_path(host: Host, kernel: str) -> str:
    names = ("/boot/initrd.img-" + kernel, "/boot/initramfs-%s.img" % kernel, "/boot/initrd-" + kernel)
    return next((name for name in names if host.exists(name)), "")


def look_inside(
    host: Host, tool: str, path: str, known: Mapping[str, Any]
) -> Tuple[bool, Optional[Tuple[str, ...]]]:
    """(holds a module of NOUVEAU or NOVA, names of its files of modprobe.d); (True, None) when it cannot be read."""
    remembered = known.get(path)
    if remembered and remembered["stamp"] == stamp(host, path) and "files" in remembered:
        return remembered["nouveau"], tuple(remembered["files"])
    # dracut's package for Debian and Ubuntu brings an update-initramfs of its own, and no lsinitramfs
    listers = ("lsinitramfs", "lsinitrd") if tool == "update-initramfs" else ("lsinitrd",)
    program = next(filter(host.which, listers), listers[0])
    done = host.run([program, path], check=False, timeout=300)
    if done.rc != 0:
        return True, None
    nouveau = re.search(r"/(nouveau|nova[-_]core)\.ko(\.\w+)?$", done.stdout, re.MULTILINE) is not None
    return nouveau, tuple(re.findall(r"\bmodprobe\.d/([^/\s]+\.conf)$", done.stdout, re.MULTILINE))


def stamp(host: Host, path: str) -> List[int]:
    made = host.stat(path)
    return [made.st_size, made.st_mtime_ns] if made else []
