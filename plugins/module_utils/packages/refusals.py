# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a transaction cannot be, in the words of every capability that has packages. Pure."""
from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.plan import Refusal
from . import space
from .model import Simulation
from .space import Space


def unsolvable(capability: str, transaction: Simulation, unread: Tuple[str, ...], wanted: str) -> Refusal:
    """unread: sources of the host that apt cannot read, in its words; what is missing may stand in one of them."""
    return Refusal(
        capability, "apt would refuse the transaction: %s" % " | ".join((transaction.problem,) + unread),
        "%s with everything it depends on" % wanted,
        "see that the host's own sources are complete and can be read (apt-get update)")


def removes_others(capability: str, names: Sequence[str]) -> Refusal:
    return Refusal(
        capability, "apt would remove %s" % ", ".join(names), "a transaction that removes nothing of others",
        "see what they conflict with (apt-get --simulate install), or choose another version")


def held_packages(capability: str, versions: Mapping[str, str], wanted: str, otherwise: str = "") -> Refusal:
    """versions: {package: version} of what somebody holds; otherwise: what can be done instead of unholding it."""
    return Refusal(
        capability, "held packages (apt-mark hold): %s" % ", ".join(
            ("%s %s" % item).strip() for item in versions.items()),
        wanted, "apt-mark unhold %s%s" % (" ".join(versions), otherwise))


def no_bindings(capability: str) -> Refusal:
    return Refusal(
        capability, "no python3-apt for the Python that Ansible uses on this host, nor for /usr/bin/python3",
        "the library that ansible.builtin.apt works with", "apt-get install python3-apt")


def no_space(
    capability: str, room: Optional[Space], transaction: Simulation, hints: Mapping[str, str]
) -> List[Refusal]:
    """Of every file system that the transaction would fill. hints: {folder of it: how room is made there}."""
    lacking = space.lacking(room, transaction) if room else []
    return [Refusal(
        capability, "%d MiB free for %s" % (free // space.MIB, folder),
        "%d MiB for this transaction" % -(-need // space.MIB), "make room on that file system" + hints.get(folder, ""),
    ) for folder, need, free in lacking]
