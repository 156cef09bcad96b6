# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A reset of GPUs as one act, by the driver's own program: NVML has no call for it (nvml.h).

    who has to be reset together -> nobody has them -> what holds them is noted, and let go -> nvidia-smi -r
    -> what was let go or lost comes back

It takes GPUs that nobody has open. Persistence mode counts as somebody (NVIDIA/NVSentinel, pull request 1692), and so
do daemons that watch GPUs: they are let go for as long as it takes. A reset also loses what GPUs are set to and what
they are divided into. All of it comes back on every way out; what a run that was killed has left undone, the next one
finishes by its note in the journal, before it does anything else.

Rules of nvidia-smi(1), --gpu-reset. Every reset is written down, see resets.py.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import CommandTimedOut, Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from ..core.waiting import wait_for
from . import nvml, resets
from . import reset_plan as rules
from .holders import FABRIC_MANAGER_UNIT, PERSISTENCED_UNIT, WATCHERS, Holder, Users, read_holders
from .mig import RESTORE_SCRIPT, RESTORE_UNIT, RESTORE_WANTED
from .nvml_settings import REQUESTS
from .pci import DEVICES, read_bus
from .recovery import BUS_RESET
from .reset_plan import FINISH, HOPPER, Resettable
from .settings import set_up_again

# In the journal: what is to come back, as long as it is not back; what GPUs were set to that have not answered since,
# for the reset after which they do; and whom nvidia-smi has named as to be reset together
MEMORY = "reset"
ACT, SILENT, NAMED = "act", "silent", "named"
# Exit code of nvidia-smi where a GPU is in use
IN_USE = 255
# Seconds: that the links and GPUs of a board take; that a process may need to let go; that the unit of the layout has
LIMIT_S, LET_GO_S, PAUSE_S, LAYOUT_S = 300.0, 10.0, 1.0, 200.0
# What is lost with a reset or with persistence mode and can be read; in the order in which it is set
VALUES = ("persistence", "power_limit", "compute_mode", "application_clocks", "accounting")
_INTERRUPTED = "A run that reset GPUs was stopped before it brought everything back."
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)

Ask = Callable[..., Any]


class _Hangs(GpuOpsError):
    """A reset that does not come to an end."""


@dataclass(frozen=True)
class Act:
    """What is to be reset, in one command.

    who:  the capability whose step it is, or who else asks for it.
    why:  as a clause, for people.
    gpus: (UUID, PCI address).
    ecc:  {UUID: ECC mode that the reset is to bring}; of others it must bring none.
    step: id of the step that it is done for, '' where it is done for none.
    sick: UUIDs of those that nothing but the driver asks a reset for: an end of their work may be enough for it.
    """

    who: str
    why: str
    gpus: Tuple[Tuple[str, str], ...]
    ecc: Mapping[str, bool] = field(default_factory=dict)
    step: str = ""
    sick: Tuple[str, ...] = ()


# what is there


def can_be_reset(host: Host, address: str) -> bool:
    """Whether the kernel knows a way to reset the device: in a virtual machine there may be none."""
    return host.exists("%s/%s/reset" % (DEVICES, address))


def fabric_runs(host: Host) -> bool:
    return host.unit(FABRIC_MANAGER_UNIT).get("ActiveState") == "active"


