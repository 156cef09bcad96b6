# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a power cut may have taken of packages of which the database and every history say that they came.

rpm brings its database to the disk, and files of packages only where %_flush_io is set, which it is not by default
(rpm's fsm.c and macros.in). So for half a minute they lie in memory, as does what scripts have made.

A step is open until its effect is on the disk (core.capability.Run). So where the host has booted since a transaction
of ours was opened, all that was to come by it and is there is in doubt. To settle the step closes it, so what is in
doubt is noted with us until it has been installed once more.
"""
from __future__ import annotations

import contextlib
from typing import Collection, Dict, Iterator, Mapping, Optional

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import PACKAGES_INSTALL
from .. import torn
from ..model import Package
from . import database

# {package: version}
MEMORY = "rpm_unsynced"


def doubtful(host: Host, packages: Mapping[str, Package]) -> Dict[str, str]:
    """{package: version} of what is there."""
    journal = Journal(host)
    found: Dict[str, Optional[str]] = dict(journal.recall(MEMORY))
    for capability in torn.CAPABILITIES:
        for event in journal.unfinished(capability):
            opened = event.get("transaction") or {}
            if event["step"]["action"] == PACKAGES_INSTALL and opened.get("boot", host.boot()) != host.boot():
                found.update(event["step"]["change"]["after"])
    return _there(packages, found)


def note(host: Host, step: Step, packages: Mapping[str, Package], names: Collection[str]) -> None:
    """Of these packages, those that were to come by a step that the host has booted since."""
    came = {name: version for name, version in _there(packages, step.change["after"]).items() if name in names}
    if came:
        journal = Journal(host)
        journal.remember(MEMORY, {**journal.recall(MEMORY), **came})


@contextlib.contextmanager
def once_more(host: Host, journal: Journal, again: Mapping[str, str]) -> Iterator[None]:
    """While these are installed once more they are in doubt again; what was noted goes when they are on the disk."""
    before = journal.recall(MEMORY)
    journal.remember(MEMORY, {**before, **again})
    try:
        yield
    except GpuOpsError:
        journal.remember(MEMORY, before)
        raise
    host.sync()
    journal.remember(MEMORY, {})


def _there(packages: Mapping[str, Package], coming: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """As the database calls them."""
    named = {database.called(packages, name, version): version
             for name, version in coming.items() if version is not None}
    return {name: version for name, version in named.items() if name in packages and packages[name].version == version}
