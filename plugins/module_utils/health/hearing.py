# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the kernel's log says in one look, and what that makes of findings. Pure.

A GPU may write hundreds of thousands of lines of one error: they are gathered first, and are one finding with a count.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict

from ..hardware.recovery import NONE
from ..validation.compute.levels import LONG
from .catalogue import EVENT, MENDED, SUSPICION, WARNING, Meaning, meaning_of
from .findings import KERNEL_LOG, SWITCH, Subject, key_of
from .kernel_log import Event, gaps, parse_events
from .ledger import Ledger, kind_of_action, worst
from .model import LOG, LOG_GAP

# Lines of one number that are less than this apart are one occurrence
PAUSE_SECONDS = 60
# So that nothing grows for ever
MOST_COUNTED, MOST_SUSPECTS = 500, 16
SUSPECT = "suspicion"


@dataclass
class _Heard:
    """Lines of one number about one subject in one look; kind and remedy are the worst of them.

    times: how often with a pause before. at: when last. text: of the last line. undecided: as of a finding. check: that
    is asked for.
    """

    subject: Subject
    meaning: Meaning
    kind: str
    remedy: str
    code: str
    first: float
    at: float
    text: str = ""
    undecided: bool = False
    check: str = ""
    count: int = 0
    times: int = 0


def hear(ledger: Ledger) -> None:
    if ledger.look.records is None:
        ledger.set_unknown(LOG, "the kernel's log cannot be read")
        _unheard(ledger)
        return
    ledger.unknown.pop(LOG, None)
    _decide(ledger)
    missing = gaps((record.sequence for record in ledger.records), ledger.sequence)
    if missing:
        ledger.set_unknown(LOG_GAP, "%d records of the kernel's log were overwritten before they were read" % sum(
            last - first + 1 for first, last in missing))
        _unheard(ledger)
    heard: Dict[str, _Heard] = {}
    suspected: Dict[str, Subject] = {}
    for event in parse_events(ledger.records):
        subject = Subject(SWITCH, address=event.address) if event.is_switch else ledger.gpu_at(event.address)
        _count(ledger, subject, _code(event))
        if event.action >= 0:
            _told_action(ledger, subject, event)
        elif _is_suspicion(ledger, event, subject, heard):
            suspected[subject.key] = subject
    for each in heard.values():
        _judge(ledger, each)
    for subject in suspected.values():
        _judge_suspect(ledger, subject)
    ledger.sequence = max((record.sequence for record in ledger.records), default=ledger.sequence)


def _unheard(ledger: Ledger) -> None:
    """What could not be heard may have come again."""
    for key, finding in ledger.findings.items():
        if finding.source == KERNEL_LOG:
            ledger.findings[key] = replace(finding, quiet=ledger.clock, proof=ledger.passed(finding.subject))


def _decide(ledger: Ledger) -> None:
    """The driver's own word on what was heard while nobody asked it."""
    for key, finding in ledger.findings.items():
        action = getattr(ledger.answering.get(finding.subject.uuid), "recovery_action", None)
        # After a remedy it says nothing of what was before that
        if finding.undecided and action is not None and not finding.mended:
            kind, remedy = kind_of_action(action)
            ledger.findings[key] = replace(finding, kind=kind, remedy=remedy, undecided=False, quiet=ledger.clock)


def _when(ledger: Ledger, event: Event) -> float:
    """In seconds since the epoch, by the clock of now."""
    return ledger.look.at - ledger.look.taken / 1e9 + event.at / 1e6


