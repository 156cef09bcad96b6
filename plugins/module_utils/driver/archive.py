# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package files for the way back, kept where package managers forget them, and what apt needs to install them without a
network.

They are hard links to what package managers keep themselves, and cost nothing as long as those have them too. What is
neither of the driver that is recorded, nor of the one that is installed or comes, is removed with the next change: so
there are two sets at rest, three for the time of a change.

apt reads them as a repository that is configured for one transaction, dnf and zypper are given their names. apt and dnf
need no signature: the files were checked when they were fetched, and nobody but root has written here since.
"""
from __future__ import annotations

import os
from typing import Dict, Iterable, Mapping, Optional, Tuple

from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..packages.apt import database
from ..packages.dnf import configuration as dnf
from ..packages.model import Package, Repository
from ..packages.rpm import files as rpm_files
from ..packages.zypper import configuration as zypper
from . import catalogue
from .record import MEMORY, is_archived, of_dict, strangers

# Not below /var/lib/gpuops, which is root's alone: apt reads as a user of its own
STORE = "/var/cache/gpuops/driver"
INDEX = STORE + "/Packages"


def kept(host: Host) -> Tuple[str, ...]:
    """Names of the package files of the store, as far as they are whole; of rpm's only reading every byte tells that
    they are sound too."""
    rpms = ("%s/%s" % (STORE, name) for name in host.list(STORE) if name.endswith(".rpm") and not name.startswith("."))
    return (*database.whole_archives(host, STORE), *map(os.path.basename, rpm_files.whole(host, rpms)))


def fetched(host: Host) -> Dict[str, str]:
    """{package file that a package manager has whole on this host: its path}."""
    names = database.archives(host)
    directory = database.archives_directory(host) if names else ""
    return {**{name: "%s/%s" % (directory, name) for name in names},
            **{path.rpartition("/")[2]: path for path in rpm_files.whole(
                host, (*host.glob(dnf.fetched(host)), *host.glob(zypper.fetched(host))))}}


def at_hand(host: Host) -> Dict[str, str]:
    """{package file on this host: its path}; ours, which nobody clears away, before a package manager's."""
    return {**fetched(host), **{name: "%s/%s" % (STORE, name) for name in kept(host)}}


def is_there(host: Host) -> bool:
    """Whether there is a store, or the directory above it that was made for it alone."""
    above = os.path.dirname(STORE)
    return host.exists(STORE) or (host.is_dir(above) and not host.list(above))


def repository(directory: str) -> Repository:
    """The package files of a directory, as apt is told of them."""
    return Repository("file:%s/" % directory, "", "", is_trusted=True)


def index_of(host: Host, directory: str, names: Iterable[str], with_digests: bool) -> str:
    """What a repository of these files has in its index; digests take a reading of every byte."""
    stanzas = []
    for name in sorted(names):
        path = "%s/%s" % (directory, name)
        told = host.run(["dpkg-deb", "--field", host.path(path)], check=False)
        found = host.stat(path)
        if told.rc != 0 or found is None:
            continue
        lines = [told.stdout.strip(), "Filename: ./" + name, "Size: %d" % found.st_size]
        if with_digests:
            lines.append("SHA256: " + host.sha256(path))
        stanzas.append("\n".join(lines) + "\n")
    return "\n".join(stanzas)


def index_of_installed(host: Host, packages: Iterable[str]) -> str:
    """The same for packages that are installed: what a change leaves as it is need not come from anywhere."""
    names = set(packages)
    stanzas = [stanza for stanza in (host.read(database.ADMIN + "/status") or "").split("\n\n")
               if stanza.partition("\n")[0][len("Package: "):] in names]
    return "".join("\n%s\nFilename: ./installed\nSize: 0\n" % "\n".join(
        line for line in stanza.splitlines() if not line.startswith("Status:")) for stanza in stanzas)


def index_at_hand(host: Host, packages: Mapping[str, str]) -> str:
    """What a repository of the files of these packages has in its index, whether apt keeps them or we do."""
    ours = kept(host)
    theirs = [name for name in database.archives(host) if name not in ours]
    return "\n".join(index_of(host, directory, [
        name for name in names if any(is_archived(package, version, [name]) for package, version in packages.items())
    ], with_digests=False) for directory, names in ((STORE, ours), (database.archives_directory(host), theirs)))


def keep(host: Host, packages: Mapping[str, str]) -> None:
    """Take the files of these packages into the store, as far as a package manager has them."""
    there, found = kept(host), fetched(host)
    wanted = [name for name in found if name not in there
              and any(is_archived(package, version, [name]) for package, version in packages.items())]
    if wanted:
        host.make_directory(os.path.dirname(STORE), 0o755)
        host.make_directory(STORE, 0o755)
    for name in wanted:
        half = "%s/.%s" % (STORE, name)
        host.remove(half)
        origin, target = (host.path(each) for each in (found[name], half))
        if host.run(["ln", origin, target], check=False).rc != 0:
            try:
                host.run(["cp", "--preserve=mode,timestamps", origin, target], timeout=600)
            except CommandFailed:
                # It would hold the room that is lacking
                host.remove(half)
                raise
        host.rename(half, "%s/%s" % (STORE, name))


def lend(host: Host, packages: Mapping[str, Optional[str]]) -> None:
    """Give apt the files of these packages where it has forgotten them, so that it need not fetch them again."""
    directory = database.archives_directory(host)
    theirs = database.archives(host)
    for name in kept(host):
        if name not in theirs and any(version is not None and is_archived(package, version, [name])
                                      for package, version in packages.items()):
            host.remove("%s/%s" % (directory, name))
            host.run(["cp", "--link", host.path("%s/%s" % (STORE, name)), host.path(directory)], check=False)


def can_be_unpacked(host: Host, path: str) -> bool:
    """Whether every byte of a package file is sound; that its members end where they should tells less (kept())."""
    reads = ["rpm", "--checksig", "--nosignature"] if path.endswith(".rpm") else ["dpkg-deb", "--contents"]
    return host.run([*reads, host.path(path)], check=False, timeout=600).rc == 0


def discard_damaged(host: Host, packages: Mapping[str, str]) -> Tuple[str, ...]:
    """Remove what cannot be unpacked of these packages' files, ours and apt's; their names.

    apt takes a file of the right size for the one that it would fetch, and dpkg finds the damage each time anew.
    """
    damaged = [path for directory, names in ((STORE, kept(host)),
                                             (database.archives_directory(host), database.archives(host)))
               for name in names for path in ("%s/%s" % (directory, name),)
               if not strangers([name], packages) and not can_be_unpacked(host, path)]
    for path in damaged:
        host.remove(path)
    return tuple(dict.fromkeys(os.path.basename(path) for path in damaged))


def prune(host: Host, *sets: Mapping[str, str]) -> None:
    """Remove the files of all packages but these; those that are not whole and what a killed keep() left go too."""
    whole = set(kept(host))
    stays = {name for packages in sets for name in whole.difference(strangers(whole, packages))}
    for name in host.list(STORE):
        if name not in stays and name.endswith((".deb", ".rpm")):
            host.remove("%s/%s" % (STORE, name))


def keep_fetched(
    host: Host, journal: Journal, coming: Mapping[str, str], packages: Mapping[str, Package]
) -> None:
    """Keep what was fetched for a change, and of what is there already only what there may be a way back to."""
    record = of_dict(journal.recall(MEMORY))
    keep(host, {name: version for name, version in coming.items() if catalogue.FAMILY.match(name)})
    prune(host, coming, {name: package.version for name, package in packages.items() if package.there},
          record.packages if record else {})
