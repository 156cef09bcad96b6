# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The systems that the catalogue knows, and what NVIDIA's repository calls them.

Sources: NVIDIA Driver Installation Guide (directories, keys, supported systems); os-release(5) of the distributions.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from ...core.versions import version_key

DEBIAN, UBUNTU, ENTERPRISE, FEDORA, SUSE, AMAZON = "debian", "ubuntu", "enterprise", "fedora", "suse", "amazon"
APT, DNF, ZYPPER = "apt", "dnf", "zypper"

_FAMILIES: Dict[str, str] = {
    "debian": DEBIAN, "ubuntu": UBUNTU, "rhel": ENTERPRISE, "rocky": ENTERPRISE, "almalinux": ENTERPRISE,
    "ol": ENTERPRISE, "fedora": FEDORA, "sles": SUSE, "opensuse-leap": SUSE, "amzn": AMAZON,
}
_MANAGERS: Dict[str, str] = {DEBIAN: APT, UBUNTU: APT, ENTERPRISE: DNF, FEDORA: DNF, AMAZON: DNF, SUSE: ZYPPER}
# The first releases that the tables are right for; what is newer is taken to be like the newest of its family. Names on
# Debian and Ubuntu are those of their older releases, too, which a mirror may still have.
_FIRST: Dict[str, int] = {DEBIAN: 0, UBUNTU: 0, ENTERPRISE: 8, FEDORA: 42, SUSE: 15, AMAZON: 2023}

_DRIVEN: Dict[str, Tuple[int, ...]] = {ENTERPRISE: (9, 10), SUSE: (15, 16)}


@dataclass(frozen=True)
class System:
    """A release of a distribution, as packages see it.

    os_id, version: ID and VERSION_ID of os-release.
    arch:           machine as uname prints it.
    family:         which table names its packages.
    """

    os_id: str
    version: str
    arch: str
    family: str

    @property
    def manager(self) -> str:
        """Its package manager: APT, DNF or ZYPPER."""
        return _MANAGERS[self.family]

    @property
    def major(self) -> int:
        return (version_key(self.version) or (0,))[0]

    @property
    def has_streams(self) -> bool:
        """Whether branches are streams of a dnf module: EL 10 and Fedora have none any more."""
        return self.family == AMAZON or (self.family == ENTERPRISE and self.major < 10)

    def __str__(self) -> str:
        return "%s %s" % (self.os_id, self.version)


def system_of(os_id: str, version: str, arch: str) -> Optional[System]:
    """None for a system that no table names packages for."""
    family = _FAMILIES.get(os_id, "")
    system = System(os_id, version, arch, family)
    # An unstable Debian has no version of its own
    if not family or (version and system.major < _FIRST[family]):
        return None
    return system


def is_driven(system: System) -> bool:
    """Whether a driver is installed there by us; on the others people are told how to (driver/by_hand.py)."""
    return system.manager == APT or system.major in _DRIVEN.get(system.family, ())
