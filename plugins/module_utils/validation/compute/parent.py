# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Have children compute on devices, one child a device, and hear what came of it.

A MIG device is chosen by the environment before the library is opened, and a process sees one of them; a device that
hangs takes its own child with it and nobody else's.
"""
from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...core.children import be_the_child, end, forked, listen, say
from . import child as child_of
from .levels import Level
from .model import Device, Proof, Wrong

# Seconds that one call may take: the driver itself waits up to 45 s for the processor of a sick GPU (Xid 119), and one
# call may initialise every GPU of a host that no process holds
SILENCE = 120.0
# How many devices are computed on at once
AT_ONCE = 16
# Errors of a program of ours that ends by itself: a fault, or an accident of others; cuda.h, CUresult
_SUSPECT = (700, 702, 714, 715, 716, 717, 718, 719)


class _Child(NamedTuple):
    device: Device
    receiver: int
    process: int


def prove_all(devices: Sequence[Device], level: Level, silence: float = SILENCE) -> Tuple[Proof, ...]:
    """What came of each device, in their order. One that is in use is left alone.

    Where rates are measured, no two devices are at work at once: they may share the way to the host.
    """
    free = [device for device in devices if not (device.in_use or device.unknown)]
    width = 1 if level.rates else AT_ONCE
    found = {proof.device.uuid: proof for begin in range(0, len(free), width)
             for proof in _together(free[begin:begin + width], level, silence)}
    # What a bounded program met may have come from another's; twice it is the device's
    for proof in [each for each in found.values() if _is_suspect(each)]:
        found[proof.device.uuid] = _together([proof.device], level, silence)[0]
    if level.rates:
        _add_peers(found, level, silence)
    return tuple(found.get(device.uuid, Proof(device)) for device in devices)


def _is_suspect(proof: Proof) -> bool:
    return not proof.wrong and (proof.code in _SUSPECT or proof.died)


def _together(devices: Sequence[Device], level: Level, silence: float) -> List[Proof]:
    children: List[_Child] = []
    proofs: List[Proof] = []
    for device in devices:
        # All are born before the first is heard: a process with threads should not fork
        try:
            children.append(_started(device, _work(device, level), level))
        except OSError as error:
            proofs.append(Proof(device, unstarted=os.strerror(error.errno or 0)))
    if children:
        with ThreadPoolExecutor(max_workers=len(children)) as threads:
            heard = list(threads.map(lambda each: _heard(each, level, silence), children))
        proofs += [_understood(each, *told) for each, told in zip(children, heard)]
    return proofs


def _work(device: Device, level: Level) -> Callable[[int], None]:
    return lambda sender: child_of.prove(_sayer(sender), device.uuid, level)


def _sayer(sender: int) -> Callable[..., None]:
    return lambda **words: say(sender, **words)


def _started(device: Device, work: Callable[[int], None], level: Level) -> _Child:
    receiver, sender, process = forked()
    if process == 0:
        be_the_child(sender, lambda: work(sender), limit=level.limit + SILENCE)
    os.close(sender)
    return _Child(device, receiver, process)


def _heard(each: _Child, level: Level, silence: float) -> Tuple[List[Dict[str, Any]], float, bool]:
    """(what the child said, for how many seconds it was silent then, whether it is gone)."""
    try:
        heard, waited = listen(each.receiver, silence, level.limit)
    finally:
        os.close(each.receiver)
        ended = end(each.process)
    return heard, waited, ended


def _understood(child: _Child, heard: Sequence[Mapping[str, Any]], waited: float, is_gone: bool) -> Proof:
    said: Dict[str, Any] = {}
    wrong: Dict[Tuple[str, str], Wrong] = {}
    rates: Dict[str, float] = {}
    for words in heard:
        said.update(words)
        rates.update(words.get("rates", {}))
        if "wrong" in words:
            told = Wrong(**words["wrong"])
            before = wrong.get((told.what, told.where))
            wrong[told.what, told.where] = told if before is None else replace(
                before, count=before.count + told.count)
    ended = "end" in said
    known = {name: said[name] for name in (
        "board", "multiprocessors", "seen", "exclusive", "written", "unwritten", "code", "error", "log", "seconds",
        "started") if name in said}
    return Proof(
        child.device, wrong=tuple(wrong.values()), rates=rates, call=_call_of(said, ended), died="gone" in said,
        hung=0.0 if ended or "gone" in said else max(round(waited, 1), 0.1),
        left=0 if is_gone else child.process, **known,
    )


def _call_of(said: Mapping[str, Any], ended: bool) -> str:
    """The call that failed, hangs, or in which the process died; '' where all were answered."""
    if ended and "failed" not in said:
        return ""
    return str(said.get("call", "the start of the process"))


def _add_peers(found: Dict[str, Proof], level: Level, silence: float) -> None:
    """GPUs that are well by themselves copy to each other: what a pair shows is its first GPU's."""
    well = [proof for proof in found.values() if proof.is_complete and not proof.wrong and proof.device.whole]
    if len(well) < 2:
        return
    devices = [proof.device for proof in well]
    told = _peers(devices, level, silence) or {}
    if any(_is_suspect(proof) for proof in told.values()):
        again = {uuid: Proof(proof.device) for uuid, proof in told.items()}
        again.update(_peers(devices, level, silence) or {})
        # A byte that was wrong before another pair met a fault stays wrong
        told = {uuid: replace(proof, wrong=proof.wrong or told[uuid].wrong) for uuid, proof in again.items()}
    for uuid, proof in told.items():
        mine = found[uuid]
        found[uuid] = replace(
            mine, rates={**mine.rates, **proof.rates}, wrong=proof.wrong, call=proof.call, code=proof.code,
            error=proof.error, hung=proof.hung, died=proof.died, left=proof.left)


def _peers(devices: Sequence[Device], level: Level, silence: float) -> Optional[Dict[str, Proof]]:
    """{UUID: what its copies to the others have shown}, None where no process can be started."""
    uuids = [device.uuid for device in devices]
    try:
        started = _started(devices[0], lambda sender: child_of.prove_peers(_sayer(sender), uuids, level), level)
    except OSError:
        return None
    heard, waited, is_gone = _heard(started, level, silence)
    found = {device.uuid: Proof(device) for device in devices}
    pair = (0, 1)
    for words in heard:
        pair = words.get("pair", pair)
        if "peer" in words:
            here, _there, rate = words["peer"]
            slowest = min(rate, found[uuids[here]].rates.get("peer", rate))
            found[uuids[here]] = replace(found[uuids[here]], rates={"peer": slowest})
        if "peer_wrong" in words:
            here, there, place, expected, got = words["peer_wrong"]
            told = Wrong("peer", "byte %d of a copy to %s" % (place, devices[there].name), expected, got)
            found[uuids[here]] = replace(found[uuids[here]], wrong=(*found[uuids[here]].wrong, told))
    said = _understood(started, heard, waited, is_gone)
    if said.call:
        mine = found[uuids[pair[0]]]
        found[uuids[pair[0]]] = replace(
            mine, call="%s, to %s" % (said.call, devices[pair[1]].name), code=said.code, error=said.error,
            hung=said.hung, died=said.died, left=said.left)
    return found
