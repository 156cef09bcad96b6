# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One round of reading a host's health, bounded in time. Nothing is held open afterwards: a GPU that somebody has open
cannot be reset."""
from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.lock import looking
from ..hardware.loaded import load_of
from ..hardware.node import library_version
from ..hardware.nvml import UNSTARTED, NvmlReading, fresh_reading
from ..hardware.pci import PciBus, read_bus
from ..hardware.resets import DONE, resets
from ..validation.compute import record
from .kernel_log import Record, is_of_driver, parse_record
from .model import Act, Look, Service, State
from .policy import HealthPolicy

FABRIC_MANAGER, IMEX = "nvidia-fabricmanager.service", "nvidia-imex.service"


def read_look(host: Host, remembered: Callable[[], State], policy: HealthPolicy, asks_nvml: bool = True) -> Look:
    """All that a round reads, once nobody else looks.

    remembered: the state as it is then, for what need not be read again.
    asks_nvml:  whether GPUs are asked too, which wakes those that nobody uses. Where the driver has logged something,
                they are, since what a line means depends on what NVML says.

    While a run works on the host, no GPU and no service is looked at: the run would find its GPU in use, and the look a
    GPU that is being reset.
    """
    with contextlib.ExitStack() as stack:
        may_look = _read(lambda: stack.enter_context(looking(host)))
        before = remembered()
        # The log first: what it tells of, NVML then knows
        look = look_around(host, before)
        first = before.sequence + 1 if before.boot == look.boot else 0
        asks_nvml = asks_nvml or any(
            is_of_driver(record) for record in look.records or () if record.sequence >= first)
        return _look_at_devices(host, before, policy, asks_nvml, look) if may_look else look


def _look_at_devices(host: Host, before: State, policy: HealthPolicy, asks_nvml: bool, look: Look) -> Look:
    bus = _read(lambda: read_bus(host))
    reading: Optional[NvmlReading] = None
    left = before.left
    if bus is not None and not bus.gpus:
        reading, left = NvmlReading(), (0, "")
    elif asks_nvml:
        reading, left = _ask(host, before, policy)
    return replace(
        look, nvml=reading, left=left, bus=None if bus is None else _places(bus, reading),
        fabric=bus is not None and bool(bus.fabric), services=_services(host, bus),
        # Of the same instant as what NVML has said, or later
        load=_load(host), compute=_read(lambda: record.kept(host)))


def look_around(host: Host, before: State, acts: Tuple[Act, ...] = ()) -> Look:
    """What can be read in moments, without a GPU. acts: remedies that have been done before it."""
    boot = host.boot()
    return Look(
        taken=time.monotonic_ns(), at=time.time(), boot=boot, load=_load(host),
        records=read_records(host, before.sequence if before.boot == boot else 0),
        machine=host.machine(), resets=_resets(host, boot),
        compute=_read(lambda: record.kept(host)), acts=acts, left=before.left)


def _resets(host: Host, boot: str) -> Tuple[Tuple[int, Tuple[str, ...], str], ...]:
    """Of another boot they have been outdone by that."""
    return tuple((each.number, each.gpus, "a reset by %s: %s" % (each.who, each.why))
                 for each in _read(lambda: resets(host)) or () if each.boot == boot and each.end == DONE)


def _load(host: Host) -> str:
    return _read(lambda: load_of(host)) or ""


def read_records(host: Host, first: int = 0) -> Optional[Tuple[Record, ...]]:
    """From that number on. None where the log cannot be read; one without a record is none that the kernel keeps."""
    texts = host.kernel_log(first)
    return tuple(_records(texts)) or None if texts else None


def _records(texts: Iterable[str]) -> Iterable[Record]:
    return (record for record in map(parse_record, texts) if record is not None)


def _ask(host: Host, before: State, policy: HealthPolicy) -> Tuple[NvmlReading, Tuple[int, str]]:
    """NVML's reading, and the child that hangs in it: where one does, no other is started."""
    process, started = before.left
    if started and host.process_started(process) == started and before.boot == host.boot():
        return NvmlReading(error="a call of NVML hangs still (process %d)" % process, hung="the call of process %d"
                           % process, left=process), before.left
    loaded = _read(lambda: host.read("/sys/module/nvidia/version")) or ""
    reading = _read(lambda: fresh_reading(library_version(host), loaded.strip(), policy.silence, policy.patience))
    if reading is None:
        return NvmlReading(error=UNSTARTED % "its binding is not there"), (0, "")
    started = host.process_started(reading.left) if reading.left else ""
    # One that has ended since hangs no more
    return reading, (reading.left, started) if started else (0, "")


def _places(bus: PciBus, reading: Optional[NvmlReading]) -> Dict[str, bool]:
    excluded = () if reading is None else reading.excluded
    return {**{gpu.address: False for gpu in bus.other_gpus},
            **{gpu.address: gpu.address not in excluded for gpu in bus.gpus}}


def _services(host: Host, bus: Optional[PciBus]) -> Dict[str, Service]:
    """Those that GPUs of this host wait for. One that no boot starts, and that has not run since this one, is not to
    run here: it is masked, not installed, or another does its work."""
    wanted = [] if bus is None else [*([FABRIC_MANAGER] if bus.fabric else []), *([IMEX] if bus.imex else [])]
    found: Dict[str, Service] = {}
    for unit in wanted:
        told = _read(partial(host.unit, unit)) or {}
        started = told.get("ActiveEnterTimestampMonotonic", "")
        if told.get("UnitFileState", "").startswith("enabled") or started not in ("", "0"):
            found[unit] = Service(told.get("ActiveState", ""), started)
    return found


def _read(read: Callable[..., Any]) -> Any:
    """None for what the host does not let itself be asked."""
    try:
        return read()
    except GpuOpsError:
        return None
