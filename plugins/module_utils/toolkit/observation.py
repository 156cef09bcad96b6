# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the container toolkit: packages, repository, settings. The repository is read only if needed."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.facts import LOW_LEVEL_RUNTIMES, HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..packages import provenance, space, torn
from ..packages.apt import credentials, database, removal, running
from ..packages.apt import sources as apt_sources
from ..packages.apt.credentials import AuthFile
from ..packages.apt.index import index, read_key
from ..packages.model import Credentials, Repository, Simulation
from ..packages.space import Space
from ..packages.torn import Unfinished
from . import catalogue
from .configuration import RUNTIMES, STOCK_RUNTIMES, Key, read_settings, unknown_keys
from .policy import Policy
from .rewriting import is_rewritten

# What the journal remembers for the toolkit: config.toml as it has to be once the packages are there
KEPT = "configuration"
# and {'before', 'after'} of our last changes of it, oldest first
WRITES = "writes"
WRITES_KEPT = 5


@dataclass(frozen=True)
class Observation:
    """What is there of the container toolkit, whose it is, and what the repository has.

    apt:               whether this host has apt.
    installed:         version of each package, None when not installed.
    url:               repository address with the architecture filled in.
    configured_in:     a sources file of somebody else that names the repository, '' if none.
    sources, key, pin: text of our files, None when absent.
    wanted_key:        the key as it has to be on the host; '' when it need not be read.
    offered:           versions on offer of each package, None when the repository need not be read.
    configuration:     text of config.toml, None when absent.
    kept:              text of config.toml that waits to be put back after the packages, None when none does.
    superseded:        whether a text waited that is not put back, because somebody has edited the file since.
    created:           whether config.toml was not there before our first change of it.
    as_made:           whether it is as our last change left it, or as the packages' script completed that (only read
                       while packages are missing).
    settings:          values in effect in config.toml, or in the text that waits.
    unknown:           its keys that the toolkit ignores.
    runtimes:          absolute paths of the low-level runtimes that the container runtime uses, or that are there.
    runtimes_ours:     whether the list of runtimes in effect is one that we wrote.
    executable:        those of the wanted low-level runtimes, or else of the file's, that are there.
    restore:           steps that put back the files we changed (only read when the toolkit is not wanted).
    removable:         packages of ours that can go (likewise).
    transaction:       what apt would do to reach the wanted version, None when there is nothing to do or no such
                       version.
    unread:            other sources of this host that apt cannot read, in its words.
    held:              {package: version} of the toolkit's packages that somebody holds.
    auth:              our file of credentials, its password masked.
    bindings:          whether ansible.builtin.apt finds python3-apt here; only asked when packages are to change.
    space:             room for the transaction, None when there is none.
    unfinished:        what stopped transactions have left (only read when packages of ours can go).
    """

    apt: bool
    installed: Mapping[str, Optional[str]]
    url: str
    configured_in: str
    sources: Optional[str]
    key: Optional[str]
    pin: Optional[str]
    wanted_key: str
    offered: Optional[Mapping[str, List[str]]]
    configuration: Optional[str]
    settings: Mapping[Key, Any]
    runtimes: Tuple[str, ...]
    kept: Optional[str] = None
    superseded: bool = False
    created: bool = False
    as_made: bool = False
    unknown: Tuple[str, ...] = ()
    runtimes_ours: bool = False
    executable: Tuple[str, ...] = ()
    restore: Tuple[Step, ...] = ()
    removable: Mapping[str, str] = field(default_factory=dict)
    transaction: Optional[Simulation] = None
    unread: Tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    auth: AuthFile = AuthFile(current=True)
    bindings: bool = True
    space: Optional[Space] = None
    unfinished: Unfinished = Unfinished()

    def to_dict(self) -> Dict[str, Any]:
        return {
            "apt": self.apt,
            "installed": dict(self.installed),
            "configured_in": self.configured_in,
            "sources": self.sources,
            "key": self.key,
            "pin": self.pin,
            "offered": None if self.offered is None else dict(self.offered),
            "settings": {".".join(key): value for key, value in self.settings.items()},
            "runtimes": list(self.runtimes),
            "kept": self.kept,
            "superseded": self.superseded,
            "created": self.created,
            "as_made": self.as_made,
            "unknown": list(self.unknown),
            "runtimes_ours": self.runtimes_ours,
            "executable": list(self.executable),
            "restore": [step.to_dict() for step in self.restore],
            "removable": dict(self.removable),
            "transaction": None if self.transaction is None else asdict(self.transaction),
            "held": dict(self.held),
            "auth": asdict(self.auth),
            "bindings": self.bindings,
            "unfinished": asdict(self.unfinished),
        }


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    database_now = database.installed(host)
    packages = database.versions(database_now, catalogue.PACKAGES)
    has_apt = host.which("apt-get") is not None
    url = policy.repository_url.replace("$(ARCH)", apt_sources.architecture(host)) if has_apt else policy.repository_url
    configured_in = next(iter(apt_sources.configured_in(host, url, catalogue.SOURCES)), "")
    configuration = host.read(catalogue.CONFIGURATION)
    kept = journal.recall("toolkit").get(KEPT)
    superseded = kept is not None and configuration is not None and not is_rewritten(host, configuration, kept)
    kept = None if superseded else kept
    settings = _settings(configuration if kept is None else kept) if policy.present else {}
    writes = _writes(journal)
    sources, key = host.read(catalogue.SOURCES), host.read(catalogue.KEYRING)
    offer = _Offer()
    if policy.present and policy.source == "repository" and has_apt:
        current = sources == sources_text(url, policy.repository_key) and key is not None
        satisfied = all(matches(version, policy.version) for version in packages.values())
        if not (satisfied and (current or configured_in)):
            offer = _read_offer(host, packages, policy, url, configured_in)
    removable: Dict[str, str] = {}
    restore: Tuple[Step, ...] = ()
    if not policy.present:
        ours = provenance.installed_by_us(host, journal, "toolkit", database_now)
        removable = {name: ours[name] for name in removal.removable(host, database_now, ours)}
        restore = tuple(step for step in restore_steps("toolkit", host, journal) if step.subject != catalogue.AUTH)
    return Observation(
        apt=has_apt,
        installed=packages,
        url=url,
        configured_in=configured_in,
        sources=sources,
        key=key,
        pin=host.read(catalogue.PIN),
        wanted_key=offer.key,
        offered=offer.versions,
        configuration=configuration,
        settings=settings,
        kept=kept,
        superseded=superseded,
        created=any(original.path == catalogue.CONFIGURATION and original.content is None
                    for original in journal.originals("toolkit")),
        as_made=_is_as_made(host, configuration, writes) if None in packages.values() else False,
        unknown=unknown_keys(catalogue.CONFIGURATION, configuration or "") if policy.present else (),
        runtimes=(facts.low_level_runtimes or _there(host)) if policy.present and not policy.low_level_runtimes else (),
        runtimes_ours=_is_ours(writes, settings.get(RUNTIMES)),
        executable=tuple(name for name in policy.low_level_runtimes or settings.get(RUNTIMES, ())
                         if (host.is_executable(name) if name.startswith("/") else host.which(name))),
        restore=restore,
        removable=removable,
        transaction=offer.transaction,
        unread=offer.unread,
        held=database.held(database_now, removable if not policy.present else catalogue.PACKAGES),
        auth=credentials.observe(host, journal, "toolkit", catalogue.AUTH, url, _credentials(policy, configured_in)),
        bindings=running.has_bindings(host) if offer.transaction or removable else True,
        space=space.observe(host) if offer.transaction else None,
        unfinished=torn.unfinished(host, journal, database_now) if removable else Unfinished(),
    )


