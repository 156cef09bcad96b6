# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Change MIG modes and GPU instances, in one session of NVML; a GPU that fails is brought back to what it was.

What is carried out is worked out once more from what is there: a step that was killed half-way is finished by the next
plan, and what somebody else has changed since the plan is never destroyed.
"""
from __future__ import annotations

import atexit
from dataclasses import replace
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from ..hardware import nvml
from ..hardware.holders import read_holders
from ..hardware.mig import Mig
from ..hardware.nvml_mig import REQUESTS
from .model import Wanted
from .observation import MODPROBE, UNDISTURBED, without_nodes
from .placement import Arrangement, Placed, arrange, placed_now
from .planner import DIVIDE, MODE, NODES

# nvml.h, nvmlReturn_t
NO_PERMISSION, NOT_SUPPORTED, LOST, RESET_REQUIRED, IN_USE, TOO_LITTLE = 4, 3, 15, 16, 19, 23

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
        "drain the node and reset the GPU (`nvidia-smi -r -i ...`), or reboot the host"),
}
_OTHERWISE = Refusal(
    "mig.call_failed", "{call}", "every call of NVML answered with success",
    "read the kernel log for NVRM messages, and run this again")

_sessions: List[nvml.Session] = []


def _session() -> nvml.Session:
    """The one session of this process."""
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
    try:
        status = _session().ask("set_mode", uuid, enabled)
        if status == RESET_REQUIRED and step.parameters["resets"]:
            close_session()
            host.run(["nvidia-smi", "-r", "-i", step.subject], check=False)
        mig = _mig(uuid)
    except nvml.NvmlFailed as failed:
        raise _explained(host, step, failed) from failed
    finally:
        nvml.forget()
    if mig.current == enabled or (mig.pending == enabled and not step.parameters["resets"]):
        return
    error = _explained(host, step, nvml.NvmlFailed("nvmlDeviceSetMigMode", status or RESET_REQUIRED, _told(status)))
    # The next reset of the GPU, whoever's, would change it unasked
    _session().ask("set_mode", uuid, mig.current)
    raise error


def _told(status: int) -> str:
    return {IN_USE: "In use by another client"}.get(status, "the mode waits for a reset of the GPU that did not come")


def divide(host: Host, journal: Journal, step: Step) -> None:
    uuid = step.parameters["uuid"]
    before, after = _placed(step.parameters["before"]), _placed(step.parameters["after"])
    try:
        mig = _mig(uuid)
        _compare(step, mig, before)
        try:
            _carry_out(uuid, arrange(mig, _wanted(after)))
            _judge(step, _mig(uuid), after)
        except nvml.NvmlFailed as failed:
            error = _explained(host, step, failed)
            raise _brought_back(step, uuid, before, error) from failed
    except nvml.NvmlFailed as failed:
        raise _explained(host, step, failed) from failed
    finally:
        nvml.forget()
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


def _carry_out(uuid: str, arrangement: Arrangement) -> None:
    for request in _requests(arrangement):
        request(uuid)


def _requests(arrangement: Arrangement) -> List[Callable[[str], None]]:
    """What is asked of NVML, in its order: what goes, then what comes."""
    going: List[Tuple[Any, ...]] = []
    for kept in arrangement.kept:
        going += [("destroy_compute", kept.instance.id, each.id) for each in kept.destroyed]
    for instance in arrangement.destroyed:
        going += [("destroy_compute", instance.id, each.id) for each in instance.compute]
        going.append(("destroy", instance.id))

    def ask(words: Tuple[Any, ...]) -> Callable[[str], None]:
        return lambda uuid: _session().ask(words[0], uuid, *words[1:])

    def create(placed: Placed) -> Callable[[str], None]:
        def created(uuid: str) -> None:
            instance = _session().ask("create", uuid, placed.profile, placed.start, placed.size)
            _session().ask("create_compute", uuid, instance, placed.compute)
        return created

    coming = [ask(("create_compute", kept.instance.id, kept.created)) for kept in arrangement.kept if kept.created]
    return [*map(ask, going), *coming, *map(create, arrangement.created)]


def _judge(step: Step, mig: Mig, after: Sequence[Placed]) -> None:
    """NVML's word for what it has done is not taken for it."""
    if placed_now(mig) != tuple(after):
        raise nvml.NvmlFailed("nvmlDeviceGetGpuInstances", 0, "the instances are others than those that were created")


def _brought_back(step: Step, uuid: str, before: Sequence[Placed], error: GpuOpsError) -> GpuOpsError:
    """The error, with what became of the GPU: as it was, or as much of that as can be had."""
    failures: List[str] = []
    try:
        arrangement = arrange(_mig(uuid), _wanted(before))
        for request in _requests(arrangement):
            try:
                request(uuid)
            except nvml.NvmlFailed as failed:
                failures.append(str(failed))
        lacking = [each for each in before if each not in placed_now(_mig(uuid))]
    except nvml.NvmlFailed as failed:
        failures.append(str(failed))
        lacking = list(before)
    fate = "the GPU has been brought back to its former instances" if not lacking else (
        "of its former instances %d of %d could not be made again: profile %s (%s)" % (
            len(lacking), len(before), ", ".join("%d at %d" % (each.profile, each.start) for each in lacking),
            "; ".join(failures)))
    return GpuOpsError.because([replace(error.refusals[0], found="%s; %s" % (error.found, fate))])


def _explained(host: Host, step: Step, failed: nvml.NvmlFailed) -> GpuOpsError:
    refusal = _MEANING.get(failed.code, _OTHERWISE)
    call = "GPU %s: %s" % (step.subject, failed)
    if failed.code == IN_USE:
        call += " (%s)" % (", ".join(_users(host)) or "by nobody who can be seen from here")
    return GpuOpsError.because([replace(refusal, found=refusal.found.format(call=call))])


def _users(host: Host) -> List[str]:
    return [holder.named() for holder in read_holders(host)[0] if holder.unit not in UNDISTURBED]


EXECUTORS: Dict[str, Executor] = {MODE: set_mode, DIVIDE: divide, NODES: make_nodes}
