# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What devices have proved since the driver was loaded, and which processes hang on them: kept in /run until a boot.

compute.json, root's alone:
  {'schema':  1,
   'driver':  what the loaded driver was then: another load begins anew,
   'devices': {UUID: {'level', 'at', 'board', 'multiprocessors', 'rates'}} of those that passed, at: when, in seconds
              since the epoch,
   'left':    {UUID: [process, when it started in clock ticks since boot]} of children that could not be ended}
"""
from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.plan import digest
from ..status import FAILED, PASSED
from .levels import at_least
from .model import Device, Proof
from .verdict import judged

PATH = "/run/gpuops/compute.json"
SCHEMA = 1
# The kernel makes this directory anew with each load
_LOADED = "/sys/module/nvidia"


def kept(host: Host) -> Dict[str, Any]:
    """The record that counts for the driver as it is loaded now; what cannot be read is as if it were not there."""
    driver = _driver(host)
    try:
        found = json.loads(host.read(PATH) or "{}")
    except (ValueError, GpuOpsError):
        found = {}
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        found = {}
    left = {uuid: entry for uuid, entry in dict(found.get("left") or {}).items() if _hangs(host, entry)}
    return {"schema": SCHEMA, "driver": driver, "left": left,
            "devices": found.get("devices") or {} if found.get("driver") == driver else {}}


def keep(host: Host, record: Mapping[str, Any], level: str, proofs: Sequence[Proof]) -> None:
    """Add what was just proved. One that failed has nothing any more; one that shows nothing keeps what it had."""
    devices = dict(record["devices"])
    left = dict(record["left"])
    for proof in proofs:
        status = judged(proof).status
        if status == PASSED:
            devices[proof.device.uuid] = {"level": level, "at": int(time.time()), "board": proof.board,
                                          "multiprocessors": proof.multiprocessors, "rates": dict(proof.rates)}
        elif status == FAILED:
            devices.pop(proof.device.uuid, None)
        if proof.left:
            left[proof.device.uuid] = [proof.left, host.process_started(proof.left)]
    host.make_directory(PATH.rpartition("/")[0], 0o700)
    host.write(PATH, json.dumps(dict(record, devices=devices, left=left), sort_keys=True) + "\n", 0o600)


def trusted(record: Mapping[str, Any], device: Device, level: str) -> Optional[Proof]:
    """What a device has proved that nobody has at the moment, where that was at least so thorough."""
    found = record["devices"].get(device.uuid)
    if not found or device.in_use or not at_least(found["level"], level):
        return None
    return Proof(device, board=found["board"], multiprocessors=found["multiprocessors"], seen=found["multiprocessors"],
                 rates=found["rates"])


def hanging(record: Mapping[str, Any], device: Device) -> Optional[Proof]:
    """That a child that was left behind still hangs on the device, so that it is to get no other."""
    found = record["left"].get(device.uuid)
    return None if not found else Proof(device, call="the call of an earlier check", left=found[0])


def _hangs(host: Host, entry: List[Any]) -> bool:
    process, started = entry
    return bool(started) and host.process_started(process) == started


def _driver(host: Host) -> str:
    found = host.stat(_LOADED)
    return "" if found is None else digest([found.st_ino, found.st_mtime_ns])
