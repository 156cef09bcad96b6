# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What repositories offer, read into a cache of ours, whether they are configured on the host or not.

dnf's configuration, proxies, certificates and plugins stay those of the host, its cache and state are ours
(program.py). The cache stays in /run until the next boot: an index is fetched again only where it has changed.
"""
from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ...core.errors import GpuOpsError, HostFailed
from ...core.host import Host
from ...core.secrets import hidden
from .. import space
from ..model import Package, Repository, RepositoryUnreadable, Simulation
from ..rpm import database
from ..rpm.versions import newest_first
from . import locks
from .asking import Library
from .program import COMES, GOES, MAKES_WAY
from .transaction import specs

CACHE = "/run/gpuops/dnf"
# What the indexes of a distribution and NVIDIA's repository hold; a smaller /run is left alone
ROOM_BYTES = 600 * 1024 * 1024
Item = Sequence[Any]


@dataclass(frozen=True)
class Stream:
    """A stream of a module.

    enabled, default: whether packages come from it now, and would if nobody had chosen.
    packages:         {package: versions} that belong to it, newest first.
    """

    enabled: bool
    default: bool
    packages: Mapping[str, List[str]]


class Index:
    """Open indexes; made by index(). See manager.Index.

    without: ids of the host's repositories that cannot be read. The transaction has to leave them out too
             (builtin_options): dnf ends at the first that it cannot read.
    """

    def __init__(
        self, host: Host, library: Library, scratch: str, repositories: Sequence[Repository], beside_system: bool,
        files: Sequence[str]
    ) -> None:
        self._host = host
        self._library = library
        self._scratch = scratch
        self._repositories = repositories
        self._streams: Dict[str, str] = {}
        self._locks = host.read(locks.LIST)
        self._has_own_locks = False
        self._asked = 0
        self.unread: Tuple[str, ...] = ()
        self.without: Tuple[str, ...] = ()
        self._question: Dict[str, Any] = {
            "cache": _cache(host, scratch), "beside_system": beside_system,
            "files": [host.path(path) for path in files],
            "repositories": [self._told(repository) for repository in repositories],
        }

    def _told(self, repository: Repository) -> Dict[str, Any]:
        told = repository.credentials
        path = ""
        if repository.key:
            # Under its own hash, so that an index is never checked with another one
            path = "%s/%s.asc" % (self._scratch, hashlib.sha256(repository.key.encode()).hexdigest()[:20])
            put(path, repository.key)
        return {"id": repository.id, "uri": repository.uri, "metadata_signed": repository.metadata_signed,
                "key": "file://" + path if path else "", "user": told.user if told else "",
                "password": told.password if told else ""}

    def ask(self, op: str, **more: Any) -> Dict[str, Any]:
        self._asked += 1
        # Where the database does not tell whether it has changed, it is read for each question
        return self._library.ask(op, without=list(self.without), locks=[self._has_own_locks, self._locks],
                                 database=database.stamps(self._host) or self._asked, **{**self._question, **more})

    def update(self) -> None:
        """Read what has changed. Raises GpuOpsError that names a repository of ours that cannot be read."""
        try:
            unread: Mapping[str, str] = self.ask("update")["unread"]
        finally:
            self._end_agents()
        for repository in self._repositories:
            if repository.id in unread:
                raise RepositoryUnreadable(
                    "packages.dnf_repository_unreadable",
                    found="%s cannot be read: %s" % (repository.uri, unread[repository.id]),
                    wanted="a repository that answers, and whose index, where that is signed, is signed by its key",
                    remedy="check address, key, credentials, proxy (dnf's own settings are used) and network of this "
                           "host, or name a mirror")
        self.without = tuple(sorted(unread))
        self.unread = tuple(hidden("%s: %s" % item) for item in sorted(unread.items()))

    def _end_agents(self) -> None:
        """GnuPG leaves one at work for each directory of keys that it has looked into, as dnf's library has it do."""
        for home in glob.glob(self._question["cache"] + "/*/pubring"):
            self._host.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False)

    def leave_out(self, repository: str) -> None:
        """Do without a repository of this id, as one that cannot be read."""
        self.without = tuple(sorted({*self.without, repository}))

    def versions(self, packages: Iterable[str], uri: str = "", vendor: str = "") -> Dict[str, List[str]]:
        """Versions on offer of each package, newest first, of every stream; none for a package that is not there.

        vendor: whose packages alone count, as they say it themselves.
        """
        wanted = sorted(set(packages))
        offered: Dict[str, Set[str]] = {name: set() for name in wanted}
        if wanted:
            found = self.ask("versions", packages=[database.bare_name(name) for name in wanted], uri=uri,
                             vendor=vendor)["packages"]
            for name, arch, version in found:
                offered.get(database.short_name(name, arch), set()).add(version)
        return {name: newest_first(found) for name, found in offered.items()}

    def streams(self, module: str) -> Dict[str, Stream]:
        """{stream: what it has} of a module, the host's choice among them; {} where no repository has the module."""
        found: Dict[str, Stream] = {}
        for name, told in self.ask("streams", module=module)["streams"].items():
            packages: Dict[str, Set[str]] = {}
            for nevra in told["packages"]:
                package, version = parse_artifact(nevra)
                packages.setdefault(package, set()).add(version)
            found[name] = Stream(told["enabled"], told["default"],
                                 {package: newest_first(versions) for package, versions in sorted(packages.items())})
        return found

    def hold(self, files: Mapping[str, Optional[str]]) -> None:
        """See manager.Index.hold()."""
        self._streams = {**self._streams, **locks.modules_of(files)}
        if locks.LIST in files:
            self._put_locks(files[locks.LIST])

    def _put_locks(self, text: Optional[str]) -> None:
        self._locks, self._has_own_locks = text, True
        put(self._scratch + "/versionlock.list", text or "")
        os.makedirs(self._scratch + "/plugins", exist_ok=True)
        put(self._scratch + "/plugins/versionlock.conf", "[main]\nlocklist=%s/versionlock.list\n" % self._scratch)

    def simulate(
        self, request: Mapping[str, str], allow_downgrade: bool = False, files: Optional[Mapping[str, str]] = None,
        leaves: Iterable[str] = ()
    ) -> Simulation:
        """What a transaction that asks for these versions would do, under the options that it will have.

        files: {package: path} of those that come from a file on the host, and no others do; leaves: what goes with it.
        """
        more: Mapping[str, List[str]] = {"files": []} if files else {}
        told = self.ask("simulate", specs=specs(request, files or {}), allow_downgrade=allow_downgrade,
                        streams=self._streams, removes=sorted(leaves), **more)
        done = simulation(told["items"], database.installed(self._host))
        lines = locks.of_others(self._locks)
        left_out = {database.short_name(name, arch): version for name, arch, version in told["left_out"]}
        held = {name for name, version in left_out.items() if locks.holds(lines, name, version)}
        return replace(done, problem=told["problem"], request=dict(request), allow_downgrade=allow_downgrade,
                       held=tuple(sorted(held)), excluded=tuple(sorted(set(left_out) - held)))

    def simulate_removal(self, packages: Iterable[str]) -> Simulation:
        """What else would go if these packages went."""
        there = database.installed(self._host)
        request = {name: there[name].version for name in sorted(set(packages)) if name in there}
        told = self.ask("remove", specs=[], removes=specs(request), streams={})
        return replace(simulation(told["items"], there), problem=told["problem"], request=request)


