# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages of the host: what is there, what a repository has, what a transaction would do, and what it did.

Words
  Package      a line of the package database: name, architecture, version, what is wanted of it, its state.
               Installed, half-installed, held and "only its configuration is left" are different things; one reader
               tells them (apt/database.py, rpm/database.py), and nobody else asks dpkg or rpm.
  Repository   where packages come from, with the one key that may sign it, and credentials that are no part of its URL.
  Index        what repositories offer, read into a directory of ours (apt/index.py); the host's lists stay as they are.
  Simulation   what the package manager says a transaction would do, under the very options that it will have.
  Request      the names and versions that the package manager is asked for; a transaction brings more than that.
  Ours         what a transaction of ours was simulated to bring and then brought (provenance.py), nothing else.

Order of a change: read the index, simulate, show the step (every package of the simulation), fetch, let the
controller's ansible.builtin carry the request out (apt/transaction.py), account for what came.

Never touched: the host's own sources, keys, preferences and credentials; holds of others (a policy that needs another
version of a held package is refused); packages that came by anybody else.

What every package manager answers is a protocol (manager.py); apt, dnf and zypper have a directory each, rpm has what
the managers of rpm packages share.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from ..core.errors import GpuOpsError

NOT_THERE = ("not-installed", "config-files")
# In the place of an id where a transaction leaves all repositories of the host out
EVERY = "*"
# What waits for a trigger is configured (deb-triggers(5))
IN_ORDER = ("installed", "triggers-awaited", "triggers-pending")


class RepositoryUnreadable(GpuOpsError):
    """A repository of ours does not answer, or is not signed by its key: what else fails is no fault of it."""


WHOLE = "whole"
EMPTY = "empty"
MISSING = "missing"
TORN = "torn"


@dataclass(frozen=True)
class Marks:
    """What a manager has written of packages that nobody has chosen by hand.

    state:   WHOLE; EMPTY: it names none, which a power cut leaves, or somebody who has chosen all by hand; MISSING:
             nobody but a power cut, or a host that never had any, leaves it so; TORN: a power cut has left a part of
             it, and the manager may not be able to read that.
    written: when (seconds since 1970), 0 where that is not known.
    """

    state: str
    written: float = 0


@dataclass(frozen=True)
class Package:
    """A package as its database has it.

    name:    'libcuda1', of a foreign architecture 'libcuda1:i386'.
    arch:    its architecture, 'all' included.
    version: '' where only its name is known.
    wanted:  install, hold, deinstall or purge: what was decided for it (dpkg(1), selection states).
    state:   installed, half-installed, config-files ...: how far dpkg came (dpkg(1), package states); of rpm
             'installed', and 'duplicate' of what a stopped transaction has not erased (rpm/database.py).
    torn:    whether it was stopped while it was unpacked (dpkg(1), package flags: reinst-required). dpkg neither
             configures nor removes it before it has unpacked it anew, and apt does not see to that.
    """

    name: str
    arch: str
    version: str
    wanted: str
    state: str
    torn: bool = False

    @property
    def installed(self) -> bool:
        """Whether it can be used; a held one can, and one whose trigger, or that of another one for it, waits."""
        return self.state in IN_ORDER

    @property
    def there(self) -> bool:
        """Whether any of its files are there, in order or not; configuration left behind does not count."""
        return self.state not in NOT_THERE

    @property
    def unfinished(self) -> bool:
        return self.there and not self.installed

    @property
    def held(self) -> bool:
        return self.wanted == "hold"


@dataclass(frozen=True)
class Credentials:
    """Who we are for a repository. Neither is ever printed: repr() leaves the password out."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Repository:
    """A repository as we configure it.

    uri:             where it is, without credentials.
    key:             its public key, ASCII-armoured.
    keyring:         path on the host where the key will lie (.asc).
    suites:          of apt: suites, '/' for a flat repository.
    components:      of apt: components, none for a flat repository.
    credentials:     what it asks for, None when it is open to everybody.
    is_trusted:      whether apt takes its packages without a signature: they lie on the host, as files of root.
    id:              its name among the host's repositories, and that of its file.
    metadata_signed: of rpm: whether its index is signed too, and is checked; apt checks every index.
    """

    uri: str
    key: str
    keyring: str
    suites: Tuple[str, ...] = ("/",)
    components: Tuple[str, ...] = ()
    credentials: Optional[Credentials] = None
    is_trusted: bool = False
    id: str = ""
    metadata_signed: bool = False

    def sources(self, signed_by: str = "") -> str:
        """The deb822 stanza, see sources.list(5)."""
        lines = ["Types: deb", "URIs: " + self.uri, "Suites: " + " ".join(self.suites)]
        if self.components:
            lines.append("Components: " + " ".join(self.components))
        lines.append("Trusted: yes" if self.is_trusted else "Signed-By: " + (signed_by or self.keyring))
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Simulation:
    """What the package manager says a transaction would do.

    installs:        {package: version} that it would unpack.
    removes:         packages that it would remove.
    problem:         why it would not do it, in its own words; '' when it would.
    before:          {package: version there now} of those that it would replace or remove.
    request:         {package: version} that it was asked for.
    allow_downgrade: the option under which it was simulated, and has to be carried out.
    download:        bytes that it would fetch.
    unpacked:        bytes that the new packages hold on the disk.
    named:           those of the request that only follow from the others, and are asked for by name for their version.
    held:            packages that somebody holds and that it would change; then there is a problem too.
    excluded:        packages of the request that a setting of the package manager hides from it, likewise.
    leaves:          packages that it was asked to take away.
    """

    installs: Mapping[str, str]
    removes: Tuple[str, ...]
    problem: str = ""
    before: Mapping[str, str] = field(default_factory=dict)
    request: Mapping[str, str] = field(default_factory=dict)
    allow_downgrade: bool = False
    download: int = 0
    unpacked: int = 0
    named: Tuple[str, ...] = ()
    held: Tuple[str, ...] = ()
    excluded: Tuple[str, ...] = ()
    leaves: Tuple[str, ...] = ()

    @property
    def change(self) -> Tuple[Mapping[str, Optional[str]], Mapping[str, Optional[str]]]:
        """({package: version before}, {package: version after}) of everything that it touches."""
        after = {**self.installs, **dict.fromkeys(self.removes)}
        return {name: self.before.get(name) for name in after}, after
