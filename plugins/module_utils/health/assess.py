# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a look to findings: what begins, what goes on, and what has been proved to have ended. Pure.

Unknown is a third answer: what cannot be read neither raises a finding nor clears one. A look that fails raises one
when it has failed several times in a row; a call that hangs does at once.

What is pending or sick ends by two things together: its remedy, or a higher rung, has been done since it was last
seen (a boot, a load of the driver, a start of the service, or a remedy that was written down), and after that a compute
check has passed. Exceptions are what the driver itself takes back (its recovery action), and what is to be taken OUT:
that ends when a person releases it, or another GPU is in its place. A warning ends after a time in which it could have
been heard and was not.

Order is that of looks, sequence numbers and loads, never that of clocks: a clock may be wrong. What is of one look and
could have come in either order counts as not proved.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from ..hardware.fabric_health import complaints, rung_of
from ..hardware.nvml import NvmlGpu, NvmlReading
from ..hardware.nvml_codes import LOST, RESET_REQUIRED
from ..hardware.recovery import LADDER, NONE, OUT, REBOOT, RELOAD, RESET, asked_for, satisfies
from ..hardware.recovery import SERVICE as RESTART
from ..validation.compute.levels import LONG, at_least
from .catalogue import EVENT, KINDS, MENDED, PENDING, SICK, SUSPICION, WARNING, Meaning, meaning_of
from .findings import COMPUTE, FABRIC, GPU, HOST, KERNEL_LOG, NVML, SERVICE, SWITCH, Finding, Moment, Subject, key_of
from .kernel_log import Event, Record, gaps, parse_events, parse_uuids
from .model import ANSWERS, BUS, COMPUTED, LOG, LOG_GAP, STATE, Act, Failing, Known, Look, State, Unknown
from .policy import HealthPolicy

# Lines of one number that are less than this apart are one occurrence
PAUSE_SECONDS = 60
# So that nothing grows for ever
HISTORY, ACTS, MOST_FINDINGS, MOST_COUNTED, MOST_SUSPECTS = 200, 50, 500, 500, 16
ACTION, MISSING, SUSPECT, FAILED = "recovery_action", "missing", "suspicion", "compute"
_HOST = Subject(HOST)
# What NVML says of a GPU that answers: the attribute, its kind, what mends it, and that in words
_LEVELS = (
    ("remap_failed", SICK, OUT, "a row of memory could not be remapped"),
    ("sram_exceeded", SICK, OUT, "the uncorrectable errors of a cache are more than its threshold"),
    ("remap_pending", PENDING, RESET, "a row of memory is remapped at the next reset"),
)
# Errors of NVML that say what has become of a GPU
_ERRORS = (
    (LOST, "lost", REBOOT, "the driver has lost the GPU"),
    (RESET_REQUIRED, "reset_required", RESET, "the GPU answers nothing before it is reset"),
)


def assess(state: State, look: Look, policy: HealthPolicy, now: float) -> State:
    """The state after a look; as it was where that is not newer than the last, or of no boot that can be told.

    now: seconds since the epoch.
    """
    if not look.boot or (state.boot == look.boot and look.taken <= state.taken):
        return state
    return _Round(state, look, policy, now).done()


def release(state: State, key: str, who: str, now: float) -> State:
    """What a person takes back: all findings of a subject ('gpu GPU-9da9...', 'host'), one by its own key, or that an
    earlier state is unknown ('state'). What goes on to be so is not raised again before it has once been otherwise.

    who: by whom and why.
    """
    chosen = [each for each in state.findings.values() if key in (each.subject.key, each.key)]
    cleared = tuple(replace(each, cleared_by="released by %s" % who, cleared_at=now) for each in chosen)
    gone = {each.key for each in chosen}
    return replace(
        state, rounds=state.rounds + 1,
        findings=_without(state.findings, gone),
        failing=_without(state.failing, gone),
        gpus={uuid: each for uuid, each in state.gpus.items() if key_of(Subject(GPU, uuid), MISSING) not in gone},
        released=dict(state.released, **dict.fromkeys(gone, who)),
        unknown=_without(state.unknown, {STATE} if key == STATE else set()),
        history=(*state.history, *cleared)[-HISTORY:])


