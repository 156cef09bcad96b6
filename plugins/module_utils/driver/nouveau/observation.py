# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there: the blacklist, the loaded module, and what the initramfs of each kernel holds."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...core.host import Host
from ...core.journal import Journal
from ...hardware.boot import kernels
from .policy import Policy

FILE = "/etc/modprobe.d/gpuops-nouveau.conf"
# modprobe.d(5)
FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_BLACKLIST = re.compile(r"^\s*blacklist\s+nouveau\s*$", re.MULTILINE)
_NO_MODESET = re.compile(r"^\s*options\s+nouveau\s+(?:.*\s)?modeset=0\b", re.MULTILINE)


@dataclass(frozen=True)
class Initramfs:
    """
    kernel:  release that it belongs to.
    path:    its file.
    nouveau: whether it holds the module, and so may load it before the root file system is there.
    ours:    whether it holds our blacklist.
    older:   whether it was made before our blacklist was written.
    """

    kernel: str
    path: str
    nouveau: bool
    ours: bool
    older: bool


@dataclass(frozen=True)
class Observation:
    """
    text:        our blacklist file, None when it is not there.
    elsewhere:   whether other files say the same.
    original:    whether an earlier run of ours wrote the file.
    before_us:   what was in its place before.
    users:       use count of the loaded module, -1 when it is not loaded.
    tool:        program that makes the initramfs: update-initramfs, dracut or ''.
    initramfs:   one entry a bootable kernel that has one.
    """

    text: Optional[str] = None
    elsewhere: bool = False
    original: bool = False
    before_us: Optional[str] = None
    users: int = -1
    tool: str = ""
    initramfs: Tuple[Initramfs, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def observe(host: Host, journal: Journal, policy: Policy) -> Observation:
    originals = {original.path: original for original in journal.originals("nouveau")}
    kept = originals.get(FILE)
    tool = next((name for name in ("update-initramfs", "dracut") if host.which(name)), "")
    return Observation(
        text=host.read(FILE),
        elsewhere=_blacklisted_elsewhere(host),
        original=kept is not None,
        before_us=None if kept is None or kept.content is None else kept.content.decode("utf-8", "replace"),
        users=_users(host),
        tool=tool,
        initramfs=tuple(_initramfs(host, journal, policy, tool)) if tool else (),
    )


def _blacklisted_elsewhere(host: Host) -> bool:
    texts = [host.read("%s/%s" % (folder, name)) or "" for folder in FOLDERS for name in host.list(folder)
             if name.endswith(".conf") and "%s/%s" % (folder, name) != FILE]
    return any(map(_BLACKLIST.search, texts)) and any(map(_NO_MODESET.search, texts))


def _users(host: Host) -> int:
    if not host.exists("/sys/module/nouveau"):
        return -1
    count = (host.read("/sys/module/nouveau/refcnt") or "").strip()
    return int(count) if count.isdigit() else 1


def _initramfs(host: Host, journal: Journal, policy: Policy, tool: str) -> List[Initramfs]:
    """What each initramfs holds; one that is newer than the blacklist needs no look inside."""
    known = journal.recall("nouveau").get("initramfs", {})
    written = host.stat(FILE)
    found = []
    for kernel in kernels(host):
        path = initramfs_path(host, kernel)
        made = host.stat(path) if path else None
        if made is None:
            continue
        older = written is None or made.st_mtime_ns < written.st_mtime_ns
        if policy.state == "present" and not older:
            found.append(Initramfs(kernel, path, nouveau=True, ours=True, older=False))
            continue
        nouveau, ours = look_inside(host, tool, path, known)
        found.append(Initramfs(kernel, path, nouveau, ours, older))
    return found


def initramfs_path(host: Host, kernel: str) -> str:
    names = ("/boot/initrd.img-" + kernel, "/boot/initramfs-%s.img" % kernel, "/boot/initrd-" + kernel)
    return next((name for name in names if host.exists(name)), "")


def look_inside(host: Host, tool: str, path: str, known: Mapping[str, Any]) -> Tuple[bool, bool]:
    """(holds nouveau, holds our blacklist); what cannot be read may hold both."""
    remembered = known.get(path)
    if remembered and remembered["stamp"] == stamp(host, path):
        return remembered["nouveau"], remembered["ours"]
    program = "lsinitramfs" if tool == "update-initramfs" else "lsinitrd"
    done = host.run([program, path], check=False, timeout=300)
    if done.rc != 0:
        return True, True
    nouveau = re.search(r"/nouveau\.ko(\.\w+)?$", done.stdout, re.MULTILINE) is not None
    return nouveau, FILE.lstrip("/") in done.stdout


def stamp(host: Host, path: str) -> List[int]:
    made = host.stat(path)
    return [made.st_size, made.st_mtime_ns] if made else []
