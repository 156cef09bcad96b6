# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The actions of the record of a driver, and of the package files that are kept for the way back to it."""
from __future__ import annotations

import os
from typing import Dict, Mapping

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, managed
from .archive import INDEX, STORE, can_be_unpacked, index_of, keep, kept, prune, repository
from .files import KEPT_SOURCES_FILE
from .observing import LISTS, list_name
from .record import MEMORY, is_archived, strangers
from .rollback import CHECK, FORGET, OFFER, RECORD, WITHDRAW


def write_record(host: Host, journal: Journal, step: Step) -> None:
    """The files before the record that counts on them; what it makes needless last."""
    told = step.parameters["record"]
    keep(host, told["packages"])
    journal.remember(MEMORY, told)
    prune(host, told["packages"], step.parameters["coming"])


def forget_record(host: Host, journal: Journal, step: Step) -> None:
    """Files of what is coming may have been fetched by now."""
    if step.parameters.get("coming"):
        prune(host, {}, step.parameters["coming"])
        journal.remember(MEMORY, {})
        return
    for name in host.list(STORE):
        host.remove("%s/%s" % (STORE, name))
    for directory in (STORE, os.path.dirname(STORE)):
        host.remove_empty_dir(directory)
    journal.remember(MEMORY, {})


def offer(host: Host, journal: Journal, step: Step) -> None:
    """Let apt install from the store: its index first, then the source that names it."""
    check(host, journal, step)
    host.write(INDEX, index_of(host, STORE, kept(host), with_digests=True))
    host.write(KEPT_SOURCES_FILE, managed(repository(host.path(STORE)).sources()))


def check(host: Host, journal: Journal, step: Step) -> None:
    """Have the files in the store, each of them whole."""
    wanted = step.change["after"]
    keep(host, wanted)
    _discard_damaged(host, wanted)
    lost = [name for name, version in wanted.items() if not is_archived(name, version, kept(host))]
    if lost:
        raise GpuOpsError(
            "driver.archive_lost",
            found="package files that were kept for the way back are gone: %s" % ", ".join(sorted(lost)),
            wanted="the files that the plan was made from, in %s" % STORE,
            remedy="run again: the new plan is made from what is there then")


def _discard_damaged(host: Host, packages: Mapping[str, str]) -> None:
    """dpkg finds what cannot be unpacked when half of the former driver is gone, and so does rpm."""
    for name in kept(host):
        path = "%s/%s" % (STORE, name)
        if not strangers([name], packages) and not can_be_unpacked(host, path):
            host.remove(path)


def withdraw(host: Host, journal: Journal, step: Step) -> None:
    """apt forgets the store: its lists first, then the source, as that shows that there is something to take back."""
    beginning = list_name(repository(host.path(STORE)).uri)
    for name in host.list(LISTS):
        if name.startswith(beginning):
            host.remove("%s/%s" % (LISTS, name))
    host.remove(INDEX)
    host.remove(KEPT_SOURCES_FILE)


EXECUTORS: Dict[str, Executor] = {
    RECORD: write_record,
    FORGET: forget_record,
    OFFER: offer,
    CHECK: check,
    WITHDRAW: withdraw,
}
