# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dnf and zypper answer alike, since rpm keeps packages and keys for both (manager.PackageManager)."""
from __future__ import annotations

import abc
import platform
import re
from dataclasses import replace
from typing import (
    Callable,
    ClassVar,
    Collection,
    ContextManager,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Sequence,
    Tuple,
)

from ...core.host import Host
from ...core.plan import Step
from ..manager import Index
from ..model import Package, Repository
from . import database, files, keyring, removal, unsynced
from .repositories import configured_in
from .versions import compare


class RpmManager(abc.ABC):
    """Its heirs add what is their own.

    repositories: directory of the files that configure repositories.
    settings:     directory of files each of which is the value of the variable that it is named after.
    """

    repositories: ClassVar[str]
    settings: ClassVar[str]

    @abc.abstractmethod
    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        """As PackageManager.open()."""

    @abc.abstractmethod
    def fetched(self, host: Host) -> str:
        """Pattern of the package files that the manager has fetched and keeps."""

    @abc.abstractmethod
    def of_release(self, release: str) -> Dict[str, str]:
        """Variables in addresses of repositories that follow from the host's release (VERSION_ID in os-release(5))."""

    @abc.abstractmethod
    def locked(self, host: Host) -> Callable[[str, str], bool]:
        """What tells of a package's name and version whether somebody has locked it."""

    @abc.abstractmethod
    def hold_paths(self, capability: str) -> Tuple[str, ...]:
        """As PackageManager.hold_paths()."""

    def installed(self, host: Host) -> Dict[str, Package]:
        """Those that somebody has locked count as held."""
        is_locked = self.locked(host)
        return {name: replace(package, wanted="hold") if is_locked(name, package.version) else package
                for name, package in database.installed(host).items()}

    def removable(self, host: Host, packages: Mapping[str, Package], installed_by_us: Iterable[str]) -> Tuple[str, ...]:
        ours = set(installed_by_us)
        if not ours.intersection(packages):
            return ()
        with self.open(host, []) as opened:
            # What a lock keeps nobody needs for that
            opened.hold(dict.fromkeys(self.hold_paths("")))
            return removal.removable(opened, packages, ours)

    def hidden(self, host: Host, packages: Mapping[str, Package], names: Iterable[str]) -> Tuple[str, ...]:
        return ()

    def came_since(self, host: Host, names: Iterable[str], when: float) -> FrozenSet[str]:
        return database.came_since(host, names, when)

    def configured_in(self, host: Host, uri: str, ours: str) -> Tuple[str, ...]:
        release = re.search(r'(?m)^VERSION_ID="?([^"\n]*)', host.read("/etc/os-release") or "")
        variables = {**self.of_release(release.group(1) if release else ""),
                     "basearch": platform.machine(), "arch": platform.machine()}
        for name in host.list(self.settings):
            variables[name] = (host.read("%s/%s" % (self.settings, name)) or "").strip()
        return configured_in(host, (self.repositories,), uri, ours, variables)

    def compare(self, first: str, second: str) -> int:
        return compare(first, second)

    def archives(self, host: Host) -> Tuple[str, ...]:
        return tuple(sorted({path.rsplit("/", 1)[1] for path in files.whole(host, host.glob(self.fetched(host)))}))

    def archive_begins(self, name: str, version: str) -> str:
        return database.archive_begins(name, version)

    def mend(self, host: Host, step: Step, names: Collection[str]) -> None:
        """It is installed once more before anything else is asked of the manager."""
        unsynced.note(host, step, database.installed(host), names)

    def trusted(self, host: Host) -> Dict[str, Tuple[str, ...]]:
        return keyring.trusted(host)

    def trust_steps(
        self, capability: str, repository: Repository, trusted: Mapping[str, Tuple[str, ...]]
    ) -> List[Step]:
        return keyring.import_steps(capability, repository.keyring, repository.key, trusted) if repository.key else []

    def distrust_steps(self, capability: str, names: Iterable[str]) -> List[Step]:
        return keyring.forget_steps(capability, names)
