# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dnf 4 and rpm as a package manager (manager.PackageManager)."""
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
from ...core.journal import Journal, PackageChange
from ...core.plan import Step
from ...core.refusal import Refusal
from ...core.steps import Executor
from ..manager import PackageManager
from ..model import WHOLE, Credentials, Marks, Package, Repository
from ..rpm import database, fetching, keyring
from ..rpm import repositories as repository_files
from ..rpm.manager import RpmManager
from . import carrying_out, configuration, history, locks, transaction
from .asking import ask, has_bindings, own
from .index import Index, index

REPOSITORIES = "/etc/yum.repos.d"


class Dnf(RpmManager):
    """One of a kind: DNF."""

    name = "dnf"
    syncs_automatic: ClassVar[bool] = True
    repositories: ClassVar[str] = REPOSITORIES
    settings: ClassVar[str] = "/etc/dnf/vars"
    executors: Mapping[str, Executor] = {**keyring.EXECUTORS, **history.EXECUTORS}

    def fetched(self, host: Host) -> str:
        return configuration.fetched(host)

    def locked(self, host: Host) -> Callable[[str, str], bool]:
        return partial(locks.holds, locks.of_others(host.read(locks.LIST)))

    def interrupted(self, host: Host) -> bool:
        return bool(history.unfinished(host, database.installed(host)))

    def automatic(self, host: Host) -> FrozenSet[str]:
        return history.automatic(host)

    def mark_automatic(self, host: Host, names: Iterable[str]) -> None:
        host.run(["dnf", *own(host), "--assumeyes", "--quiet", "mark", "remove", *names], check=False)

    def marks(self, host: Host) -> Marks:
        """SQLite brings them to the disk."""
        return Marks(WHOLE)

    def has_marked(self, host: Host, step: Step, opened: Mapping[str, Any]) -> bool:
        return history.has_ended(host, step, opened)

    def has_bindings(self, host: Host) -> bool:
        return has_bindings(host)

    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        return index(host, repositories, beside_system)

    def hidden(self, host: Host, packages: Mapping[str, Package], names: Iterable[str]) -> Tuple[str, ...]:
        """By excludepkgs and includepkgs in dnf.conf(5), or a plugin."""
        words = {word: name for name in names for word in transaction.specs({name: packages[name].version})}
        with host.scratch() as scratch:
            told = ask(host, scratch, "hidden", cache=scratch + "/cache", beside_system=False, repositories=[],
                       without=[], files=[], specs=sorted(words))
        return tuple(sorted(words[word] for word in told["hidden"]))

    def of_release(self, release: str) -> Dict[str, str]:
        """dnf.conf(5), Repository Variables."""
        return {"releasever": release.split(".")[0]}

    def download(self, host: Host, step: Step) -> None:
        """Exactly these packages, whatever streams and locks leave to choose from now."""
        _have(host, "download", step.parameters["request"], step.parameters.get("without", ()))

    def prepare(
        self, host: Host, step: Step, account: Mapping[str, PackageChange], is_fetched: bool
    ) -> Dict[str, Any]:
        """Whoever has just fetched the packages has renewed the lists for it, and what is there needs none."""
        if not step.parameters.get("update_cache") or is_fetched:
            return {}
        files, there = step.parameters.get("files", ()), database.installed(host)
        named = {name: version for name, version in step.parameters["request"].items() if name not in files
                 and (name not in there or there[name].version != version)}
        if named:
            _have(host, "refresh", named, step.parameters.get("without", ()))
        return {}

    def carry_out(self, host: Host, journal: Journal, step: Step) -> None:
        carrying_out.carry_out(host, step)

    def refresh(self, host: Host, request: Mapping[str, str]) -> None:
        """A repository of somebody else that cannot be read stops nobody."""
        _have(host, "refresh", request)

    def fetch(
        self, host: Host, url: str, target: str, told: Optional[Credentials], timeout: float
    ) -> CommandResult:
        return fetching.download(host, url, target, told, timeout, *_proxy(host))

    def read_key(self, host: Host, key: str, told: Optional[Credentials] = None) -> str:
        return fetching.read_key(host, key, told, *_proxy(host))

    def repository_files(self, repository: Repository) -> Dict[str, str]:
        key = {repository.keyring: repository.key} if repository.key else {}
        return {**key, "%s/%s.repo" % (REPOSITORIES, repository.id): repository_files.text(repository, {})}

    def choose(self, streams: Mapping[str, str]) -> Dict[str, str]:
        return locks.stream_files(streams)

    def hold_files(
        self, capability: str, versions: Mapping[str, str], there: Mapping[str, Optional[str]]
    ) -> Dict[str, Optional[str]]:
        """Written before the transaction: a lock of the version before leaves the new one not to be chosen."""
        return {locks.LIST: locks.text(capability, versions, there.get(locks.LIST))}

    def hold_paths(self, capability: str) -> Tuple[str, ...]:
        return (locks.LIST,)

    def hold_refusals(self, host: Host) -> List[Refusal]:
        """The plugin is a package of its own; it may have been switched off, or given another list."""
        there = host.read(locks.CONFIGURATION)
        options = repository_files.parse(there or "").get("main", {})
        enabled = options.get("enabled", "1").strip().lower() in ("1", "yes", "true", "on")
        if enabled and options.get("locklist", "").strip() == host.path(locks.LIST):
            return [] if host.exists(locks.LIST) else [Refusal(
                "packages.no_versionlock_list", "no %s, which %s names" % (locks.LIST, locks.CONFIGURATION),
                "the list of dnf's plugin versionlock: dnf changes nothing without it",
                "run `touch %s`" % locks.LIST)]
        found = "no %s" % locks.CONFIGURATION if there is None else "%s with enabled=%s, locklist=%s" % (
            locks.CONFIGURATION, options.get("enabled", "1"), options.get("locklist", ""))
        return [Refusal(
            "packages.no_versionlock", found, "dnf's plugin versionlock, which reads %s" % locks.LIST,
            "run `dnf install python3-dnf-plugin-versionlock`, and see that %s names that list" % locks.CONFIGURATION)]

    def builtin_module(self, step: Mapping[str, Any]) -> str:
        return "dnf"

    def builtin_options(
        self, step: Mapping[str, Any], known: Optional[Collection[str]] = None
    ) -> Optional[Dict[str, Any]]:
        return transaction.builtin_options(step, known)

    def known(self, host: Host, step: Step) -> List[str]:
        return history.known(host)

    def evidence(
        self, host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
    ) -> Dict[str, PackageChange]:
        return history.evidence(host, step, opened, packages)


def _have(host: Host, op: str, request: Mapping[str, str], without: Iterable[str] = ()) -> None:
    """In dnf's own lists, or cache. without: ids of the repositories to do without."""
    with host.scratch() as scratch:
        told = ask(host, scratch, op, specs=transaction.specs(request), without=list(without))
    if told["lacking"]:
        raise _incomplete(told)


def _proxy(host: Host) -> Tuple[str, Optional[Credentials]]:
    """What dnf.conf(5) names, and who we are for it; '_none_' is none."""
    proxy, user, password = (configuration.option(host, name) for name in (
        "proxy", "proxy_username", "proxy_password"))
    return proxy if proxy.lower() != "_none_" else "", Credentials(user, password) if user else None


def _incomplete(told: Mapping[str, Any]) -> GpuOpsError:
    unread = " | ".join("%s: %s" % item for item in sorted(told["unread"].items()))
    return GpuOpsError(
        "packages.dnf_lists_incomplete",
        found="no repository of this host has %s: %s" % (", ".join(told["lacking"]), unread or "no error"),
        wanted="repositories in which dnf finds what was planned",
        remedy="run `dnf makecache` on this host and mend the repository that it names")


DNF: PackageManager = Dnf()