def read_resettable(
    host: Host, journal: Journal, gpus: Iterable[nvml.NvmlGpu], told: Mapping[str, Mapping[str, Any]], ask: Ask
) -> Tuple[Resettable, ...]:
    """GPUs that answer. told: {UUID: answer to 'get'} of those; ask: a session's, with the requests of settings."""
    answering = [gpu for gpu in gpus if gpu.uuid in told]
    links = {gpu.pci_address: ask("links", gpu.uuid) for gpu in answering if told[gpu.uuid]["architecture"] < HOPPER}
    uuids = {gpu.pci_address: gpu.uuid for gpu in answering}
    groups = rules.joined(links)
    named: Mapping[str, Sequence[str]] = journal.recall(MEMORY).get(NAMED, {})
    bus = read_bus(host)
    managers = {device.address: device.manager for device in bus.gpus}
    switched = rules.switched(links, [device.address for device in (*bus.gpus, *bus.other_gpus)])
    restored = _restored(host)
    users = Users(host)
    found = []
    for gpu in answering:
        group = {uuids[each] for each in groups.get(gpu.pci_address, ())}
        wanted = {each for each in named.get(gpu.uuid, ()) if each in told}
        group |= wanted
        instances = _instances(gpu)
        found.append(Resettable(
            gpu.uuid, gpu.pci_address, gpu.named(), gpu.minor, told[gpu.uuid]["architecture"],
            tuple(uuid for uuid in uuids.values() if uuid in {gpu.uuid, *group}) if group else (),
            bool(wanted) or gpu.pci_address in switched,
            can_be_reset(host, gpu.pci_address), managers.get(gpu.pci_address, ""),
            told[gpu.uuid]["ecc"], told[gpu.uuid]["ecc_pending"],
            instances, instances == restored.get(gpu.uuid), _holders(users, gpu)))
    return tuple(found)


def read_all(
    host: Host, journal: Journal, gpus: Sequence[nvml.NvmlGpu]
) -> Tuple[Dict[str, Dict[str, Any]], Tuple[Resettable, ...]]:
    """({UUID: its settings}, what a reset takes) of those GPUs that tell it; a sick one tells nothing."""
    told: Dict[str, Dict[str, Any]] = {}
    session = nvml.Session(REQUESTS)
    try:
        for gpu in gpus:
            try:
                if not gpu.error:
                    told[gpu.uuid] = session.ask("get", gpu.uuid)
            except nvml.NvmlFailed:
                # A sick GPU is what a reset is for
                if session.lost:
                    break
        there: Tuple[Resettable, ...] = () if session.lost else read_resettable(
            host, journal, gpus, told, session.ask)
    except nvml.NvmlFailed:
        there = ()
    finally:
        session.close()
    return told, there


def _holders(users: Users, gpu: nvml.NvmlGpu) -> Tuple[str, ...]:
    names = [*users.of(gpu.uuid, "/dev/nvidia%d" % gpu.minor, gpu.processes),
             *(name for device in gpu.mig_devices for name in users.of(device, ""))]
    return tuple(dict.fromkeys(names))


def _instances(gpu: nvml.NvmlGpu) -> Tuple[str, ...]:
    return () if gpu.mig is None else tuple(sorted("%d:%d" % (each.profile, each.start) for each in gpu.mig.instances))


def _restored(host: Host) -> Dict[str, Tuple[str, ...]]:
    """{UUID: the instances that the unit of the layout makes anew}, {} where no boot starts it."""
    lines = (host.read(RESTORE_SCRIPT) or "").splitlines() if host.exists(RESTORE_WANTED) else []
    found = [line.split() for line in lines if line.startswith("restore GPU-")]
    return {words[1]: tuple(sorted(word.split("/")[0] for word in words[2:])) for words in found}


# the act


def _nothing() -> None:
    return


def reset(
    host: Host, journal: Journal, act: Act, prepare: Callable[[], None] = _nothing, ended: Callable[[], None] = _nothing
) -> bool:
    """Reset GPUs; False where that was not needed any more, see Act.sick. Raises GpuOpsError, before anything is
    touched where it can be known then.

    prepare: what is done once nothing is in the way any more, and before anybody is stopped.
    ended:   what is done as soon as the GPUs are reset, and before anybody comes back.
    """
    finish(host, journal)
    reading = nvml.read_nvml()
    told, there, chosen = _looked_at(host, journal, act, reading.gpus)
    prepare()
    number = resets.begin(host, act.who, act.why, act.gpus)
    _note(host, journal, act, told, there, chosen)
    try:
        _let_go(host, chosen, told, number)
        is_needed = not _asks_no_more(act.sick)
        if is_needed:
            _command(host, journal, chosen, number, any(
                gpu.recovery_action == BUS_RESET for gpu in reading.gpus
                if gpu.uuid in {each.uuid for each in chosen}))
            ended()
        else:
            resets.end(host, number, resets.SPARED)
    except _Hangs:
        # It goes on: what came back now would be lost when it ends
        raise
    except BaseException as cause:
        left = _left(host, journal)
        if left and isinstance(cause, GpuOpsError):
            first = cause.refusals[0]
            raise GpuOpsError.because([replace(first, found="%s; %s" % (first.found, left))]) from cause
        raise
    finally:
        nvml.forget()
    finish(host, journal)
    return is_needed


