# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host whose GPUs are looked at in words: what its log says, what NVML answers, what is done, what has computed."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import Mig
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.assess import assess
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import Finding
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.kernel_log import Record
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import Act, Look, Service, State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy

EPOCH = 1_700_000_000.0
PLACES = ("0000:3b:00.0", "0000:5e:00.0")
ROUND = 30
XID = "NVRM: Xid (PCI:%s): %d, pid='<unknown>', name=<unknown>, said by the driver"


def gpu(index: int, **changes: Any) -> NvmlGpu:
    return replace(
        NvmlGpu(index=index, uuid="GPU-%d" % index, serial="165%d" % index, name="NVIDIA H100 80GB HBM3",
                pci_address=PLACES[index], remap_pending=False, remap_failed=False, sram_exceeded=False,
                recovery_action=0, links_up=(0, 1), clock_reasons=1),
        **changes)


def parts(*uuids: str) -> Mig:
    return Mig(current=True, pending=True, devices=uuids)


class HealthWorld:
    """Two healthy GPUs. Time goes on by a round with each look."""

    def __init__(self, policy: Optional[HealthPolicy] = None) -> None:
        self.policy = policy or HealthPolicy()
        self.state = State()
        self.clock = EPOCH
        self.booted = EPOCH - 1000
        self.boots = self.loads = self.sequence = 0
        self.records: Optional[List[Record]] = []
        self.gpus: List[NvmlGpu] = [gpu(0), gpu(1)]
        self.trouble: Dict[str, str] = {}
        self.computes: Dict[str, Dict[str, Any]] = {}
        self.failed: Dict[str, str] = {}
        self.failures = 0
        self.left: Dict[str, Any] = {}
        self.bus: Any = dict.fromkeys(PLACES, True)
        self.services: Dict[str, Service] = {}
        self.resets: List[Tuple[int, Tuple[str, ...], str]] = []
        self.fabric = False
        self.computed = 0
        self.log("Linux version 6.12")

    # what happens

    def log(self, *lines: str) -> None:
        if self.records is not None:
            for line in lines:
                self.records.append(Record(self.sequence, int((self.clock - self.booted) * 1e6), line))
                self.sequence += 1

    def xid(self, number: int, index: int = 0, text: str = "") -> None:
        place = PLACES[index][:-2]
        self.log("NVRM: Xid (PCI:%s): %d, %s" % (place, number, text) if text else XID % (place, number))

    def sets(self, index: int, **changes: Any) -> None:
        self.gpus[index] = replace(self.gpus[index], **changes)

    def boot(self) -> None:
        self.boots += 1
        self.booted, self.sequence, self.records = self.clock, 0, []
        self.log("Linux version 6.12")
        self.load()

    def load(self) -> None:
        self.loads += 1
        self.computes, self.failed = {}, {}

    def reset(self, *uuids: str) -> None:
        """By this collection, for whatever; what had passed counts no more."""
        self.computes = {}
        self.resets.append((len(self.resets) + 1, uuids, "a reset by mig: another mode"))

    def compute(self, *uuids: str, level: str = "quick") -> None:
        """It passes, on all GPUs where none is named."""
        self.computed += 1
        for uuid in uuids or tuple(each.uuid for each in self.gpus):
            self.failed.pop(uuid, None)
            self.computes[uuid] = {"level": level, "at": self.computed}

    def fail(self, *uuids: str) -> None:
        self.failures += 1
        for uuid in uuids:
            self.computes.pop(uuid, None)
            self.failed[uuid] = "computes wrongly: prove at multiprocessor 3"

    # who looks

    def look(self, **changes: Any) -> Look:
        reading = NvmlReading(error=self.trouble["error"], hung=self.trouble.get("hung", "")) if self.trouble \
            else NvmlReading(gpus=tuple(self.gpus))
        record = {"driver": "load %d" % self.loads, "passed": dict(self.computes), "failed": dict(self.failed),
                  "failed_at": dict.fromkeys(self.failed, self.failures), "left": dict(self.left)}
        return replace(Look(
            taken=int((self.clock - self.booted) * 1e9), at=self.clock, boot="boot %d" % self.boots,
            load="load %d" % self.loads, records=None if self.records is None else tuple(self.records), nvml=reading,
            compute=record, bus=self.bus, fabric=self.fabric, services=dict(self.services),
            resets=tuple(self.resets)), **changes)

    def round(self, times: int = 1, **changes: Any) -> State:
        for _each in range(times):
            self.clock += ROUND
            self.state = assess(self.state, self.look(**changes), self.policy, self.clock)
        return self.state

    def did(self, remedy: str, subject: str = "", **changes: Any) -> State:
        """A remedy is written down; a boot once it is over."""
        self.clock += 1
        if remedy in ("reboot", "power_cycle"):
            self.boot()
        act = Act(remedy, subject, self.clock, "boot %d" % self.boots, remedy)
        self.state = assess(self.state, self.look(nvml=None, bus=None, acts=(act,), **changes), self.policy, self.clock)
        return self.state

    def mend(self, remedy: str, index: int = 0) -> None:
        """Do what a finding of a GPU asks for, as the host shows it."""
        if remedy == "reboot":
            self.boot()
            self.round()
        elif remedy == "reload":
            self.load()
            self.round()
        elif remedy:
            self.did(remedy, "" if remedy in ("board_reset", "service", "power_cycle") else "gpu GPU-%d" % index)

    # what came of it

    def found(self) -> List[Tuple[str, str, str]]:
        """(code, kind, remedy) of open findings."""
        return sorted((each.code, each.kind, each.remedy) for each in self.state.findings.values())

    @property
    def codes(self) -> List[str]:
        return [code for code, _kind, _remedy in self.found()]

    def finding(self, code: str) -> Finding:
        (found,) = [each for each in self.state.findings.values() if each.code == code]
        return found

    def ended(self) -> Sequence[Tuple[str, str]]:
        return [(each.code, each.cleared_by) for each in self.state.history]
