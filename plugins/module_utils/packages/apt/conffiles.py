# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configuration files of packages that a power cut has emptied.

dpkg syncs what it unpacks, and not the configuration files (conffiles) among it: they wait as '.dpkg-new' and are
renamed when the package is configured. Cut off within the half minute that the kernel writes in, the package counts as
unpacked, or as configured, and such a file has nothing in it. An empty hook of DKMS below /etc/kernel fails every
installation of headers and every removal of a kernel from then on ("Exec format error").

A file that somebody has emptied since is younger than dpkg's list of the package's files, and is left alone.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Collection, Dict, Iterator, List, Optional, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from . import database, running

_WAITING = ".dpkg-new"
_CONFFILES = re.compile(r"(?m)^Conffiles:\n((?: .*\n?)+)")
_EMPTY = "d41d8cd98f00b204e9800998ecf8427e"


@dataclass(frozen=True)
class Torn:
    """A file with nothing in it: where it lies, and whose it is. member: its path in the package."""

    path: str
    member: str
    package: str
    version: str


def renew(host: Host, configured: Collection[str]) -> None:
    """Write again what is torn of packages that wait to be configured, and of these that are.

    Raises GpuOpsError where the package's file cannot be had.
    """
    lacking: List[Torn] = []
    archives: Dict[str, Optional[str]] = {}
    for torn in _torn(host, configured):
        if torn.package not in archives:
            archives[torn.package] = running.archive(host, torn.package, torn.version)
        archive = archives[torn.package]
        if archive is None:
            lacking.append(torn)
            continue
        content = _content(host, archive, torn.member)
        if content:
            host.write_bytes(torn.path, content)
    if lacking:
        names = sorted({torn.package for torn in lacking})
        raise GpuOpsError(
            "packages.conffile_torn",
            found="a power cut has emptied %s, and no package file of %s can be had" % (
                ", ".join(torn.path for torn in lacking), ", ".join(names)),
            wanted="the configuration files as the packages bring them",
            remedy="see that `apt-get download %s` works on this host, or write the files yourself" % " ".join(
                sorted({"%s=%s" % (torn.package, torn.version) for torn in lacking})),
        )


def _torn(host: Host, configured: Collection[str]) -> Iterator[Torn]:
    for name, version, state, path, digest in _registered(host):
        if state in ("unpacked", "half-configured") and _hollow(host, path + _WAITING):
            yield Torn(path + _WAITING, path, name, version)
        elif state == "installed" and name in configured and digest != _EMPTY and _hollow(host, path):
            if not _touched(host, name, path):
                yield Torn(path, path, name, version)


def _registered(host: Host) -> Iterator[Tuple[str, str, str, str, str]]:
    """(package, version, state, path, MD5 as the package brings it) of every configuration file that dpkg knows."""
    native = database.native(host)
    for stanza in database.status(host, {}).split("\n\n"):
        listed = _CONFFILES.search(stanza + "\n")
        if listed is None:
            continue
        fields = dict(re.findall(r"(?m)^(Package|Architecture|Version|Status): (.*)$", stanza))
        name = database.full_name(fields["Package"], fields.get("Architecture", ""), native)
        for line in listed.group(1).splitlines():
            words = line.split()
            if len(words) == 2:
                yield name, fields.get("Version", ""), fields["Status"].split()[-1], words[0], words[1]


def _hollow(host: Host, path: str) -> bool:
    return host.link(path) is None and host.is_file(path) and not (host.read_bytes(path) or b"").strip(b"\0")


def _touched(host: Host, name: str, path: str) -> bool:
    """Whether somebody has written the file since the package was unpacked; dpkg gives it the package's own time."""
    seen = host.stat(path)
    lists = [host.stat(found) for found in host.glob("%s/info/%s.list" % (database.ADMIN, name))
             + host.glob("%s/info/%s:*.list" % (database.ADMIN, name.split(":")[0]))]
    unpacked = [each.st_mtime for each in lists if each is not None]
    return seen is None or not unpacked or seen.st_mtime > max(unpacked)


def _content(host: Host, archive: str, member: str) -> Optional[bytes]:
    with host.scratch() as directory:
        host.run(["dpkg-deb", "--extract", archive, directory], timeout=600)
        path = os.path.join(directory, member.lstrip("/"))
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as handle:
            return handle.read()