def _asks_no_more(sick: Sequence[str]) -> bool:
    """Whether the driver asks for nothing more of these GPUs, which nobody has any more. One that does not say so is
    reset: False of none."""
    if not sick:
        return False
    well = {gpu.uuid for gpu in nvml.read_nvml().gpus if not gpu.error and gpu.recovery_action == 0}
    return well.issuperset(sick)


def _looked_at(
    host: Host, journal: Journal, act: Act, gpus: Sequence[nvml.NvmlGpu]
) -> Tuple[Dict[str, Dict[str, Any]], Sequence[Resettable], Sequence[Resettable]]:
    """({UUID: its settings} of all GPUs that tell them, the same GPUs, those that are to be reset), once nothing is in
    the way."""
    told, there = read_all(host, journal, gpus)
    known = {gpu.uuid: gpu for gpu in there}
    chosen = [known.get(uuid) or read_silent(host, uuid, address) for uuid, address in act.gpus]
    with_fabric = any(gpu.joined for gpu in chosen) and fabric_runs(host)
    wrong = rules.refusals(chosen, act.ecc, False, there, with_fabric)
    if wrong:
        raise GpuOpsError.because(wrong)
    return told, there, chosen


def read_silent(host: Host, uuid: str, address: str) -> Resettable:
    """A GPU that does not answer, as far as the kernel tells of it."""
    minor = _MINOR.search(host.read("/proc/driver/nvidia/gpus/%s/information" % address) or "")
    manager = next((device.manager for device in read_bus(host).gpus if device.address == address), "")
    number = int(minor.group(1)) if minor else -1
    return Resettable(uuid, address, minor=number, supported=can_be_reset(host, address), guest=manager,
                      holders=Users(host).of(uuid, "/dev/nvidia%d" % number))


def _note(
    host: Host, journal: Journal, act: Act, told: Mapping[str, Mapping[str, Any]], there: Sequence[Resettable],
    chosen: Sequence[Resettable]
) -> None:
    """What is to come back, before any of it goes. The persistence daemon keeps all GPUs of the host."""
    units = [unit for unit in (*WATCHERS, PERSISTENCED_UNIT) if unit in {each.unit for each in _holding(host, chosen)}]
    losing = there if PERSISTENCED_UNIT in units else chosen
    # Whom a GPU that hangs keeps from being known is still set as it is
    lost = told if PERSISTENCED_UNIT in units else [gpu.uuid for gpu in chosen if gpu.uuid in told]
    memory = journal.recall(MEMORY)
    waiting = {uuid: values for uuid, values in _waiting(host, memory).items() if uuid in [gpu.uuid for gpu in chosen]}
    journal.remember(MEMORY, {**memory, ACT: {
        "boot": host.boot(),
        "step": act.step,
        "gpus": [[gpu.uuid, gpu.address] for gpu in chosen],
        "units": units,
        "values": {**waiting, **{uuid: {name: told[uuid][name] for name in VALUES} for uuid in lost}},
        "layouts": {**{gpu.uuid: list(gpu.instances) for gpu in losing if gpu.instances},
                    **_layouts_of_silent(host, chosen, told)},
    }})


