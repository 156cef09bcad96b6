# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What our transactions brought, changed and removed: shown by the package manager's own records, never guessed.

A package is ours when the simulated transaction named it, and the manager's records show that very transaction
(apt/history.py, dnf/history.py). Whatever else appeared meanwhile, by an administrator's hand or by the same dependency
asked for by somebody else, is not ours; and what cannot be shown to be ours is not ours either.

What was there when the step was opened is not what we brought, whatever the records say: times in logs are of whole
seconds, and of a clock that may be set meanwhile, so that the changes of others can seem to lie within a transaction of
ours.

A dependency that somebody has asked for since (the manager marks it as chosen by hand) is that person's from then on,
and so is one that stayed when all that is ours was to go, because a package of theirs needed it.
"""
from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal, PackageChange
from ..core.plan import Step
from ..core.steps import CONTROLLER_ACTIONS, PACKAGES_DOWNLOAD, PACKAGES_REMOVE, Executor
from .manager import PackageManager
from .managers import APT, manager_of_step
from .model import EMPTY, MISSING, TORN, WHOLE, Marks, Package

# What our requests have chosen by hand, {capability: names}
MEMORY = "packages"
# What came by us as a dependency and counts as chosen by hand, since the manager could not mark it yet,
# {capability: names}
UNMARKED = "packages_unmarked"
# What was automatic when a transaction of ours was last opened, until it is settled, {capability: names}; kept where
# the manager does not bring that to the disk. The names are the same of each: who has chosen since is heard
MARKED = "packages_marked"


class Provenance:
    """The engine's hook (core.capability.Transactions)."""

    def opened(self, host: Host, step: Step, done: Sequence[str] = ()) -> Dict[str, Any]:
        """Make the host's lists those that the plan was made from, mend what the scripts of packages rely on, and say
        how far the history went by then.

        Whoever has just fetched the packages has renewed the lists for it.
        """
        manager = manager_of_step(step)
        journal = Journal(host)
        account = journal.packages(step.capability)
        _mend_marks(host, journal, manager)
        _refuse_what_others_need(host, manager, step)
        if not manager.syncs_automatic:
            names = sorted(manager.automatic(host))
            journal.remember(MARKED, dict.fromkeys([*journal.recall(MARKED), step.capability], names))
        noted = manager.prepare(host, step, account, _fetched(step, done))
        packages = manager.installed(host)
        return {"known": manager.known(host, step),
                "marks": manager.marks(host).written,
                "account": {name: asdict(change) for name, change in account.items()},
                "boot": host.boot(),
                **noted,
                "there": {name: packages[name].version
                          for name in {*step.change["after"], *step.parameters.get("automatic", ())}
                          if name in packages and packages[name].there}}

    def failed(self, host: Host, step: Step) -> str:
        return ""

    def settle(self, host: Host, journal: Journal, step: Step, opened: Mapping[str, Any]) -> None:
        """Account for what came and went by the transaction.

        It goes on top of the account as it was when the step was opened, so a second time changes nothing. What an
        older release has opened left nothing to show.
        """
        if "known" not in opened:
            return
        manager = manager_of_step(step)
        packages = manager.installed(host)
        came = manager.evidence(host, step, opened, packages)
        followed = _unmarked(host, manager, step, opened, came)
        again = _asked_by_name(host, manager, step, opened, came)
        _mend_marks(host, journal, manager)
        account = {
            name: change for name, change in merged(_account(opened), came).items()
            if change.after is None or (name in packages and packages[name].there)}
        if _is_removed(step, packages):
            came_by_us = {name: packages[name].version for name, change in account.items() if change.before is None}
            go = manager.removable(host, packages, came_by_us)
            account = {name: change for name, change in account.items() if name not in came_by_us or name in go}
        journal.set_packages(step.capability, account)
        unmarked = {name for name in journal.recall(UNMARKED).get(step.capability, ()) if name in account}
        unmarked = (unmarked | followed).difference(_chosen(step))
        if unmarked | again:
            manager.mark_automatic(host, sorted(unmarked | again))
        # Nothing is marked while a manager is interrupted: what it could not mark says nothing of who chose it
        unmarked = unmarked.intersection(account).difference(manager.automatic(host))
        _remember(journal, UNMARKED, step.capability, unmarked)
        chosen = set(journal.recall(MEMORY).get(step.capability, _account(opened))).intersection(_account(opened))
        # What has gone may come again as a dependency
        _remember(journal, MEMORY, step.capability, (chosen | _chosen(step)).intersection(account))
        journal.remember(MARKED, {capability: names for capability, names in journal.recall(MARKED).items()
                                  if capability != step.capability})
        if opened["boot"] != host.boot():
            manager.mend(host, step, account)

    def executor(self, step: Step, alone: bool) -> Optional[Executor]:
        """Its manager; None where ansible.builtin has a module for that, and there is a controller."""
        manager = manager_of_step(step)
        return manager.carry_out if alone or not manager.builtin_module(step.to_dict()) else None


