# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rounds by the simulated NVML, each in a process of its own."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict

import pytest
from simulated_board import HostBoard

from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import XIDS

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

ROUNDS = """
import json, os, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import look_and_keep
before = sorted(os.listdir("/proc/self/fd"))
for _round in range(int(sys.argv[2])):
    state = look_and_keep(Host(sys.argv[1]), HealthPolicy(silence=2, fabric_seconds=int(sys.argv[3])))
held = [os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd") if name not in before]
print(json.dumps({
    "found": sorted([each.code, each.kind, each.remedy, each.subject.address] for each in state.findings.values()),
    "verdict": state.verdict, "gpus": {uuid: [each.serial, each.address] for uuid, each in state.gpus.items()},
    "held": [each for each in held if not each.startswith("/proc/")]}))
"""


ALONE = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.told import ARGUMENTS, looked
given = {name: option.get("default") for name, option in ARGUMENTS.items()}
print(json.dumps(looked(Host(sys.argv[1]), {**given, "keep": False}, False)["news"]))
"""


class Board(HostBoard):
    def rounds(self, times: int = 1, fabric_seconds: int = 100000) -> Dict[str, Any]:
        found: Dict[str, Any] = self.say(ROUNDS, str(self.root), str(times), str(fabric_seconds))
        return found

    def log(self, *lines: str) -> None:
        """Of this boot, a second apart."""
        log = self.root / "dev/kmsg"
        first = log.read_text().count("\n")
        with log.open("a") as file:
            file.writelines("3,%d,%d,-;%s\n" % (number, number * 1000000, line)
                            for number, line in enumerate(lines, first))


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_board_that_is_well_is_well_and_nothing_is_held_open(board: Board) -> None:
    found = board.rounds(4)
    assert (found["verdict"], found["found"], found["held"]) == ("well", [], [])
    assert sorted(found["gpus"]) == sorted(board.uuids())
    assert all(serial.isdigit() for serial, _address in found["gpus"].values())


def test_a_look_may_leave_nothing_behind(board: Board) -> None:
    board.set("gpu.1.recovery_action", 1)
    assert board.say(ALONE, str(board.root)) == ["recovery_action"]
    assert [path for path in board.root.rglob("*health*") if path.is_file()] == []


@pytest.mark.parametrize("key, value, wanted", [
    ("recovery_action", 1, ["recovery_action", "sick", "reset"]),
    ("recovery_action", 2, ["recovery_action", "sick", "reboot"]),
    ("recovery_action", 3, ["recovery_action", "pending", "reset"]),
    ("recovery_action", 4, ["recovery_action", "pending", "reset"]),
    ("recovery_action", 5, ["recovery_action", "sick", "service"]),
    ("recovery_action", 6, ["recovery_action", "sick", "reset"]),
    ("recovery_action", 7, ["recovery_action", "sick", "reboot"]),
    ("recovery_action", 8, ["recovery_action", "sick", "reboot"]),
    ("remapped.failed", 1, ["remap_failed", "sick", "out"]),
    ("remapped.pending", 1, ["remap_pending", "pending", "reset"]),
    ("sram_threshold", 1, ["sram_exceeded", "sick", "out"])])
def test_what_nvml_tells_is_found(board: Board, key: str, value: int, wanted: Any) -> None:
    board.set("gpu.1.%s" % key, value)
    assert [each[:3] for each in board.rounds()["found"]] == [wanted]


def test_an_uncorrectable_error_leaves_a_row_that_waits_for_a_reset(board: Board) -> None:
    board.fault("ecc", 1)
    assert [each[:3] for each in board.rounds()["found"]] == [["remap_pending", "pending", "reset"]]


@pytest.mark.parametrize("health, wanted", [
    (1, ["fabric_degraded", "warning", ""]), (1 << 4, ["fabric_health", "sick", "board_reset"]),
    (1 << 2, ["fabric_health", "sick", "service"]), (1 << 6, ["fabric_health", "sick", "reset"]),
    (2 << 8, ["fabric_health", "sick", ""])])
def test_what_a_fabric_complains_of_is_found_the_third_time(board: Board, health: int, wanted: Any) -> None:
    for index in range(2):
        board.set("gpu.%d.fabric.state" % index, 3)
    board.set("gpu.1.fabric.health", health)
    assert board.rounds(2, 0)["found"] == []
    assert [each[:3] for each in board.rounds(1, 0)["found"]] == [wanted]


@pytest.mark.parametrize("leaves_the_bus, wanted", [
    (False, ["no_answer", "sick", "reset"]), (True, ["missing", "sick", "reboot"])])
def test_a_gpu_that_is_gone_is_found_the_third_time(board: Board, leaves_the_bus: bool, wanted: Any) -> None:
    address = board.rounds()["gpus"][board.uuids()[1]][1]
    board.fault("absent", 1)
    if leaves_the_bus:
        shutil.rmtree(str(board.root / "sys/bus/pci/devices" / address))
    assert board.rounds(2)["found"] == []
    assert board.rounds()["found"] == [[*wanted, address]]


@pytest.mark.parametrize("action, kind, remedy", [(0, "warning", ""), (2, "sick", "reboot"), (4, "pending", "reset")])
def test_each_number_of_the_log_is_found_as_what_it_means(board: Board, action: int, kind: str, remedy: str) -> None:
    (_serial, address) = board.rounds()["gpus"][board.uuids()[1]]
    board.set("gpu.1.recovery_action", action)
    board.log(*("NVRM: Xid (PCI:%s): %d, pid=7, name=train, said" % (address[:-2], number) for number in XIDS))
    wanted = {"recovery_action": (kind, remedy)} if action else {}
    for number, meaning in XIDS.items():
        if meaning.by_action:
            wanted["xid %d" % number] = (kind, remedy)
        elif meaning.kind not in ("event", "suspicion"):
            # One time is not enough for all
            wanted["xid %d" % number] = (meaning.kind, meaning.remedy) if meaning.after == 1 else ("warning", "")
    assert {each[0]: (each[1], each[2]) for each in board.rounds()["found"]} == wanted


def test_an_nvlink_that_goes_down_is_found_the_third_time(board: Board) -> None:
    for index in range(2):
        board.set("gpu.%d.fabric.state" % index, 3)
    board.rounds()
    board.fault("nvlink-down", 1, code=1 << 17)
    assert board.rounds(2)["found"] == []
    assert [each[:3] for each in board.rounds()["found"]] == [["nvlink", "sick", "board_reset"]]


def test_a_gpu_that_is_too_hot_is_told(board: Board) -> None:
    board.fault("slowdown", 1)
    assert board.rounds(2)["found"] == []
    assert [each[:3] for each in board.rounds()["found"]] == [["slowdown", "warning", ""]]


def test_a_gpu_that_the_driver_was_told_to_leave_out_is_not_looked_for(board: Board) -> None:
    board.fault("excluded", 0)
    found = board.rounds(4)
    assert (found["verdict"], found["found"], list(found["gpus"])) == ("well", [], [board.uuids()[1]])


def test_a_gpu_that_is_lost_is_found_at_once(board: Board) -> None:
    board.fault("lost", 1)
    (found,) = board.rounds()["found"]
    assert found[:3] == ["lost", "sick", "reboot"] and found[3]


def test_a_call_that_hangs_ends_the_look_and_is_found(board: Board) -> None:
    board.fault("slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    assert board.rounds()["found"] == [["hang", "sick", "reboot", ""]]
