# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Change MIG modes and GPU instances, in one session of NVML; a GPU that fails is brought back to what it was.

What is carried out is worked out once more from what is there: a step that was killed half-way is finished by the next
plan, and what somebody else has changed since the plan is never destroyed.
"""
from __future__ import annotations

import atexit
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..core import interrupted
from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from ..core.waiting import wait_for
from ..hardware import nvml
from ..hardware.holders import POD, UNDISTURBED, read_holders
from ..hardware.mig import Mig
from ..hardware.nvml_codes import IN_USE, LOST, NO_PERMISSION, NOT_SUPPORTED, RESET_REQUIRED, TOO_LITTLE
from ..hardware.nvml_mig import REQUESTS
from ..hardware.reset import Act, finish_interrupted, finishing, reset
from ..hardware.reset_plan import FINISH
from ..hardware.settings import set_up_again
from . import former
from .model import Wanted
from .observation import MODPROBE, SWITCHED, users, without_nodes
from .placement import Arrangement, Placed, arrange, as_placed, placed_now
from .planner import DIVIDE, FORGET, MODE, NODES

# {nvmlReturn_t: what it means for a change}; {call}: the GPU, the call and NVML's words
_MEANING: Dict[int, Refusal] = {
    IN_USE: Refusal(
        "mig.in_use", "{call}", "instances and GPUs that nobody has open while they change",
        "end what uses it (`fuser -v /dev/nvidia*` lists it), and run this again"),
    TOO_LITTLE: Refusal(
        "mig.does_not_fit", "{call}", "place for what the plan has, as it was there when it was made",
        "look whether another program divides GPUs (nvidia-mig-manager, the GPU operator), and run this again"),
    NO_PERMISSION: Refusal(
        "mig.no_permission", "{call}", "root, or read access to NVIDIA's capability mig/config",
        "run this with become; in a container with CAP_SYS_ADMIN"),
    NOT_SUPPORTED: Refusal(
        "mig.not_supported", "{call}", "a GPU whose MIG mode is on, and that may be divided from here",
        "in a virtual machine, divide the GPU on its host"),
    LOST: Refusal(
        "mig.lost", "{call}", "a GPU that answers",
        "read the kernel log for NVRM messages (Xid 79: it has fallen off the bus), drain the node and reboot it"),
    RESET_REQUIRED: Refusal(
        "mig.reset_required", "{call}", "a GPU that was reset since its errors, or since its MIG mode was changed",
        "end who has it open (nvidia_drm and an X server too), or drain the node and reboot it; then run this again"),
}
# Seconds that the kubelet may take to clear away a pod that is gone, and between two looks
CLEARED_S, PAUSE_S = 30.0, 1.0
_OTHERWISE = Refusal(
    "mig.call_failed", "{call}", "every call of NVML answered with success",
    "read the kernel log for NVRM messages, and run this again")

_sessions: List[nvml.Session] = []


def _session() -> nvml.Session:
    """The one session of this process; one in which a call hangs is left to the GPU that hangs."""
    if _sessions and _sessions[0].lost:
        close_session()
    if not _sessions:
        _sessions.append(nvml.Session(REQUESTS))
    return _sessions[0]


def close_session() -> None:
    """A reset needs a GPU that nobody has open, this process included."""
    while _sessions:
        _sessions.pop().close()


atexit.register(close_session)


def set_mode(host: Host, journal: Journal, step: Step) -> None:
    uuid, enabled = step.parameters["uuid"], step.parameters["enabled"]
    failure: Optional[GpuOpsError] = None
    try:
        mig = _mig(uuid)
        former.note(journal, step.capability, uuid, mig, enabled, placed_now(mig))
        if step.parameters["divides"]:
            interrupted.note(host, journal, step.capability, SWITCHED, uuid)
        status = _session().ask("set_mode", uuid, enabled)
        if status == RESET_REQUIRED and step.parameters["resets"]:
            close_session()
            try:
                act = Act(step.capability, "its MIG mode changes", ((uuid, step.subject),), step=step.id)
                reset(host, journal, act)
            except GpuOpsError as failed_reset:
                failure = failed_reset
        elif step.parameters["resets"]:
            # NVML resets the GPU by itself
            set_up_again(host)
        mig = _mig(uuid)
    except nvml.NvmlFailed as failed:
        raise _explained(host, step, failed) from failed
    if mig.current == enabled or (mig.pending == enabled and not step.parameters["resets"]):
        if failure is not None:
            raise failure
        return
    error = _explained(host, step, nvml.NvmlFailed("nvmlDeviceSetMigMode", status or RESET_REQUIRED, _told(status)))
    if status == RESET_REQUIRED:
        error = _with(error, "; its reset: %s; the former mode is set again" % (
            failure.found if failure is not None else "done, and without effect"))
    try:
        # The next reset of the GPU, whoever's, would change it unasked
        _session().ask("set_mode", uuid, mig.current)
    except nvml.NvmlFailed as failed:
        raise _with(error, "; the mode stays pending (%s)" % failed) from failed
    raise error


def _with(error: GpuOpsError, more: str) -> GpuOpsError:
    return GpuOpsError.because([replace(error.refusals[0], found=error.found + more)])


def _told(status: int) -> str:
    return {IN_USE: "In use by another client"}.get(status, "the mode waits for a reset of the GPU that did not come")


def divide(host: Host, journal: Journal, step: Step) -> None:
    uuid = step.parameters["uuid"]
    before, after = _placed(step.parameters["before"]), _placed(step.parameters["after"])
    try:
        mig, arrangement = _sparing(host, step, before, after)
        former.note(journal, step.capability, uuid, mig, mig.current, after)
        own = {each.id for each in mig.instances}
        try:
            _carry_out(uuid, arrangement, own)
            _judge(step, _mig(uuid), after)
        except nvml.NvmlFailed as failed:
            error = _brought_back(step, before, own, _explained(host, step, failed))
            raise _with(error, _mode_back(host, journal, step)) from failed
    except nvml.NvmlFailed as failed:
        raise _explained(host, step, failed) from failed
    interrupted.forget(host, journal, step.capability, SWITCHED, uuid)
    if host.which(MODPROBE) is not None:
        _make_nodes(host, without_nodes(host))


def make_nodes(host: Host, journal: Journal, step: Step) -> None:
    _make_nodes(host, tuple(step.change["after"]))


def _make_nodes(host: Host, files: Sequence[str]) -> None:
    """No module of the kernel makes them (NVIDIA/nvidia-modprobe)."""
    for path in files:
        host.run([MODPROBE, "-f", path])


def _mig(uuid: str) -> Mig:
    answer = _session().ask("get", uuid)
    if answer is None:
        raise nvml.NvmlFailed("nvmlDeviceGetMigMode", NOT_SUPPORTED, "Not Supported")
    return Mig.from_dict(answer)


def _placed(data: Sequence[Any]) -> Tuple[Placed, ...]:
    return tuple(Placed(profile, start, size, tuple(compute)) for profile, start, size, compute in data)


def _wanted(placed: Sequence[Placed]) -> List[Wanted]:
    return [Wanted(each.profile, each.compute, each.start) for each in placed]


def _compare(step: Step, mig: Mig, before: Sequence[Placed]) -> None:
    if placed_now(mig) != tuple(before):
        raise GpuOpsError(
            "mig.changed_meanwhile",
            found="GPU %s is divided otherwise than when this was planned" % step.subject,
            wanted="the instances that the plan was made for; nothing was changed",
            remedy="see who divides GPUs on this host (nvidia-mig-manager, the GPU operator, a person), and plan again",
        )


def _sparing(
    host: Host, step: Step, before: Sequence[Placed], after: Sequence[Placed]
) -> Tuple[Mig, Arrangement]:
    """(the GPU, the way there), worked out with those who have the instances by now; none of theirs is destroyed.

    A pod that has just been evicted has its device until the kubelet has cleared it away.
    """
    uuid = step.parameters["uuid"]
    minor = _session().ask("minor", uuid)

    def look() -> Tuple[Mig, Arrangement]:
        # In this order: of a program that ends in between, NVML tells no number that nobody can put a name to
        now = users(host)
        mig = _mig(uuid)
        _compare(step, mig, before)
        return mig, arrange(now.told(minor, mig), _wanted(after))

    def settled(found: Tuple[Mig, Arrangement]) -> bool:
        in_use = found[1].in_use
        return not in_use or not all(holder.startswith(POD) for each in in_use for holder in each.holders)

    (mig, arrangement), _is_settled = wait_for(look, settled, CLEARED_S, PAUSE_S)
    if arrangement.in_use:
        raise GpuOpsError(
            "mig.taken_meanwhile",
            found="of GPU %s would go, and are used by now: %s" % (step.subject, "; ".join(
                "MIG device %s (%s)" % (each.uuid, ", ".join(each.holders) or "process %s" % list(each.processes))
                for each in arrangement.in_use)),
            wanted="instances that nobody uses, before they are destroyed; nothing was changed",
            remedy="evict the pods, end the programs, and plan again",
        )
    return mig, arrangement


def _carry_out(uuid: str, arrangement: Arrangement, own: Set[int]) -> None:
    for request in _requests(arrangement, own):
        request(uuid)


def _requests(arrangement: Arrangement, own: Set[int]) -> List[Callable[[str], None]]:
    """What is asked of NVML, in its order: what goes, then what comes.

    own: ids of the instances that were there before or that this change has made, kept up to date as it goes on:
    another program may make one in a place that has just become free.
    """
    going: List[Tuple[Any, ...]] = []
    for kept in arrangement.kept:
        going += [("destroy_compute", kept.instance.id, each.id) for each in kept.destroyed]
    for instance in arrangement.destroyed:
        going += [("destroy_compute", instance.id, each.id) for each in instance.compute]
        going.append(("destroy", instance.id))

    def ask(words: Tuple[Any, ...]) -> Callable[[str], None]:
        def asked(uuid: str) -> None:
            _session().ask(words[0], uuid, *words[1:])
            if words[0] == "destroy":
                own.discard(words[1])

        return asked

    def create(placed: Placed) -> Callable[[str], None]:
        def created(uuid: str) -> None:
            instance = _session().ask("create", uuid, placed.profile, placed.start, placed.size)
            own.add(instance)
            _session().ask("create_compute", uuid, instance, placed.compute)
        return created

    coming = [ask(("create_compute", kept.instance.id, kept.created)) for kept in arrangement.kept if kept.created]
    return [*map(ask, going), *coming, *map(create, arrangement.created)]


def _judge(step: Step, mig: Mig, after: Sequence[Placed]) -> None:
    """NVML's word for what it has done is not taken for it."""
    if placed_now(mig) != tuple(after):
        raise nvml.NvmlFailed("nvmlDeviceGetGpuInstances", 0, "the instances are others than those that were created")


