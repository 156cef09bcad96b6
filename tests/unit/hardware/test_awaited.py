# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The boards that a policy names stand in for GPUs that an image's builder does not have, and for nothing else."""
from __future__ import annotations

from typing import List

import pytest
from gpu_hosts import A100, B200, GB200, H100, T4, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.catalogue import choose_module
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.awaited import foreseen
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boards import BOARDS, may_have_bridges

BUILDER = facts(kernel="6.12.0-cloud", boot_kernel="6.1.0-50-amd64", driver_boots="580.178.04")


@pytest.mark.parametrize("boards, ids, fabric, imex", [
    (["hgx-h100"], ["2330"], "fabric_manager", False),
    (["HGX-A100 "], ["20b0", "20b2"], "fabric_manager", False),
    (["hgx-b200"], ["2901"], "fabric_manager_nvlsm", False),
    (["hgx-h100", "hgx-b300"], ["2330", "3182"], "fabric_manager_nvlsm", False),
    (["gb200"], ["2941"], "", True),
    (["gb300", "l4"], ["31c2", "27b8"], "", True),
    (["10de:2330"], ["2330"], "fabric_manager", False),
    (["0x1eb8"], ["1eb8"], "", False),
    (["1db4"], ["1db4"], "", False),
])
def test_boards_say_what_their_nodes_need(boards: List[str], ids: List[str], fabric: str, imex: bool) -> None:
    there = foreseen(BUILDER, boards)
    assert [gpu.device_id for gpu in there.gpus] == ids
    assert (there.fabric, there.imex, there.awaits_gpu) == (fabric, imex, True)


def test_the_kernel_is_that_of_the_image_and_not_the_builders() -> None:
    there = foreseen(BUILDER, ["l4"])
    assert (there.kernel, there.driver_installed) == ("6.1.0-50-amd64", "580.178.04")


def test_a_tree_without_a_kernel_is_left_with_the_builders() -> None:
    """The driver's planner refuses it: that kernel is not there."""
    assert foreseen(BUILDER.but(boot_kernel="", driver_boots=""), ["l4"]).kernel == "6.12.0-cloud"


def test_without_boards_a_host_is_what_it_is() -> None:
    assert foreseen(BUILDER, []) is BUILDER


def test_real_gpus_of_a_named_board_count_as_they_are() -> None:
    there = facts(A100, A100, fabric="fabric_manager", nvswitches=6)
    assert foreseen(there, ["hgx-h100", "hgx-a100"]) is there


@pytest.mark.parametrize("real", [(T4,), (H100, T4)])
def test_real_gpus_that_differ_are_refused(real: List[str]) -> None:
    with pytest.raises(GpuOpsError) as caught:
        foreseen(facts(*real), ["hgx-h100"])
    assert "10de:1eb8" in str(caught.value) and "10de:2330" not in str(caught.value)
    assert "`boards` (hgx-h100)" in str(caught.value)


@pytest.mark.parametrize("name", ["hgx-h1000", "233", "10de:23300", "", "rtx"])
def test_a_board_that_nobody_knows_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        foreseen(BUILDER, [name])
    assert "hgx-b200" in str(caught.value) and "lspci" in str(caught.value)


def test_boards_that_take_different_modules_are_refused_as_gpus_are() -> None:
    choice = choose_module(foreseen(BUILDER, ["v100-pcie", "hgx-b200"]).gpus, "auto", 580)
    assert choice.refusal is not None and choice.refusal.code == "driver.no_common_kernel_module"


def test_names_and_ids_of_boards_are_each_of_one_board() -> None:
    ids = [device_id for board in BOARDS.values() for device_id in board.device_ids]
    assert len(ids) == len(set(ids))
    assert {A100, H100, B200, GB200, T4} <= set(ids)
    assert all(name == name.lower() for name in BOARDS)
    for board in BOARDS.values():
        assert (board.fabric == "fabric_manager_nvlsm") is (bool(board.fabric) and may_have_bridges(board.device_ids))
