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

from dataclasses import replace
from typing import Any, Collection, Dict, List, Mapping, Sequence, Tuple

from ..hardware.fabric_health import degradations, faults
from ..hardware.nvml import NvmlGpu, NvmlReading
from ..hardware.nvml_codes import LOST, RESET_REQUIRED
from ..hardware.recovery import BOARD_RESET, NONE, OUT, REBOOT, RELOAD, RESET
from ..hardware.recovery import SERVICE as RESTART
from .catalogue import PENDING, SICK, WARNING
from .findings import COMPUTE, FABRIC, GPU, KERNEL_LOG, NVML, SERVICE, Subject, key_of
from .hearing import hear
from .ledger import ACTION, ASKS_NO_MORE, HISTORY, LINKS, MISSING, THE_HOST, Ledger, subject_of, without
from .model import ANSWERS, BUS, COMPUTED, LOG_GAP, STATE, Act, Look, Released, State
from .policy import HealthPolicy

FAILED = "compute"
# What NVML says of a GPU that answers: the attribute, its kind, what mends it, and that in words
_LEVELS = (
    ("remap_failed", SICK, OUT, "a row of memory could not be remapped"),
    ("sram_exceeded", SICK, OUT, "the uncorrectable errors of a cache are more than its threshold"),
    ("remap_pending", PENDING, RESET, "a row or a page of memory is taken out of use at the next reset"),
)
# Reasons that slow a GPU down and that nobody has asked for (nvml.h, nvmlClocksEventReason*), in words. The last one is
# that of the two before it too
_TOO_HOT, _BRAKE, _HARDWARE = 0x20 | 0x40, 0x80, 0x8
_SLOWED = ((_TOO_HOT, "it is too hot"), (_BRAKE, "the power supply asks for it"))
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
    if state.machine and look.machine not in ("", state.machine):
        # Its GPUs, its log and its remedies were those of the machine whose disk was copied
        state = State(rounds=state.rounds, history=state.history)
    ledger = Ledger(state, look, policy, now)
    _begin(ledger)
    ledger.learn()
    hear(ledger)
    if look.nvml is not None:
        _ask(ledger, look.nvml)
        _look_for_all(ledger, look.nvml)
    else:
        _wait_for_an_answer(ledger)
    _look_at_services(ledger)
    _look_at_compute(ledger)
    for act in look.acts:
        ledger.act(act)
    ledger.end()
    return ledger.closed()


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
        findings=without(state.findings, gone),
        failing=without(state.failing, gone),
        gpus={uuid: each for uuid, each in state.gpus.items() if key_of(Subject(GPU, uuid), MISSING) not in gone},
        # What the log has said is said once
        released=dict(state.released, **{
            each.key: Released(who, each.kind, each.remedy) for each in chosen if each.source != KERNEL_LOG}),
        unknown=without(state.unknown, {STATE} if key == STATE else set()),
        history=(*state.history, *cleared)[-HISTORY:])


def give_up(state: State, subjects: Collection[str]) -> State:
    """Everything that can be done to these parts has been done in vain: what is open of them ends as what is OUT does.

    subjects: keys of theirs.
    """
    found = {key: replace(each, remedy=OUT, mended="") if each.kind == SICK and each.subject.key in subjects else each
             for key, each in state.findings.items()}
    return replace(state, rounds=state.rounds + 1, findings=found)


def taken_back(state: State, uuids: Collection[str], now: float) -> State:
    """Who was about to reset these GPUs has asked the driver, which asks for nothing more of them."""
    chosen = {key: each for key, each in state.findings.items() if each.code == ACTION and each.subject.uuid in uuids}
    cleared = tuple(replace(each, cleared_by=ASKS_NO_MORE, cleared_at=now) for each in chosen.values())
    return replace(state, rounds=state.rounds + 1, findings=without(state.findings, chosen),
                   history=(*state.history, *cleared)[-HISTORY:])


def _begin(ledger: Ledger) -> None:
    """A boot, a load or a start came before what this look has found, and has not mended that."""
    look, state = ledger.look, ledger.state
    if not state.boot:
        return
    if look.boot != state.boot:
        ledger.act(Act(REBOOT, "", ledger.now, look.boot, "a boot"), {})
        ledger.failing.clear()
        ledger.forget_links()
        ledger.unknown.pop(LOG_GAP, None)
        # What was written between the last look and the boot nobody has read
        ledger.findings = {key: replace(each, quiet=ledger.clock) for key, each in ledger.findings.items()}
        return
    if look.load and state.load and look.load != state.load:
        ledger.act(Act(RELOAD, "", ledger.now, look.boot, "a load of the driver"), {})
        ledger.forget_links()
    for number, uuids, text in look.resets:
        if number > state.reset:
            for remedy, subject in _mended_by_reset(state, uuids):
                ledger.act(Act(remedy, subject, ledger.now, look.boot, text), {})
    for unit, service in look.services.items():
        before = state.services.get(unit)
        if before is not None and service.active == "active" and service.started != before.started:
            ledger.act(Act(RESTART, "", ledger.now, look.boot, "a start of %s" % unit))


