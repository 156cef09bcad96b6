# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the container toolkit: packages, repository, settings. The repository is read only if needed."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ...core import apt
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import restore_steps
from . import catalogue
from .configuration import RUNTIMES, STOCK_RUNTIMES, Key, read_settings, unknown_keys
from .low_level import in_use
from .policy import ToolkitPolicy
from .rewriting import is_rewritten

# What the journal remembers for the toolkit: config.toml as it has to be once the packages are there
KEPT = "configuration"
# and {'before', 'after'} of our last changes of it, oldest first
WRITES = "writes"
WRITES_KEPT = 5


@dataclass(frozen=True)
class ToolkitObservation:
    """
    apt:            whether this host has apt.
    installed:      version of each package, None when not installed.
    url:            repository address with the architecture filled in.
    configured_in:  a sources file of somebody else that names the repository, '' if none.
    sources, key, pin: text of our files, None when absent.
    wanted_key:     the key as it has to be on the host; '' when it need not be read.
    offered:        versions on offer of each package, None when the repository need not be read.
    configuration:  text of config.toml, None when absent.
    kept:           text of config.toml that waits to be put back after the packages, None when none does.
    superseded:     whether a text waited that is not put back, because somebody has edited the file since.
    created:        whether config.toml was not there before our first change of it.
    as_made:        whether it is as our last change left it, or as the packages' script completed that (only read
                    while packages are missing).
    settings:       values in effect in config.toml, or in the text that waits.
    unknown:        its keys that the toolkit ignores.
    objection:      what NVIDIA's runtime says against the file as it is to be, '' when nothing.
    runtimes:       absolute paths of the low-level runtimes that the container runtime uses, or that are there.
    runtimes_ours:  whether the list of runtimes in effect is one that we wrote.
    executable:     those of the wanted low-level runtimes, or else of the file's, that are there.
    restore:        steps that put back the files we changed (only read when the toolkit is not wanted).
    removable:      packages of ours that can go (likewise).
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
    objection: str = ""
    runtimes_ours: bool = False
    executable: Tuple[str, ...] = ()
    restore: Tuple[Step, ...] = ()
    removable: Mapping[str, str] = field(default_factory=dict)

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
            "objection": self.objection,
            "runtimes_ours": self.runtimes_ours,
            "executable": list(self.executable),
            "restore": [step.to_dict() for step in self.restore],
            "removable": dict(self.removable),
        }


def observe(host: Host, journal: Journal, policy: ToolkitPolicy) -> ToolkitObservation:
    packages = apt.installed(host, catalogue.PACKAGES)
    has_apt = host.which("apt-get") is not None
    url = policy.repository_url.replace("$(ARCH)", _architecture(host)) if has_apt else policy.repository_url
    configured_in = _configured_in(host, url)
    configuration = host.read(catalogue.CONFIGURATION)
    kept = journal.recall("toolkit").get(KEPT)
    superseded = kept is not None and configuration is not None and not is_rewritten(host, configuration, kept)
    kept = None if superseded else kept
    settings = _settings(configuration if kept is None else kept) if policy.present else {}
    writes = _writes(journal)
    sources, key = host.read(catalogue.SOURCES), host.read(catalogue.KEYRING)
    wanted_key, offered = "", None
    if policy.present and policy.source == "repository" and has_apt:
        current = sources == sources_text(url, policy.repository_key) and key is not None
        satisfied = all(matches(version, policy.version) for version in packages.values())
        if not (satisfied and (current or configured_in)):
            wanted_key = apt.read_key(host, policy.repository_key)
            offered = apt.available(host, apt.Repository(url, wanted_key, catalogue.KEYRING), catalogue.PACKAGES)
    removable: Dict[str, str] = {}
    restore: Tuple[Step, ...] = ()
    if not policy.present:
        ours = journal.packages("toolkit")
        removable = {name: ours[name] for name in apt.removable(host, ours)}
        restore = tuple(restore_steps("toolkit", host, journal))
    return ToolkitObservation(
        apt=has_apt,
        installed=packages,
        url=url,
        configured_in=configured_in,
        sources=sources,
        key=key,
        pin=host.read(catalogue.PIN),
        wanted_key=wanted_key,
        offered=offered,
        configuration=configuration,
        settings=settings,
        kept=kept,
        superseded=superseded,
        created=any(original.path == catalogue.CONFIGURATION and original.content is None
                    for original in journal.originals("toolkit")),
        as_made=_is_as_made(host, configuration, writes) if None in packages.values() else False,
        unknown=unknown_keys(catalogue.CONFIGURATION, configuration or "") if policy.present else (),
        runtimes=_runtimes(host) if policy.present and not policy.low_level_runtimes else (),
        runtimes_ours=_is_ours(writes, settings.get(RUNTIMES)),
        executable=tuple(name for name in policy.low_level_runtimes or settings.get(RUNTIMES, ())
                         if (host.is_executable(name) if name.startswith("/") else host.which(name))),
        restore=restore,
        removable=removable,
    )


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


def _runtimes(host: Host) -> Tuple[str, ...]:
    return in_use(host) or tuple(path for path in map(host.which, catalogue.LOW_LEVEL_RUNTIMES) if path)


def _settings(text: Optional[str]) -> Mapping[Key, Any]:
    return read_settings(catalogue.CONFIGURATION, text or "")


def sources_text(url: str, key: str) -> str:
    """Our sources file; it names where its key is from, so that another key is seen without fetching it."""
    origin = "given as text" if "-----BEGIN" in key else key
    return "# Managed by gpuops.nvidia. The key is from: %s\n%s" % (
        origin, apt.Repository(url, "", catalogue.KEYRING).sources()
    )


def matches(installed: Optional[str], wanted: str) -> bool:
    """Whether a package version is the wanted one; a wanted version without revision accepts any revision."""
    return installed is not None and (installed == wanted or installed.startswith(wanted + "-"))


def _architecture(host: Host) -> str:
    return host.run(["dpkg", "--print-architecture"]).stdout.strip()


def _configured_in(host: Host, url: str) -> str:
    """A sources file, not ours, that names this repository: a second entry with another key would stop apt."""
    pattern = re.compile(r"(?m)^(?!\s*#).*(?:\s|=)%s/?(?:\s|$)" % re.escape(url.rstrip("/")))
    for path in ["/etc/apt/sources.list", *host.glob("/etc/apt/sources.list.d/*")]:
        if path != catalogue.SOURCES and path.endswith((".list", ".sources")):
            if pattern.search((host.read(path) or "").replace("$(ARCH)", url.rstrip("/").rsplit("/", 1)[-1])):
                return path
    return ""
