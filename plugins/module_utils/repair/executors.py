# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remedies. Each attempt is on the disk before it is made; what became of it is written down as soon as it has ended,
in the record of attempts and, where it has gone well, in the state of the host's health: a compute check that passes
after that ends the finding."""
from __future__ import annotations

import contextlib
from typing import Dict, List, Mapping, Set, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.rights import asked_by
from ..core.steps import Executor
from ..hardware.loaded import give_up, load_of
from ..hardware.recovery import NONE, OUT, RELOAD, SERVICE
from ..hardware.reset import Act, finish_interrupted, finishing, reset
from ..hardware.reset_plan import FINISH
from ..health.findings import GPU, Subject
from ..health.ledger import ACTION
from ..health.state import forget as forget_findings
from ..health.state import give_up as give_up_parts
from ..health.state import kept, note_remedy, taken_back
from . import attempts
from .attempts import Part
from .planner import BEGIN, FINDINGS, FORGET, RESETS, RESTARTED
from .policy import NAME, Policy


def _begun(host: Host, step: Step) -> int:
    """Write an attempt down."""
    parts = [Part(*each) for each in step.parameters["parts"]]
    keys = _keys(step)
    findings = sorted(each.key for each in kept(host).findings.values() if each.subject.key in keys)
    return attempts.begin(host, step.parameters["rung"], load_of(host), asked_by(), parts, findings)


def _failed(host: Host, number: int, why: GpuOpsError) -> None:
    """Where that cannot be written down either, the first error is the one to be told."""
    with contextlib.suppress(GpuOpsError):
        attempts.end(host, number, attempts.FAILED, why.found)


def forget(host: Host, journal: Journal, step: Step) -> None:
    if step.subject == FINDINGS:
        forget_findings(host)
    else:
        host.remove(attempts.PATH)


def executors_of(policy: Policy) -> Mapping[str, Executor]:
    """How the host is watched is in no step: it may be a long text."""

    def begin(host: Host, journal: Journal, step: Step) -> None:
        # Before it counts as tried: a load that nobody has given up is never replaced
        if step.parameters["rung"] == RELOAD:
            give_up(host)
        _begun(host, step)
        if step.parameters["rung"] == OUT:
            give_up_parts(host, policy.health, _keys(step))

    def restart(host: Host, journal: Journal, step: Step) -> None:
        number = _begun(host, step)
        # A unit that failed too often in a row is refused by systemd until it is reset
        host.run(["systemctl", "reset-failed", step.subject], check=False)
        try:
            host.systemctl("restart", step.subject)
        except GpuOpsError as error:
            _failed(host, number, error)
            raise
        for key in _keys(step):
            note_remedy(host, policy.health, SERVICE, key, _told(step))
        attempts.end(host, number, attempts.DONE)

    def reset_gpus(host: Host, journal: Journal, step: Step) -> None:
        begun: List[int] = []
        sick = _asked_by_driver(host, step)
        gpus = tuple((uuid, address) for uuid, address in step.parameters["gpus"])
        why = "%s: %s" % (step.subject, step.why)

        def mended() -> None:
            # Before daemons come back: what they meet was not mended by it
            for key in {Subject(GPU, uuid, address=address).key for uuid, address in gpus}.union(_keys(step)):
                note_remedy(host, policy.health, step.parameters["rung"], key, _told(step))

        try:
            # What is refused before anything is touched was not tried
            is_done = reset(host, journal, Act(NAME, why, gpus, step=step.id, sick=sick),
                            lambda: begun.append(_begun(host, step)), mended)
        except GpuOpsError as error:
            for number in begun:
                _failed(host, number, error)
            raise
        if not is_done:
            taken_back(host, policy.health, sick)
            for number in begun:
                attempts.end(host, number, attempts.DONE, "the driver asked for no reset any more once nobody had it")
            return
        for number in begun:
            attempts.end(host, number, attempts.DONE)

    return {RESTARTED: restart, RESETS: finishing(reset_gpus), BEGIN: begin}


def _asked_by_driver(host: Host, step: Step) -> Tuple[str, ...]:
    """UUIDs of the GPUs of a reset, where all of it is for what the driver itself asks for."""
    keys = _keys(step)
    reasons = [each for each in kept(host).findings.values()
               if each.subject.key in keys and each.remedy != NONE and not each.mended]
    asked = tuple(each.subject.uuid for each in reasons if each.code == ACTION and each.subject.uuid)
    return asked if len(asked) == len(reasons) and {each.subject.key for each in reasons} == keys else ()


def _keys(step: Step) -> Set[str]:
    return {part[0] for part in step.parameters["parts"]}


def _told(step: Step) -> str:
    return "%s of %s, by %s" % (step.parameters["rung"].replace("_", " "), step.subject, asked_by())


EXECUTORS: Dict[str, Executor] = {FINISH: finish_interrupted, FORGET: forget}