@contextlib.contextmanager
def index(
    host: Host, repositories: Sequence[Repository], beside_system: bool = False, files: Sequence[str] = ()
) -> Iterator[Index]:
    """The indexes of repositories as they are now, see manager.PackageManager.open().

    files: paths of package files on the host, which count beside them.
    """
    with host.scratch() as scratch, Library(host, scratch) as library:
        opened = Index(host, library, scratch, repositories, beside_system, files)
        if host.root != "/" or not host.exists(locks.LIST):
            # The plugin knows no other root, and ends where it finds no list
            opened.hold({locks.LIST: host.read(locks.LIST)})
        opened.update()
        yield opened


def simulation(items: Iterable[Item], there: Mapping[str, Package]) -> Simulation:
    """Pure: what a transaction of dnf does.

    items: (kind, name, arch, version, bytes to fetch, bytes unpacked, whether it may be there in several versions).
    """
    installs: Dict[str, str] = {}
    goes: Dict[str, str] = {}
    makes_way: Dict[str, str] = {}
    download = unpacked = 0
    for kind, name, arch, version, size, installed_size, is_one_of_several in items:
        short = database.short_name(name, arch)
        longer = database.long_name(short, version)
        if kind == COMES:
            installs[longer if is_one_of_several else short] = version
            download, unpacked = download + size, unpacked + installed_size
        elif kind == MAKES_WAY:
            makes_way[short] = version
        elif kind == GOES:
            goes[database.going(there, short, version, goes)] = version
    return Simulation(installs, tuple(sorted(set(goes).difference(installs))), before={**goes, **makes_way},
                      download=download, unpacked=unpacked)


def parse_artifact(nevra: str) -> Tuple[str, str]:
    """(package, version) of 'name-epoch:version-release.arch', as a module's definition has it."""
    rest, _dot, arch = nevra.rpartition(".")
    name, version, release = rest.rsplit("-", 2)
    epoch, colon, bare = version.partition(":")
    whole = "%s-%s" % (bare if colon and epoch == "0" else version, release)
    return database.short_name(name, arch), whole


def put(path: str, text: str) -> None:
    """A file of ours in a scratch directory."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)
    except OSError as error:
        raise HostFailed.of(error, path, "written", os.path.dirname(path)) from error


def _cache(host: Host, scratch: str) -> str:
    """Where the cache lies; whoever is not root has one that he forgets."""
    try:
        host.make_directory(CACHE, 0o700)
    except GpuOpsError:
        return scratch + "/cache"
    is_room = host.free(CACHE) + space.held_by(host, CACHE) >= ROOM_BYTES
    return host.path(CACHE) if is_room else scratch + "/cache"
