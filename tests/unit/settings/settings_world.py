# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of settings do to GPUs in memory: what a reset, a load of the driver and a boot leave of them."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Tuple

import world

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu as PciGpu
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import POD
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.reset_plan import FINISH, Resettable
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings import boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.model import ECC, SETTINGS, Change, Gpu, wanted_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.planner import _completed
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.policy import Policy

# name, PCI device id, architecture (nvml.h), (least, default, most) watts, fastest clocks
BOARDS: Dict[str, Tuple[str, str, int, Tuple[int, int, int], Tuple[int, int]]] = {
    "h100": ("NVIDIA H100 80GB HBM3", "2330", 9, (200, 700, 700), (1980, 2619)),
    "a30": ("NVIDIA A30", "20b7", 7, (100, 165, 165), (1440, 1215)),
    "t4": ("Tesla T4", "1eb8", 6, (60, 70, 70), (1590, 5001)),
    "v100": ("Tesla V100-SXM2-16GB", "1db1", 5, (150, 300, 300), (1530, 877)),
    "p100": ("Tesla P100-SXM2-16GB", "15f9", 4, (150, 300, 300), (1480, 715)),
    "a40": ("NVIDIA A40", "2235", 7, (100, 300, 300), (1740, 7251)),
}
FRESH = {"persistence": False, "compute_mode": "default", "gpu_clocks": None, "memory_clocks": None}


def gpu(board: str, index: int) -> Gpu:
    name, device_id, architecture, power, fastest = BOARDS[board]
    values = {**FRESH, "power_limit": power[1], ECC: True}
    uuid, address = "GPU-%s-%d" % (board, index), "0000:%02x:00.0" % (index + 1)
    resettable = Resettable(uuid, address, "GPU %d (%s)" % (index, address), index, architecture, ecc=True,
                            pending=True)
    return Gpu(uuid, name, address, index, device_id, architecture, False, values, power, fastest, resettable)


def with_ecc(gpu: Gpu, mode: bool) -> Gpu:
    """After a reset."""
    assert gpu.reset is not None
    return replace(gpu, values={**gpu.values, ECC: mode}, reset=replace(gpu.reset, ecc=mode, pending=mode))


def with_reset(gpu: Gpu, **changes: Any) -> Gpu:
    assert gpu.reset is not None
    return replace(gpu, reset=replace(gpu.reset, **changes))


