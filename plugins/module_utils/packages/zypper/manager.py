# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""zypper and rpm as a package manager (manager.PackageManager)."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Collection, ContextManager, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import PackageChange
from ...core.plan import Step
from ...core.refusal import Refusal
from ...core.steps import Executor
from ..manager import PackageManager
from ..model import Credentials, Package, Repository
from ..rpm import database, fetching, keyring
from ..rpm import repositories as repository_files
from ..rpm.versions import compare
from . import asking, carrying_out, configuration, history, locks
from .index import REPOSITORIES, Index, index, offered, search_words
from .transaction import specs

CACHE = "/var/cache/zypp/packages"


class Zypper:
    """One of a kind: ZYPPER."""

    name = "zypper"
    executors: Mapping[str, Executor] = {**keyring.EXECUTORS, **history.EXECUTORS, **carrying_out.EXECUTORS}

    def installed(self, host: Host) -> Dict[str, Package]:
        """Those that somebody has locked count as held."""
        packages = database.installed(host)
        there = locks.of_others(host.read(locks.PATH))
        held = {name for name, package in packages.items() if locks.holds(there, name, package.version)}
        return {name: replace(package, wanted="hold") if name in held else package
                for name, package in packages.items()}

    def interrupted(self, host: Host) -> bool:
        return bool(history.unfinished(host, database.installed(host)))

    def compare(self, first: str, second: str) -> int:
        return compare(first, second)

    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        return index(host, repositories, beside_system)

    def archives(self, host: Host) -> Tuple[str, ...]:
        """Below a directory for each repository, and there where the repository has them (zypper(8), --pkg-cache-dir).
        """
        return tuple(sorted({path.rsplit("/", 1)[1] for path in host.glob(CACHE + "/**/*.rpm")}))

    def refresh(self, host: Host, request: Mapping[str, str]) -> None:
        """A repository of somebody else that cannot be read stops nobody."""
        done = asking.zypper(host, "refresh")
        there = offered(asking.zypper(host, "--no-refresh", *search_words(request))) if request else set()
        lacking = {name: version for name, version in request.items() if (name, version) not in there}
        if lacking:
            raise GpuOpsError(
                "packages.zypper_lists_incomplete",
                found="no repository of this host has %s: %s" % (
                    ", ".join(specs(lacking)), "no error" if done.rc in asking.DONE else asking.told(done)),
                wanted="repositories in which zypper finds what was planned",
                remedy="run `zypper refresh` on this host and mend the repository that it names")

    def read_key(self, host: Host, key: str, told: Optional[Credentials] = None) -> str:
        """Through the proxy of the environment, as zypper's own downloads go (/etc/sysconfig/proxy, by the login)."""
        return fetching.read_key(host, key, told)

    def trusted(self, host: Host) -> Dict[str, Tuple[str, ...]]:
        return keyring.trusted(host)

    def trust_steps(
        self, capability: str, repository: Repository, trusted: Mapping[str, Tuple[str, ...]]
    ) -> List[Step]:
        return keyring.import_steps(capability, repository.keyring, repository.key, trusted) if repository.key else []

    def distrust_steps(self, capability: str, names: Iterable[str]) -> List[Step]:
        return keyring.forget_steps(capability, names)

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
        """libzypp can be told of another file."""
        configured = configuration.option(host, "locksfile.path", locks.PATH)
        if configured == locks.PATH:
            return []
        return [Refusal(
            "packages.other_locks", "libzypp's configuration with locksfile.path = %s" % configured,
            "locks in %s" % locks.PATH, "take that option out of zypp.conf, and the locks over into %s" % locks.PATH)]

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


ZYPPER: PackageManager = Zypper()