def _mended_by_reset(state: State, uuids: Sequence[str]) -> List[Tuple[str, str]]:
    """(rung, subject) of what a reset is: that of all GPUs is one of their board."""
    is_all = len(uuids) > 1 and set(state.gpus) <= set(uuids)
    return [(BOARD_RESET, "")] if is_all else [(RESET, Subject(GPU, uuid).key) for uuid in uuids]


def _wait_for_an_answer(ledger: Ledger) -> None:
    """A run may work on the host, or whoever watches does not ask each time."""
    limit = ledger.policy.stale_seconds
    if not ledger.asked:
        ledger.set_unknown(ANSWERS, "NVML has not been asked since the boot")
    elif ledger.look.taken - ledger.asked >= limit * 1e9:
        ledger.set_unknown(ANSWERS, "NVML has not been asked for %d seconds" % limit)


def _ask(ledger: Ledger, reading: NvmlReading) -> None:
    if not ledger.look.bus and ledger.look.bus is not None:
        ledger.unknown.pop(ANSWERS, None)
        return
    if reading.error:
        ledger.set_unknown(ANSWERS, reading.error)
    else:
        ledger.unknown.pop(ANSWERS, None)
    if reading.is_untried:
        return
    ledger.level(THE_HOST, NVML, "hang", bool(reading.hung), SICK, REBOOT,
                 "a call of NVML does not come back: %s" % reading.hung)
    is_told = not (reading.hung or reading.is_cut_short)
    ledger.probe(THE_HOST, NVML, "no_nvml", bool(reading.error) if is_told else None, SICK, RELOAD,
                 "NVML does not answer: %s" % reading.error)
    for gpu in reading.gpus if ledger.answers else ():
        if not gpu.error:
            _ask_gpu(ledger, gpu)
        elif gpu.pci_address:
            _not_answering(ledger, gpu)


def _not_answering(ledger: Ledger, gpu: NvmlGpu) -> None:
    subject = ledger.gpu_at(gpu.pci_address)
    is_told = False
    for number, code, remedy, text in _ERRORS:
        if gpu.error_code == number:
            is_told = True
            ledger.level(subject, NVML, code, True, SICK, remedy, text)
    ledger.probe(subject, NVML, "no_answer", None if is_told else True, SICK, RESET,
                 "the GPU does not answer: %s" % gpu.error)


def _ask_gpu(ledger: Ledger, gpu: NvmlGpu) -> None:
    subject = subject_of(ledger.gpus[gpu.uuid])
    for _number, code, _remedy, _text in _ERRORS:
        ledger.level(subject, NVML, code, False, SICK, NONE, "")
    for code in ("no_answer", MISSING):
        ledger.probe(subject, NVML, code, False, SICK, NONE, "")
    if gpu.recovery_action is not None:
        ledger.asked_for(subject, NVML, gpu.recovery_action, ledger.now)
    for name, kind, remedy, text in _LEVELS:
        ledger.level(subject, NVML, name, getattr(gpu, name), kind, remedy, text)
    if gpu.reports_fabric:
        waits = gpu.waits_for_fabric
        ledger.probe(subject, FABRIC, "registration", waits, SICK, RESTART if ledger.look.fabric else NONE,
                     "the GPU is not registered with its fabric: %s, status %d" % (
                         gpu.fabric_state, gpu.fabric_status), ledger.policy.fabric_seconds)
        wrong, rung = faults(gpu.fabric_health, gpu.fabric_summary)
        less = degradations(gpu.fabric_health, gpu.fabric_summary)
        # A fabric finds other routes, and recovers, by itself
        for code, found, kind, remedy in (
                ("fabric_health", wrong, SICK, rung), ("fabric_degraded", less, WARNING, NONE)):
            ledger.probe(subject, FABRIC, code, None if waits else bool(found), kind, remedy,
                         "the GPU's fabric: %s" % ", ".join(found), ledger.policy.fabric_seconds)
    _ask_links(ledger, subject, gpu)
    slowed = _slowed(gpu.clock_reasons or 0)
    ledger.probe(subject, NVML, "slowdown", None if gpu.clock_reasons is None else bool(slowed), WARNING, NONE,
                 "the GPU is slowed down: %s" % slowed)


def _slowed(reasons: int) -> str:
    """By what, '' where it is not."""
    told = [text for bits, text in _SLOWED if reasons & bits]
    return ", ".join(told) or ("its power or its temperature is too high" if reasons & _HARDWARE else "")