@dataclass
class World(world.World):
    """Two H100 whose driver is loaded.

    gpus:   as they are.
    former: what is noted of our changes of each.
    gone:   those that have fallen off.
    elsewhere: GPUs of the machine whose disk was copied.
    driver: the loaded one.
    fabric_runs: whether the fabric manager does.
    unfinished: what a reset of a killed run has left to be brought back.
    """

    capability = CAPABILITY

    gpus: List[Gpu] = field(default_factory=lambda: [gpu("h100", 0), gpu("h100", 1)])
    former: Dict[str, Dict[str, Change]] = field(default_factory=dict)
    gone: List[Gpu] = field(default_factory=list)
    elsewhere: Tuple[str, ...] = ()
    driver: str = "580.126.09"
    fabric_runs: bool = False
    unfinished: Tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        self.facts = self.facts.but(driver_loaded=self.driver, driver_installed=self.driver,
                                    driver_userspace=self.driver)

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        absent = policy.state == "absent"
        seen = Observation(
            fabric_runs=self.fabric_runs, unfinished=self.unfinished, former=dict(self.former),
            elsewhere=self.elsewhere, files=self.state((boot.SCRIPT, boot.UNIT_FILE)),
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

    def come_true(self, foretold: Mapping[str, Any]) -> None:
        super().come_true(foretold)
        self.fabric_runs = self.fabric_runs or bool(foretold.get("fabric_starts"))

    def suppose(self, policy: Policy) -> None:
        if policy.assume_pods_evicted or policy.state == "absent":
            self.gpus = [with_reset(each, holders=tuple(
                holder for holder in (each.reset.holders if each.reset else ())
                if policy.state != "absent" and not holder.startswith(POD))) for each in self.gpus]

    def shortcoming(self, policy: Policy) -> str:
        if policy.state == "absent" or not self.facts.driver_loaded:
            return ""
        wrong = [each.uuid for each in self.gpus if not self._has(each, _completed(wanted_of(policy.entries, each)))]
        return "%s is not as it is wanted" % ", ".join(wrong) if wrong else ""

    @staticmethod
    def _has(gpu: Gpu, wanted: Mapping[str, Any]) -> bool:
        kept = ECC not in wanted or (gpu.reset is not None and gpu.reset.pending == wanted[ECC])
        return kept and all(gpu.values[name] == value for name, value in wanted.items())

    def boot(self) -> None:
        super().boot()
        self.gpus = sorted([*self.gpus, *self.gone], key=lambda each: each.index)
        self.gone = []
        self.gpus = [with_ecc(each, bool(each.reset and each.reset.pending)) for each in self.gpus]
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
        self.facts = self.facts.but(gpus=tuple(PciGpu(each.address, each.device_id) for each in self.gpus))

    def say_set(self, index: str, *settings: str) -> None:
        """Somebody sets a GPU."""
        found = {name: self._read(name, value) for name, value in (setting.split("=") for setting in settings)}
        each = self.gpus[int(index)]
        self.gpus[int(index)] = replace(each, values={**each.values, **found})

    def say_divided(self, index: str) -> None:
        self.gpus[int(index)] = replace(self.gpus[int(index)], divided=True)

    def say_pending(self, index: str, mode: str) -> None:
        """Somebody sets ECC for the next reset."""
        self.gpus[int(index)] = with_reset(self.gpus[int(index)], pending=mode == "on")

    def say_held(self, index: str, *holders: str) -> None:
        self.gpus[int(index)] = with_reset(self.gpus[int(index)], holders=holders)

    def say_joined(self, *indices: str) -> None:
        """By NVLink."""
        uuids = tuple(self.gpus[int(index)].uuid for index in indices)
        for index in map(int, indices):
            self.gpus[index] = with_reset(self.gpus[index], joined=uuids, needs_fabric=True)

    def say_fabric_manager(self) -> None:
        self.fabric_runs = True

    def say_instances(self, index: str, returns: str = "") -> None:
        """MIG instances; 'returns' where our unit makes them anew."""
        self.gpus[int(index)] = replace(with_reset(self.gpus[int(index)], instances=("9:0",), returns=bool(returns)),
                                        divided=True)

    def say_guest(self) -> None:
        self.gpus = [with_reset(each, guest="580.126.09") for each in self.gpus]

    def say_not_resettable(self) -> None:
        self.gpus = [with_reset(each, supported=False) for each in self.gpus]

    def say_killed_reset(self) -> None:
        """A run that was killed in one has left a service stopped."""
        self.unfinished = (Step("settings", FINISH, "GPUs", "A run was stopped.", change={
            "before": {"nvidia-dcgm.service": "stopped"}, "after": {"nvidia-dcgm.service": "running"}}),)

    def say_gone(self, index: str) -> None:
        self.gone.append(self.gpus.pop(int(index)))

    def say_copied(self, *boards: str) -> None:
        """The disk is a copy, in a machine that has these boards."""
        self.elsewhere = tuple(self.former)
        self.gpus = [replace(gpu(board, index), uuid="GPU-other-%d" % index) for index, board in enumerate(boards)]

    def say_reloaded(self) -> None:
        self._lose()

    # verbs

    def settings_change(self, step: Step) -> None:
        index, each = self._subject(step)
        wanted = step.parameters["set"]
        assert tuple(wanted) == tuple(name for name in SETTINGS if name in wanted), "persistence comes first"
        self._note(each, step)
        self.gpus[index] = replace(each, values={**each.values, **wanted})

    def settings_change_ecc(self, step: Step) -> Disruption:
        """All that is set is there afterwards: who resets brings it back."""
        modes = step.parameters["set"]
        for uuid, address in step.parameters["gpus"]:
            index, each = next((index, each) for index, each in enumerate(self.gpus) if each.uuid == uuid)
            assert each.reset is not None and not each.reset.holders and not each.reset.guest and each.reset.supported
            assert each.address == address and each.reset.pending == modes.get(uuid, each.reset.ecc) or uuid in modes
            assert set(each.reset.joined or (uuid,)) <= {one for one, _address in step.parameters["gpus"]} or \
                self.fabric_runs or each.architecture >= 9, "one of those that NVLink joins is left out"
            if uuid in modes:
                self._note_values(each, {ECC: modes[uuid]})
                self.gpus[index] = with_ecc(each, modes[uuid])
        return Disruption.gpu_reset

    def settings_keep_ecc(self, step: Step) -> None:
        index, each = self._subject(step)
        self.gpus[index] = with_reset(each, pending=step.parameters["set"][ECC])

    def reset_finish(self, step: Step) -> None:
        self.unfinished = ()

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
        self._note_values(gpu, step.parameters["set"])

    def _note_values(self, gpu: Gpu, values: Mapping[str, Any]) -> None:
        known = dict(self.former.get(gpu.uuid, {}))
        for name, value in values.items():
            known[name] = Change(known[name].before if name in known else gpu.values[name], value)
        self.former[gpu.uuid] = known
