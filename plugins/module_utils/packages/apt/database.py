# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of dpkg's database."""
from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple
from urllib.parse import quote

from ...core.host import CommandFailed, Host
from ..model import EMPTY, MISSING, TORN, WHOLE, Marks, Package
from ..space import ARCHIVES
from . import sources

ADMIN = "/var/lib/dpkg"
LISTS = "/var/lib/apt/lists"
_CACHES = ("/var/cache/apt/pkgcache.bin", "/var/cache/apt/srcpkgcache.bin")
EXTENDED_STATES = "/var/lib/apt/extended_states"
# The directory is nowhere (Debian Policy 9.2.3). Not /dev/null: apt would put a file in its place
_NO_MARKS = "/nonexistent/extended_states"
UPDATES = ADMIN + "/updates"
_AR = b"!<arch>\n"
_FORMAT = "${db:Status-Want}\t${db:Status-Eflag}\t${db:Status-Status}\t${Package}\t${Architecture}\t${Version}\n"


def installed(host: Host) -> Dict[str, Package]:
    """Every package that dpkg has, by name, whatever its state; empty where there is no dpkg.

    Those of a foreign architecture have it in their name, as apt writes them ('libcuda1:i386'). Raises GpuOpsError when
    dpkg-query cannot tell: a database that cannot be read is not one without packages.
    """
    if not host.exists(ADMIN + "/status"):
        return {}
    done = host.run(["dpkg-query", "--admindir=" + host.path(ADMIN), "-W", "-f", _FORMAT], check=False)
    if done.rc != 0:
        raise CommandFailed(
            "packages.database_unreadable",
            found="dpkg-query ended with %d: %s" % (done.rc, " | ".join(done.stderr.split("\n")[:2]) or "no output"),
            wanted="the packages of this host",
            remedy="mend dpkg's database (%s/status-old and /var/backups/dpkg.status.* are older ones), and run again"
                   % ADMIN,
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr,
        )
    return parse(done.stdout, native(host))


def parse(listing: str, native_architecture: str) -> Dict[str, Package]:
    """Packages of what dpkg-query prints; native_architecture '' when no other one is known to dpkg."""
    packages = {}
    for line in listing.splitlines():
        wanted, flag, state, name, arch, version = line.split("\t")
        if state == "not-installed":
            continue
        name = full_name(name, arch, native_architecture)
        packages[name] = Package(name, arch, version, wanted, state, torn=flag == "reinstreq")
    return packages


def interrupted(host: Host) -> bool:
    """Whether dpkg was stopped in the middle: what it has done since it last wrote its database lies beside that."""
    return any(name.isdigit() for name in host.list(UPDATES))


def status(host: Host, instead: Mapping[str, str]) -> str:
    """dpkg's database as dpkg itself would read it: apt knows nothing of what lies beside it.

    instead: {package: stanza} of packages that are to have another entry, or one at all.
    """
    native_architecture = native(host)
    names = sorted(name for name in host.list(UPDATES) if name.isdigit())
    texts = [host.read(path) or "" for path in (ADMIN + "/status", *("%s/%s" % (UPDATES, name) for name in names))]
    stanzas: Dict[str, str] = {}
    for stanza in "\n\n".join(texts).split("\n\n"):
        lines = [line for line in stanza.splitlines() if line and not line.startswith("#")]
        fields = dict(line.split(": ", 1) for line in lines if line.startswith(("Package: ", "Architecture: ")))
        if "Package" in fields:
            name = full_name(fields["Package"], fields.get("Architecture", ""), native_architecture)
            stanzas[name] = "\n".join(lines)
    stanzas.update(instead)
    return "".join("%s\n\n" % stanza for stanza in stanzas.values())


def full_name(name: str, arch: str, native_architecture: str) -> str:
    foreign = native_architecture and arch not in ("", "all", native_architecture)
    return "%s:%s" % (name, arch) if foreign else name


def native(host: Host) -> str:
    """The architecture that dpkg was built for, '' when it knows no other: dpkg writes the list with the second one."""
    return ((host.read(ADMIN + "/arch") or "").split() or [""])[0]


def versions(packages: Mapping[str, Package], names: Iterable[str]) -> Dict[str, Optional[str]]:
    """Installed version of each, None when it is not installed (configuration left behind counts as not)."""
    return {name: packages[name].version if name in packages and packages[name].installed else None
            for name in sorted(set(names))}


def held(packages: Mapping[str, Package], names: Iterable[str]) -> Dict[str, str]:
    """{package: version} of those that somebody holds (apt-mark hold)."""
    return {name: packages[name].version for name in sorted(set(names)) if name in packages and packages[name].held
            and packages[name].there}


