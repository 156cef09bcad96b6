# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""libzypp's configuration as it counts on a host: its file, and what lies in the directories beside it.

What the vendor has below /usr/etc, as SLE 16 does, is overridden by what is below /etc. $ZYPP_CONF names another file
in their place (zypper(8), FILES): that is how zypper is told of locks that are not there yet.
"""
from __future__ import annotations

import re
from typing import List, Mapping

from ...core.host import Host
from .. import space

_PLACES = ("/etc/zypp/zypp.conf", "/usr/etc/zypp/zypp.conf")
_OPTION = re.compile(r"^\s*([\w.]+)\s*=\s*(.*?)\s*$", re.MULTILINE)


def text(host: Host, instead: Mapping[str, str]) -> str:
    """One file that says what all of them say, but for these options: the last one of a name counts."""
    ours = "[main]\n" + "".join("%s = %s\n" % item for item in sorted(instead.items()))
    return "\n".join([*_texts(host), ours])


def option(host: Host, name: str, default: str) -> str:
    """What an option is set to."""
    found = [value for each in _texts(host) for key, value in _OPTION.findall(each) if key == name and value]
    return found[-1] if found else default


def fetched(host: Host) -> str:
    """Pattern of package files that zypper has fetched: below a directory for each repository, and there where the
    repository has them."""
    return _packages(host) + "/**/*.rpm"


def archives(host: Host) -> str:
    """The directory above those of fetched packages, which is there before anything was fetched."""
    return _packages(host).rpartition("/")[0] or "/"


def _packages(host: Host) -> str:
    return option(host, "packagesdir", option(host, "cachedir", space.ZYPPER_ARCHIVES) + "/packages").rstrip("/")


def _texts(host: Host) -> List[str]:
    """Of files that count, the strongest last; a file of /etc hides that of its name in /usr/etc."""
    main = next((place for place in _PLACES if host.exists(place)), _PLACES[0])
    beside = {path.rsplit("/", 1)[1]: path for place in reversed(_PLACES) for path in host.glob(place + ".d/*.conf")}
    return [host.read(path) or "" for path in (main, *(path for _name, path in sorted(beside.items())))]
