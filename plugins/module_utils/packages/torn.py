# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages whose unpacking was stopped: which, in which version, and how dpkg comes to finish it.

dpkg neither configures nor removes such a package (dpkg(1): reinst-required), and apt leaves it as it is where its
version is the wanted one. What lies on the disk is of two versions, and dpkg's list of files is that of the one before.
So it is the version that was being unpacked that has to be unpacked again: dpkg then knows every file of it, and any
other version, and a removal, follow from there in the usual way. Where that version cannot be had any more, the one
that dpkg names is taken.

dpkg --unpack asks for no dependency, so several such packages, and a driver that is half of one version and half of
another, are no obstacle; what it leaves is unpacked, and configured as everything that a stopped transaction has left.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step
from ..core.refusal import Refusal
from ..core.steps import PACKAGES_INSTALL, Executor, command_step
from . import space
from .apt import conffiles, database, history, running, transaction
from .model import Package

ACTION = "dpkg.unpack"
CONFIGURE = "dpkg.configure"
# Whose transactions there are
CAPABILITIES = ("driver", "toolkit")


@dataclass(frozen=True)
class Torn:
    """A package that dpkg was unpacking when it was stopped.

    ours:     whether a transaction of ours brought it, changed it or was to do so.
    versions: with which it can be unpacked, the one that was being unpacked first; none where no version is known.
    """

    ours: bool
    versions: Tuple[str, ...]


@dataclass(frozen=True)
class Unfinished:
    """What transactions that were stopped have left.

    torn:        see observe().
    broken:      packages that are neither installed nor gone.
    interrupted: whether dpkg itself was stopped in the middle.
    ours:        whether it was a transaction of ours.
    """

    torn: Mapping[str, Torn] = field(default_factory=dict)
    broken: Tuple[str, ...] = ()
    interrupted: bool = False
    ours: bool = False


def unfinished(host: Host, journal: Journal, packages: Mapping[str, Package]) -> Unfinished:
    """apt refuses every transaction, whoever's packages it is about, before what is interrupted or torn is finished."""
    broken = tuple(sorted(name for name, package in packages.items() if package.unfinished))
    return Unfinished(observe(host, journal, packages), broken, database.interrupted(host), stopped(journal, broken))


def observe(host: Host, journal: Journal, packages: Mapping[str, Package]) -> Dict[str, Torn]:
    """The packages that dpkg wants unpacked anew."""
    there = {name: package for name, package in packages.items() if package.torn}
    if not there:
        return {}
    ours = coming(journal)
    found = {}
    for name, package in there.items():
        named = (ours.get(name), package.version)
        found[name] = Torn(name in ours, tuple(dict.fromkeys(version for version in named if version)))
    return found


def stopped(journal: Journal, unfinished: Collection[str]) -> bool:
    """Whether it was a transaction of ours that left packages unfinished, whichever capability's it was."""
    left_open = any(event["step"]["action"] == PACKAGES_INSTALL
                    for capability in CAPABILITIES for event in journal.unfinished(capability))
    return left_open or bool(unfinished) and set(unfinished) <= set(coming(journal))


def coming(journal: Journal) -> Dict[str, Optional[str]]:
    """{package: version} that transactions of ours gave it or, open still, were to give it; None: to take it away."""
    named: Dict[str, Optional[str]] = {}
    for capability in CAPABILITIES:
        named.update((name, change.after) for name, change in journal.packages(capability).items())
    for capability in CAPABILITIES:
        for event in journal.unfinished(capability):
            if event["step"]["action"] == PACKAGES_INSTALL:
                named.update(event["step"]["change"]["after"])
    return named


def refusals(found: Mapping[str, Torn], lost: Tuple[str, ...] = ()) -> List[Refusal]:
    """Torn packages that are not ours to mend, and those whose versions cannot be had any more."""
    foreign = sorted(name for name, torn in found.items() if not torn.ours)
    told = []
    if foreign:
        told.append(Refusal(
            "packages.torn_of_others",
            "packages whose unpacking was stopped, and which did not come by us: %s" % ", ".join(foreign),
            "a package database in order before packages are added",
            "run `apt-get install --reinstall %s`, or, where it is not wanted, "
            "`dpkg --remove --force-remove-reinstreq %s`" % (" ".join(foreign), " ".join(foreign))))
    if lost:
        told.append(Refusal(
            "packages.torn_and_gone",
            "packages whose unpacking was stopped, and of which neither a source of this host nor %s has a version: %s"
            % (space.ARCHIVES, ", ".join(
                "%s %s" % (name, " or ".join(found[name].versions) or "(?)") for name in lost)),
            "the package, to unpack it again",
            "name a repository that has it, put its .deb into %s, or ask for another version; where it is not wanted, "
            "`dpkg --remove --force-remove-reinstreq %s`" % (space.ARCHIVES, " ".join(lost))))
    return told