def _layouts_of_silent(
    host: Host, chosen: Sequence[Resettable], told: Mapping[str, Mapping[str, Any]]
) -> Dict[str, List[str]]:
    """Of a GPU that does not answer, what it is to be divided into is known from the unit alone."""
    restored = _restored(host)
    return {gpu.uuid: list(restored[gpu.uuid]) for gpu in chosen if gpu.uuid not in told and gpu.uuid in restored}


def _holding(host: Host, chosen: Sequence[Resettable]) -> List[Holder]:
    nodes = {"/dev/nvidia%d" % gpu.minor for gpu in chosen}
    return [holder for holder in read_holders(host)[0]
            if nodes.intersection(holder.devices) and holder.unit != FABRIC_MANAGER_UNIT]


def _let_go(
    host: Host, chosen: Sequence[Resettable], told: Mapping[str, Mapping[str, Any]], number: int
) -> None:
    try:
        _without_persistence(chosen, told)
        _without_daemons(host, chosen)
    except GpuOpsError:
        resets.end(host, number, resets.FAILED)
        raise


def _without_persistence(chosen: Sequence[Resettable], told: Mapping[str, Mapping[str, Any]]) -> None:
    persistent = [gpu for gpu in chosen if told.get(gpu.uuid, {}).get("persistence")]
    if persistent:
        session = nvml.Session(REQUESTS)
        try:
            for gpu in persistent:
                session.ask("persistence", gpu.uuid, False)
        except nvml.NvmlFailed as failed:
            raise GpuOpsError(
                "reset.persistence_stays", found="persistence mode of %s cannot be switched off: %s" % (
                    ", ".join(each.named() for each in persistent), failed),
                wanted="it off while the GPU is reset",
                remedy="read the kernel log for NVRM messages, and run this again") from failed
        finally:
            session.close()


def _without_daemons(host: Host, chosen: Sequence[Resettable]) -> None:
    holding = {each.unit for each in _holding(host, chosen)}
    for unit in (*WATCHERS, PERSISTENCED_UNIT):
        if unit in holding:
            host.systemctl("stop", unit)
    left, free = wait_for(lambda: _holding(host, chosen), lambda found: not found, LET_GO_S, PAUSE_S)
    if not free:
        raise GpuOpsError.because([rules.busy(_named(chosen), [each.named() for each in left])])


def _named(chosen: Sequence[Resettable]) -> str:
    return ", ".join(gpu.named() for gpu in chosen)


def _command(host: Host, journal: Journal, chosen: Sequence[Resettable], number: int, by_bus: bool) -> None:
    try:
        done = host.run(["nvidia-smi", "-r", *(["bus"] if by_bus else []), "-i",
                         ",".join(gpu.address for gpu in chosen)], check=False, timeout=LIMIT_S)
    except CommandTimedOut as cause:
        hangs = cause.details.get("hangs")
        if not hangs or not hangs[1]:
            # It could be ended, or has ended since
            resets.end(host, number, resets.FAILED)
            raise GpuOpsError.because([_failed(chosen, cause.found)], **cause.details) from cause
        memory = journal.recall(MEMORY)
        note = {**memory[ACT], "hangs": hangs}
        journal.remember(MEMORY, {**memory, ACT: note})
        raise _hangs(note, **cause.details) from cause
    resets.end(host, number, resets.DONE if done.rc == 0 else resets.FAILED)
    if done.rc == 0:
        return
    said = " ".join((done.stdout + " " + done.stderr).split()) or "nothing"
    raise GpuOpsError.because([_explained(host, journal, chosen, done.rc, said)], rc=done.rc)


def _hangs(note: Mapping[str, Any], **details: Any) -> GpuOpsError:
    return _Hangs(
        "reset.hangs",
        found="nvidia-smi has not ended the reset of %s; what it has stopped and lost is not back" % ", ".join(
            "GPU %s" % address for _uuid, address in note["gpus"]),
        wanted="a reset that ends",
        remedy="read the kernel log for NVRM messages; where it does not end, drain the node and reboot it, else run "
               "this again, which brings everything back",
        **details)


