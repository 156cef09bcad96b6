# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""apt and dpkg as a package manager (manager.PackageManager)."""
from __future__ import annotations

from typing import Any, Collection, ContextManager, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ...core.host import CommandResult, Host
from ...core.journal import Journal, PackageChange
from ...core.plan import Step
from ...core.refusal import Refusal
from ...core.steps import PACKAGES_INSTALL, Executor, managed
from .. import torn
from ..manager import PackageManager
from ..model import WHOLE, Credentials, Marks, Package, Repository
from . import carrying_out, conffiles, database, history, removal, running, sources, transaction, units
from .index import Index, download, index, read_key
from .versions import compare

# ansible.builtin.apt asks for exact versions with priority 1001, and must win (apt_preferences(5))
_PRIORITY = 1000


class Apt:
    """One of a kind: APT."""

    name = "apt"
    syncs_automatic = False
    executors: Mapping[str, Executor] = torn.EXECUTORS

    def installed(self, host: Host) -> Dict[str, Package]:
        return database.installed(host)

    def interrupted(self, host: Host) -> bool:
        return database.interrupted(host)

    def automatic(self, host: Host) -> FrozenSet[str]:
        return database.automatic(host)

    def mark_automatic(self, host: Host, names: Iterable[str]) -> None:
        """apt-mark refuses while dpkg is interrupted; where apt has no marks, or cannot read them, they are written for
        it."""
        if self.marks(host).state == WHOLE:
            host.run(["apt-mark", *database.own(host), "auto", *names], check=False)
            host.sync()
        else:
            database.write_marks(host, {*self.automatic(host), *names})

    def marks(self, host: Host) -> Marks:
        return database.marks(host)

    def came_since(self, host: Host, names: Iterable[str], when: float) -> FrozenSet[str]:
        return database.came_since(host, names, when)

    def has_marked(self, host: Host, step: Step, opened: Mapping[str, Any]) -> bool:
        return history.has_marked(host, step, opened)

    def removable(self, host: Host, packages: Mapping[str, Package], installed_by_us: Iterable[str]) -> Tuple[str, ...]:
        return removal.removable(host, packages, installed_by_us)

    def hidden(self, host: Host, packages: Mapping[str, Package], names: Iterable[str]) -> Tuple[str, ...]:
        return ()

    def configured_in(self, host: Host, uri: str, ours: str) -> Tuple[str, ...]:
        return sources.configured_in(host, uri, ours)

    def has_bindings(self, host: Host) -> bool:
        return running.has_bindings(host)

    def compare(self, first: str, second: str) -> int:
        return compare(first, second)

    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        return index(host, repositories, beside_system)

    def archives(self, host: Host) -> Tuple[str, ...]:
        return database.archives(host)

    def archive_begins(self, name: str, version: str) -> str:
        return database.archive_begins(name, version)

    def download(self, host: Host, step: Step) -> None:
        history.refresh(host, step.change["after"])
        host.fetches(running.to_fetch(host, *step.parameters["argv"]))
        running.apt_get(host, *step.parameters["argv"], timeout=step.parameters["timeout"])

    def prepare(
        self, host: Host, step: Step, account: Mapping[str, PackageChange], is_fetched: bool
    ) -> Dict[str, Any]:
        """Whoever has just fetched the packages has renewed the lists for it."""
        units.renew_records(host, [name for name, version in step.change["after"].items() if version is None])
        request = step.parameters["request"]
        if step.parameters.get("update_cache") and (not is_fetched or history.lacking(host, request)):
            history.refresh(host, request)
        if step.action == PACKAGES_INSTALL:
            host.fetches(running.to_fetch(host, *transaction.install_words(
                request, bool(step.parameters.get("allow_downgrade")))))
        conffiles.renew(host, {*account, *step.change["after"]})
        return {"starts": history.starts(host)}

    def carry_out(self, host: Host, journal: Journal, step: Step) -> None:
        carrying_out.carry_out(host, step)

    def mend(self, host: Host, step: Step, names: Collection[str]) -> None:
        conffiles.renew(host, names)

    def refresh(self, host: Host, request: Mapping[str, str]) -> None:
        history.refresh(host, request)

    def fetch(
        self, host: Host, url: str, target: str, told: Optional[Credentials], timeout: float
    ) -> CommandResult:
        return download(host, url, target, told, timeout)

    def read_key(self, host: Host, key: str, told: Optional[Credentials] = None) -> str:
        return read_key(host, key, told)

    def trusted(self, host: Host) -> Dict[str, Tuple[str, ...]]:
        """A source names the one file of its key; apt has no keys besides."""
        return {}

    def trust_steps(
        self, capability: str, repository: Repository, trusted: Mapping[str, Tuple[str, ...]]
    ) -> List[Step]:
        return []

    def distrust_steps(self, capability: str, names: Iterable[str]) -> List[Step]:
        return []

    def repository_files(self, repository: Repository) -> Dict[str, str]:
        key = {repository.keyring: repository.key} if repository.key else {}
        return {**key, "/etc/apt/sources.list.d/%s.sources" % repository.id: managed(repository.sources())}

    def choose(self, streams: Mapping[str, str]) -> Dict[str, str]:
        return {}

    def hold_files(
        self, capability: str, versions: Mapping[str, str], there: Mapping[str, Optional[str]]
    ) -> Dict[str, Optional[str]]:
        """A pin for each version (apt_preferences(5)); the file is ours whole."""
        by_version: Dict[str, List[str]] = {}
        for name, version in sorted(versions.items()):
            by_version.setdefault(version, []).append(name)
        stanzas = ["Package: %s\nPin: version %s\nPin-Priority: %d\n" % (" ".join(names), version, _PRIORITY)
                   for version, names in sorted(by_version.items())]
        return {path: managed("\n".join(stanzas)) if stanzas else None for path in self.hold_paths(capability)}

    def hold_paths(self, capability: str) -> Tuple[str, ...]:
        return ("/etc/apt/preferences.d/gpuops-nvidia-%s" % capability,)

    def hold_refusals(self, host: Host) -> List[Refusal]:
        return []

    def builtin_module(self, step: Mapping[str, Any]) -> str:
        return "command" if transaction.is_command(step) else "apt"

    def builtin_options(
        self, step: Mapping[str, Any], known: Optional[Collection[str]] = None
    ) -> Optional[Dict[str, Any]]:
        if transaction.is_command(step):
            return {"argv": transaction.command_words(step)}
        return transaction.builtin_options(step, known)

    def known(self, host: Host, step: Step) -> List[str]:
        return history.known(host, step)

    def evidence(
        self, host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
    ) -> Dict[str, PackageChange]:
        return history.evidence(host, step, opened, packages)


APT: PackageManager = Apt()