@dataclass(frozen=True)
class _Offer:
    """What the repository has: its key, versions of the packages, and what apt would do."""

    key: str = ""
    versions: Optional[Mapping[str, List[str]]] = None
    transaction: Optional[Simulation] = None
    unread: Tuple[str, ...] = ()


def _credentials(policy: Policy, configured_in: str) -> Optional[Credentials]:
    """What our entry of the repository asks for; somebody else's entry has its own."""
    return policy.credentials if policy.present and policy.source == "repository" and not configured_in else None


def _read_offer(
    host: Host, installed: Mapping[str, Optional[str]], policy: Policy, url: str, configured_in: str
) -> _Offer:
    """Where somebody else's entry names the repository, it is read by that one: apt takes no second key for it."""
    key = "" if configured_in else read_key(host, policy.repository_key, policy.key_credentials)
    ours = [] if configured_in else [Repository(url, key, catalogue.KEYRING, credentials=policy.credentials)]
    with index(host, ours, beside_system=True) as opened:
        versions = opened.versions(catalogue.PACKAGES, url)
        version = version_of(installed, versions, policy.version)
        request = {name: version for name, have in installed.items() if version and have != version}
        transaction = opened.simulate(request, policy.allow_downgrade) if request else None
        return _Offer(key, versions, transaction, opened.unread)


def version_of(
    installed: Mapping[str, Optional[str]], offered: Optional[Mapping[str, List[str]]], wanted: str
) -> Optional[str]:
    """The package version that all packages will have: the installed one if it is wanted, else the newest on offer."""
    if all(matches(version, wanted) for version in installed.values()):
        return next(iter(installed.values()))
    lists = list((offered or {}).values())
    if len(lists) < len(catalogue.PACKAGES):
        return None
    common = [version for version in lists[0] if all(version in versions for versions in lists)]
    return next((version for version in common if matches(version, wanted)), None)


def _writes(journal: Journal) -> List[Mapping[str, Any]]:
    """{'before', 'after'} of our last changes of config.toml, oldest first."""
    return list(journal.recall("toolkit").get(WRITES, ()))


def _is_as_made(host: Host, text: Optional[str], writes: List[Mapping[str, Any]]) -> bool:
    return bool(writes) and text is not None and is_rewritten(host, text, writes[-1]["after"])


def _is_ours(writes: List[Mapping[str, Any]], runtimes: Any) -> bool:
    """Whether a list of runtimes is that of our last change of it; one that we found and left is somebody's choice."""
    if runtimes is None or runtimes in STOCK_RUNTIMES:
        return False
    for change in reversed(writes):
        before, after = (_settings(change[side])[RUNTIMES] for side in ("before", "after"))
        if before != after:
            return bool(after == runtimes)
    return False


def _there(host: Host) -> Tuple[str, ...]:
    return tuple(path for path in map(host.which, LOW_LEVEL_RUNTIMES) if path)


def _settings(text: Optional[str]) -> Mapping[Key, Any]:
    return read_settings(catalogue.CONFIGURATION, text or "")


def sources_text(url: str, key: str) -> str:
    """Our sources file; it names where its key is from, so that another key is seen without fetching it."""
    origin = "given as text" if "-----BEGIN" in key else key
    return "# Managed by gpuops.nvidia. The key is from: %s\n%s" % (
        origin, Repository(url, "", catalogue.KEYRING).sources()
    )


def matches(installed: Optional[str], wanted: str) -> bool:
    """Whether a package version is the wanted one; a wanted version without revision accepts any revision."""
    return installed is not None and (installed == wanted or installed.startswith(wanted + "-"))
