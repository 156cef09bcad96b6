# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""IMEX's own actions. What must not be lost in between (who masked, who disabled) is noted before."""
from __future__ import annotations

import os
from typing import Dict

from ..core import assignments, daemons
from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor
from ..core.waiting import wait_for
from .catalogue import CHANNEL0, CHANNEL_DEVICE, CONTROL, PROGRAM, READY, UNIT
from .observation import DISABLED, MASKED, NAME, major_of_channels, readiness
from .planner import CHANNEL, NODES, WAIT, nodes_text

PAUSE_SECONDS = 1.0


def write_nodes(host: Host, journal: Journal, step: Step) -> None:
    text = nodes_text(tuple(step.change["after"]["nodes"].split()))
    daemons.outdate(host, journal, NAME, UNIT)
    journal.keep_original(NAME, step.subject, text)
    host.write(step.subject, text)


def write_settings(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    assignments.write(host, journal, step)


def start(host: Host, journal: Journal, step: Step) -> None:
    try:
        daemons.begin(host, journal, step)
    except CommandFailed as failure:
        raise GpuOpsError(
            "imex.not_started",
            found="%s did not start: %s" % (step.subject, failure.details.get("stderr") or failure.found),
            wanted="IMEX running",
            remedy="see that an address of this host is among `nodes` and that the others are reached at it; read "
                   "`journalctl -u %s`" % step.subject,
            option="nodes",
            **failure.details) from failure


def mask(host: Host, journal: Journal, step: Step) -> None:
    """As enabling, it does not reload the manager (see core.steps.control_service)."""
    if not journal.recall(NAME).get(MASKED):
        enabled = daemons.read_daemon(host, UNIT, PROGRAM).enabled
        daemons.note(journal, NAME, **{MASKED: "enabled" if enabled else "disabled"})
    host.systemctl("mask", "--no-reload", step.subject)


def unmask(host: Host, journal: Journal, step: Step) -> None:
    host.systemctl("unmask", "--no-reload", step.subject)
    daemons.note(journal, NAME, **{MASKED: ""})


def enable(host: Host, journal: Journal, step: Step) -> None:
    """What we disabled is enabled again, and not ours for that."""
    if journal.recall(NAME).get(DISABLED):
        host.systemctl("enable", "--no-reload", step.subject)
        daemons.note(journal, NAME, **{DISABLED: False})
    else:
        daemons.enable(host, journal, step)


def disable(host: Host, journal: Journal, step: Step) -> None:
    if step.subject not in journal.recall(NAME).get(daemons.ENABLED, []):
        daemons.note(journal, NAME, **{DISABLED: True})
    daemons.disable(host, journal, step)


def create_channel(host: Host, journal: Journal, step: Step) -> None:
    """As the guide has it; an older node may have the major of a driver that was unloaded."""
    major = major_of_channels(host)
    if major is None:
        raise GpuOpsError(
            "imex.no_channels",
            found="/proc/devices has no %s" % CHANNEL_DEVICE,
            wanted="a loaded driver with channels of IMEX",
            remedy="load a driver of branch 550 or newer on a board that has them",
        )
    host.make_directory(os.path.dirname(CHANNEL0), 0o755)
    host.remove(CHANNEL0)
    host.run(["mknod", "--mode=0666", CHANNEL0, "c", str(major), "0"])


def wait(host: Host, journal: Journal, step: Step) -> None:
    limit = float(step.parameters["limit"])
    said, is_ready = wait_for(lambda: readiness(host), lambda said: said == READY, limit, PAUSE_SECONDS)
    if is_ready:
        return
    raise GpuOpsError(
        "imex.not_ready",
        found="after %.0f s `%s -q` says: %s; %s is %s" % (
            limit, CONTROL, said, UNIT, host.unit(UNIT).get("ActiveState", "unknown")),
        wanted=READY,
        remedy="see `%s -N` for the nodes that do not answer and `journalctl -u %s`; with IMEX_WAIT_FOR_QUORUM=FULL it "
               "is not ready before all `nodes` are" % (CONTROL, UNIT),
        option="nodes")


EXECUTORS: Dict[str, Executor] = {
    NODES: write_nodes,
    CHANNEL: create_channel,
    WAIT: wait,
    assignments.WRITE: write_settings,
    assignments.RESTORE: assignments.restore,
    "service.start": start,
    "service.restart": start,
    "service.mask": mask,
    "service.unmask": unmask,
    "service.enable": enable,
    "service.disable": disable,
    daemons.FORGET: daemons.forget,
}
