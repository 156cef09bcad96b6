# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dnf's own settings, which ansible.builtin.dnf and dnf's library follow as its command does (dnf.conf(5), [MAIN])."""
from __future__ import annotations

from ...core.host import Host
from .. import space
from ..rpm import repositories

PATH = "/etc/dnf/dnf.conf"


def option(host: Host, name: str, default: str = "") -> str:
    """What an option is set to."""
    return repositories.parse(host.read(PATH) or "").get("main", {}).get(name, "").strip() or default


def cache(host: Host) -> str:
    """The directory of what dnf fetches."""
    return option(host, "cachedir", space.DNF_ARCHIVES).rstrip("/")


def fetched(host: Host) -> str:
    """Pattern of package files that dnf has fetched: below a directory for each repository."""
    return cache(host) + "/*/packages/*.rpm"


def history(host: Host) -> str:
    """The file of dnf's history."""
    return option(host, "persistdir", "/var/lib/dnf").rstrip("/") + "/history.sqlite"