def _is_removed(step: Step, packages: Mapping[str, Package]) -> bool:
    """Whether a removal of all that is ours has done what it was to do: what cannot go even then is needed by packages
    of others. What cannot go while only a part of ours goes may still be in use by us."""
    return step.action == PACKAGES_REMOVE and bool(step.parameters.get("all_of_ours")) and not any(
        name in packages and packages[name].there for name in step.change["after"])


def _remember(journal: Journal, memory: str, capability: str, names: Iterable[str]) -> None:
    journal.remember(memory, {**journal.recall(memory), capability: sorted(names)})


def installed_by_us(
    host: Host, journal: Journal, capability: str, packages: Mapping[str, Package], manager: PackageManager = APT
) -> Dict[str, str]:
    """{package: version there now} of what is ours, transactions that nobody has accounted for yet included."""
    account = journal.packages(capability)
    chosen = {*journal.recall(MEMORY).get(capability, account), *journal.recall(UNMARKED).get(capability, ())}
    for step, opened in _opened(journal, [capability]):
        if "known" in opened:
            came = manager.evidence(host, step, opened, packages)
            account = merged(_account(opened), came)
            chosen |= _chosen(step) | _unmarked(host, manager, step, opened, came)
    here = [name for name, change in sorted(account.items())
            if change.before is None and name in packages and packages[name].there]
    follow = automatic(host, journal, manager) if here else frozenset()
    return {name: packages[name].version for name in here if name in chosen or name in follow}


def _fetched(step: Step, done: Iterable[str]) -> bool:
    return any(each.startswith("%s/%s/" % (step.capability, PACKAGES_DOWNLOAD)) for each in done)


def automatic(host: Host, journal: Journal, manager: PackageManager = APT) -> FrozenSet[str]:
    """Packages that nobody has chosen by hand, also where a power cut has taken what the manager knew of that."""
    return manager.automatic(host) | _lost(host, journal, manager)


def _lost(host: Host, journal: Journal, manager: PackageManager) -> FrozenSet[str]:
    """What was automatic before a transaction of ours in which the power was cut, and is not any more by that.

    Whose files have come since the boot may have been asked for by somebody since, and is left to whoever did.
    """
    kept = {name for names in journal.recall(MARKED).values() for name in names}
    cut = _cut(host, journal)
    if not kept or not cut or not _are_lost(host, manager, manager.marks(host), cut):
        return frozenset()
    kept = kept.difference(manager.automatic(host), *(_chosen(step) for step, _opened in cut))
    return frozenset(kept - manager.came_since(host, kept, host.booted()))


def _are_lost(
    host: Host, manager: PackageManager, marks: Marks, cut: Iterable[Tuple[Step, Mapping[str, Any]]]
) -> bool:
    """Whether a power cut has taken of the marks. Of those that are empty it has where nobody has written them since
    and a transaction of ours had come so far that they were written: they may be somebody's choice otherwise."""
    if marks.state != EMPTY:
        return marks.state in (MISSING, TORN)
    packages = manager.installed(host) if marks.written < host.booted() else {}
    return any(_has_begun(host, manager, step, opened, packages) for step, opened in cut
               if packages and "known" in opened)


def _has_begun(
    host: Host, manager: PackageManager, step: Step, opened: Mapping[str, Any], packages: Mapping[str, Package]
) -> bool:
    """Whether a step's transaction has changed a package, or was changing one: a removal begins with its scripts."""
    return any(packages[name].unfinished for name in step.change["after"] if name in packages) or bool(
        manager.evidence(host, step, opened, packages))


def _cut(host: Host, journal: Journal) -> List[Tuple[Step, Mapping[str, Any]]]:
    """Those that nobody has settled, and that the host has booted since."""
    return [(step, opened) for step, opened in _opened(journal) if opened.get("boot") != host.boot()]


def _opened(journal: Journal, capabilities: Optional[Iterable[str]] = None) -> Iterator[Tuple[Step, Mapping[str, Any]]]:
    """(step, what was noted when it was opened) of the transactions that nobody has settled, None: of those whose marks
    are kept."""
    for capability in journal.recall(MARKED) if capabilities is None else capabilities:
        for event in journal.unfinished(capability):
            step = Step.from_dict(event["step"])
            if step.action in CONTROLLER_ACTIONS:
                yield step, event.get("transaction", {})


def _mend_marks(host: Host, journal: Journal, manager: PackageManager) -> None:
    """Before the manager marks anything else: it is not told any more then that they were lost, nor that nobody but us
    has written since the boot. What it cannot read is written anew, whoever's it was: it would do nothing at all."""
    lost, cut = _lost(host, journal, manager), _cut(host, journal)
    packages = manager.installed(host) if lost or cut else {}
    for step, opened in cut:
        if "known" in opened:
            lost |= _unmarked(host, manager, step, opened, manager.evidence(host, step, opened, packages))
    there = lost.intersection(packages).difference(manager.automatic(host)) if lost else lost
    if there or manager.marks(host).state == TORN:
        manager.mark_automatic(host, sorted(there))