def _explained(host: Host, journal: Journal, chosen: Sequence[Resettable], code: int, said: str) -> Refusal:
    there = [device.address for device in read_bus(host).gpus]
    missing = rules.missing_in(said, [gpu.address for gpu in chosen], there)
    if missing:
        _note_named(journal, chosen, missing)
        refusal = rules.incomplete(chosen, ["GPU %s" % address for address in missing])
        return replace(refusal, found="%s; nvidia-smi says: %s" % (refusal.found, said))
    if code == IN_USE:
        holders = [each.named() for each in read_holders(host)[0]]
        return rules.busy(_named(chosen), holders, "; nvidia-smi says: %s" % said)
    if "not supported" in said.lower():
        return rules.unsupported(_named(chosen), "nvidia-smi says: %s" % said)
    return _failed(chosen, "nvidia-smi ended with %d and said: %s" % (code, said))


def _failed(chosen: Sequence[Resettable], found: str) -> Refusal:
    return Refusal(
        "reset.failed", "%s could not be reset: %s" % (_named(chosen), found),
        "a GPU that is reset", "read the kernel log for NVRM messages; drain the node and reboot it, and where that "
        "does not help, switch its power off and on")


def _note_named(journal: Journal, chosen: Sequence[Resettable], missing: Sequence[str]) -> None:
    memory = journal.recall(MEMORY)
    known = {gpu.pci_address: gpu.uuid for gpu in nvml.read_nvml().gpus if gpu.uuid}
    group = sorted({*(gpu.uuid for gpu in chosen), *(known[address] for address in missing if address in known)})
    journal.remember(MEMORY, {**memory, NAMED: {**memory.get(NAMED, {}), **dict.fromkeys(group, group)}})


# what comes back


def interrupted(host: Host, journal: Journal) -> Dict[str, Any]:
    """What a run that was killed has left to be brought back, {} where nothing. A boot has ended it."""
    note: Dict[str, Any] = journal.recall(MEMORY).get(ACT, {})
    return note if note.get("boot") == host.boot() else {}


def unfinished_steps(host: Host, journal: Journal, capability: str) -> Tuple[Step, ...]:
    """What a plan of a capability begins with where interrupted() tells of something; reads, for observations.

    It is the step that was under way, so that it is one of the approved plan, as one that disturbs nothing any more; or
    one of its own where that is another's. A planner leaves it out where it plans the same step anew.
    """
    note = interrupted(host, journal)
    if not note:
        return ()
    opened = [Step.from_dict(event["step"]) for event in journal.unfinished(capability)]
    for step in opened:
        if step.id == note["step"]:
            return (replace(step, why=_INTERRUPTED, disruption=Disruption.none, depends_on=()),)
    units = note["units"]
    before, after = (
        {**dict.fromkeys(units, state), **{"what GPU %s is set to" % address: told for _uuid, address in note["gpus"]}}
        for state, told in (("stopped", "as the reset left it"), ("running", "as before it")))
    return (Step(capability, FINISH, "GPUs", _INTERRUPTED, change={"before": before, "after": after}),)


def finishing(change: Executor) -> Executor:
    """The executor of a step that resets GPUs: what a run that was killed has left comes back first. Where the step is
    only planned for that, nothing else is done."""

    def done(host: Host, journal: Journal, step: Step) -> None:
        alone = interrupted(host, journal).get("step") == step.id and step.disruption == Disruption.none
        finish(host, journal)
        if not alone:
            change(host, journal, step)

    return done


def finish_interrupted(host: Host, journal: Journal, step: Step) -> None:
    finish(host, journal)


