# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which package manager a host has, and which one a step is for."""
from __future__ import annotations

from typing import Dict, Mapping, Optional

from ..core.facts import HostFacts
from ..core.plan import Step
from .apt.manager import APT
from .dnf.manager import DNF
from .manager import PackageManager
from .zypper.manager import ZYPPER

__all__ = ("APT", "DNF", "MANAGERS", "ZYPPER", "manager_of", "manager_of_step")

MANAGERS: Dict[str, PackageManager] = {manager.name: manager for manager in (APT, DNF, ZYPPER)}
# By the ID of os-release(5)
_SYSTEMS: Mapping[str, PackageManager] = {
    **dict.fromkeys(("debian", "ubuntu"), APT),
    **dict.fromkeys(("rhel", "rocky", "almalinux", "ol", "amzn", "fedora"), DNF),
    **dict.fromkeys(("sles", "opensuse-leap"), ZYPPER),
}


def manager_of(facts: HostFacts) -> Optional[PackageManager]:
    """The host's package manager, None where it is none that is known here."""
    return _SYSTEMS.get(facts.os_id)


def manager_of_step(step: Step) -> PackageManager:
    """That of a package step; one that an older release has opened names none, and is apt's."""
    return MANAGERS[step.parameters.get("manager", APT.name)]
