# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set GPUs, and read back what they say."""
from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, Mapping

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor
from ..hardware import nvml
from ..hardware.nvml_codes import IN_USE, LOST, NO_PERMISSION, NOT_SUPPORTED
from ..hardware.nvml_settings import REQUESTS
from ..hardware.reset import Act, finish_interrupted, finishing, reset
from ..hardware.reset_plan import FINISH
from . import notes
from .model import CLOCKS, ECC, TITLES, told
from .planner import CHANGE, CHANGE_ECC, FORGET, KEEP_ECC, UNLOCK

# What each return code means for a change; {call}: the GPU, the call and NVML's words
_MEANING: Dict[int, Refusal] = {
    NOT_SUPPORTED: Refusal(
        "settings.call_not_supported", "{call}", "a setting that the board and its driver have",
        "leave it out for this board: name others in `match`; in a virtual machine, set it on its host"),
    NO_PERMISSION: Refusal("settings.no_permission", "{call}", "root", "run this with become"),
    LOST: Refusal(
        "settings.lost", "{call}", "a GPU that answers",
        "read the kernel log for NVRM messages (Xid 79: it has fallen off the bus), drain the node and reboot"),
    IN_USE: Refusal(
        "settings.in_use", "{call}", "a GPU that nobody has open while this changes",
        "end what uses it (`fuser -v /dev/nvidia*` lists it), and run this again"),
}
_OTHERWISE = Refusal("settings.call_failed", "{call}", "every call of NVML answered with success",
                     "read the kernel log for NVRM messages, and run this again")


def change(host: Host, journal: Journal, step: Step) -> None:
    uuid, wanted = step.parameters["uuid"], step.parameters["set"]
    with _explaining(step):
        session = nvml.Session(REQUESTS)
        try:
            notes.note_former(journal, uuid, session.ask("get", uuid), wanted)
            # What cannot be read is noted before it is so: noted in vain, it is set once more
            for name, value in wanted.items():
                if name in CLOCKS:
                    notes.note_locked(host, journal, uuid, {name: None})
                if name == "memory_clocks" and step.parameters["deferred"]:
                    _defer(host, step, value)
                else:
                    session.ask(name, uuid, value)
                if name in CLOCKS:
                    notes.note_locked(host, journal, uuid, {name: value})
            _judge(step, session.ask("get", uuid), wanted)
        finally:
            session.close()
            nvml.forget()


def change_ecc(host: Host, journal: Journal, step: Step) -> None:
    wanted: Mapping[str, bool] = step.parameters["set"]
    found: Dict[str, Dict[str, Any]] = {}

    def pend() -> None:
        for uuid, mode in wanted.items():
            with _asking() as ask:
                before = ask("get", uuid)
                notes.note_former(journal, uuid, before, {ECC: mode})
                found[uuid] = before
                ask(ECC, uuid, mode)

    gpus = tuple((uuid, address) for uuid, address in step.parameters["gpus"])
    with _explaining(step):
        try:
            reset(host, journal, Act(step.capability, "ECC changes", gpus, wanted, step.id), pend)
        except (GpuOpsError, nvml.NvmlFailed) as failed:
            _take_back(found, wanted, failed)
            raise
        finally:
            nvml.forget()
        for uuid, mode in wanted.items():
            with _asking() as ask:
                _judge(step, ask("get", uuid), {ECC: mode})


def keep_ecc(host: Host, journal: Journal, step: Step) -> None:
    uuid, mode = step.parameters["uuid"], step.parameters["set"][ECC]
    with _explaining(step), _asking() as ask:
        ask(ECC, uuid, mode)
        _judge(step, {ECC: ask("get", uuid)["ecc_pending"]}, {ECC: mode})


def _take_back(found: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, bool], failed: Exception) -> None:
    """The next reset, whoever's, would change ECC unasked. found: {UUID: what was there before it was set}."""
    for uuid, before in found.items():
        try:
            with _asking() as ask:
                if ask("get", uuid)[ECC] != wanted[uuid]:
                    ask(ECC, uuid, before["ecc_pending"])
        except nvml.NvmlFailed as stays:
            if isinstance(failed, GpuOpsError):
                first = failed.refusals[0]
                told_of = "%s; ECC of GPU %s stays set for the next reset (%s)" % (first.found, uuid, stays)
                raise GpuOpsError.because([replace(first, found=told_of)], **failed.details) from failed


@contextlib.contextmanager
def _asking() -> Iterator[Callable[..., Any]]:
    session = nvml.Session(REQUESTS)
    try:
        yield session.ask
    finally:
        session.close()


def forget(host: Host, journal: Journal, step: Step) -> None:
    notes.forget(journal, step.parameters["uuid"], step.parameters["names"])


def _defer(host: Host, step: Step, clocks: Any) -> None:
    """nvidia-smi(1), --lock-memory-clocks-deferred; NVML has no call for it."""
    words = ["-rmcd"] if clocks is None else ["-lmcd", str(clocks[1])]
    host.run(["nvidia-smi", "-i", step.subject, *words], timeout=60)


def _judge(step: Step, now: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """NVML's word for what it has done is not taken for it."""
    other = [name for name, value in wanted.items() if name in now and now[name] != value]
    if other:
        raise GpuOpsError(
            "settings.not_taken",
            found="GPU %s after it was set: %s" % (step.subject, ", ".join(
                "%s %s" % (TITLES[name], told(name, now[name])) for name in other)),
            wanted=", ".join("%s %s" % (TITLES[name], told(name, wanted[name])) for name in other),
            remedy="see who else sets GPUs on this host (a service of the board's vendor, DCGM), and run this again")


@contextlib.contextmanager
def _explaining(step: Step) -> Iterator[None]:
    """What NVML refuses is told in the words of this collection."""
    try:
        yield
    except nvml.NvmlFailed as failed:
        refusal = _MEANING.get(failed.code, _OTHERWISE)
        call = "GPU %s: %s" % (step.subject, failed)
        raise GpuOpsError.because([replace(refusal, found=refusal.found.format(call=call))]) from failed


EXECUTORS: Dict[str, Executor] = {
    FINISH: finish_interrupted, CHANGE: change, UNLOCK: change, FORGET: forget,
    CHANGE_ECC: finishing(change_ecc), KEEP_ECC: keep_ecc}