def _brought_back(step: Step, before: Sequence[Placed], own: Set[int], error: GpuOpsError) -> GpuOpsError:
    """The error, with what became of the GPU: as it was, or as much of that as can be had.

    What was neither there nor made by this change is somebody else's, made meanwhile, and stays.
    """
    uuid, failures = step.parameters["uuid"], []
    try:
        mig = _mig(uuid)
        foreign = [as_placed(each) for each in mig.instances if each.id not in own]
        arrangement = arrange(mig, _wanted([*foreign, *(each for each in before if not _meets(each, foreign))]))
        for request in _requests(arrangement, own):
            try:
                request(uuid)
            except nvml.NvmlFailed as failed:
                failures.append(str(failed))
        lacking = [each for each in before if each not in placed_now(_mig(uuid))]
    except nvml.NvmlFailed as failed:
        return _with(error, "; whether the GPU has its former instances cannot be told (%s)" % failed)
    fate = "the GPU has been brought back to its former instances" if not lacking else (
        "of its former instances %d of %d could not be made again: profile %s (%s)" % (
            len(lacking), len(before), _listed(lacking), "; ".join(failures) or "their place is taken"))
    if foreign:
        fate += "; somebody else's stay: profile %s" % _listed(foreign)
    return _with(error, "; " + fate)


