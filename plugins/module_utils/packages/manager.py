# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a capability asks a package manager, whichever it is.

apt, dnf and zypper answer the same questions, each from a directory of its own. A version is written as that manager
writes it, whole: '3:580.178.04-1.el9' with rpm, where an epoch of 0 is left out; compare() knows the order.

What is changed besides packages is files, and pure functions make their text: a repository, a choice of streams, a
hold. So a plan shows them as it shows every file, and Index.hold() simulates under files that are not there yet. Keys
are the exception: rpm keeps those that it trusts in its database, and trust_steps() puts them there.
"""
from __future__ import annotations

from typing import (
    Any,
    Collection,
    ContextManager,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

from ..core.host import CommandResult, Host
from ..core.journal import Journal, PackageChange
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from .model import Credentials, Marks, Package, Repository, Simulation


class Index(Protocol):
    """What repositories offer, read into a directory of ours; the host's own lists and caches stay as they are."""

    @property
    def unread(self) -> Tuple[str, ...]:
        """What could not be read of repositories that are not ours, in the manager's words. They are left out."""

    @property
    def without(self) -> Tuple[str, ...]:
        """Ids of repositories that a transaction has to be told to leave out, since the manager would end at them.

        A package step has them as its parameter 'without', or model.EVERY where it takes nothing from any of them.
        """

    def update(self) -> None:
        """Read what has changed. Raises GpuOpsError that names a repository of ours that cannot be read."""

    def versions(self, packages: Iterable[str], uri: str = "") -> Dict[str, List[str]]:
        """Versions on offer of each package, newest first; none for a package that is not there.

        uri: count only what this repository offers.
        """

    def hold(self, files: Mapping[str, Optional[str]]) -> None:
        """Let these files (of hold_files() and choose()) count from now on in place of the host's; None: no file.

        A hold leaves one version of a package to choose from, also where others are asked for.
        """

    def simulate(self, request: Mapping[str, str], allow_downgrade: bool = False) -> Simulation:
        """What a transaction that asks for these versions would do, under the options that it will have."""

    def simulate_removal(self, packages: Iterable[str]) -> Simulation:
        """What else would go if these packages went."""