def _is_suspicion(ledger: Ledger, event: Event, subject: Subject, heard: Dict[str, _Heard]) -> bool:
    """Sort a line where it belongs; whether it makes its GPU suspect."""
    gpu = ledger.gpus.get(subject.uuid)
    meaning = meaning_of(event, ledger.policy.overrides, "" if gpu is None else gpu.capability)
    if meaning.kind == SUSPICION and event.process:
        recent = [each for each in ledger.suspects.get(subject.key, ()) if each[1] != event.process]
        ledger.suspects[subject.key] = (*recent, (_when(ledger, event), event.process))[-MOST_SUSPECTS:]
        return True
    if meaning.kind in (EVENT, SUSPICION):
        return False
    kind, remedy, undecided, check = meaning.kind, meaning.remedy, False, meaning.check
    at, key = _when(ledger, event), key_of(subject, _code(event))
    if meaning.by_action and kind in MENDED:
        action = getattr(ledger.answering.get(subject.uuid), "recovery_action", None)
        undecided = action is None
        kind, remedy = (kind, remedy) if action is None else kind_of_action(action)
    if ledger.sequence < 0 and ledger.now - at >= ledger.policy.old_seconds and kind in MENDED:
        kind, remedy, undecided, check = WARNING, NONE, False, LONG
    each = heard.get(key)
    if each is None:
        known = ledger.findings.get(key)
        is_later = (known is None or known.last.boot != ledger.look.boot
                    or at - known.last.at - ledger.moved >= PAUSE_SECONDS)
        each = heard[key] = _Heard(subject, meaning, kind, remedy, _code(event), at, at, times=int(is_later))
    each.times += int(at - each.at >= PAUSE_SECONDS)
    each.kind, each.remedy = worst((each.kind, each.remedy), (kind, remedy))
    each.undecided, each.check = undecided, check if each.kind == WARNING else ""
    each.count, each.at, each.text = each.count + 1, at, event.text
    return False


def _judge(ledger: Ledger, heard: _Heard) -> None:
    key = key_of(heard.subject, heard.code)
    before = ledger.findings.get(key)
    times = heard.times + (before.times if before else 0)
    kind, remedy = heard.kind, heard.remedy
    if times + _times_before(ledger, key) < heard.meaning.after:
        kind, remedy = WARNING, NONE
    if before is not None:
        kind, remedy = worst((before.kind, before.remedy), (kind, remedy))
    ledger.begin(heard.subject, KERNEL_LOG, heard.code, kind, remedy, heard.meaning.text, heard.at,
                 first=heard.first, detail=heard.text, times=times, check=heard.check if kind == WARNING else "",
                 undecided=heard.undecided and (before is None or before.undecided),
                 count=heard.count + (before.count if before else 0))


def _times_before(ledger: Ledger, key: str) -> int:
    """How often what was cleared had come; what a person has released is forgotten."""
    times = 0
    for finding in ledger.history:
        if finding.key == key:
            times = 0 if finding.cleared_by.startswith("released") else times + finding.times
    return times


def _judge_suspect(ledger: Ledger, subject: Subject) -> None:
    """Errors of applications are their own, unless several processes have them on one GPU."""
    recent = tuple(each for each in ledger.suspects[subject.key]
                   if ledger.now - each[0] < ledger.policy.suspicion_seconds)
    ledger.suspects[subject.key] = recent
    if len(recent) >= ledger.policy.suspicion_processes:
        ledger.begin(subject, KERNEL_LOG, SUSPECT, WARNING, NONE, "%d processes had errors of applications" % len(
            recent), recent[-1][0], check=LONG, detail=", ".join(process for _at, process in recent),
            count=len(recent))


def _told_action(ledger: Ledger, subject: Subject, event: Event) -> None:
    """The log says what the driver asks for; NVML says it later, where it says it."""
    gpu = ledger.answering.get(subject.uuid)
    if gpu is None or gpu.recovery_action is None:
        ledger.asked_for(subject, KERNEL_LOG, event.action, _when(ledger, event))


def _count(ledger: Ledger, subject: Subject, code: str) -> None:
    of_it = ledger.counts.setdefault(subject.key, {})
    if code in of_it or sum(map(len, ledger.counts.values())) < MOST_COUNTED:
        of_it[code] = of_it.get(code, 0) + 1


def _code(event: Event) -> str:
    return "%s %d" % ("sxid" if event.is_switch else "xid", event.number)