def automatic(host: Host) -> FrozenSet[str]:
    """Packages that nobody has chosen by hand (apt-mark(8)); apt keeps them in a file of its own, a stanza each."""
    native_architecture = native(host)
    names = []
    for stanza in (host.read(EXTENDED_STATES) or "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if fields.get("Auto-Installed") == "1" and "Package" in fields:
            names.append(full_name(fields["Package"], fields.get("Architecture", ""), native_architecture))
    return frozenset(names)


def marks(host: Host) -> Marks:
    """How apt's file of that stands. A power cut within half a minute may leave it empty, with zeros or without its
    end, and apt reads neither of the latter. apt ends each stanza with an empty line, and leaves the file empty where
    somebody has chosen all by hand."""
    data, found = host.read_bytes(EXTENDED_STATES), host.stat(EXTENDED_STATES)
    if data is None or found is None:
        return Marks(MISSING)
    if b"\0" in data or (data.strip() and not data.endswith(b"\n\n")):
        return Marks(TORN, found.st_mtime)
    return Marks(WHOLE if data.strip() else EMPTY, found.st_mtime)


def came_since(host: Host, names: Iterable[str], when: float) -> FrozenSet[str]:
    """Those of these packages that dpkg has unpacked since (seconds since 1970)."""
    this, came = sources.architecture(host), set()
    for name in names:
        bare, _colon, foreign = name.partition(":")
        # Of what may be there for several architectures the list of its files has that in its name
        lists = [host.stat("%s/info/%s.list" % (ADMIN, each)) for each in (bare, "%s:%s" % (bare, foreign or this))]
        if any(each is not None and each.st_mtime >= when for each in lists):
            came.add(name)
    return frozenset(came)


def write_marks(host: Host, names: Iterable[str]) -> None:
    """Write apt's file anew, in which these alone are automatic."""
    this = sources.architecture(host)
    stanzas = []
    for name in sorted(names):
        bare, _colon, foreign = name.partition(":")
        stanzas.append("Package: %s\nArchitecture: %s\nAuto-Installed: 1\n\n" % (bare, foreign or this))
    host.write(EXTENDED_STATES, "".join(stanzas))


def own(host: Host) -> List[str]:
    """Words that make a program of apt read this host's own state."""
    return ["-o", "Dir=" + host.path("/"), "-o", "Dir::State::status=" + host.path(ADMIN + "/status"),
            "-o", "Dir::State::extended_states=" + readable_marks(host)]


def readable_marks(host: Host) -> str:
    """The real path of apt's file of who chose what, of one that is never there while apt could not read that."""
    return _NO_MARKS if marks(host).state == TORN else host.path(EXTENDED_STATES)


def archives(host: Host) -> Tuple[str, ...]:
    """Names of the package files that apt has fetched."""
    return whole_archives(host, archives_directory(host))


def archive_begins(name: str, version: str) -> str:
    """How the file of a package in this version begins (apt quotes what no file system has to take)."""
    return "%s_%s_" % (name.split(":")[0], quote(version, safe="+~."))


def whole_archives(host: Host, directory: str) -> Tuple[str, ...]:
    """Names of the package files of a directory, without those that a power cut has left empty or cut short."""
    return tuple(name for name in host.list(directory) if name.endswith(".deb") and not name.startswith(".")
                 and _is_whole(host, "%s/%s" % (directory, name)))


def _is_whole(host: Host, path: str) -> bool:
    """Whether a package file ends where the headers of its members say (deb(5), ar(5))."""
    found = host.stat(path)
    if found is None or host.read_part(path, 0, len(_AR)) != _AR:
        return False
    position = len(_AR)
    while position < found.st_size:
        header = host.read_part(path, position, 60)
        length = header[48:58].strip()
        if header[58:] != b"`\n" or not length.isdigit():
            return False
        position += len(header) + int(length)
        position += position % 2
    return position in (found.st_size, found.st_size + 1)


def archives_directory(host: Host) -> str:
    """Where apt keeps the package files that it fetches (apt.conf(5), Dir::Cache::archives)."""
    told = host.run(["apt-config", *own(host), "shell", "DIRECTORY", "Dir::Cache::archives/d"], check=False).stdout
    named = re.match(r"DIRECTORY='(.*)'$", told.strip())
    directory = named.group(1) if named else host.path(ARCHIVES)
    if host.root != "/" and directory.startswith(host.root):
        directory = directory[len(host.root):]
    return directory.rstrip("/")


def discard_torn_lists(host: Host) -> bool:
    """Remove lists that are empty or zeroed, and what apt has made of them; whether there were any.

    apt syncs none of them, and takes a list that a power cut has emptied for the one that the server still has.
    """
    caches = [name for name in _CACHES if host.exists(name)]
    lists = ["%s/%s" % (LISTS, name) for name in host.list(LISTS) if name != "lock"]
    torn = [name for name in lists if host.is_file(name) and not (host.read_bytes(name) or b"").strip(b"\0")]
    for name in [*caches, *torn]:
        host.remove(name)
    return bool(caches or torn)
