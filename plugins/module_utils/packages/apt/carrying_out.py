# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package steps, carried out on the host (manager.PackageManager.carry_out), in the words of ansible.builtin.apt."""
from __future__ import annotations

from typing import List

from ...core.host import Host
from ...core.plan import Step
from ...core.steps import PACKAGES_REMOVE
from ..refusals import refuse_unforeseen
from . import database, running
from .index import simulated
from .transaction import BY_DPKG, LOCK_SECONDS, apt_words, dpkg_words

_SECONDS = 3600


def carry_out(host: Host, step: Step) -> None:
    """See manager.PackageManager.carry_out()."""
    names = _to_remove(host, step)
    if step.action == PACKAGES_REMOVE and not names:
        return
    if step.parameters.get(BY_DPKG):
        # It takes nothing but what it is asked for, and refuses where something else needs that
        argv = [*running.dpkg(host), *dpkg_words(step.to_dict(), names)]
    else:
        words = apt_words(step.to_dict(), names)
        foreseen = simulated(running.apt_get(host, "--simulate", *words, check=False), database.native(host))
        refuse_unforeseen(step, foreseen, "apt")
        if not foreseen.installs and not foreseen.removes:
            return
        argv = ["apt-get", *database.own(host), "-q", "-o", "DPkg::Lock::Timeout=%d" % LOCK_SECONDS, *words]
    running.complain(running.configure(host, argv, _SECONDS, LOCK_SECONDS))


def _to_remove(host: Host, step: Step) -> List[str]:
    """What dpkg knows of what a removal asks for: apt-get ends at a name that is nowhere."""
    if step.action != PACKAGES_REMOVE:
        return []
    packages, purge = database.installed(host), step.parameters.get("purge")
    return [name for name in step.parameters["request"] if name in packages and (purge or packages[name].there)]
