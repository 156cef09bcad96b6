# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What repositories offer, read into a cache of ours, whether they are configured on the host or not.

zypper reads copies of the host's repositories, ours beside them, with options of its own for where everything lies
(zypper(8), --reposd-dir, --cache-dir); its locks, services and log are ours by a configuration of ours. So is the lock
of the program: who only looks waits for nobody at work, and nobody waits for him. No key is imported: the index of a
repository of ours is held against its key here, since zypper would ask rpm's database, where that is not before the
plan is carried out. The cache stays in /run until the next boot: an index is fetched again only where it has changed.
"""
from __future__ import annotations

import contextlib
import os
import re
from dataclasses import replace
from types import MappingProxyType
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ...core.errors import GpuOpsError, HostFailed
from ...core.host import CommandResult, Host
from ...core.secrets import hidden
from ..apt import keys
from ..model import Package, Repository, RepositoryUnreadable, Simulation
from ..rpm import database
from ..rpm import repositories as repository_files
from ..rpm.versions import newest_first
from . import asking, configuration, locks
from .asking import COMES, Answer, Item
from .transaction import install_words, remove_words

REPOSITORIES = "/etc/zypp/repos.d"
CACHE = "/run/gpuops/zypper"
# What the indexes of a distribution and NVIDIA's repository hold, once as fetched and once as zypper keeps them
ROOM_BYTES = 600 * 1024 * 1024
_BEFORE_HOST = re.compile(r"://[^/@]*@")
_NONE: Mapping[str, str] = MappingProxyType({})


class Index:
    """Open indexes; made by index(). See manager.Index.

    without: ids of the host's repositories that cannot be read. The transaction leaves them out too: of those zypper
             would take what it has fetched at another time.
    """

    def __init__(
        self, host: Host, scratch: str, cache: str, repositories: Sequence[Repository], beside_system: bool,
        files: Sequence[str]
    ) -> None:
        self._host = host
        self._scratch = scratch
        self._cache = cache
        self._repositories = repositories
        self.unread: Tuple[str, ...] = ()
        self.without: Tuple[str, ...] = ()
        self._sections = configured(host) if beside_system else {}
        self._sections.update((repository.id, self._told(repository)) for repository in repositories)
        self._sections.update(_of_files(host, files))
        for directory in ("services", "run"):
            os.makedirs("%s/%s" % (scratch, directory), mode=0o700)
        put(scratch + "/locks", host.read(locks.PATH) or "")
        put(scratch + "/zypp.conf", configuration.text(host, {
            "locksfile.path": scratch + "/locks", "servicesdir": scratch + "/services",
            "history.logfile": scratch + "/history"}))
        self._put_repositories()

    def _told(self, repository: Repository) -> Dict[str, str]:
        """Unchecked, as the key is not rpm's yet: see _check()."""
        uri = repository.uri
        if repository.credentials:
            name = "%s/%s.credentials" % (self._scratch, repository.id)
            put(name, "username=%s\npassword=%s\n" % (repository.credentials.user, repository.credentials.password))
            uri += ("&" if "?" in uri else "?") + "credentials=" + name
        return {"baseurl": uri, "enabled": "1", "gpgcheck": "0", "repo_gpgcheck": "0", "pkg_gpgcheck": "0"}

    def _put_repositories(self) -> None:
        read = {name: options for name, options in self._sections.items() if name not in self.without}
        put_repositories(self._scratch + "/repos", read)

    def _ask(self, *words: str, reads: int = 1) -> CommandResult:
        """reads: of how many repositories it reads the indexes."""
        # Who has the cache at hand has its lock
        place = self._scratch if self._cache.startswith(self._scratch) else self._host.path(CACHE)
        environment = {"ZYPP_CONF": self._scratch + "/zypp.conf", "ZYPP_LOGFILE": self._scratch + "/log",
                       "ZYPP_LOCKFILE_ROOT": place}
        whole = asking.argv(self._host, "--reposd-dir", self._scratch + "/repos", "--cache-dir", self._cache, *words)
        return asking.unlocked(self._host, lambda: self._host.run(
            whole, check=False, timeout=asking.TIMEOUT_SECONDS * reads, env=environment))

    def update(self) -> None:
        """Read what has changed. Raises GpuOpsError that names a repository of ours that cannot be read."""
        enabled = sum(map(is_enabled, self._sections.values()))
        unread = self._refresh(enabled) if enabled else {}
        for repository in self._repositories:
            if repository.id in unread:
                raise _unreadable(repository, unread[repository.id])
            if repository.metadata_signed:
                self._check(repository)
        self.without = tuple(sorted(unread))
        self.unread = tuple(hidden("%s: %s" % item) for item in sorted(unread.items()))
        self._put_repositories()

    def _refresh(self, enabled: int) -> Dict[str, str]:
        """{id: why it cannot be read} of repositories."""
        done = self._ask("refresh", reads=enabled)
        if done.rc in asking.DONE:
            return {}
        errors = asking.parse(done.stdout).errors
        unread = {name: " | ".join(error for error in errors if _is_about(error, name)) for name in self._sections}
        unread = {name: told for name, told in unread.items() if told}
        if not unread:
            raise asking.failure(done)
        return unread

    def _check(self, repository: Repository) -> None:
        """Whether the index is what the repository's key has signed.

        zypper fetches an index anew where that has changed, and is content with the signature that it has of it.
        """
        why = self._objection(repository)
        if why:
            self._ask("refresh", "--force", repository.id)
            why = self._objection(repository)
        if why:
            raise _unreadable(repository, why)

    def _objection(self, repository: Repository) -> str:
        index = "%s/raw/%s/repodata/repomd.xml" % (self._cache, repository.id)
        if not os.path.exists(index + ".asc"):
            return "its index is not signed"
        keyring = "%s/%s.gpg" % (self._scratch, repository.id)
        put_bytes(keyring, keys.packets(repository.key))
        words = ["--homedir", self._scratch, "--keyring", keyring, index + ".asc", index]
        done = self._host.run(["gpgv", *words], check=False)
        if done.rc == 127:
            # As SUSE calls that of GnuPG 2
            done = self._host.run(["gpgv2", *words], check=False)
        return "" if done.rc == 0 else "its key has not signed its index: %s" % " | ".join(
            done.stderr.splitlines()[-2:])

    def versions(self, packages: Iterable[str], uri: str = "") -> Dict[str, List[str]]:
        """Versions on offer of each package, newest first; none for a package that is not there. A hold hides none."""
        wanted = sorted(set(packages))
        offered: Dict[str, Set[str]] = {name: set() for name in wanted}
        if wanted and self._is_anything_there():
            named = self._at(uri) if uri else set(self._sections)
            done = self._ask("--no-refresh", *search_words(wanted))
            for name, arch, version, repository in _found(done).found:
                if repository in named:
                    offered.get(database.short_name(name, arch), set()).add(version)
        return {name: newest_first(found) for name, found in offered.items()}

    def _is_anything_there(self) -> bool:
        return any(is_enabled(options) for name, options in self._sections.items() if name not in self.without)

    def _at(self, uri: str) -> Set[str]:
        """Repositories that have this address."""
        done = self._ask("--no-refresh", "repos", "--uri")
        if done.rc not in asking.DONE:
            raise asking.failure(done)
        return {name for name, addresses in asking.parse(done.stdout).addresses.items()
                if _bare(uri) in map(_bare, addresses)}

    def hold(self, files: Mapping[str, Optional[str]]) -> None:
        """See manager.Index.hold()."""
        if locks.PATH in files:
            put(self._scratch + "/locks", files[locks.PATH] or "")

    def simulate(
        self, request: Mapping[str, str], allow_downgrade: bool = False, files: Optional[Mapping[str, str]] = None,
        leaves: Iterable[str] = ()
    ) -> Simulation:
        """What a transaction that asks for these versions would do, under the options that it will have.

        files: {package: path} of those that come from a file on the host; leaves: what it is to take away.
        """
        asked: Dict[str, Optional[str]] = {**request, **dict.fromkeys(leaves)}
        there = database.installed(self._host)
        done = self._simulated(install_words(asked, allow_downgrade, there, True, files or {}), request) if asked \
            else Simulation({}, ())
        return replace(done, request=dict(request), allow_downgrade=allow_downgrade, leaves=tuple(sorted(leaves)),
                       held=self._held(request, done.problem))

    def _held(self, request: Mapping[str, str], problem: str) -> Tuple[str, ...]:
        """Of what would change, that which somebody has locked."""
        if not problem:
            return ()
        there = database.installed(self._host)
        lines = locks.of_others(self._host.read(locks.PATH))
        return tuple(sorted(
            name for name, package in there.items() if locks.holds(lines, name, package.version)
            and (request.get(name, package.version) != package.version or _names(problem, name))))

    def simulate_removal(self, packages: Iterable[str]) -> Simulation:
        """What else would go if these packages went."""
        there = database.installed(self._host)
        request = {name: there[name].version for name in sorted(set(packages)) if name in there}
        done = self._simulated(remove_words(request, True)) if request else Simulation({}, ())
        return replace(done, request=request)

    def _simulated(self, words: Sequence[str], request: Mapping[str, str] = _NONE) -> Simulation:
        return simulated(self._host, self._ask("--no-refresh", *words), request)


