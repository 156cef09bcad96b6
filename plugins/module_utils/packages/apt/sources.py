# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who configures a repository on this host already: entries of sources.list(5) in both of its forms."""
from __future__ import annotations

import re
from typing import Tuple

from ...core.host import Host

# What apt takes for 'no' (apt-pkg/contrib/strutl.cc, StringToBool)
_DISABLED = re.compile(r"^Enabled:\s*(no|false|without|off|disable|0)\s*$", re.MULTILINE | re.IGNORECASE)
_ARCH = "$(ARCH)"
_BEFORE_HOST = re.compile(r"://[^/@]*@")


def configured_in(host: Host, uri: str, ours: str) -> Tuple[str, ...]:
    """Files other than ours in which apt finds a repository: it refuses one repository with two keys.

    It reads files of two endings alone: '.save' and '.bak', which an upgrade of the release or
    'apt modernize-sources' leave, are none of them.
    """
    if not uri:
        return ()
    files = ["/etc/apt/sources.list"] + ["/etc/apt/sources.list.d/" + name
                                         for name in host.list("/etc/apt/sources.list.d")
                                         if name.endswith((".list", ".sources"))]
    return tuple(path for path in files if path != ours and _names(host, path, uri.rstrip("/")))


def architecture(host: Host) -> str:
    """This host's, as dpkg calls it: 'amd64', 'arm64'."""
    return host.run(["dpkg", "--print-architecture"]).stdout.strip()


def _names(host: Host, path: str, bare: str) -> bool:
    """Whether an entry names it; a stanza of a deb822 file may be switched off."""
    text = host.read(path) or ""
    if _ARCH in text:
        text = text.replace(_ARCH, architecture(host))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    stanzas = re.split(r"\n[ \t]*\n", "\n".join(lines))
    return any(_BEFORE_HOST.sub("://", word).rstrip("/") == bare for stanza in stanzas if not _DISABLED.search(stanza)
               for line in stanza.splitlines() for word in line.split("#", 1)[0].split())
