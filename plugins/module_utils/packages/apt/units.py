# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which links to units Debian's packages have made: deb-systemd-helper(1p) writes it down, and does not sync it.

A power cut after a package was configured leaves such a record empty, and a purge then forgets the links: they stay,
and lead nowhere. Only an empty record is written again, by the program whose it is and from the unit that the package
brought, so a purge removes what it would have removed without the power cut, and no other link.
"""
from __future__ import annotations

from typing import Iterable

from ...core.host import Host
from .database import ADMIN

RECORDS = "/var/lib/systemd/deb-systemd-helper-enabled"
_ENDING = ".dsh-also"
_ADMINS = "/etc/systemd/system"


def renew_records(host: Host, packages: Iterable[str]) -> None:
    """Write the empty records of these packages' units again; a unit that an admin has replaced is left alone."""
    records = {path[len(RECORDS) + 1:-len(_ENDING)]: path for path in host.glob("%s/*%s" % (RECORDS, _ENDING))}
    empty = [unit for unit, path in records.items() if not (host.read_bytes(path) or b"").strip(b"\0")
             and not host.exists("%s/%s" % (_ADMINS, unit))]
    if not empty:
        return
    for name in packages:
        files = host.run(["dpkg-query", "--admindir=" + host.path(ADMIN), "-L", name], check=False).stdout.split("\n")
        units = [unit for unit in empty if any(path.endswith("/lib/systemd/system/" + unit) for path in files)]
        if units:
            host.run(["deb-systemd-helper", "update-state", *units], check=False,
                     env={"DPKG_MAINTSCRIPT_PACKAGE": name, "DPKG_ROOT": "" if host.root == "/" else host.root})