@contextlib.contextmanager
def index(
    host: Host, repositories: Sequence[Repository], beside_system: bool = False, files: Sequence[str] = ()
) -> Iterator[Index]:
    """The indexes of repositories as they are now, see manager.PackageManager.open().

    files: paths of package files on the host; what lies in their directories counts beside them.
    """
    with host.scratch() as scratch:
        opened = Index(host, scratch, _cache(host, scratch), repositories, beside_system, files)
        opened.update()
        yield opened


def configured(host: Host) -> Dict[str, Dict[str, str]]:
    """{id: options} of the host's own repositories."""
    found: Dict[str, Dict[str, str]] = {}
    for name in host.list(REPOSITORIES):
        if name.endswith(".repo"):
            found.update(repository_files.parse(host.read("%s/%s" % (REPOSITORIES, name)) or ""))
    return found


def _of_files(host: Host, files: Iterable[str]) -> Dict[str, Dict[str, str]]:
    """Repositories without an index, which zypper makes itself (zypper(8), addrepo --type plaindir)."""
    return {"gpuops-files-%d" % number: {
        "baseurl": "dir:" + host.path(directory), "type": "plaindir", "enabled": "1", "gpgcheck": "0"}
        for number, directory in enumerate(sorted({os.path.dirname(path) for path in files}))}


