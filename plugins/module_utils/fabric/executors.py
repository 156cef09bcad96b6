# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fabric's own actions. What a failure has to do with the fabric is said in its words."""
from __future__ import annotations

from dataclasses import replace
from typing import Dict, Tuple

from ..core import assignments, daemons
from ..core.errors import GpuOpsError
from ..core.host import CommandFailed, Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import Executor, run_argv
from ..hardware.boot import loaded_kind
from ..hardware.fabric_health import complaints
from ..hardware.node import library_version
from ..hardware.nvml import NvmlReading, await_fabric
from .catalogue import LOG, UNIT
from .observation import NAME, PENDING, REGISTERED
from .planner import FORGET, LOAD, REGISTER

OF_THE_BOARD = ("read %s and `journalctl -u %s`, drain the node, stop the fabric manager, reset all GPUs of the board "
                "together (`nvidia-smi -r`) and run again")
OF_THE_RACK = "ask who runs the fabric manager of the switch trays (NMX), and run again"
_RUNNING = "the fabric manager running"
# What the fabric manager says when it ends at its start; to what is found its own words are added
START_ERRORS: Tuple[Tuple[str, Refusal], ...] = (
    ("don't match with driver version", Refusal(
        "fabric.driver_of_another_version", "the fabric manager ended at its start", _RUNNING,
        "run `gpu_driver` and `gpu_driver_activation`: both are needed in one version")),
    ("NV_WARN_NOTHING_TO_DO", Refusal(
        "fabric.nothing_to_manage", "the fabric manager sees no switches", _RUNNING,
        "look for the NVSwitches in `lspci -d 10de:`, or for the adapters of NVLink 5 in `ibstat`; in a virtual "
        "machine, the fabric is managed by the one that has the switches: set `mode` to `unmanaged`", "mode")),
)


def start(host: Host, journal: Journal, step: Step) -> None:
    daemons.note(journal, NAME, **{REGISTERED: list(PENDING)})
    try:
        daemons.begin(host, journal, step)
    except CommandFailed as failure:
        said = str(failure.details.get("stderr", ""))
        for words, refusal in START_ERRORS:
            if words in said:
                found = "%s: %s" % (refusal.found, said)
                raise GpuOpsError.because([replace(refusal, found=found)], **failure.details) from failure
        raise GpuOpsError(
            "fabric.not_started",
            found="%s did not start: %s" % (step.subject, said or failure.found),
            wanted=_RUNNING,
            remedy="read `journalctl -u %s` and %s" % (step.subject, LOG),
            **failure.details) from failure


def write_settings(host: Host, journal: Journal, step: Step) -> None:
    daemons.outdate(host, journal, NAME, UNIT)
    assignments.write(host, journal, step)


def wait(host: Host, journal: Journal, step: Step) -> None:
    """Until every GPU is registered; a GPU that reports no registration is not waited for."""
    limit = float(step.parameters["limit"])
    loaded = (host.read("/sys/module/nvidia/version") or "").strip()
    reading = await_fabric(library_version(host), loaded, limit)
    if reading.error:
        raise GpuOpsError(
            "fabric.gpus_do_not_answer",
            found="NVML: %s" % reading.error,
            wanted="GPUs that say whether they are registered with their fabric",
            remedy="read the kernel log for NVRM messages",
        )
    _judge(host, reading, limit, step.parameters["unit"])
    daemons.note(journal, NAME, **{REGISTERED: [loaded, loaded_kind(host)]})


def forget(host: Host, journal: Journal, step: Step) -> None:
    daemons.note(journal, NAME, **{REGISTERED: []})


def _judge(host: Host, reading: NvmlReading, limit: float, unit: str) -> None:
    """unit: the fabric manager of this host, '' where the switches are in trays of their own."""
    waiting = [gpu for gpu in reading.gpus if gpu.waits_for_fabric]
    if not waiting:
        return
    reporting = sum(gpu.reports_fabric for gpu in reading.gpus)
    remedies = dict.fromkeys(remedy for gpu in waiting
                             for _wrong, remedy in complaints(gpu.fabric_health, gpu.fabric_summary))
    state = "; %s is %s" % (unit, host.unit(unit).get("ActiveState", "unknown")) if unit else ""
    last = OF_THE_BOARD % (LOG, unit) if unit else OF_THE_RACK
    raise GpuOpsError(
        "fabric.gpus_not_registered",
        found="%d of %d GPUs are not registered with their fabric after %.0f s: %s%s" % (
            len(waiting), reporting, limit, "; ".join(gpu.told_registration() for gpu in waiting), state),
        wanted="completed, status 0 (success), for each of them",
        remedy="; ".join([*remedies, last]),
    )


EXECUTORS: Dict[str, Executor] = {
    **daemons.EXECUTORS,
    LOAD: run_argv,
    REGISTER: wait,
    FORGET: forget,
    assignments.WRITE: write_settings,
    assignments.RESTORE: assignments.restore,
    "service.start": start,
    "service.restart": start,
}
