# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package steps, carried out on the host (manager.PackageManager.carry_out)."""
from __future__ import annotations

from typing import List, Mapping, Sequence

from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ..apt import running
from ..model import EVERY
from ..refusals import refuse_unforeseen
from ..rpm import database
from . import asking, history
from .index import configured, put_repositories, simulated
from .transaction import specs, words

_SECONDS = 3600


def carry_out(host: Host, journal: Journal, step: Step) -> None:
    """See manager.PackageManager.carry_out()."""
    with host.scratch() as scratch:
        # Its lists were renewed before the step (manager.Zypper.refresh())
        options = [*_repositories(host, scratch, step.parameters.get("without", ())), "--no-refresh"]
        there = database.installed(host)
        done = asking.zypper(host, *options, *words(step, there, only_say=True))
        foreseen = simulated(host, done, step.parameters["request"])
        refuse_unforeseen(step, foreseen, "zypper")
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