def _meets(placed: Placed, others: Sequence[Placed]) -> bool:
    return any(placed.start < other.start + other.size and other.start < placed.start + placed.size
               for other in others)


def _listed(placed: Sequence[Placed]) -> str:
    return ", ".join("%d at %d" % (each.profile, each.start) for each in placed)


def _mode_back(host: Host, journal: Journal, step: Step) -> str:
    """A GPU that was whole before this change of its mode and instances is whole again, where that takes no reset."""
    uuid = step.parameters["uuid"]
    switched = interrupted.remembered(host, journal, step.capability).get(SWITCHED, ())
    if step.parameters["before"] or uuid not in switched:
        return ""
    try:
        if _mig(uuid).instances:
            return "; its MIG mode stays on"
        if _session().ask("set_mode", uuid, False) == 0 and not _mig(uuid).current:
            return "; its MIG mode is off again"
        _session().ask("set_mode", uuid, True)
    except nvml.NvmlFailed as failed:
        return "; its MIG mode may stay on (%s)" % failed
    return "; its MIG mode stays on"


def _explained(host: Host, step: Step, failed: nvml.NvmlFailed) -> GpuOpsError:
    refusal = _MEANING.get(failed.code, _OTHERWISE)
    call = "GPU %s: %s" % (step.subject, failed)
    if failed.code == IN_USE:
        call += " (%s)" % (", ".join(_users(host)) or "by nobody who can be seen from here")
    return GpuOpsError.because([replace(refusal, found=refusal.found.format(call=call))])


def _users(host: Host) -> List[str]:
    return [holder.named() for holder in read_holders(host)[0] if holder.unit not in UNDISTURBED]


def forget(host: Host, journal: Journal, step: Step) -> None:
    former.forget(journal, step.capability, step.parameters["uuid"])
    interrupted.forget(host, journal, step.capability, SWITCHED, step.parameters["uuid"])


def _settled(change: Executor) -> Executor:
    """The change of a GPU; one that fails and leaves nothing of ours leaves no note of it either."""

    def changed(host: Host, journal: Journal, step: Step) -> None:
        try:
            change(host, journal, step)
        except GpuOpsError:
            _settle(host, journal, step)
            raise
        finally:
            nvml.forget()

    return changed


def _settle(host: Host, journal: Journal, step: Step) -> None:
    uuid = step.parameters["uuid"]
    interrupted.forget(host, journal, step.capability, SWITCHED, uuid)
    before = former.read(journal.recall(step.capability)).get(uuid)
    try:
        if before is not None and before.is_all_of(_mig(uuid)):
            former.forget(journal, step.capability, uuid)
    except nvml.NvmlFailed:
        # What it is cannot be told, so that the note stays
        return


EXECUTORS: Dict[str, Executor] = {
    FINISH: finish_interrupted,
    MODE: finishing(_settled(set_mode)),
    DIVIDE: _settled(divide),
    FORGET: forget,
    NODES: make_nodes,
    "service.stop": interrupted.stop_service,
    "service.start": interrupted.start_service,
}