class PackageManager(Protocol):
    """One package manager of a host. Methods without a host are pure."""

    @property
    def name(self) -> str:
        """'apt', 'dnf' or 'zypper', as a package step names it ('manager')."""

    @property
    def syncs_automatic(self) -> bool:
        """Whether it brings to the disk what automatic() reads. A power cut may take the whole of it otherwise."""

    @property
    def executors(self) -> Mapping[str, Executor]:
        """Executors of the steps of its own kind, those of trust_steps() among them."""

    def installed(self, host: Host) -> Dict[str, Package]:
        """Every package in the database, by name. One that may be there in several versions (a kernel) has its version
        in the name; so have those that an interrupted transaction left beside what came."""

    def interrupted(self, host: Host) -> bool:
        """Whether a transaction was stopped in the middle, so that the manager, or we, must finish it first."""

    def automatic(self, host: Host) -> FrozenSet[str]:
        """Packages that nobody has chosen by hand: they came because others needed them."""

    def mark_automatic(self, host: Host, names: Iterable[str]) -> None:
        """Let these count as such, and what counted so stay so, written anew where the manager cannot read it. What
        cannot be marked now is marked with the next transaction."""

    def marks(self, host: Host) -> Marks:
        """How what automatic() reads stands."""

    def came_since(self, host: Host, names: Iterable[str], when: float) -> FrozenSet[str]:
        """Those of these packages whose files were unpacked since (seconds since 1970), whoever asked for it."""

    def has_marked(self, host: Host, step: Step, opened: Mapping[str, Any]) -> bool:
        """Whether the step's transaction has come so far that the manager has marked what came by it.

        opened: what was noted when the step was opened.
        """

    def removable(self, host: Host, packages: Mapping[str, Package], installed_by_us: Iterable[str]) -> Tuple[str, ...]:
        """Those of our packages that can go without taking a package with them that is not ours, held or not."""

    def hidden(self, host: Host, packages: Mapping[str, Package], names: Iterable[str]) -> Tuple[str, ...]:
        """Those of these packages that a setting hides from the manager: it removes none of them, and says nothing."""

    def configured_in(self, host: Host, uri: str, ours: str) -> Tuple[str, ...]:
        """Files other than ours in which an enabled repository has this address."""

    def has_bindings(self, host: Host) -> bool:
        """Whether what carries transactions out finds the library that it works with."""

    def compare(self, first: str, second: str) -> int:
        """-1, 0 or 1: how the first version stands to the second."""

    def open(
        self, host: Host, repositories: Sequence[Repository], beside_system: bool = False
    ) -> ContextManager[Index]:
        """The indexes of repositories as they are now; beside_system: those of the host too, for whole transactions.

        Raises GpuOpsError when a repository of ours cannot be read.
        """

    def archives(self, host: Host) -> Tuple[str, ...]:
        """Names of the package files that the manager has fetched and keeps."""

    def archive_begins(self, name: str, version: str) -> str:
        """How the name of a package's file begins."""

    def download(self, host: Host, step: Step) -> None:
        """Fetch the packages of a step (PACKAGES_DOWNLOAD); the transaction finds them where the manager keeps them."""

    def prepare(
        self, host: Host, step: Step, account: Mapping[str, PackageChange], is_fetched: bool
    ) -> Dict[str, Any]:
        """What has to be so before a package step begins: the manager's lists name what was planned, and what scripts
        of packages rely on is there. Its answer is noted with the opened step, for evidence().

        account: what our transactions have changed by now; is_fetched: whether this run has fetched the packages.
        """

    def carry_out(self, host: Host, journal: Journal, step: Step) -> None:
        """Executor of a package step on the host itself, to the effect that builtin_options() have.

        Before it changes anything the manager is asked once more what it would do, on the host's own repositories and
        holds: what is more than the step says is refused. What is there already stays as it is, and is no error. A
        transaction is never killed: when time is up, the waiting for it ends.
        """

    def mend(self, host: Host, step: Step, names: Collection[str]) -> None:
        """Of these packages, what a power cut may have left of their files; the host has booted since the step was
        opened."""

    def refresh(self, host: Host, request: Mapping[str, str]) -> None:
        """Have the manager's own lists name what is asked for. Raises GpuOpsError where they do not then."""

    def fetch(
        self, host: Host, url: str, target: str, told: Optional[Credentials], timeout: float
    ) -> CommandResult:
        """Bring a file into a real path, through the proxy that the manager goes through; its end tells whether it
        came. told: who we are for that address."""

    def read_key(self, host: Host, key: str, told: Optional[Credentials] = None) -> str:
        """A repository's public key, armoured; key: a URL, a path on the host, or armoured text."""

    def trusted(self, host: Host) -> Dict[str, Tuple[str, ...]]:
        """{name of a key in the database: fingerprints of its primary keys}; {} where keys are files alone."""

    def trust_steps(
        self, capability: str, repository: Repository, trusted: Mapping[str, Tuple[str, ...]]
    ) -> List[Step]:
        """Steps after which packages that the repository's key has signed are taken. Its file is there by then."""

    def distrust_steps(self, capability: str, names: Iterable[str]) -> List[Step]:
        """Steps that take back the keys in the database which trust_steps() put there (rpm/keyring.py, ours)."""

    def repository_files(self, repository: Repository) -> Dict[str, str]:
        """{path: text} of what configures a repository: its key where the repository carries one, and itself."""

    def choose(self, streams: Mapping[str, str]) -> Dict[str, str]:
        """{path: text} that makes {module: stream} the streams that packages come from; {} where there are none."""

    def hold_files(
        self, capability: str, versions: Mapping[str, str], there: Mapping[str, Optional[str]]
    ) -> Dict[str, Optional[str]]:
        """{path: text} that leave {package: version} to choose from and no other version of these packages.

        versions: all that is to stay, not only what was asked for; {} takes the hold back.
        there:    text of these files (hold_paths()) as they are: what others wrote in them stays.
        """

    def hold_paths(self, capability: str) -> Tuple[str, ...]:
        """The files that hold_files() writes."""

    def hold_refusals(self, host: Host) -> List[Refusal]:
        """Why the manager would not heed hold_files() on this host."""

    def builtin_module(self, step: Mapping[str, Any]) -> str:
        """The module of ansible.builtin that carries a package step out from the controller; '' where it has none for
        this manager: carry_out() does it on the host."""

    def builtin_options(
        self, step: Mapping[str, Any], known: Optional[Collection[str]] = None
    ) -> Optional[Dict[str, Any]]:
        """Options of that module, None where there is none.

        known: the options that the module in use has, None when they cannot be told.
        """

    def known(self, host: Host, step: Step) -> List[str]:
        """Transactions in the manager's history by now that could be the step's; noted when the step is opened."""

    def evidence(
        self, host: Host, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
    ) -> Dict[str, PackageChange]:
        """What the step's transaction demonstrably changed, as long as it is so still.

        opened: what was noted when the step was opened: known, and there, {package: version} of what was there.
        """