@dataclass
class _Heard:
    """Lines of one number about one subject in one look; kind and remedy are the worst of them.

    times: how often with a pause before. at: when last. text: of the last line.
    """

    subject: Subject
    meaning: Meaning
    kind: str
    remedy: str
    code: str
    first: float
    at: float
    text: str = ""
    count: int = 0
    times: int = 0


class _Round:
    """One look added to a state; done() is used once."""

    def __init__(self, state: State, look: Look, policy: HealthPolicy, now: float) -> None:
        self.state, self.look, self.policy, self.now = state, look, policy, now
        self.gpus: Dict[str, Known] = dict(state.gpus)
        self.findings: Dict[str, Finding] = dict(state.findings)
        self.failing: Dict[str, Failing] = dict(state.failing)
        self.unknown: Dict[str, Unknown] = dict(state.unknown)
        self.suspects: Dict[str, Tuple[Tuple[float, str], ...]] = dict(state.suspects)
        self.counts: Dict[str, Dict[str, int]] = {key: dict(each) for key, each in state.counts.items()}
        self.released: Dict[str, str] = dict(state.released)
        self.history: List[Finding] = list(state.history)
        self.acts: List[Act] = list(state.acts)
        self.sequence = state.sequence if state.boot == look.boot else -1
        self.records: Tuple[Record, ...] = tuple(
            record for record in look.records or () if record.sequence > self.sequence)
        # Keys of what was found in this look, and of that what is so now
        self.seen: Set[str] = set()
        self.going_on: Set[str] = set()
        reading = look.nvml
        self.answers = reading is not None and not reading.error
        gpus = reading.gpus if reading is not None and self.answers else ()
        self.answering: Dict[str, NvmlGpu] = {gpu.uuid: gpu for gpu in gpus if not gpu.error}
        self.all_answer = self.answers and len(self.answering) == len(gpus)

    def done(self) -> State:
        self._begin()
        self._learn()
        self._hear()
        if self.look.nvml is not None:
            self._ask(self.look.nvml)
            self._look_for_all(self.look.nvml)
        elif not self.state.rounds:
            self._set_unknown(ANSWERS, "NVML has not been asked yet")
        self._look_at_services()
        self._look_at_compute()
        for act in self.look.acts:
            self._act(act)
        self._end()
        self._bound()
        look = self.look
        return State(
            boot=look.boot, load=look.load or self.state.load, sequence=self.sequence, taken=look.taken, at=look.at,
            rounds=self.state.rounds + 1, gpus=self.gpus, findings=self.findings, failing=self.failing,
            unknown=self.unknown, suspects=self.suspects, counts=self.counts, released=self.released,
            services={**self.state.services, **look.services}, left=look.left, history=tuple(self.history),
            acts=tuple(self.acts))

    # what was done to the host

    def _begin(self) -> None:
        """A boot, a load or a start came before what this look has found, and has not mended that."""
        look, state = self.look, self.state
        if not state.boot:
            return
        if look.boot != state.boot:
            self._act(Act(REBOOT, "", self.now, look.boot, "a boot"), {})
            self.failing.clear()
            self.unknown.pop(LOG_GAP, None)
            # What was written between the last look and the boot nobody has read
            self.findings = {key: replace(each, quiet=self.now) for key, each in self.findings.items()}
            return
        if look.load and state.load and look.load != state.load:
            self._act(Act(RELOAD, "", self.now, look.boot, "a load of the driver"), {})
        for unit, service in look.services.items():
            before = state.services.get(unit)
            if before is not None and service.active == "active" and service.started != before.started:
                self._act(Act(RESTART, "", self.now, look.boot, "a start of %s" % unit))

    def _act(self, act: Act, proof: Optional[Mapping[str, str]] = None) -> None:
        """proof: the compute checks that prove nothing after it, None for all that are there now."""
        self.acts.append(act)
        is_whole = not act.subject or LADDER.index(act.remedy) >= LADDER.index(RELOAD)
        for key, finding in self.findings.items():
            if satisfies(act.remedy, finding.remedy) and (is_whole or act.subject == finding.subject.key) \
                    and key not in self.going_on:
                self.findings[key] = replace(finding, mended=act.text or act.remedy,
                                             proof=self._passed(finding.subject) if proof is None else proof)

    # which GPUs there are

    def _learn(self) -> None:
        for address, uuid in parse_uuids(self.records).items():
            self._place(replace(self.gpus.get(uuid, Known(uuid)), address=address))
        for uuid, gpu in self.answering.items():
            self._place(Known(uuid, gpu.serial, gpu.pci_address, gpu.name, gpu.is_divided, gpu.mig_devices))
        if self.all_answer:
            for uuid in [uuid for uuid, known in self.gpus.items() if not known.address]:
                self._gone(Subject(GPU, uuid))
        for finding in list(self.findings.values()):
            if finding.subject.kind == GPU and not finding.subject.uuid:
                self._name(finding, self._gpu_at(finding.subject.address))

    def _place(self, known: Known) -> None:
        for uuid, other in self.gpus.items():
            if other.address == known.address and uuid != known.uuid:
                self.gpus[uuid] = replace(other, address="")
        self.gpus[known.uuid] = known

    def _gone(self, subject: Subject) -> None:
        """Another GPU is in its place, and it is in no other."""
        del self.gpus[subject.uuid]
        self.counts.pop(subject.key, None)
        self.suspects.pop(subject.key, None)
        for key, finding in list(self.findings.items()):
            if finding.subject.key == subject.key:
                self._clear(key, "another GPU is in its place")

    def _name(self, finding: Finding, subject: Subject) -> None:
        """What was found of a GPU without a name goes on under its name."""
        if not subject.uuid:
            return
        del self.findings[finding.key]
        named = replace(finding, subject=subject)
        other = self.findings.get(named.key)
        if other is not None:
            kind, remedy = _worst((other.kind, other.remedy), (finding.kind, finding.remedy))
            named = replace(other, kind=kind, remedy=remedy, count=other.count + finding.count, mended="",
                            proof=self._passed(subject))
        self.findings[named.key] = named

    def _gpu_at(self, address: str) -> Subject:
        known = next((each for each in self.gpus.values() if each.address == address), None)
        return Subject(GPU, address=address) if known is None else _subject(known)

    def _gpu_of(self, uuid: str) -> Subject:
        return _subject(self.gpus[uuid]) if uuid in self.gpus else Subject(GPU, uuid)

    # the kernel's log

    def _hear(self) -> None:
        if self.look.records is None:
            self._set_unknown(LOG, "the kernel's log cannot be read")
            self._unheard()
            return
        self.unknown.pop(LOG, None)
        missing = gaps((record.sequence for record in self.records), self.sequence)
        if missing:
            self._set_unknown(LOG_GAP, "%d records of the kernel's log were overwritten before they were read" % sum(
                last - first + 1 for first, last in missing))
            self._unheard()
        heard: Dict[str, _Heard] = {}
        suspected: Dict[str, Subject] = {}
        for event in parse_events(self.records):
            subject = Subject(SWITCH, address=event.address) if event.is_switch else self._gpu_at(event.address)
            self._count(subject, _code(event))
            if event.action >= 0:
                self._told_action(subject, event)
            elif self._is_suspicion(event, subject, heard):
                suspected[subject.key] = subject
        for each in heard.values():
            self._judge(each)
        for subject in suspected.values():
            self._judge_suspect(subject)
        self.sequence = max((record.sequence for record in self.records), default=self.sequence)

    def _unheard(self) -> None:
        """What could not be heard may have come again."""
        for key, finding in self.findings.items():
            if finding.source == KERNEL_LOG:
                self.findings[key] = replace(finding, quiet=self.now, proof=self._passed(finding.subject))

    def _when(self, event: Event) -> float:
        """In seconds since the epoch, by the clock of now."""
        return self.look.at - self.look.taken / 1e9 + event.at / 1e6

    def _is_suspicion(self, event: Event, subject: Subject, heard: Dict[str, _Heard]) -> bool:
        """Sort a line where it belongs; whether it makes its GPU suspect."""
        meaning = meaning_of(event, self.policy.overrides)
        if meaning.kind == SUSPICION and event.process:
            recent = [each for each in self.suspects.get(subject.key, ()) if each[1] != event.process]
            self.suspects[subject.key] = (*recent, (self._when(event), event.process))[-MOST_SUSPECTS:]
            return True
        if meaning.kind in (EVENT, SUSPICION):
            return False
        kind, remedy = meaning.kind, meaning.remedy
        action = getattr(self.answering.get(subject.uuid), "recovery_action", None)
        if meaning.by_action and kind in MENDED and action is not None:
            kind, remedy = _of_action(action)
        at, key = self._when(event), key_of(subject, _code(event))
        each = heard.get(key)
        if each is None:
            known = self.findings.get(key)
            is_later = known is None or known.last.boot != self.look.boot or at - known.last.at >= PAUSE_SECONDS
            each = heard[key] = _Heard(subject, meaning, kind, remedy, _code(event), at, at, times=int(is_later))
        each.times += int(at - each.at >= PAUSE_SECONDS)
        each.kind, each.remedy = _worst((each.kind, each.remedy), (kind, remedy))
        each.count, each.at, each.text = each.count + 1, at, event.text
        return False

    def _judge(self, heard: _Heard) -> None:
        key = key_of(heard.subject, heard.code)
        before = self.findings.get(key)
        times = heard.times + (before.times if before else 0)
        kind, remedy = heard.kind, heard.remedy
        if times + self._times_before(key) < heard.meaning.after:
            kind, remedy = WARNING, NONE
        if before is not None:
            kind, remedy = _worst((before.kind, before.remedy), (kind, remedy))
        self._raise(heard.subject, KERNEL_LOG, heard.code, kind, remedy, heard.meaning.text, heard.at,
                    first=heard.first, detail=heard.text, times=times,
                    count=heard.count + (before.count if before else 0))

    def _times_before(self, key: str) -> int:
        """How often what was cleared had come; what a person has released is forgotten."""
        times = 0
        for finding in self.history:
            if finding.key == key:
                times = 0 if finding.cleared_by.startswith("released") else times + finding.times
        return times

    def _judge_suspect(self, subject: Subject) -> None:
        """Errors of applications are their own, unless several processes have them on one GPU."""
        recent = tuple(each for each in self.suspects[subject.key]
                       if self.now - each[0] < self.policy.suspicion_seconds)
        self.suspects[subject.key] = recent
        if len(recent) >= self.policy.suspicion_processes:
            self._raise(subject, KERNEL_LOG, SUSPECT, WARNING, NONE, "%d processes had errors of applications" % len(
                recent), recent[-1][0], check=LONG, detail=", ".join(process for _at, process in recent),
                count=len(recent))

    def _told_action(self, subject: Subject, event: Event) -> None:
        """The log says what the driver asks for; NVML says it later, where it says it."""
        gpu = self.answering.get(subject.uuid)
        if gpu is None or gpu.recovery_action is None:
            self._asked_for(subject, KERNEL_LOG, event.action, self._when(event))

    def _count(self, subject: Subject, code: str) -> None:
        of_it = self.counts.setdefault(subject.key, {})
        if code in of_it or sum(map(len, self.counts.values())) < MOST_COUNTED:
            of_it[code] = of_it.get(code, 0) + 1

    # NVML

    def _ask(self, reading: NvmlReading) -> None:
        if not self.look.bus and self.look.bus is not None:
            self.unknown.pop(ANSWERS, None)
            return
        if reading.error:
            self._set_unknown(ANSWERS, reading.error)
        else:
            self.unknown.pop(ANSWERS, None)
        if reading.is_untried:
            return
        self._level(_HOST, NVML, "hang", bool(reading.hung), SICK, REBOOT,
                    "a call of NVML does not come back: %s" % reading.hung)
        self._probe(_HOST, NVML, "no_nvml", None if reading.hung else bool(reading.error), SICK, RELOAD,
                    "NVML does not answer: %s" % reading.error)
        for gpu in reading.gpus if self.answers else ():
            if not gpu.error:
                self._ask_gpu(gpu)
            elif gpu.pci_address:
                self._not_answering(gpu)

    def _not_answering(self, gpu: NvmlGpu) -> None:
        subject = self._gpu_at(gpu.pci_address)
        is_told = False
        for number, code, remedy, text in _ERRORS:
            if gpu.error_code == number:
                is_told = True
                self._level(subject, NVML, code, True, SICK, remedy, text)
        self._probe(subject, NVML, "no_answer", None if is_told else True, SICK, RESET,
                    "the GPU does not answer: %s" % gpu.error)

    def _ask_gpu(self, gpu: NvmlGpu) -> None:
        subject = _subject(self.gpus[gpu.uuid])
        for _number, code, _remedy, _text in _ERRORS:
            self._level(subject, NVML, code, False, SICK, NONE, "")
        for code in ("no_answer", MISSING):
            self._probe(subject, NVML, code, False, SICK, NONE, "")
        if gpu.recovery_action is not None:
            self._asked_for(subject, NVML, gpu.recovery_action, self.now)
        for name, kind, remedy, text in _LEVELS:
            self._level(subject, NVML, name, getattr(gpu, name), kind, remedy, text)
        if gpu.reports_fabric:
            waits = gpu.waits_for_fabric
            self._probe(subject, FABRIC, "registration", waits, SICK, RESTART if self.look.fabric else NONE,
                        "the GPU is not registered with its fabric: %s, status %d" % (
                            gpu.fabric_state, gpu.fabric_status), self.policy.fabric_seconds)
            wrong = [found for found, _remedy in complaints(gpu.fabric_health, gpu.fabric_summary)]
            self._probe(subject, FABRIC, "fabric_health", None if waits else bool(wrong), SICK,
                        rung_of(gpu.fabric_health, gpu.fabric_summary), "the GPU's fabric: %s" % ", ".join(wrong))

    def _asked_for(self, subject: Subject, source: str, action: int, at: float) -> None:
        """The driver itself says that it has ended."""
        key = key_of(subject, ACTION)
        if not action:
            self.released.pop(key, None)
            if key in self.findings:
                self._clear(key, "the driver asks for nothing any more")
            return
        kind, remedy = _of_action(action)
        text = "the driver asks for %s (%d)" % (asked_for(action).asks, action)
        if source == NVML:
            self._level(subject, source, ACTION, True, kind, remedy, text)
        else:
            self._raise(subject, source, ACTION, kind, remedy, text, at)

    def _look_for_all(self, reading: NvmlReading) -> None:
        """A GPU may answer for none of its errors, and be gone."""
        if self.look.bus is None:
            self._set_unknown(BUS, "the PCI bus cannot be read")
            return
        self.unknown.pop(BUS, None)
        if not self.answers:
            return
        listed = {gpu.pci_address for gpu in reading.gpus}
        unlisted = [address for address, is_ours in self.look.bus.items() if is_ours and address not in listed]
        # Of a GPU that is lost, NVML may not even tell the place
        nameless = [gpu for gpu in reading.gpus if gpu.error and not gpu.pci_address]
        if len({gpu.error_code for gpu in nameless}) != 1 or len(nameless) != len(unlisted):
            nameless = [NvmlGpu(index=-1, error="NVML does not list it")] * len(unlisted)
        for address, gpu in zip(unlisted, nameless):
            self._not_answering(replace(gpu, pci_address=address))
        for known in list(self.gpus.values()):
            if known.address and known.address not in self.look.bus and known.uuid not in self.answering:
                self._probe(_subject(known), NVML, MISSING, True, SICK, REBOOT, "the GPU is not on the PCI bus")

    # the rest

    def _look_at_services(self) -> None:
        for unit, service in self.look.services.items():
            self._probe(_HOST, SERVICE, unit, service.active != "active", SICK, RESTART, "%s is %s" % (
                unit, service.active or "unknown"), self.policy.fabric_seconds)

    def _look_at_compute(self) -> None:
        record = self.look.compute
        if record is None:
            self._set_unknown(COMPUTED, "what devices have proved cannot be read")
            return
        self.unknown.pop(COMPUTED, None)
        owners = {part: known for known in self.gpus.values() for part in (known.uuid, *known.parts)}
        failed: Dict[str, List[str]] = {}
        for device in sorted(record["failed"]):
            failed.setdefault(owners[device].uuid if device in owners else device, []).append(device)
        for uuid in {*self.gpus, *failed}:
            self._judge_failures(self._gpu_of(uuid), failed.get(uuid, []), record)
        for uuid in {*self.gpus, *record["left"]}:
            process = record["left"].get(uuid, [0])[0]
            self._level(self._gpu_of(uuid), COMPUTE, "compute_hang", bool(process), SICK, REBOOT,
                        "a compute check hangs in the driver (process %d)" % process)

    def _judge_failures(self, subject: Subject, devices: List[str], record: Mapping[str, Any]) -> None:
        """Of the record a failure goes on until its device passes: what it had before a remedy is not found after it."""
        key = key_of(subject, FAILED)
        if not devices:
            self.released.pop(key, None)
            return
        text = "a compute check failed: %s" % "; ".join(dict.fromkeys(record["failed"][device] for device in devices))
        which = ["%s at %s" % (device, record["failed_at"].get(device)) for device in devices]
        before = self.findings.get(key)
        is_old = before is not None and before.mended and set(which) <= set(before.detail.split(", "))
        if not is_old and not self._is_released(key, SICK, RESET):
            self._raise(subject, COMPUTE, FAILED, SICK, RESET, text, self.now, detail=", ".join(which))

    def _passed(self, subject: Subject) -> Dict[str, str]:
        """{UUID: the check that it passed} of those devices of a subject that have passed one."""
        record = self.look.compute
        if record is None:
            return {}
        wanted = self._devices(subject) if subject.kind == GPU else list(record["passed"])
        return {device: "%s %s %s" % (record["driver"], passed["at"], passed["level"]) for device in wanted
                for passed in (record["passed"].get(device),) if passed and device not in record["failed"]}

    def _devices(self, subject: Subject) -> List[str]:
        """What has to compute for it; of the host and its switches all GPUs, as far as they answer."""
        of_it = [known for known in self.gpus.values() if known.uuid == subject.uuid or (
            subject.kind != GPU and (not self.answers or known.uuid in self.answering))]
        return [device for known in of_it for device in (known.parts if known.divided else (known.uuid,))]

    def _is_proved(self, subject: Subject, before: Mapping[str, str], level: str = "") -> bool:
        """Whether every device of a subject that answers has passed a check since, of at least this level."""
        if not (subject.uuid in self.answering if subject.kind == GPU else self.all_answer and self.answering):
            return False
        devices, passed = self._devices(subject), self._passed(subject)
        return bool(devices) and all(
            device in passed and passed[device] != before.get(device)
            and (not level or at_least(passed[device].split()[-1], level)) for device in devices)

    # findings

    def _level(self, subject: Subject, source: str, code: str, is_so: Optional[bool], kind: str, remedy: str,
               text: str) -> None:
        """What is read anew each time: so, not so, or not to be told. It being not so any more does not clear it."""
        key = key_of(subject, code)
        if is_so is False:
            self.released.pop(key, None)
        elif is_so and not self._is_released(key, kind, remedy):
            self.going_on.add(key)
            self._raise(subject, source, code, kind, remedy, text, self.now)

    def _is_released(self, key: str, kind: str, remedy: str) -> bool:
        """Whether a person has said that this is to be left as it is; another kind of it is not that."""
        last = next((each for each in reversed(self.history) if each.key == key), None)
        return key in self.released and last is not None and (last.kind, last.remedy) == (kind, remedy)

    def _probe(self, subject: Subject, source: str, code: str, fails: Optional[bool], kind: str, remedy: str,
               text: str, seconds: float = 0) -> None:
        """What has to fail several times in a row, and for so long."""
        key, clock = key_of(subject, code), self.look.taken / 1e9
        if not fails:
            if fails is False:
                self.failing.pop(key, None)
                self._level(subject, source, code, False, kind, remedy, text)
            return
        before = self.failing.get(key, Failing(0, clock))
        self.failing[key] = replace(before, rounds=before.rounds + 1)
        is_long = before.rounds + 1 >= self.policy.rounds and clock - before.since >= seconds
        if is_long or key in self.findings:
            self._level(subject, source, code, True, kind, remedy, text)

    def _raise(self, subject: Subject, source: str, code: str, kind: str, remedy: str, text: str, at: float,
               first: Optional[float] = None, **more: Any) -> None:
        key = key_of(subject, code)
        self.seen.add(key)
        moment = Moment(at, self.look.boot)
        before = self.findings.get(key) or Finding(
            subject, source, code, kind, remedy, text,
            first=moment if first is None else replace(moment, at=first), last=moment)
        self.findings[key] = replace(
            before, subject=subject, kind=kind, remedy=remedy, text=text, last=moment, quiet=self.now, mended="",
            proof=self._passed(subject), **more)

    def _clear(self, key: str, why: str) -> None:
        self.history.append(replace(self.findings.pop(key), cleared_by=why, cleared_at=self.now))

    def _set_unknown(self, what: str, text: str) -> None:
        before = self.unknown.get(what, Unknown(self.now, text, self._passed(_HOST)))
        self.unknown[what] = replace(before, text=text)

    def _end(self) -> None:
        """Clear what has been proved to have ended."""
        for key, finding in list(self.findings.items()):
            if key in self.seen or (finding.source == KERNEL_LOG and self.look.records is None):
                continue
            if finding.kind == WARNING:
                self._end_warning(finding)
            elif finding.remedy != OUT and (finding.mended or finding.remedy == NONE) \
                    and self._is_proved(finding.subject, finding.proof):
                self._clear(key, ", and ".join(filter(None, [finding.mended, "a compute check that passed"])))
        lost = self.unknown.get(STATE)
        if lost is not None and not self.state.boot:
            self.unknown[STATE] = replace(lost, proof=self._passed(_HOST))
        elif lost is not None and (self.look.bus == {} or self._is_proved(_HOST, lost.proof)):
            del self.unknown[STATE]

    def _end_warning(self, finding: Finding) -> None:
        if finding.check and self._is_proved(finding.subject, finding.proof, finding.check):
            self._clear(finding.key, "a compute check that passed (%s)" % finding.check)
            self.suspects.pop(finding.subject.key, None)
        elif finding.quiet > self.now:
            self.findings[finding.key] = replace(finding, quiet=self.now)
        elif self.now - finding.quiet >= self.policy.warning_seconds:
            self._clear(finding.key, "not seen again")

    def _bound(self) -> None:
        excess = len(self.findings) - MOST_FINDINGS
        warnings = [each for each in self.findings.values() if each.kind == WARNING]
        for finding in sorted(warnings, key=lambda each: each.quiet)[:max(0, excess)]:
            self._clear(finding.key, "left out, as there are too many")
        self.history = self.history[-HISTORY:]
        self.acts = self.acts[-ACTS:]


def _subject(known: Known) -> Subject:
    return Subject(GPU, known.uuid, known.serial, known.address)


def _code(event: Event) -> str:
    return "%s %d" % ("sxid" if event.is_switch else "xid", event.number)


def _of_action(action: int) -> Tuple[str, str]:
    """(kind, remedy) of what the driver asks for."""
    if not action:
        return WARNING, NONE
    wanted = asked_for(action)
    return PENDING if wanted.work_stays else SICK, wanted.remedy


def _worst(*ways: Tuple[str, str]) -> Tuple[str, str]:
    """(the worst kind, the highest rung) of (kind, remedy)."""
    return (max((kind for kind, _remedy in ways), key=KINDS.index),
            max((remedy for _kind, remedy in ways), key=LADDER.index))


def _without(mapping: Mapping[str, Any], keys: Iterable[str]) -> Dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
