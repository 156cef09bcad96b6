# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings while one look is added to them: they begin, go on, and end by what proves it. Pure."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from ..hardware.nvml import NvmlGpu
from ..hardware.recovery import LADDER, NONE, OUT, POWER_CYCLE, REBOOT, RELOAD, asked_for, satisfies
from ..validation.compute.levels import at_least
from .catalogue import KINDS, PENDING, SICK, WARNING
from .findings import GPU, HOST, NVML, Finding, Moment, Subject, key_of
from .kernel_log import Record, parse_uuids
from .model import STATE, Act, Failing, Known, Look, Released, State, Unknown
from .policy import HealthPolicy

# So that nothing grows for ever
HISTORY, ACTS, MOST_FINDINGS = 200, 50, 500
ACTION, MISSING, LINKS = "recovery_action", "missing", "nvlink"
ASKS_NO_MORE = "the driver asks for nothing any more"
THE_HOST = Subject(HOST)
# In place of what had passed, where that could not be read: all that is there when it can be
_UNREAD = {"": "unread"}


class Ledger:
    """A state, and the look that is added to it. Whoever reads the look tells it what is so; end() then clears what has
    been proved to have ended, and closed() is the state afterwards.

    clock:        the boot's, in seconds, which nobody sets. now: seconds since the epoch, by a clock that may be wrong.
                  moved: for how many seconds that one was set forward since the last look of this boot.
    seen:         keys of what was found in this look, which does not end by it.
    asked, reset: of the state, where that is of this boot.
    answering:    GPUs that NVML answered for, by UUID. answers: whether it answered at all; all_answer: for every GPU.
    """

    def __init__(self, state: State, look: Look, policy: HealthPolicy, now: float) -> None:
        self.state, self.look, self.policy, self.now = state, look, policy, now
        self.clock = look.taken / 1e9
        moved = look.at - self.clock - state.at + state.taken / 1e9 if state.boot == look.boot else 0.0
        # Less it moves by itself
        self.moved = moved if abs(moved) >= 1 else 0.0
        self.gpus: Dict[str, Known] = dict(state.gpus)
        self.findings: Dict[str, Finding] = dict(state.findings)
        self.failing: Dict[str, Failing] = dict(state.failing)
        self.unknown: Dict[str, Unknown] = dict(state.unknown)
        self.suspects: Dict[str, Tuple[Tuple[float, str], ...]] = dict(state.suspects)
        self.counts: Dict[str, Dict[str, int]] = {key: dict(each) for key, each in state.counts.items()}
        self.released: Dict[str, Released] = dict(state.released)
        self.history: List[Finding] = list(state.history)
        self.acts: List[Act] = list(state.acts)
        self.sequence = state.sequence if state.boot == look.boot else -1
        self.asked, self.reset = (state.asked, state.reset) if state.boot == look.boot else (0, 0)
        self.records: Tuple[Record, ...] = tuple(
            record for record in look.records or () if record.sequence > self.sequence)
        self.seen: Set[str] = set()
        reading = look.nvml
        self.answers = reading is not None and not reading.error
        gpus = reading.gpus if reading is not None and self.answers else ()
        self.answering: Dict[str, NvmlGpu] = {gpu.uuid: gpu for gpu in gpus if not gpu.error}
        self.all_answer = self.answers and len(self.answering) == len(gpus)

    def act(self, act: Act, proof: Optional[Mapping[str, str]] = None) -> None:
        """A remedy has been done.

        proof: the compute checks that prove nothing after it, None for all that are there now.
        """
        self.acts.append(act)
        is_whole = not act.subject or LADDER.index(act.remedy) >= LADDER.index(RELOAD)
        is_boot = act.remedy in (REBOOT, POWER_CYCLE)
        for key, finding in self.findings.items():
            # A boot is over before anything is seen in it, whenever somebody says which kind of one it was
            if is_boot and finding.last.boot == self.look.boot:
                continue
            if satisfies(act.remedy, finding.remedy) and (is_whole or act.subject == finding.subject.key):
                self.findings[key] = replace(finding, mended=act.text or act.remedy,
                                             proof=self.passed(finding.subject) if proof is None else proof)

    def learn(self) -> None:
        """Which GPUs there are, and where."""
        for address, uuid in parse_uuids(self.records).items():
            self._place(replace(self.gpus.get(uuid, Known(uuid)), address=address, displaced=False))
        for uuid, gpu in self.answering.items():
            before = self.gpus.get(uuid, Known(uuid))
            self._place(Known(uuid, gpu.serial, gpu.pci_address, gpu.name, gpu.is_divided, gpu.mig_devices,
                              tuple(sorted({*before.links, *gpu.links_up})), gpu.compute_capability))
        if self.all_answer:
            for uuid in [uuid for uuid, known in self.gpus.items() if not (known.address or known.displaced)]:
                self._gone(Subject(GPU, uuid))
        for finding in list(self.findings.values()):
            if finding.subject.kind == GPU and not finding.subject.uuid:
                self._name(finding, self.gpu_at(finding.subject.address))
        named = {Subject(GPU, address=known.address).key for known in self.gpus.values() if known.address}
        # What has failed without a name fails on under it
        self.failing = {key: each for key, each in self.failing.items() if key.partition(": ")[0] not in named}
        if self.look.compute is not None:
            for key, finding in self.findings.items():
                if finding.proof == _UNREAD:
                    self.findings[key] = replace(finding, proof=self.passed(finding.subject))
            for what, unknown in self.unknown.items():
                if unknown.proof == _UNREAD:
                    self.unknown[what] = replace(unknown, proof=self.passed(THE_HOST))

    def forget_links(self) -> None:
        """Another boot or load of the driver may come with fewer NVLinks, which is no fault. Those of a GPU where some
        are found to be down are remembered, as neither has mended them."""
        self.gpus = {uuid: known if key_of(subject_of(known), LINKS) in self.findings else replace(known, links=())
                     for uuid, known in self.gpus.items()}

    def _place(self, known: Known) -> None:
        for uuid, other in self.gpus.items():
            if other.address == known.address and uuid != known.uuid:
                self.gpus[uuid] = replace(other, address="", displaced=known.uuid in self.state.gpus)
        self.gpus[known.uuid] = known

    def _gone(self, subject: Subject) -> None:
        """Another GPU is in its place, and it is in no other."""
        del self.gpus[subject.uuid]
        self.counts.pop(subject.key, None)
        self.suspects.pop(subject.key, None)
        self.failing = {key: each for key, each in self.failing.items() if key.partition(": ")[0] != subject.key}
        for key, finding in list(self.findings.items()):
            if finding.subject.key == subject.key:
                self.clear(key, "another GPU is in its place")

    def _name(self, finding: Finding, subject: Subject) -> None:
        """What was found of a GPU without a name goes on under its name; nobody knows what of it had passed by then."""
        if not subject.uuid:
            return
        del self.findings[finding.key]
        named = replace(finding, subject=subject, proof=self.passed(subject))
        other = self.findings.get(named.key)
        if other is not None:
            kind, remedy = worst((other.kind, other.remedy), (finding.kind, finding.remedy))
            named = replace(other, kind=kind, remedy=remedy, count=other.count + finding.count, mended="",
                            proof=self.passed(subject))
        self.findings[named.key] = named

    def gpu_at(self, address: str) -> Subject:
        known = next((each for each in self.gpus.values() if each.address == address), None)
        return Subject(GPU, address=address) if known is None else subject_of(known)

    def gpu_of(self, uuid: str) -> Subject:
        return subject_of(self.gpus[uuid]) if uuid in self.gpus else Subject(GPU, uuid)

    def passed(self, subject: Subject) -> Dict[str, str]:
        """{UUID: the check that it passed} of those devices of a subject that have passed one."""
        record = self.look.compute
        if record is None:
            return dict(_UNREAD)
        wanted = self._devices(subject) if subject.kind == GPU else list(record["passed"])
        return {device: "%s %s %s" % (record["driver"], passed["at"], passed["level"]) for device in wanted
                for passed in (record["passed"].get(device),) if passed}

    def _devices(self, subject: Subject) -> List[str]:
        """What has to compute for it; of the host and its switches all GPUs, as far as they answer."""
        of_it = [known for known in self.gpus.values() if known.uuid == subject.uuid or (
            subject.kind != GPU and (not self.answers or known.uuid in self.answering))]
        return [device for known in of_it for device in (known.parts if known.divided else (known.uuid,))]

    def _is_proved(self, subject: Subject, before: Mapping[str, str], level: str = "") -> bool:
        """Whether every device of a subject that answers has passed a check since, of at least this level."""
        if not (subject.uuid in self.answering if subject.kind == GPU else self.all_answer and self.answering):
            return False
        devices, passed = self._devices(subject), self.passed(subject)
        return bool(devices) and all(
            device in passed and passed[device] != before.get(device)
            and (not level or at_least(passed[device].split()[-1], level)) for device in devices)

    def level(
        self, subject: Subject, source: str, code: str, is_so: Optional[bool], kind: str, remedy: str, text: str
    ) -> None:
        """What is read anew each time: so, not so, or not to be told. It being not so any more does not clear it."""
        key = key_of(subject, code)
        if is_so is False:
            self.released.pop(key, None)
        elif is_so and not self.is_released(key, kind, remedy):
            self.begin(subject, source, code, kind, remedy, text, self.now)

    def is_released(self, key: str, kind: str, remedy: str) -> bool:
        """Whether a person has said that this is to be left as it is; another kind of it is not that."""
        released = self.released.get(key)
        return released is not None and (released.kind, released.remedy) == (kind, remedy)

    def probe(
        self, subject: Subject, source: str, code: str, fails: Optional[bool], kind: str, remedy: str, text: str,
        seconds: float = 0
    ) -> None:
        """What has to fail several times in a row, and for so long."""
        key, clock = key_of(subject, code), self.look.taken / 1e9
        if not fails:
            if fails is False:
                self.failing.pop(key, None)
                self.level(subject, source, code, False, kind, remedy, text)
            return
        before = self.failing.get(key, Failing(0, clock))
        # No further than they are waited for: what fails for months is no news in each round
        self.failing[key] = replace(before, rounds=min(before.rounds + 1, self.policy.rounds))
        is_long = before.rounds + 1 >= self.policy.rounds and clock - before.since >= seconds
        if is_long or key in self.findings:
            self.level(subject, source, code, True, kind, remedy, text)

    def begin(
        self, subject: Subject, source: str, code: str, kind: str, remedy: str, text: str, at: float,
        first: Optional[float] = None, **more: Any
    ) -> None:
        """Of a finding that is open already, go on. at: when it was seen, in seconds since the epoch. more: fields."""
        key = key_of(subject, code)
        self.seen.add(key)
        moment = Moment(at, self.look.boot)
        before = self.findings.get(key) or Finding(
            subject, source, code, kind, remedy, text,
            first=moment if first is None else replace(moment, at=first), last=moment)
        if before.remedy == OUT:
            # Whatever it is found to be now
            kind, remedy = before.kind, OUT
        self.findings[key] = replace(
            before, subject=subject, kind=kind, remedy=remedy, text=text, last=moment, quiet=self.clock, mended="",
            proof=self.passed(subject), **more)

    def asked_for(self, subject: Subject, source: str, action: int, at: float) -> None:
        """The driver itself says that it has ended."""
        key = key_of(subject, ACTION)
        if not action:
            self.released.pop(key, None)
            if key in self.findings and self.findings[key].remedy != OUT:
                self.clear(key, ASKS_NO_MORE)
            return
        kind, remedy = kind_of_action(action)
        text = "the driver asks for %s (%d)" % (asked_for(action).asks, action)
        if source == NVML:
            self.level(subject, source, ACTION, True, kind, remedy, text)
        else:
            self.begin(subject, source, ACTION, kind, remedy, text, at)

    def clear(self, key: str, why: str) -> None:
        """why: what proved its end."""
        self.history.append(replace(self.findings.pop(key), cleared_by=why, cleared_at=self.now))

    def set_unknown(self, what: str, text: str) -> None:
        """what: one of model.WHATS."""
        before = self.unknown.get(what, Unknown(self.now, text, self.passed(THE_HOST)))
        self.unknown[what] = replace(before, text=text)

    def end(self) -> None:
        """Clear what has been proved to have ended."""
        for key, finding in list(self.findings.items()):
            if key in self.seen:
                continue
            if finding.kind == WARNING:
                self._end_warning(finding)
            elif (finding.mended or finding.remedy == NONE) and self._is_proved(finding.subject, finding.proof):
                self.clear(key, ", and ".join(filter(None, [finding.mended, "a compute check that passed"])))
        self._bound()
        lost = self.unknown.get(STATE)
        if lost is not None and not self.state.boot:
            self.unknown[STATE] = replace(lost, proof=self.passed(THE_HOST))
        elif lost is not None and (self.look.bus == {} or self._is_proved(THE_HOST, lost.proof)):
            del self.unknown[STATE]

    def _end_warning(self, finding: Finding) -> None:
        if finding.check and self._is_proved(finding.subject, finding.proof, finding.check):
            self.clear(finding.key, "a compute check that passed (%s)" % finding.check)
            self.suspects.pop(finding.subject.key, None)
        elif finding.quiet > self.clock:
            self.findings[finding.key] = replace(finding, quiet=self.clock)
        elif self.clock - finding.quiet >= self.policy.warning_seconds:
            self.clear(finding.key, "not seen again")

    def _bound(self) -> None:
        excess = len(self.findings) - MOST_FINDINGS
        warnings = [each for each in self.findings.values() if each.kind == WARNING]
        for finding in sorted(warnings, key=lambda each: each.quiet)[:max(0, excess)]:
            self.clear(finding.key, "left out, as there are too many")
        self.history = self.history[-HISTORY:]
        self.acts = self.acts[-ACTS:]

    def closed(self) -> State:
        look = self.look
        # Who has not asked knows less of who hangs than the state
        left = look.left if look.nvml is not None or self.state.boot != look.boot else self.state.left
        return State(
            boot=look.boot, load=look.load or self.state.load, sequence=self.sequence, taken=look.taken, at=look.at,
            asked=look.taken if look.nvml is not None else self.asked, machine=look.machine or self.state.machine,
            reset=max((number for number, _gpus, _text in look.resets), default=self.reset),
            rounds=self.state.rounds + 1, gpus=self.gpus, findings=self.findings, failing=self.failing,
            unknown=self.unknown, suspects=self.suspects, counts=self.counts, released=self.released,
            services={**self.state.services, **look.services}, left=left, history=tuple(self.history),
            acts=tuple(self.acts))


def subject_of(known: Known) -> Subject:
    return Subject(GPU, known.uuid, known.serial, known.address)


def kind_of_action(action: int) -> Tuple[str, str]:
    """(kind, remedy) of what the driver asks for."""
    if not action:
        return WARNING, NONE
    wanted = asked_for(action)
    return PENDING if wanted.work_stays else SICK, wanted.remedy


def worst(*ways: Tuple[str, str]) -> Tuple[str, str]:
    """(the worst kind, the highest rung) of (kind, remedy)."""
    return (max((kind for kind, _remedy in ways), key=KINDS.index),
            max((remedy for _kind, remedy in ways), key=LADDER.index))


def without(mapping: Mapping[str, Any], keys: Iterable[str]) -> Dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
