# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the container toolkit do to a host in memory: its packages, and the file that their script rewrites."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import torn
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit import catalogue, observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.catalogue import CONFIGURATION, PACKAGES
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.configuration import (
    RUNTIMES,
    read_settings,
    unknown_keys,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.policy import Policy

OFFERED = ("1.20.1-1", "1.20.0-1", "1.19.1-1", "1.18.0-1")


@dataclass
class World(world.World):
    """
    installed: {package: version, None if it is not there}.
    installed_by_us:   those that came with our transactions.
    elsewhere: a sources file of somebody else that names the repository, '' if none.
    runtimes:  low-level runtimes that the container runtime uses.
    programs:  those that are there.
    kept, writes: what is remembered of config.toml.
    unfinished: what a stopped transaction has left.
    waiting: of that, what dpkg cannot configure.
    """

    capability = CAPABILITY

    installed: Dict[str, Optional[str]] = field(default_factory=lambda: dict.fromkeys(PACKAGES))
    installed_by_us: Dict[str, str] = field(default_factory=dict)
    elsewhere: str = ""
    runtimes: Tuple[str, ...] = ("/usr/sbin/runc",)
    programs: Tuple[str, ...] = ("/usr/sbin/runc",)
    kept: Optional[str] = None
    writes: List[Mapping[str, Any]] = field(default_factory=list)
    unfinished: torn.Unfinished = torn.Unfinished()
    waiting: FrozenSet[str] = frozenset()

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        url = policy.repository_url.replace("$(ARCH)", "amd64")
        sources, key = self.files.get(catalogue.SOURCES), self.files.get(catalogue.KEYRING)
        satisfied = all(observation.matches(version, policy.version) for version in self.installed.values())
        ours = sources == observation.sources_text(url, policy.repository_key) and key is not None
        asked = policy.present and policy.source == "repository" and not (satisfied and (ours or self.elsewhere))
        offered = {name: list(OFFERED) for name in PACKAGES} if asked else None
        text, kept = self.files.get(CONFIGURATION), self.kept
        superseded = kept is not None and text is not None and text not in (kept, rewritten(kept))
        kept = None if superseded else kept
        settings = read_settings(CONFIGURATION, (text if kept is None else kept) or "") if policy.present else {}
        return Observation(
            apt=True, installed=dict(self.installed), url=url, configured_in=self.elsewhere, sources=sources, key=key,
            pin=self.files.get(catalogue.PIN), wanted_key="key\n" if asked and not self.elsewhere else "",
            offered=offered, configuration=text, settings=settings,
            runtimes=self.runtimes if policy.present and not policy.low_level_runtimes else (), kept=kept,
            superseded=superseded, created=self.originals.get(CONFIGURATION, "") is None,
            as_made=None in self.installed.values() and bool(self.writes) and text in (
                self.writes[-1]["after"], rewritten(self.writes[-1]["after"])),
            unknown=unknown_keys(CONFIGURATION, text or "") if policy.present else (),
            runtimes_ours=observation._is_ours(self.writes, settings.get(RUNTIMES)),
            executable=tuple(name for name in policy.low_level_runtimes or settings.get(RUNTIMES, ())
                             if name in self.programs),
            restore=() if policy.present else tuple(
                restore_step("toolkit", path, self.files.get(path), before) for path, before in self.originals.items()),
            removable={} if policy.present else dict(self.installed_by_us),
            transaction=self._transaction(policy, offered) if asked else None,
            unfinished=torn.Unfinished() if policy.present or not self.installed_by_us else self.unfinished)

    def _transaction(self, policy: Policy, offered: Any) -> Optional[Simulation]:
        version = observation.version_of(self.installed, offered, policy.version)
        request = {name: version for name, have in self.installed.items() if version and have != version}
        if not request:
            return None
        before = {name: have for name, have in self.installed.items() if name in request and have}
        return Simulation(request, (), before=before, request=request, allow_downgrade=policy.allow_downgrade)

    @property
    def is_touched(self) -> bool:
        return super().is_touched or bool(self.installed_by_us)

    def of_others(self) -> Dict[str, Any]:
        """A package that was there stays, in the version of the others."""
        there = sorted(name for name, version in self.installed.items() if version)
        return {**super().of_others(), "packages": there, "kept": self.kept}

    def _tell(self) -> None:
        version = self.installed["nvidia-container-toolkit-base"]
        self.facts = self.facts.but(toolkit=version.rsplit("-", 1)[0] if version else "")

    # verbs

    def file_write(self, step: Step) -> None:
        super().file_write(step)
        if step.subject == CONFIGURATION:
            self.writes.append(dict(step.change))

    def settings_keep(self, step: Step) -> None:
        self.kept = step.change["after"]

    def settings_put_back(self, step: Step) -> None:
        """Over what the packages' script left; what somebody has written meanwhile stays."""
        text = self.files.get(CONFIGURATION)
        kept = step.change["after"] if self.kept is None else self.kept
        if text is None or text in (kept, rewritten(kept)):
            self.files[CONFIGURATION] = step.change["after"]
        self.kept = None

    def packages_install(self, step: Step) -> None:
        for name, version in step.change["after"].items():
            assert step.change["before"][name] == self.installed[name], "%s says another version" % name
            if self.installed[name] is None or name in self.installed_by_us:
                self.installed_by_us[name] = version
            self.installed[name] = version
        self.files[CONFIGURATION] = rewritten(self.files.get(CONFIGURATION, ""))
        self._tell()

    def dpkg_unpack(self, step: Step) -> None:
        left = self.unfinished
        assert set(step.change["after"]) == set(left.torn)
        self.unfinished = replace(left, torn={}, broken=tuple(sorted({*left.broken, *left.torn})))

    def dpkg_configure(self, step: Step) -> None:
        assert not self.unfinished.torn, "dpkg configures nothing that is torn"
        waiting = tuple(sorted(self.waiting.intersection(self.unfinished.broken)))
        self.unfinished = torn.Unfinished(broken=waiting, ours=bool(waiting))

    def packages_remove(self, step: Step) -> None:
        assert step.parameters.get("by_dpkg") or self.unfinished == torn.Unfinished(), \
            "apt removes nothing while packages are unfinished"
        for name in step.change["after"]:
            assert step.change["before"][name] == self.installed[name] == self.installed_by_us.pop(name)
            self.installed[name] = None
        self._tell()

    # what scenarios say

    def say_installed(self, version: str) -> None:
        """Somebody has installed the packages."""
        self.installed = dict.fromkeys(PACKAGES, version)
        self._tell()

    def say_repository(self, _in: str, path: str) -> None:
        """'repository in PATH': somebody else's entry names it."""
        self.elsewhere = path

    def say_runtimes(self, *paths: str) -> None:
        """What the container runtime starts containers with, all of them there."""
        self.runtimes = self.programs = paths

    def say_programs(self, *paths: str) -> None:
        """Low-level runtimes that are there."""
        self.programs = paths

    def say_waiting(self, *packages: str) -> None:
        """What cannot be configured, as a dependency is of another version."""
        self.waiting = frozenset(packages)

    def say_stopped(self, *words: str) -> None:
        """dpkg was stopped: 'PACKAGE=VERSION' is torn, 'PACKAGE' unconfigured; 'foreign': it was somebody else's."""
        ours = "foreign" not in words
        found = [word.partition("=") for word in words if word != "foreign"]
        self.unfinished = torn.Unfinished(
            {name: torn.Torn(ours, (version,)) for name, _equals, version in found if version},
            tuple(sorted(name for name, _equals, _version in found)), interrupted=True, ours=ours)


def rewritten(text: str) -> str:
    """What the packages' post-install script makes of config.toml: the same values without a comment."""
    lines = (line.partition(" #")[0] for line in text.splitlines() if not line.startswith("#"))
    return "".join(line + "\n" for line in lines)
