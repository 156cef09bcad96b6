# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The license's own actions. What is written is noted as unknown to the service that runs before it is written."""
from __future__ import annotations

from typing import Dict, List, Mapping

from ..core import assignments, daemons
from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, restore_file, write_file
from ..core.waiting import wait_for
from ..hardware.node import host_facts
from ..hardware.nvml import LICENSED, forget, reading_of
from .catalogue import UNIT
from .observation import NAME, TOKEN_MODE
from .planner import TOKEN, WAIT
from .policy import Policy, named

PAUSE_SECONDS = 3.0


def secret_executors(policy: Policy) -> Mapping[str, Executor]:
    """The token is in no step, plan or journal."""
    def write(host: Host, journal: Journal, step: Step) -> None:
        if named(policy.token) != step.change["after"]["token"]:
            raise GpuOpsError(
                "vgpu.token_missing",
                found="another `token` than the one of step %s, or none" % step.id,
                wanted="the token that the plan was made with",
                remedy="set `token` to it again, or make a new plan",
                option="token",
            )
        daemons.outdate(host, journal, NAME, UNIT)
        journal.keep_original(NAME, step.subject)
        if host.mode(step.subject) not in (None, TOKEN_MODE):
            host.remove(step.subject)
        host.write(step.subject, policy.token + "\n", TOKEN_MODE)

    return {TOKEN: write}


def write_settings(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    assignments.write(host, journal, step)


def write_configuration(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    write_file(host, journal, step)


def restore_configuration(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    restore_file(host, journal, step)


def restore_settings(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    assignments.restore(host, journal, step)


def start(host: Host, journal: Journal, step: Step) -> None:
    try:
        daemons.begin(host, journal, step)
    except CommandFailed as failure:
        raise GpuOpsError(
            "vgpu.not_started",
            found="%s did not start: %s" % (step.subject, failure.details.get("stderr") or failure.found),
            wanted="the service that fetches the license running",
            remedy="read `journalctl -u %s`; the driver has to be the guest driver of the vGPU software" % step.subject,
            **failure.details) from failure


def wait(host: Host, journal: Journal, step: Step) -> None:
    limit = float(step.parameters["limit"])
    unlicensed, has_all = wait_for(lambda: _unlicensed(host), lambda names: not names, limit, PAUSE_SECONDS)
    if has_all:
        return
    raise GpuOpsError(
        "vgpu.unlicensed",
        found="after %.0f s without a license: %s; %s says: %s" % (
            limit, ", ".join(unlicensed), UNIT, daemons.last_words(host, UNIT) or "nothing"),
        wanted="a license for every virtual GPU",
        remedy="see that this host reaches the license server that `token` names, that its clock is right, and that "
               "licenses are left there; `nvidia-smi -q` shows `License Status`",
        option="token",
    )


def _unlicensed(host: Host) -> List[str]:
    facts = host_facts(host)
    forget()
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    return [reading.error] if reading.error else [
        gpu.named() for gpu in reading.gpus if gpu.license.get("state") != LICENSED]


EXECUTORS: Dict[str, Executor] = {
    WAIT: wait,
    "file.write": write_configuration,
    assignments.WRITE: write_settings,
    "file.restore": restore_configuration,
    assignments.RESTORE: restore_settings,
    "service.start": start,
    "service.restart": start,
    **daemons.EXECUTORS,
}
