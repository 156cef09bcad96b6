# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What devices have proved since the driver was loaded, what has failed, and which processes hang on them.

Kept in /run, root's alone, as compute.json:
  {'schema':  1,
   'driver':  what tells the loaded driver from another load of it: with that all but 'left' begins anew,
   'steps':   a digest of the journal of our steps and of our record of resets: what passed counts until the next of
              either, as a step may reset a GPU, and a repair does without one,
   'passed':  {UUID: {'level', 'at', 'board', 'multiprocessors', 'rates'}}, at: when, in nanoseconds since the epoch,
   'failed':  {UUID: what was found}, until the device passes; nothing of what only the host's software has failed,
   'failed_at': {UUID: when it was found last}, in nanoseconds since the epoch: each is another, however soon,
   'left':    {UUID of a GPU: [process, when it started in clock ticks since boot]} of children that cannot be ended}
"""
from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import JOURNAL
from ...core.lock import DIRECTORY, GUARD
from ...core.plan import digest
from ...hardware.loaded import load_of
from ...hardware.resets import PATH as RESETS
from ..status import FAILED, PASSED
from .levels import NAMES, at_least
from .model import Device, Proof
from .verdict import is_of_host, judged

PATH = DIRECTORY + "/compute.json"
SCHEMA = 1
_PASSED = {"level", "at", "board", "multiprocessors", "rates"}


def kept(host: Host) -> Dict[str, Any]:
    """The record that counts for the driver as it is loaded now; what cannot be read is as if it were not there."""
    driver, steps = load_of(host), _steps(host)
    try:
        found = json.loads(host.read(PATH) or "{}")
    except (ValueError, GpuOpsError):
        found = {}
    if not _is_understood(found):
        found = {}
    is_same = found.get("driver") == driver
    left = {uuid: entry for uuid, entry in dict(found.get("left") or {}).items() if _hangs(host, entry)}
    return {"schema": SCHEMA, "driver": driver, "steps": steps, "left": left,
            "passed": dict(found.get("passed") or {}) if is_same and found.get("steps") == steps else {},
            "failed": dict(found.get("failed") or {}) if is_same else {},
            "failed_at": dict(found.get("failed_at") or {}) if is_same else {}}


def _is_understood(found: Any) -> bool:
    """One leaf that is another would stop every validation, and every look at the host's health."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return False
    parts = [found.get(name, {}) for name in ("passed", "failed", "failed_at", "left")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    passed, failed, failed_at, left = (list(part.values()) for part in parts)
    return (all(isinstance(each, dict) and each.get("level") in NAMES and _PASSED <= set(each)
                and isinstance(each["rates"], dict) for each in passed)
            and all(isinstance(each, str) for each in failed) and all(isinstance(each, int) for each in failed_at)
            and all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], int) and isinstance(each[1], str)
                    for each in left))


def keep(host: Host, begun: Mapping[str, Any], level: str, proofs: Sequence[Proof], only_left: bool) -> None:
    """Add what was just found. What shows nothing leaves a device what it had.

    begun:     the record as it was before the devices computed. What has passed beside a step or a reset may have
               passed before that, and proves nothing; nothing counts for another load of the driver.
    only_left: nothing is written down but which children are left behind.
    That it cannot be kept costs the next run its time, and hides nothing of this one.
    """
    try:
        host.make_directory(DIRECTORY, 0o700)
        # Validations take no lock: two may end at once
        with host.guard(GUARD):
            record = kept(host)
            is_undisturbed = begun["steps"] == record["steps"]
            for proof in proofs:
                _add(host, record, level, proof, only_left or begun["driver"] != record["driver"], is_undisturbed)
            host.write(PATH, json.dumps(record, sort_keys=True) + "\n", 0o600)
    except GpuOpsError:
        return


def _add(
    host: Host, record: Dict[str, Any], level: str, proof: Proof, only_left: bool, is_undisturbed: bool
) -> None:
    uuid, verdict = proof.device.uuid, judged(proof)
    if proof.left and proof.call:
        record["left"][proof.device.gpu or uuid] = [proof.left, host.process_started(proof.left)]
    if only_left:
        return
    if verdict.status == PASSED:
        if not is_undisturbed:
            return
        record["failed"].pop(uuid, None)
        record["failed_at"].pop(uuid, None)
        record["passed"][uuid] = {"level": level, "at": time.time_ns(), "board": proof.board,
                                  "multiprocessors": proof.multiprocessors, "rates": dict(proof.rates)}
    elif verdict.status == FAILED:
        record["passed"].pop(uuid, None)
        if is_of_host(proof):
            # Nobody is to reset or replace a GPU for it
            return
        record["failed"][uuid] = proof.earlier or verdict.evidence
        if judged(replace(proof, earlier="")).status == FAILED:
            record["failed_at"][uuid] = time.time_ns()


def trusted(record: Mapping[str, Any], device: Device, level: str) -> Optional[Proof]:
    """What a device has proved that nobody has at the moment, where that was at least so thorough."""
    found = record["passed"].get(device.uuid)
    if not found or device.in_use or not at_least(found["level"], level):
        return None
    return Proof(device, board=found["board"], multiprocessors=found["multiprocessors"], seen=found["multiprocessors"],
                 rates=found["rates"])


def hanging(record: Mapping[str, Any], device: Device) -> Optional[Proof]:
    """That a child that was left behind still hangs on the device's GPU, so that it is to get no other."""
    found = record["left"].get(device.gpu or device.uuid)
    return None if not found else Proof(device, call="the call of an earlier check", left=found[0])


def with_earlier(record: Mapping[str, Any], proof: Proof) -> Proof:
    """What has failed before goes on to count where the device shows nothing now."""
    return replace(proof, earlier=record["failed"].get(proof.device.uuid, ""))


def _hangs(host: Host, entry: List[Any]) -> bool:
    process, started = entry
    return bool(started) and host.process_started(process) == started


def _steps(host: Host) -> str:
    found = [host.stat(path) for path in (JOURNAL, RESETS)]
    return digest([each and [each.st_ino, each.st_size, each.st_mtime_ns] for each in found])