def put_repositories(directory: str, sections: Mapping[str, Mapping[str, str]]) -> None:
    """One file of all, each repository by its id alone: that is what zypper's answers name it by."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    put(directory + "/all.repo", "".join(
        "[%s]\n%s\n" % (name, "".join("%s=%s\n" % (key, value.replace("\n", "\n ")) for key, value in {
            **options, "name": name, "autorefresh": "0"}.items())) for name, options in sorted(sections.items())))


def search_words(packages: Iterable[str]) -> List[str]:
    return ["search", "--details", "--match-exact", "--type", "package",
            *sorted({database.bare_name(name) for name in packages})]


def offered(done: CommandResult) -> Set[Tuple[str, str]]:
    """(package, version) of what a search found in repositories, and what is there already."""
    return {(database.short_name(name, arch), version) for name, arch, version, _repository in _found(done).found}


def simulated(host: Host, done: CommandResult, request: Mapping[str, Optional[str]] = _NONE) -> Simulation:
    """What zypper says that it would do."""
    said = asking.parse(done.stdout)
    if done.rc in asking.DONE:
        return replace(simulation(said.items, database.installed(host), request), download=said.download,
                       unpacked=said.unpacked)
    if said.problem or done.rc == asking.NOT_FOUND:
        return Simulation({}, (), problem=asking.told(done))
    raise asking.failure(done)


def simulation(
    items: Iterable[Item], there: Mapping[str, Package], request: Mapping[str, Optional[str]] = _NONE
) -> Simulation:
    """Pure: what becomes of packages, by the names that the database has them under, or that they were asked for by:
    which may be there in several versions zypper does not tell. Of those whose names have their version, one that gives
    way to a newer one goes."""
    installs: Dict[str, str] = {}
    goes: Dict[str, str] = {}
    makes_way: Dict[str, str] = {}
    several = database.several(there)
    for item in items:
        short = database.short_name(item.name, item.arch)
        longer = database.long_name(short, item.version)
        if item.kind == COMES:
            name = longer if short in several or longer in request or database.has_kernel(longer) else short
            installs[name] = item.version
            if item.before and name == short:
                makes_way[short] = item.before
            elif item.before:
                goes[database.called(there, short, item.before)] = item.before
        else:
            goes[database.going(there, short, item.version, goes)] = item.version
    return Simulation(installs, tuple(sorted(set(goes).difference(installs))), before={**goes, **makes_way})


def is_enabled(options: Mapping[str, str]) -> bool:
    return options.get("enabled", "1").strip().lower() in ("1", "yes", "true", "on")


def put(path: str, text: str) -> None:
    """A file of ours in a scratch directory."""
    put_bytes(path, text.encode("utf-8", "surrogateescape"))


def put_bytes(path: str, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
    except OSError as error:
        raise HostFailed.of(error, path, "written", os.path.dirname(path)) from error


def _found(done: CommandResult) -> Answer:
    """It ends with 104 where nothing is found."""
    if done.rc not in (*asking.DONE, asking.NOT_FOUND):
        raise asking.failure(done)
    return asking.parse(done.stdout)


def _unreadable(repository: Repository, why: str) -> GpuOpsError:
    return RepositoryUnreadable(
        "packages.zypper_repository_unreadable",
        found="%s cannot be read: %s" % (repository.uri, why),
        wanted="a repository that answers, and whose index, where that is signed, is signed by its key",
        remedy="check address, key, credentials, proxy (zypper's own settings are used) and network of this host, or "
               "name a mirror")


def _is_about(error: str, name: str) -> bool:
    return "'%s'" % name in error or "[%s|" % name in error


def _names(problem: str, name: str) -> bool:
    """Whether zypper speaks of a package, by 'name-version' or 'name = version'."""
    return re.search(r"(?<![\w.+-])%s(?:-\d|\s|\[|$)" % re.escape(name), problem) is not None


def _bare(address: str) -> str:
    """An address as it can be compared: zypper writes 'file:/srv' for 'file:///srv', and says who we are nowhere."""
    bare = re.sub(r"[?&]credentials=[^&]*", "", _BEFORE_HOST.sub("://", address))
    return re.sub(r"^(file|dir):/+", r"\1:/", bare).rstrip("/")


def _cache(host: Host, scratch: str) -> str:
    """Where the cache lies; whoever is not root has one that he forgets."""
    try:
        host.make_directory(CACHE, 0o700)
    except GpuOpsError:
        return scratch + "/cache"
    return host.path(CACHE) + "/cache" if host.free(CACHE) >= ROOM_BYTES else scratch + "/cache"
