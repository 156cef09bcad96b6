# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a driver comes from: one object a source, with all that is particular to it. Pure.

Nothing else asks which source a policy names: it asks the source.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Pattern, Tuple

from ..core.errors import GpuOpsError
from ..core.facts import HostFacts
from . import catalogue
from .catalogue import RepositoryKey


@dataclass(frozen=True)
class Source:
    """A source of drivers.

    name:            as the policy has it.
    installs:        whether packages are installed from it; otherwise the driver is there, or it is refused.
    of_distribution: whether its packages are named as the distribution names them, else as NVIDIA does.
    has_repository:  whether its repository is ours to configure, with its key and the policy's credentials.
    has_index:       whether the package manager's index tells what it has.
    has_default:     whether NVIDIA's directory is its repository where the policy names none.
    needs_version:   whether several branches lie in it side by side, so that the policy has to name one.
    has_guests:      whether the guest driver of NVIDIA's vGPU software may lie in it, as a package: that brings the
                     service which fetches licenses. By NVIDIA's installer that was never tried.
    is_installer:    whether a driver is one file that installs itself, and packages only build its kernel module.
    foreign:         packages that came from another source, where they are installed.
    """

    name: str
    installs: bool = True
    of_distribution: bool = False
    has_repository: bool = False
    has_index: bool = False
    has_default: bool = False
    needs_version: bool = False
    has_guests: bool = False
    is_installer: bool = False
    foreign: Pattern[str] = catalogue.ONLY_IN_DISTRIBUTION

    def url(self, given: str, facts: HostFacts) -> str:
        """Directory of the packages, '' where the host's own sources have them, and where nobody has. given: the
        policy's."""
        if given or not self.has_default:
            return given
        return catalogue.default_repository(facts.os_id, facts.os_version, facts.arch)

    def key(self, facts: HostFacts) -> Optional[RepositoryKey]:
        """The key beside the packages, where the policy names none."""
        return catalogue.default_key(facts.os_id, facts.os_version) if self.has_repository else None

    def check(self, version: str, url: str, key: str) -> None:
        """Refuse a policy that this source cannot follow: its version, repository_url and repository_key."""
        self._check_version(version)
        self._check_place(url, key)

    def _check_version(self, version: str) -> None:
        if self.is_installer and "." not in version:
            raise GpuOpsError(
                "driver.runfile_version_not_exact",
                found="`version` %r for `source` %s" % (version, self.name),
                wanted="the exact version of the file, such as 580.178.04: nothing tells which of a branch there are",
                remedy="set `version` to the one that the file has in its name",
                option="version",
            )
        if version or not self.needs_version:
            return
        raise GpuOpsError(
            "driver.no_version",
            found="no `version` for `source` %s" % self.name,
            wanted="a driver version such as 580.178.04, or a branch such as 580",
            remedy="set `version`; NVIDIA's repositories carry several branches side by side",
            option="version",
        )

    def _check_place(self, url: str, key: str) -> None:
        if not self.has_repository or self.has_default or (url and key):
            return
        lacking = "repository_key" if url else "repository_url"
        raise GpuOpsError(
            "driver.local_repository_incomplete",
            found="`source` %s without `%s`" % (self.name, lacking),
            wanted="the directory of the packages and the key that signed it",
            remedy="set `repository_url` (http, https or file) and `repository_key` (armoured text, path or URL)",
            option=lacking,
        )


ALL: Tuple[Source, ...] = (
    Source("distribution", of_distribution=True, has_index=True, foreign=catalogue.ONLY_AT_NVIDIA),
    Source("nvidia_repository", has_repository=True, has_index=True, has_default=True, needs_version=True),
    Source("local_repository", has_repository=True, has_index=True, needs_version=True, has_guests=True),
    Source("preinstalled", installs=False),
    Source("runfile", has_index=True, is_installer=True, foreign=catalogue.FAMILY),
)
SOURCES: Dict[str, Source] = {source.name: source for source in ALL}
DEFAULT = "nvidia_repository"
