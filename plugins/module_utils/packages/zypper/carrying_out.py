# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package steps, carried out on the host: ansible.builtin has no module for zypper.

Before it changes anything zypper is asked once more what it would do, on the host's own repositories and locks: what is
more than the step says is refused. A transaction is never killed: when time is up, the waiting for it ends.
"""
from __future__ import annotations

from typing import Dict, List, Mapping, Sequence

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import PACKAGES_INSTALL, PACKAGES_REMOVE, Executor
from ..apt import running
from ..model import EVERY, Simulation
from ..rpm import database
from . import asking, history
from .index import configured, put_repositories, simulated
from .transaction import specs, words

_SECONDS = 3600


def carry_out(host: Host, journal: Journal, step: Step) -> None:
    """Executor of a package step. What is there already stays as it is, and is no error."""
    with host.scratch() as scratch:
        # Its lists were renewed before the step (manager.Zypper.refresh())
        options = [*_repositories(host, scratch, step.parameters.get("without", ())), "--no-refresh"]
        there = database.installed(host)
        done = asking.zypper(host, *options, *words(step, there, only_say=True))
        foreseen = simulated(host, done, step.parameters["request"])
        _refuse(step, foreseen)
        if not foreseen.installs and not foreseen.removes:
            return
        host.fetches(foreseen.download)
        word = history.begin(host, journal, step, foreseen.change[1])
        environment = ["%s=%s" % item for item in sorted(asking.own_environment(host).items())]
        whole = ["env", *environment, *asking.argv(host, *options, "--userdata", word, *words(step, there))]
        try:
            done = asking.unlocked(host, lambda: running.configure(host, whole, _SECONDS))
            asking.complain(done, specs(step.parameters["request"]))
        finally:
            history.end(host, journal)


def fetch(host: Host, step: Step) -> None:
    """The packages of a step (PACKAGES_DOWNLOAD), to where zypper looks for what it would fetch."""
    wanted = specs(step.parameters["request"])
    with host.scratch() as scratch:
        options = _repositories(host, scratch, step.parameters.get("without", ()))
        done = asking.zypper(
            host, *options, "--no-refresh", "download", *wanted, timeout=asking.FETCH_SECONDS)
    asking.complain(done, wanted)
    if not asking.fetched(done, wanted):
        raise asking.failure(done)


def _repositories(host: Host, scratch: str, without: Sequence[str]) -> List[str]:
    """Words that leave repositories out, none where there are none to leave out."""
    if not without:
        return []
    there: Mapping[str, Mapping[str, str]] = configured(host)
    # Of one that it does not know zypper clears what it has fetched, package files too (libzypp, cleanCacheDirGarbage)
    put_repositories(scratch + "/repos", {
        name: {**options, "enabled": "0"} if {name, EVERY}.intersection(without) else options
        for name, options in there.items()})
    return ["--reposd-dir", scratch + "/repos"]


def _refuse(step: Step, foreseen: Simulation) -> None:
    """Raises GpuOpsError where zypper would not do it, or would do more."""
    before, after = foreseen.change
    wanted = ", ".join(_told(name, step.change["before"].get(name), version)
                       for name, version in sorted(step.change["after"].items()))
    planned = step.change["after"]
    more = [_told(name, before[name], version) for name, version in sorted(after.items())
            if name not in planned or planned[name] != version]
    if foreseen.problem:
        raise GpuOpsError(
            "packages.zypper_refuses", found="zypper would refuse the transaction: %s" % foreseen.problem,
            wanted=wanted, remedy="see that this host's own repositories and locks are in order (`zypper refresh`, "
                                  "`zypper locks`), and make a new plan")
    if more:
        raise GpuOpsError(
            "packages.zypper_would_do_more", found="zypper would change %s" % ", ".join(more), wanted=wanted,
            remedy="make a new plan: packages, repositories or locks of this host have changed since this one")


def _told(name: str, before: object, after: object) -> str:
    return "%s (%s -> %s)" % (name, before or "nothing", after or "nothing")


EXECUTORS: Dict[str, Executor] = {PACKAGES_INSTALL: carry_out, PACKAGES_REMOVE: carry_out}
