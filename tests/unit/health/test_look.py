# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rounds by the simulated NVML, each in a process of its own."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict

import pytest
from simulated_board import HostBoard

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

ROUNDS = """
import json, os, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import look_and_keep
before = sorted(os.listdir("/proc/self/fd"))
for _round in range(int(sys.argv[2])):
    state = look_and_keep(Host(sys.argv[1]), HealthPolicy(silence=2, fabric_seconds=100000))
held = [os.readlink("/proc/self/fd/" + name) for name in os.listdir("/proc/self/fd") if name not in before]
print(json.dumps({
    "found": sorted([each.code, each.kind, each.remedy, each.subject.address] for each in state.findings.values()),
    "verdict": state.verdict, "gpus": {uuid: [each.serial, each.address] for uuid, each in state.gpus.items()},
    "held": [each for each in held if not each.startswith("/proc/")]}))
"""


class Board(HostBoard):
    def rounds(self, times: int = 1) -> Dict[str, Any]:
        found: Dict[str, Any] = self.say(ROUNDS, str(self.root), str(times))
        return found


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_a_board_that_is_well_is_well_and_nothing_is_held_open(board: Board) -> None:
    found = board.rounds(4)
    assert (found["verdict"], found["found"], found["held"]) == ("well", [], [])
    assert sorted(found["gpus"]) == sorted(board.uuids())
    assert all(serial.isdigit() for serial, _address in found["gpus"].values())


@pytest.mark.parametrize("key, value, wanted", [
    ("recovery_action", 1, ["recovery_action", "sick", "reset"]),
    ("recovery_action", 4, ["recovery_action", "pending", "reset"]),
    ("remapped.failed", 1, ["remap_failed", "sick", "out"]),
    ("remapped.pending", 1, ["remap_pending", "pending", "reset"]),
    ("sram_threshold", 1, ["sram_exceeded", "sick", "out"])])
def test_what_nvml_tells_is_found(board: Board, key: str, value: int, wanted: Any) -> None:
    board.set("gpu.1.%s" % key, value)
    assert [each[:3] for each in board.rounds()["found"]] == [wanted]


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
