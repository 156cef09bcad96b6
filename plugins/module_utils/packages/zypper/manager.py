# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""zypper and rpm as a package manager (manager.PackageManager)."""
from __future__ import annotations

from functools import partial
from typing import (
    Any,
    Callable,
    ClassVar,
    Collection,
    ContextManager,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from ...core.errors import GpuOpsError
from ...core.host import CommandResult, Host
from ...core.journal import PackageChange
from ...core.plan import Step
from ...core.refusal import Refusal
from ...core.steps import Executor
from ..manager import PackageManager
from ..model import Credentials, Package, Repository
from ..rpm import database, fetching, keyring
from ..rpm import repositories as repository_files
from ..rpm.manager import RpmManager
from . import asking, carrying_out, configuration, history, locks
from .index import REPOSITORIES, Index, index, offered, search_words
from .transaction import specs

# Below a directory for each repository, and there where the repository has them (zypper(8), --pkg-cache-dir)
ARCHIVES = "/var/cache/zypp/packages/**/*.rpm"
# Names of packages that came because others needed them, a line each (libzypp's zypp/target/SolvIdentFile.cc)
AUTOMATIC = "/var/lib/zypp/AutoInstalled"

# What libzypp takes for it (zypp-core, String.cc: strToTrue)
_YES = ("y", "yes", "t", "true", "1", "on", "enable", "enabled", "always")


class Zypper(RpmManager):
    """One of a kind: ZYPPER."""

    name = "zypper"
    syncs_automatic: ClassVar[bool] = False
    repositories: ClassVar[str] = REPOSITORIES
    fetched: ClassVar[str] = ARCHIVES
    settings: ClassVar[str] = "/etc/zypp/vars.d"
    executors: Mapping[str, Executor] = {**keyring.EXECUTORS, **history.EXECUTORS, **carrying_out.EXECUTORS}

    def locked(self, host: Host) -> Callable[[str, str], bool]:
        return partial(locks.holds, locks.of_others(host.read(locks.PATH)))

    def interrupted(self, host: Host) -> bool:
        return bool(history.unfinished(host, database.installed(host)))

    def automatic(self, host: Host) -> FrozenSet[str]:
        """zypper keeps them by name, whatever the architecture and the version."""
        named = _automatic(host)
        return frozenset(name for name, package in database.installed(host).items() if named.intersection(
            (_bare(name, package.version),)))

    def mark_automatic(self, host: Host, names: Iterable[str]) -> None:
        """No command of zypper does; it reads the file before each transaction, and writes it anew with that."""
        packages = database.installed(host)
        new = {_bare(name, packages[name].version) for name in names if name in packages}.difference(_automatic(host))
        if new:
            # A power cut may leave zeros
            text = (host.read(AUTOMATIC) or "").strip("\0")
            text += "\n" if text and not text.endswith("\n") else ""
            host.write(AUTOMATIC, text + "".join(name + "\n" for name in sorted(new)))

    def has_bindings(self, host: Host) -> bool:
        """zypper itself carries transactions out."""
        return host.run(["zypper", "--version"], check=False).rc == 0

    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        return index(host, repositories, beside_system)

    def of_release(self, release: str) -> Dict[str, str]:
        """zypper(8), Repository Variables."""
        major, _dot, minor = release.partition(".")
        return {"releasever": release, "releasever_major": major, "releasever_minor": minor}

    def download(self, host: Host, step: Step) -> None:
        self.refresh(host, step.parameters["request"])
        carrying_out.fetch(host, step)

    def prepare(
        self, host: Host, step: Step, account: Mapping[str, PackageChange], is_fetched: bool
    ) -> Dict[str, Any]:
        """Whoever has just fetched the packages has renewed the lists for it."""
        files = step.parameters.get("files", ())
        named = {name: version for name, version in step.parameters["request"].items()
                 if name not in files and version is not None}
        if step.parameters.get("update_cache") and not is_fetched and named:
            self.refresh(host, named)
        return {}

    def refresh(self, host: Host, request: Mapping[str, str]) -> None:
        """A repository of somebody else that cannot be read stops nobody."""
        done = asking.zypper(host, "refresh")
        names = {name: database.without_version(name, version) for name, version in request.items()}
        there = offered(asking.zypper(host, "--no-refresh", *search_words(names.values()))) if request else set()
        lacking = {name: version for name, version in request.items() if (names[name], version) not in there}
        if lacking:
            raise GpuOpsError(
                "packages.zypper_lists_incomplete",
                found="no repository of this host has %s: %s" % (
                    ", ".join(specs(lacking)), "no error" if done.rc in asking.DONE else asking.told(done)),
                wanted="repositories in which zypper finds what was planned",
                remedy="run `zypper refresh` on this host and mend the repository that it names")

    def fetch(
        self, host: Host, url: str, target: str, told: Optional[Credentials], timeout: float
    ) -> CommandResult:
        """As read_key()."""
        return fetching.download(host, url, target, told, timeout)

    def read_key(self, host: Host, key: str, told: Optional[Credentials] = None) -> str:
        """Through the proxy of the environment, as zypper's own downloads go (/etc/sysconfig/proxy, by the login)."""
        return fetching.read_key(host, key, told)

    def repository_files(self, repository: Repository) -> Dict[str, str]:
        """zypper leaves packages unchecked where the index is signed, unless it is told otherwise."""
        key = {repository.keyring: repository.key} if repository.key else {}
        more = {"pkg_gpgcheck": "1", "autorefresh": "1", "type": "rpm-md"}
        return {**key, "%s/%s.repo" % (REPOSITORIES, repository.id): repository_files.text(repository, more)}

    def choose(self, streams: Mapping[str, str]) -> Dict[str, str]:
        return {}

    def hold_files(
        self, capability: str, versions: Mapping[str, str], there: Mapping[str, Optional[str]]
    ) -> Dict[str, Optional[str]]:
        """Written before the transaction: a lock of the version before hides the new one."""
        return {locks.PATH: locks.text(capability, versions, there.get(locks.PATH))}

    def hold_paths(self, capability: str) -> Tuple[str, ...]:
        return (locks.PATH,)

    def hold_refusals(self, host: Host) -> List[Refusal]:
        """libzypp can be told of another file, and to heed none."""
        found = [Refusal(
            "packages.other_locks", "libzypp's configuration with locksfile.path = %s" % configured,
            "locks in %s" % locks.PATH, "take that option out of zypp.conf, and the locks over into %s" % locks.PATH)
            for configured in [configuration.option(host, "locksfile.path", locks.PATH)] if configured != locks.PATH]
        return found + [Refusal(
            "packages.locks_not_applied", "libzypp's configuration with locksfile.apply = %s" % configured,
            "zypper heeds the locks in %s" % locks.PATH, "take that option out of zypp.conf")
            for configured in [configuration.option(host, "locksfile.apply", "yes")]
            if configured.lower() not in _YES]

    def builtin_module(self, step: Mapping[str, Any]) -> str:
        return ""

    def builtin_options(
        self, step: Mapping[str, Any], known: Optional[Collection[str]] = None
    ) -> Optional[Dict[str, Any]]:
        return None

    def known(self, host: Host, step: Step) -> List[str]:
        return history.known(host, step)

    def evidence(
        self, host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
    ) -> Dict[str, PackageChange]:
        return history.evidence(host, step, opened, packages)


def _automatic(host: Host) -> FrozenSet[str]:
    return frozenset(line.strip() for line in (host.read(AUTOMATIC) or "").splitlines()
                     if line.strip() and not line.startswith("#"))


def _bare(name: str, version: str) -> str:
    return database.bare_name(database.without_version(name, version))


ZYPPER: PackageManager = Zypper()