def finish(host: Host, journal: Journal) -> None:
    """Bring back what a reset, of this run or of one that was killed, has stopped and lost. Raises GpuOpsError where
    some of it cannot be; the next run tries again."""
    note = interrupted(host, journal)
    process, started = note.get("hangs") or (0, "")
    if started and host.process_started(process) == started:
        # It goes on: what came back now would be lost when it ends
        raise _hangs(note)
    failures, silent = _brought_back(host, note) if note else ([], [])
    if failures:
        raise GpuOpsError(
            "reset.not_brought_back", found="after a reset there is not back: %s" % "; ".join(failures),
            wanted="all that it has stopped and lost",
            remedy="read the kernel log for NVRM messages and the journal of the units, and "
                   "run this again; a boot ends it")
    memory = journal.recall(MEMORY)
    if ACT in memory:
        waiting = {uuid: values for uuid, values in {**_waiting(host, memory), **note.get("values", {})}.items()
                   if uuid in silent or uuid not in note.get("values", {})}
        known = {name: value for name, value in memory.items() if name not in (ACT, SILENT)}
        journal.remember(MEMORY, {**known, **({SILENT: {"boot": host.boot(), "values": waiting}} if waiting else {})})


def _waiting(host: Host, memory: Mapping[str, Any]) -> Dict[str, Any]:
    """{UUID: what it was set to} of GPUs that have not answered since. A boot has ended it."""
    noted = memory.get(SILENT, {})
    return dict(noted["values"]) if noted.get("boot") == host.boot() else {}


def _left(host: Host, journal: Journal) -> str:
    try:
        finish(host, journal)
        return ""
    except GpuOpsError as error:
        return error.found


def _brought_back(host: Host, note: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """(what is not, UUIDs of GPUs that did not answer and are still to be set): each by itself, as one that fails keeps
    no other back. That a GPU does not answer is no failure of this: another remedy is to come, or a boot.

    In this order: the daemon keeps persistence mode, which keeps the rest; who watches learns of instances when it
    starts, and may be what keeps a GPU's settings.
    """
    failures: List[str] = []
    silent: List[str] = []
    units = note["units"]

    def attempt(what: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except (GpuOpsError, nvml.NvmlFailed) as error:
            failures.append("%s (%s)" % (what, error.found if isinstance(error, GpuOpsError) else error))

    def start(unit: str) -> None:
        attempt(unit, functools.partial(_start, host, unit))

    def set_back(names: Sequence[str]) -> None:
        session = nvml.Session(REQUESTS)
        try:
            for uuid, values in note["values"].items():
                if uuid in silent:
                    continue
                try:
                    now = {} if session.lost else session.ask("get", uuid)
                except nvml.NvmlFailed:
                    now = {}
                if not now:
                    silent.append(uuid)
                    continue
                attempt("what GPU %s was set to" % uuid, functools.partial(
                    _set_back, session, uuid, now, values, names))
        finally:
            session.close()

    if PERSISTENCED_UNIT in units:
        start(PERSISTENCED_UNIT)
    set_back(VALUES[:1])
    attempt("what our unit sets", functools.partial(set_up_again, host))
    if note["layouts"] and host.exists(RESTORE_WANTED):
        attempt("the MIG layout",
                lambda: host.run(["systemctl", "restart", RESTORE_UNIT], check=False, timeout=LAYOUT_S))
    for unit in reversed(WATCHERS):
        if unit in units:
            start(unit)
    set_back(VALUES)
    nvml.forget()
    for gpu in nvml.read_nvml().gpus if note["layouts"] else ():
        if not gpu.error and gpu.uuid in note["layouts"] and list(_instances(gpu)) != note["layouts"][gpu.uuid]:
            failures.append("the MIG instances of %s, as `journalctl -u %s` tells" % (gpu.named(), RESTORE_UNIT))
    return list(dict.fromkeys(failures)), silent


def _start(host: Host, unit: str) -> None:
    if host.unit(unit).get("ActiveState") not in ("active", "activating", "reloading"):
        # A unit that failed too often in a row is refused by systemd until it is reset
        host.run(["systemctl", "reset-failed", unit], check=False)
        host.systemctl("start", unit)


def _set_back(
    session: nvml.Session, uuid: str, now: Mapping[str, Any], values: Mapping[str, Any], names: Sequence[str]
) -> None:
    for name in names:
        # A note of an earlier release has fewer
        if values.get(name) is not None and now[name] != values[name]:
            session.ask(name, uuid, values[name])
