# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a transaction cannot be, in the words of every capability that has packages. Pure."""
from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.refusal import Refusal
from . import space
from .model import Simulation
from .space import Space


def unsolvable(transaction: Simulation, unread: Tuple[str, ...], wanted: str) -> Refusal:
    """unread: sources of the host that apt cannot read, in its words; what is missing may stand in one of them."""
    return Refusal(
        "packages.unsolvable", "apt would refuse the transaction: %s" % " | ".join((transaction.problem,) + unread),
        "%s with everything it depends on" % wanted,
        "see that the host's own sources are complete and can be read (`apt-get update`)")


def removes_others(names: Sequence[str]) -> Refusal:
    return Refusal(
        "packages.removes_others",
        "apt would remove %s" % ", ".join(names), "a transaction that removes nothing of others",
        "see what they conflict with (`apt-get --simulate install`), or choose another version")


def held_packages(versions: Mapping[str, str], wanted: str, otherwise: str = "") -> Refusal:
    """versions: {package: version} of what somebody holds; otherwise: what can be done instead of unholding it."""
    return Refusal(
        "packages.held", "held packages (apt-mark hold): %s" % ", ".join(
            ("%s %s" % item).strip() for item in versions.items()),
        wanted, "run `apt-mark unhold %s`%s" % (" ".join(versions), otherwise))


def no_bindings() -> Refusal:
    return Refusal(
        "packages.no_bindings",
        "no python3-apt for the Python that Ansible uses on this host, nor for /usr/bin/python3",
        "the library that ansible.builtin.apt works with", "run `apt-get install python3-apt`")


def no_space(room: Optional[Space], transaction: Simulation, hints: Mapping[str, str]) -> List[Refusal]:
    """Of every file system that the transaction would fill. hints: {directory of it: how room is made there}."""
    lacking = space.lacking(room, transaction) if room else []
    return [Refusal(
        "packages.no_space", "%d MiB free for %s" % (free // space.MIB, directory),
        "%d MiB for this transaction" % -(-need // space.MIB),
        "free space on that file system" + hints.get(directory, ""),
    ) for directory, need, free in lacking]