def _unmarked(
    host: Host, manager: PackageManager, step: Step, opened: Mapping[str, Any], came: Mapping[str, PackageChange]
) -> FrozenSet[str]:
    """Of what came by a transaction and only followed, what the manager may not have marked.

    One that never came so far marks nothing, a power cut may have taken it, and what it is asked for it takes for
    chosen by hand. What it has marked and is not marked any more is somebody's choice, and what has come anew since the
    boot may be.
    """
    names = frozenset(name for name, change in came.items()
                      if change.before is None and change.after is not None and name not in _chosen(step))
    if not names:
        return names
    if _is_marked(host, manager, step, opened):
        names = names.intersection(step.parameters.get("automatic", ()))
    return names - manager.came_since(host, names, host.booted()) if opened["boot"] != host.boot() else names


def _is_marked(host: Host, manager: PackageManager, step: Step, opened: Mapping[str, Any]) -> bool:
    """Whether the manager has marked what came by a transaction, and its marks tell that still, or what somebody has
    had it write since the boot.

    A power cut may leave those from before the transaction; and of none at all nobody can tell who has left them.
    """
    marks = manager.marks(host)
    if marks.state in (MISSING, TORN) or not manager.has_marked(host, step, opened):
        return False
    if manager.syncs_automatic or opened["boot"] == host.boot() or marks.written >= host.booted():
        return True
    return marks.state == WHOLE and marks.written > opened.get("marks", marks.written)


def _refuse_what_others_need(host: Host, manager: PackageManager, step: Step) -> None:
    """Raises GpuOpsError where something would go that a removal does not name."""
    if step.action != PACKAGES_REMOVE:
        return
    packages = manager.installed(host)
    goes = {name for name in step.change["after"] if name in packages and packages[name].there}
    needed = sorted(goes.difference(manager.removable(host, packages, goes)))
    if needed:
        raise GpuOpsError(
            "packages.needed_by_others",
            found="packages that the plan removes and that others need by now: %s" % ", ".join(needed),
            wanted="a removal that takes along nothing that it does not name",
            remedy="run again: the plan that is made then leaves them")


def followers(host: Host, journal: Journal, capability: str, manager: PackageManager = APT) -> FrozenSet[str]:
    """Packages that nobody has chosen by hand, as they are marked once the transactions of a capability that are open
    still are settled: a plan that is made before that is the plan of the run that does it."""
    names = set(automatic(host, journal, manager))
    for step, opened in _opened(journal, [capability]):
        if "known" in opened:
            came = manager.evidence(host, step, opened, manager.installed(host))
            # What could not be marked when an earlier one was settled is marked with this one
            unmarked = _unmarked(host, manager, step, opened, came).union(journal.recall(UNMARKED).get(capability, ()))
            names |= unmarked.difference(_chosen(step)) | _asked_by_name(host, manager, step, opened, came)
    return frozenset(names)


def _chosen(step: Step) -> FrozenSet[str]:
    """What a step asks for, and not only as a dependency in one version; a removal chooses nothing."""
    asked = step.parameters["request"] if step.action != PACKAGES_REMOVE else ()
    return frozenset(asked).difference(step.parameters.get("automatic", ()))


def _account(opened: Mapping[str, Any]) -> Dict[str, PackageChange]:
    return {name: PackageChange(**change) for name, change in opened["account"].items()}


def merged(
    account: Mapping[str, PackageChange], came: Mapping[str, PackageChange]
) -> Dict[str, PackageChange]:
    """The account with what came since; a package that is as it was before us leaves it."""
    result = dict(account)
    for name, change in came.items():
        before = result[name].before if name in result else change.before
        if before == change.after:
            result.pop(name, None)
        else:
            result[name] = PackageChange(before, change.after)
    return result


def _asked_by_name(
    host: Host, manager: PackageManager, step: Step, opened: Mapping[str, Any], came: Mapping[str, PackageChange]
) -> FrozenSet[str]:
    """Of what was there and only followed, what counts as chosen by hand since a transaction asked for its version;
    nothing of one that never came so far."""
    names = frozenset(step.parameters.get("automatic", ())).intersection(opened["there"])
    return names if names and (came or manager.has_marked(host, step, opened)
                               or _are_all_chosen(host, manager, names, opened)) else frozenset()


def _are_all_chosen(host: Host, manager: PackageManager, names: FrozenSet[str], opened: Mapping[str, Any]) -> bool:
    """Whether what followed was all chosen by hand since a transaction was opened that changed nothing.

    What ansible.builtin.apt was asked for it marks so in one go, also where apt has failed, by a hook of the host's or
    for a file that cannot be fetched (lib/ansible/modules/apt.py, install). One alone may be somebody's choice.
    """
    marks = manager.marks(host)
    return (len(names) > 1 and marks.state == WHOLE and marks.written > opened.get("marks", marks.written)
            and names.isdisjoint(manager.automatic(host)))