def unpack_step(
    capability: str, packages: Mapping[str, str], disruption: Disruption, leaving: Collection[str] = (),
    requires: Tuple[str, ...] = (),
) -> Step:
    """Unpack packages again.

    leaving: those that are to be removed then, and are by force where they cannot be unpacked. Somebody's package may
             need each of the others.
    """
    return Step(
        capability=capability,
        action=ACTION,
        subject="torn packages",
        why="dpkg was stopped while it unpacked them, and does nothing with them before it has done that again.",
        disruption=disruption,
        change={"before": dict.fromkeys(packages, "torn"), "after": dict(packages)},
        parameters={"leaving": sorted(set(leaving).intersection(packages)), "timeout": 3600},
        depends_on=requires,
    )


def configure_step(
    capability: str, broken: Iterable[str], action: str = CONFIGURE, requires: Tuple[str, ...] = ()
) -> Step:
    """Have dpkg finish what it began."""
    names = list(broken)
    return command_step(
        capability, action, "unfinished packages",
        ["dpkg", *transaction.ANSWERS, "--configure", "-a"],
        "A package transaction was stopped before its end.",
        change={"before": dict.fromkeys(names, "unfinished"), "after": dict.fromkeys(names, "configured")},
        requires=requires, timeout=3600)


def unpacked_first(found: Mapping[str, Torn]) -> Dict[str, str]:
    """{torn package of ours: the version to unpack it in before anything is removed, '' where none is known}."""
    return {name: torn.versions[0] if torn.versions else "" for name, torn in found.items() if torn.ours}


def steps_before_removal(
    capability: str, left: Unfinished, disruption: Disruption, leaving: Collection[str]
) -> List[Step]:
    """What comes before packages are removed (leaving) where a transaction of ours was stopped: their scripts take back
    what they have made. disruption: what it disturbs to unpack packages again."""
    ours = unpacked_first(left.torn)
    steps = [unpack_step(capability, ours, disruption, leaving)] if ours else []
    if left.ours and (left.interrupted or left.broken):
        steps.append(configure_step(capability, left.broken, requires=tuple(step.id for step in steps)))
    return steps


def removal_parameters(broken: Iterable[str], ours: bool, leaving: Collection[str]) -> Dict[str, Any]:
    """Parameters of a removal (leaving) where packages are broken; ours: whether a transaction of ours has left them.

    Those of another capability stay half of one version and half of another: only its own removal, or the transaction
    that comes to its end, is something that apt does then. dpkg looks at nothing but what goes and who needs that.
    """
    return {transaction.BY_DPKG: True} if ours and not set(broken).issubset(leaving) else {}


def configure(host: Host, journal: Journal, step: Step) -> None:
    """Executor of configure_step, as far as that goes: what is left is a matter of the transaction that follows."""
    conffiles.renew(host, [])
    running.configure(host, step.parameters["argv"], step.parameters["timeout"])


def unpack(host: Host, journal: Journal, step: Step) -> None:
    """Executor of unpack_step. Raises GpuOpsError when a package that is to stay cannot be had, or dpkg refuses."""
    wanted: Mapping[str, str] = step.change["after"]
    files, told = _archives(host, wanted), ""
    if len(files) < len(wanted):
        try:
            history.refresh(host, {name: wanted[name] for name in wanted if name not in files})
        except GpuOpsError as error:
            told = error.found
        files = _archives(host, wanted)
    lacking = sorted(name for name in wanted if name not in files)
    staying = sorted(set(lacking).difference(step.parameters["leaving"]))
    if staying:
        raise GpuOpsError(
            "packages.torn_and_not_fetched",
            found="no package file of %s can be had: %s" % (
                ", ".join("%s %s" % (name, wanted[name]) for name in staying), told or "apt cannot fetch it"),
            wanted="the packages whose unpacking was stopped, to unpack them again",
            remedy="see that `apt-get download %s` works on this host, or put the .deb into %s" % (" ".join(
                "%s=%s" % (name, wanted[name]) for name in staying), space.ARCHIVES))
    if files:
        _dpkg(host, ["--unpack", *sorted(files.values())], step.parameters["timeout"])
    if lacking:
        _dpkg(host, ["--remove", "--force-remove-reinstreq", "--force-depends", *lacking], step.parameters["timeout"])


def _archives(host: Host, wanted: Mapping[str, str]) -> Dict[str, str]:
    """{package: path of its file} of those that can be had."""
    found = {name: running.archive(host, name, version) for name, version in wanted.items() if version}
    return {name: path for name, path in found.items() if path is not None}


def _dpkg(host: Host, words: List[str], timeout: float) -> None:
    done = running.configure(host, [*running.dpkg(host), *words], timeout)
    if done.rc != 0:
        raise GpuOpsError(
            "packages.torn_and_not_unpacked",
            found="'%s' ended with %d: %s" % (" ".join(done.argv), done.rc, " | ".join(done.stdout.splitlines()[-3:])),
            wanted="packages that can be unpacked",
            remedy="see what stands in dpkg's way; its whole output is in this result",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


EXECUTORS: Dict[str, Executor] = {ACTION: unpack, CONFIGURE: configure}
