# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a transaction cannot be, in the words of every capability that has packages. Pure."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.plan import Step
from ..core.refusal import Refusal
from . import space
from .model import Simulation
from .rpm import database
from .space import Space


@dataclass(frozen=True)
class Words:
    """What people type with a package manager: to read its sources, to simulate, to see and to end a hold."""

    update: str
    simulate: str
    holds: str
    unhold: str
    library: str
    install: str


WORDS = {
    "apt": Words("apt-get update", "apt-get --simulate install", "apt-mark hold", "apt-mark unhold %s",
                 "no python3-apt for the Python that Ansible uses on this host, nor for /usr/bin/python3",
                 "apt-get install python3-apt"),
    "dnf": Words("dnf makecache", "dnf --assumeno install", "dnf versionlock list", "dnf versionlock delete %s",
                 "no library of dnf for the Pythons of this host", "dnf install python3-dnf"),
    "zypper": Words("zypper refresh", "zypper install --dry-run", "zypper locks", "zypper removelock %s",
                    "no zypper on this host", "rpm --upgrade zypper-*.rpm"),
}


def unsolvable(
    transaction: Simulation, unread: Tuple[str, ...], wanted: str, manager: str = "apt",
    enabled_first: Tuple[str, ...] = ()
) -> Refusal:
    """unread: sources of the host that the manager cannot read, in its words; what is missing may stand in one of them.
    enabled_first: repositories that the transaction may need."""
    return Refusal(
        "packages.unsolvable", "%s would refuse the transaction: %s" % (
            manager, " | ".join((transaction.problem,) + unread)),
        "%s with everything it depends on" % wanted,
        "see that the host's own sources are complete and can be read (`%s`)%s" % (
            WORDS[manager].update, ", %s among them" % " and ".join(enabled_first) if enabled_first else ""))


def unforeseen(step: Step, transaction: Simulation, manager: str = "apt") -> List[Refusal]:
    """Why a package step is not carried out, though it was planned: its manager would not do it by now, or would do
    more than the step says. transaction: what it says that it would do."""
    before, after = transaction.change
    planned = step.change["after"]
    wanted = ", ".join(_told(name, step.change["before"].get(name), version)
                       for name, version in sorted(planned.items()))
    more = [_told(name, before[name], version) for name, version in sorted(after.items())
            if name not in planned or planned[name] != version]
    if transaction.problem:
        return [Refusal(
            "packages.refused_by_now", "%s would refuse the transaction: %s" % (manager, transaction.problem), wanted,
            "see that this host's own sources can be read (`%s`) and that nobody holds what is to change, and make a "
            "new plan" % WORDS[manager].update)]
    return [Refusal(
        "packages.would_do_more", "%s would change %s" % (manager, ", ".join(more)), wanted,
        "make a new plan: packages, sources or holds of this host have changed since this one")] if more else []


def refuse_unforeseen(step: Step, transaction: Simulation, manager: str) -> None:
    refusals = unforeseen(step, transaction, manager)
    if refusals:
        raise GpuOpsError.because(refusals)


def _told(name: str, before: Optional[str], after: Optional[str]) -> str:
    return "%s (%s -> %s)" % (name, before or "nothing", after or "nothing")


def removes_others(names: Sequence[str], manager: str = "apt") -> Refusal:
    return Refusal(
        "packages.removes_others",
        "%s would remove %s" % (manager, ", ".join(names)), "a transaction that removes nothing of others",
        "see what they conflict with (`%s`), or choose another version" % WORDS[manager].simulate)


def held_packages(
    versions: Mapping[str, str], wanted: str, otherwise: str = "", manager: str = "apt"
) -> Refusal:
    """versions: {package: version} of what somebody holds; otherwise: what can be done instead of unholding it. Held is
    a name, where it has its version in it the name without."""
    names = dict.fromkeys(database.without_version(*item) for item in versions.items())
    return Refusal(
        "packages.held", "held packages (%s): %s" % (WORDS[manager].holds, ", ".join(
            ("%s %s" % item).strip() for item in versions.items())),
        wanted, "run `%s`%s" % (WORDS[manager].unhold % " ".join(names), otherwise))


def excluded_packages(names: Sequence[str], wanted: str) -> Refusal:
    """names: packages that dnf leaves out, of a repository or of what is installed, where nobody has locked them."""
    return Refusal(
        "packages.excluded",
        "dnf leaves out %s (excludepkgs in dnf.conf or a .repo file, or a plugin)" % ", ".join(names), wanted,
        "take them out of `excludepkgs` (`dnf config-manager --dump`, for a repository with its name), or ask for a "
        "version that the plugin lets through")


def no_bindings(manager: str = "apt") -> Refusal:
    return Refusal(
        "packages.no_bindings", WORDS[manager].library, "the library that ansible.builtin.%s works with" % manager,
        "run `%s`" % WORDS[manager].install)


def no_space(room: Optional[Space], transaction: Simulation, hints: Mapping[str, str]) -> List[Refusal]:
    """Of every file system that the transaction would fill. hints: {directory of it: how room is made there}."""
    lacking = space.lacking(room, transaction) if room else []
    return [Refusal(
        "packages.no_space", "%d MiB free for %s" % (free // space.MIB, directory),
        "%d MiB for this transaction" % -(-need // space.MIB),
        "free space on that file system" + hints.get(directory, ""),
    ) for directory, need, free in lacking]
