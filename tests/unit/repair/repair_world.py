# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What remedies do to a host in memory on which something was found."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import POD
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import OUT, REBOOT, RELOAD, satisfies
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.reset_plan import Resettable
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import SICK
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import (
    GPU,
    HOST,
    SERVICE,
    SOURCES,
    SWITCH,
    Finding,
    Moment,
    Subject,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import (
    BEGUN,
    DONE,
    Attempt,
    Part,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.planner import FINDINGS
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.policy import ABSENT, IGNORED, Policy

NOW = 1_700_000_000.0
UNITS = ("nvidia-fabricmanager.service", "nvidia-imex.service")


@dataclass
class World(world.World):
    """A host with the GPUs of its facts, whose driver is loaded; another board, as the words say.

    findings: open ones, by key.
    attempts: what was tried.
    now:      seconds since 1970. boots: how many there were. looked: in which of them the last look was, -1 for none.
    loads:    how often the driver was loaded anew. looked_at: which load the last look has seen. given_up: which one is
              to be replaced, -1 for none.
    resets:   {address: what a reset of the GPU takes}, where that is not as of a Hopper that answers.
    """

    capability = CAPABILITY
    options: ClassVar[Mapping[str, str]] = {"assume_pods_evicted": "yes"}

    findings: Dict[str, Finding] = field(default_factory=dict)
    attempts: List[Attempt] = field(default_factory=list)
    now: float = NOW
    boots: int = 0
    looked: int = 0
    loads: int = 0
    looked_at: int = 0
    given_up: int = -1
    resets: Dict[str, Resettable] = field(default_factory=dict)
    services: Tuple[str, ...] = ()
    fabric_runs: bool = False
    is_damaged: bool = False

    def __post_init__(self) -> None:
        self.facts = self.facts.but(driver_loaded="580.126.09", driver_installed="580.126.09",
                                    driver_userspace="580.126.09")

    def gpu(self, address: str) -> Resettable:
        index = [gpu.address for gpu in self.facts.gpus].index(address)
        return self.resets.get(address, Resettable(
            "GPU-%d" % index, address, "GPU %d (%s)" % (index, address), index, architecture=9))

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        if policy.state == IGNORED:
            return Observation()
        if policy.state == ABSENT:
            return Observation(has_record=bool(self.attempts), has_findings=bool(self.findings))
        answers = self.facts.driver_loaded and not self.facts.hung
        return Observation(
            findings=tuple(finding for _key, finding in sorted(self.findings.items())),
            boot="boot %d" % self.boots, looked_in="boot %d" % self.looked if self.looked >= 0 else "",
            load="load %d" % self.loads if self.facts.driver_loaded else "", looked_at="load %d" % self.looked_at,
            given_up=self.given_up == self.loads,
            attempts=tuple(self.attempts), has_record=bool(self.attempts), fabric_runs=self.fabric_runs,
            refusals=(Refusal("repair.record_damaged", "a record", "another", "do"),) if self.is_damaged else (),
            gpus=tuple(self.gpu(gpu.address) for gpu in self.facts.gpus) if answers else (),
            units=self.services, now=self.now)

    @property
    def is_touched(self) -> bool:
        return super().is_touched or bool(self.attempts)

    def suppose(self, policy: Policy) -> None:
        if policy.assume_pods_evicted:
            self.resets = {address: replace(gpu, holders=tuple(
                holder for holder in gpu.holders if not holder.startswith(POD)))
                for address, gpu in self.resets.items()}

    def boot(self) -> None:
        super().boot()
        self.boots += 1
        self._come("reload", "reboot", "power_cycle")

    def _come(self, *rungs: str) -> None:
        """Others have done the last of these."""
        self.loads += 1
        self.attempts = [replace(each, end=DONE) if each.end == BEGUN and each.rung in rungs else each
                         for each in self.attempts]
        self._mend("reboot" if "reboot" in rungs else "reload")

    def _mend(self, rung: str, *parts: str) -> None:
        for key, finding in self.findings.items():
            if satisfies(rung, finding.remedy) and (not parts or finding.subject.key in parts):
                self.findings[key] = replace(finding, mended=rung)

    def _tried(self, step: Step, end: str) -> None:
        self.attempts.append(Attempt(
            len(self.attempts) + 1, step.parameters["rung"], "boot %d" % self.boots, "load %d" % self.loads, self.now,
            "somebody", tuple(Part(*each) for each in step.parameters["parts"]), (), end))

    # verbs

    def repair_restart(self, step: Step) -> Disruption:
        self._tried(step, DONE)
        self._mend("service", *(part[0] for part in step.parameters["parts"]))
        return Disruption.service_restart

    def repair_reset(self, step: Step) -> Disruption:
        for uuid, address in step.parameters["gpus"]:
            gpu = self.gpu(address)
            assert gpu.uuid == uuid and gpu.supported and not gpu.guest and not gpu.holders
        self._tried(step, DONE)
        self._mend(step.parameters["rung"], *(part[0] for part in step.parameters["parts"]),
                   *("gpu %s" % uuid for uuid, _address in step.parameters["gpus"]))
        return Disruption.gpu_reset

    def repair_begin(self, step: Step) -> None:
        self._tried(step, BEGUN)
        if step.parameters["rung"] == RELOAD:
            self.given_up = self.loads
        if step.parameters["rung"] == OUT:
            self.findings = {key: replace(each, remedy=OUT, mended="") if each.kind == SICK and each.subject.key in [
                part[0] for part in step.parameters["parts"]] else each for key, each in self.findings.items()}

    def repair_forget(self, step: Step) -> None:
        if step.subject == FINDINGS:
            self.findings = {}
        else:
            self.attempts = []

    # words

    def say_found(self, where: str, code: str, kind: str, remedy: str, source: str = "kernel_log") -> None:
        """where: 'gpu0', 'switch' or 'host'."""
        if where == HOST:
            subject = Subject(HOST)
        elif where == SWITCH:
            subject = Subject(SWITCH, address="0000:c1:00.0")
        else:
            index = int(where[len(GPU):])
            there = [gpu.address for gpu in self.facts.gpus]
            # One that is not on the bus any more was there before
            address = there[index] if index < len(there) else "0000:0f:00.0"
            subject = Subject(GPU, "GPU-%d" % index, "165%d" % index, address)
        moment = Moment(self.now, "boot %d" % self.boots)
        assert source in SOURCES
        finding = Finding(subject, source, code, kind, "" if remedy == "none" else remedy, "said so", moment, moment)
        self.findings[finding.key] = finding

    def say_service_down(self, unit: str) -> None:
        self.services = UNITS
        self.say_found(HOST, unit, "sick", "service", SERVICE)

    def say_services(self) -> None:
        self.services = UNITS

    def say_services_are(self, *units: str) -> None:
        self.services = units

    def say_again(self) -> None:
        """It is found once more: nothing of what was done has mended it."""
        self.now += 600
        self.look()
        self.findings = {key: replace(finding, mended="") for key, finding in self.findings.items()}

    def say_proved(self) -> None:
        """GPUs have computed since, and somebody has looked."""
        self.look()
        self.findings = {key: finding for key, finding in self.findings.items() if not finding.mended}

    def look(self) -> None:
        self.looked, self.looked_at = self.boots, self.loads

    def say_loaded_anew(self) -> None:
        """By an activation."""
        self._come("reload")

    def say_run_is_gone(self) -> None:
        """What is in /run alone."""
        self.given_up = -1

    def say_untold(self) -> None:
        """Who has written the last attempt down did not come to tell it."""
        self.findings = {key: replace(each, remedy=REBOOT) if each.remedy == OUT else each
                         for key, each in self.findings.items()}

    def say_looked(self) -> None:
        self.look()

    def say_unlooked(self) -> None:
        self.looked = -1

    def say_released(self, where: str) -> None:
        uuid = "GPU-" + where[len(GPU):]
        self.findings = {key: each for key, each in self.findings.items() if each.subject.uuid != uuid}

    def say_hours(self, number: str) -> None:
        self.now += 3600 * int(number)

    def say_damaged(self) -> None:
        self.is_damaged = True

    def say_reset_of(self, index: str, *words: str) -> None:
        """What a reset of a GPU takes otherwise: 'unsupported', 'guest', 'silent', 'divided', 'returns', 'v100',
        'joined=0,1' or a holder."""
        address = self.facts.gpus[int(index)].address
        changes: Dict[str, Any] = {}
        for word in words:
            name, _equals, value = word.partition("=")
            changes.update({
                "unsupported": lambda: {"supported": False}, "guest": lambda: {"guest": "580.126.09"},
                "silent": lambda: {"name": "", "architecture": 0},
                "divided": lambda: {"instances": ("9:0",)}, "returns": lambda: {"returns": True},
                "v100": lambda: {"architecture": 5},
                "joined": lambda value=value: {"joined": tuple("GPU-%s" % each for each in value.split(","))},
            }.get(name, lambda word=word: {"holders": (*changes.get("holders", ()), word)})())
        self.resets[address] = replace(self.gpu(address), **changes)
