# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of settings do to GPUs in memory: what a reset, a load of the driver and a boot leave of them."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings import boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.model import SETTINGS, Change, Gpu, wanted_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.planner import _completed
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.policy import Policy

# name, PCI device id, architecture (nvml.h), (least, default, most) watts, fastest clocks
BOARDS: Dict[str, Tuple[str, str, int, Tuple[int, int, int], Tuple[int, int]]] = {
    "h100": ("NVIDIA H100 80GB HBM3", "2330", 9, (200, 700, 700), (1980, 2619)),
    "a30": ("NVIDIA A30", "20b7", 7, (100, 165, 165), (1440, 1215)),
    "t4": ("Tesla T4", "1eb8", 6, (60, 70, 70), (1590, 5001)),
}
FRESH = {"persistence": False, "compute_mode": "default", "gpu_clocks": None, "memory_clocks": None}


def gpu(board: str, index: int) -> Gpu:
    name, device_id, architecture, power, fastest = BOARDS[board]
    values = {**FRESH, "power_limit": power[1]}
    return Gpu("GPU-%s-%d" % (board, index), name, "0000:%02x:00.0" % (index + 1), index, device_id, architecture,
               False, values, power, fastest)


@dataclass
class World(world.World):
    """Two H100 whose driver is loaded.

    gpus:   as they are.
    former: what is noted of our changes of each.
    gone:   those that have fallen off.
    driver: the loaded one.
    """

    capability = CAPABILITY

    gpus: List[Gpu] = field(default_factory=lambda: [gpu("h100", 0), gpu("h100", 1)])
    former: Dict[str, Dict[str, Change]] = field(default_factory=dict)
    gone: List[Gpu] = field(default_factory=list)
    driver: str = "580.126.09"

    def __post_init__(self) -> None:
        self.facts = self.facts.but(driver_loaded=self.driver, driver_installed=self.driver,
                                    driver_userspace=self.driver)

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        absent = policy.state == "absent"
        seen = Observation(
            former=dict(self.former), files=self.state((boot.SCRIPT, boot.UNIT_FILE)),
            enabled=boot.UNIT in self.enabled,
            restore=tuple(restore_step("settings", path, self.files.get(path), before)
                          for path, before in sorted(self.originals.items())) if absent else ())
        if not self.former and (absent or not policy.entries):
            return seen
        if not self.facts.driver_loaded:
            return replace(seen, error="no driver is loaded")
        return replace(seen, gpus=tuple(self.gpus), driver=self.facts.driver_loaded)

    @property
    def is_touched(self) -> bool:
        return super().is_touched or bool(self.former)

    def of_others(self) -> Dict[str, Any]:
        return dict(super().of_others(), gpus=[dict(each.values) for each in self.gpus])

    def shortcoming(self, policy: Policy) -> str:
        if policy.state == "absent" or not self.facts.driver_loaded:
            return ""
        wrong = [each.uuid for each in self.gpus if not self._has(each, _completed(wanted_of(policy.entries, each)))]
        return "%s is not as it is wanted" % ", ".join(wrong) if wrong else ""

    @staticmethod
    def _has(gpu: Gpu, wanted: Mapping[str, Any]) -> bool:
        return all(gpu.values[name] == value for name, value in wanted.items())

    def boot(self) -> None:
        super().boot()
        self.gpus = sorted([*self.gpus, *self.gone], key=lambda each: each.index)
        self.gone = []
        self._lose()
        if boot.UNIT in self.enabled:
            self._restore()

    def _lose(self) -> None:
        self.gpus = [replace(each, values={**each.values, **FRESH, "power_limit": each.power[1]}) for each in self.gpus]

    def _restore(self) -> None:
        """What the script says, word by word."""
        names = {"-pm": "persistence", "-pl": "power_limit", "-lgc": "gpu_clocks", "-lmc": "memory_clocks",
                 "-lmcd": "memory_clocks", "-c": "compute_mode"}
        for line in self.files[boot.SCRIPT].splitlines():
            words = line.split("&")[0].split()
            for index, each in enumerate(self.gpus):
                if words[:2] == ["set_up", each.uuid]:
                    found = {names[name]: self._read(names[name], value)
                             for name, value in zip(words[2::2], words[3::2])}
                    self.gpus[index] = replace(each, values={**each.values, **found})

    @staticmethod
    def _read(name: str, word: str) -> Any:
        if name == "persistence":
            return word == "1"
        if name.endswith("clocks"):
            numbers = [int(number) for number in word.split(",")]
            return numbers if len(numbers) == 2 else numbers * 2
        return int(word) if name == "power_limit" else word.lower()

    # words

    def say_gpus(self, *boards: str) -> None:
        self.gpus = [gpu(board, index) for index, board in enumerate(boards)]

    def say_set(self, index: str, *settings: str) -> None:
        """Somebody sets a GPU."""
        found = {name: self._read(name, value) for name, value in (setting.split("=") for setting in settings)}
        each = self.gpus[int(index)]
        self.gpus[int(index)] = replace(each, values={**each.values, **found})

    def say_divided(self, index: str) -> None:
        self.gpus[int(index)] = replace(self.gpus[int(index)], divided=True)

    def say_gone(self, index: str) -> None:
        self.gone.append(self.gpus.pop(int(index)))

    def say_reloaded(self) -> None:
        self._lose()

    # verbs

    def settings_change(self, step: Step) -> None:
        index, each = self._subject(step)
        wanted = step.parameters["set"]
        assert tuple(wanted) == tuple(name for name in SETTINGS if name in wanted), "persistence comes first"
        self._note(each, step)
        self.gpus[index] = replace(each, values={**each.values, **wanted})

    def settings_unlock(self, step: Step) -> None:
        index, each = self._subject(step)
        self.gpus[index] = replace(each, values={**each.values, **step.parameters["set"]})

    def settings_forget(self, step: Step) -> None:
        uuid, names = step.parameters["uuid"], step.parameters["names"]
        left = {name: value for name, value in self.former[uuid].items() if names is not None and name not in names}
        self.former = {each: found for each, found in {**self.former, uuid: left}.items() if found}

    def _subject(self, step: Step) -> Tuple[int, Gpu]:
        return next((index, each) for index, each in enumerate(self.gpus) if each.uuid == step.parameters["uuid"])

    def _note(self, gpu: Gpu, step: Step) -> None:
        known = dict(self.former.get(gpu.uuid, {}))
        for name, value in step.parameters["set"].items():
            known[name] = Change(known[name].before if name in known else gpu.values[name], value)
        self.former[gpu.uuid] = known
