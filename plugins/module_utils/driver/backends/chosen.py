# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which backend plans for a host."""
from __future__ import annotations

from typing import Dict

from ...core.facts import HostFacts
from ...packages.managers import manager_of
from .apt import BACKEND as APT
from .backend import Backend
from .dnf import BACKEND as DNF
from .zypper import BACKEND as ZYPPER

_BY_MANAGER: Dict[str, Backend] = {each.manager.name: each for each in (APT, DNF, ZYPPER)}


def backend_of(facts: HostFacts) -> Backend:
    """apt's where the host has a package manager that nothing is installed with."""
    manager = manager_of(facts)
    return _BY_MANAGER.get(manager.name, APT) if manager else APT
