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
from .configuration import Key, read_settings
from .policy import ToolkitPolicy

# What the journal remembers for the toolkit: config.toml as it has to be once the packages are there
KEPT = "configuration"


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
    created:        whether config.toml was not there before our first change of it.
    settings:       values in effect in config.toml, or in the text that waits.
    runtimes:       absolute paths of the low-level runtimes that are there.
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
    created: bool = False
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
            "created": self.created,
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
        settings=_settings(configuration if kept is None else kept) if policy.present else {},
        kept=kept,
        created=any(original.path == catalogue.CONFIGURATION and original.content is None
                    for original in journal.originals("toolkit")),
        runtimes=tuple(path for path in map(host.which, catalogue.LOW_LEVEL_RUNTIMES) if path),
        restore=restore,
        removable=removable,
    )


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