def _ask_links(ledger: Ledger, subject: Subject, gpu: NvmlGpu) -> None:
    """Only what was up can have gone down: a link that leads nowhere, or is switched off, looks the same to NVML."""
    wanted = ledger.gpus[gpu.uuid].links
    down = [link for link in gpu.links_down if link in wanted]
    is_told = _may_be_up(ledger, gpu) and (bool(down) or set(wanted) <= set(gpu.links_up))
    ledger.probe(subject, NVML, LINKS, bool(down) if is_told else None, SICK, BOARD_RESET,
                 "NVLinks that have been up are down: %s" % ", ".join(map(str, down)))


def _may_be_up(ledger: Ledger, gpu: NvmlGpu) -> bool:
    """MIG switches an A100's links off, and one end takes the other along where no NVSwitch is between them."""
    if gpu.is_divided or gpu.mig_error or gpu.waits_for_fabric:
        return False
    return ledger.look.fabric or (
        set(ledger.gpus) == set(ledger.answering) and not any(each.is_divided for each in ledger.answering.values()))


def _look_for_all(ledger: Ledger, reading: NvmlReading) -> None:
    """A GPU may answer for none of its errors, and be gone."""
    if ledger.look.bus is None:
        ledger.set_unknown(BUS, "the PCI bus cannot be read")
        return
    ledger.unknown.pop(BUS, None)
    if not ledger.answers:
        return
    listed = {gpu.pci_address for gpu in reading.gpus}
    unlisted = [address for address, is_ours in ledger.look.bus.items() if is_ours and address not in listed]
    # Of a GPU that is lost, NVML may not even tell the place
    nameless = [gpu for gpu in reading.gpus if gpu.error and not gpu.pci_address]
    if len({gpu.error_code for gpu in nameless}) != 1 or len(nameless) != len(unlisted):
        nameless = [NvmlGpu(index=-1, error="NVML does not list it")] * len(unlisted)
    for address, gpu in zip(unlisted, nameless):
        _not_answering(ledger, replace(gpu, pci_address=address))
    away = [known for known in ledger.gpus.values()
            if known.uuid not in ledger.answering and (
                known.displaced or (known.address and known.address not in ledger.look.bus))]
    named = {known.address for known in ledger.gpus.values()}
    # After another card has come, a GPU may be at an address where nobody has told its name yet
    if len(away) > len([address for address in ledger.look.bus if address not in named]):
        for known in away:
            ledger.probe(subject_of(known), NVML, MISSING, True, SICK, REBOOT, "the GPU is not on the PCI bus")


def _look_at_services(ledger: Ledger) -> None:
    for unit, service in ledger.look.services.items():
        ledger.probe(THE_HOST, SERVICE, unit, service.active != "active", SICK, RESTART, "%s is %s" % (
            unit, service.active or "unknown"), ledger.policy.fabric_seconds)


def _look_at_compute(ledger: Ledger) -> None:
    record = ledger.look.compute
    if record is None:
        ledger.set_unknown(COMPUTED, "what devices have proved cannot be read")
        return
    ledger.unknown.pop(COMPUTED, None)
    owners = {part: known for known in ledger.gpus.values() for part in (known.uuid, *known.parts)}
    failed: Dict[str, List[str]] = {}
    for device in sorted(record["failed"]):
        # One that is there no more, as a MIG device of another layout or a GPU that was divided since, passes never
        if device in owners and not (owners[device].divided and device == owners[device].uuid):
            failed.setdefault(owners[device].uuid, []).append(device)
    for uuid in {*ledger.gpus, *failed}:
        _judge_failures(ledger, ledger.gpu_of(uuid), failed.get(uuid, []), record)
    for uuid in {*ledger.gpus, *record["left"]}:
        process = record["left"].get(uuid, [0])[0]
        ledger.level(ledger.gpu_of(uuid), COMPUTE, "compute_hang", bool(process), SICK, REBOOT,
                     "a compute check hangs in the driver (process %d)" % process)


def _judge_failures(ledger: Ledger, subject: Subject, devices: List[str], record: Mapping[str, Any]) -> None:
    """Of the record a failure goes on until its device passes: what it had before a remedy is not found after it."""
    key = key_of(subject, FAILED)
    if not devices:
        ledger.released.pop(key, None)
        return
    text = "a compute check failed: %s" % "; ".join(dict.fromkeys(record["failed"][device] for device in devices))
    which = ["%s at %s" % (device, record["failed_at"].get(device)) for device in devices]
    before = ledger.findings.get(key)
    is_old = before is not None and set(which) <= set(before.detail.split(", "))
    if not is_old and not ledger.is_released(key, SICK, RESET):
        ledger.begin(subject, COMPUTE, FAILED, SICK, RESET, text, ledger.now, detail=", ".join(which))
