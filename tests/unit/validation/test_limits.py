# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of rates: far enough below what a board does to refuse no sound one, and far enough above to refuse some."""
from __future__ import annotations

from typing import Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.limits import (
    MEMORY_SHARE,
    SHEETS,
    sheet_of,
    too_slow,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.verdict import judged

# MB/s that NVIDIA's DCGM v4.5.3 wants of device memory (nvvs/diag-skus.yaml.in), which is three quarters of what it has
# measured. Its figures for A100-SXM4-40GB (137,500) and H200-SXM (2,333) are not among them: nothing fails these.
DCGM = {
    "Tesla T4": 183000, "Tesla V100-SXM2-32GB": 607500, "NVIDIA A30": 585000, "NVIDIA A100-PCIE-40GB": 969750,
    "NVIDIA A100 80GB PCIe": 1121250, "NVIDIA A100-SXM4-80GB": 1173000, "NVIDIA L4": 198500, "NVIDIA L40S": 525000,
    "NVIDIA H100 PCIe": 1230000, "NVIDIA H100 80GB HBM3": 1905000, "NVIDIA H100 NVL": 2043000,
    "NVIDIA GH200 480GB": 2130000, "NVIDIA H200 NVL": 2212500, "NVIDIA B200": 4072500, "NVIDIA B300 SXM6 AC": 4623360,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": 1110000,
}


@pytest.mark.parametrize("board", sorted(DCGM))
def test_a_sound_boards_memory_is_above_its_limit_and_a_quarter_of_it_is_below(board: str) -> None:
    measured = DCGM[board] / 0.75 / 1000
    assert too_slow(sheet_of(board), {"memory": measured}) == ()
    assert [what for what, _rate, _least in too_slow(sheet_of(board), {"memory": measured / 3})] == ["memory"]


@pytest.mark.parametrize("board", sorted(SHEETS))
def test_limits_are_parts_of_data_sheets_in_the_same_unit(board: str) -> None:
    """A limit in megabytes, or in both ways at once, would be one that nothing or everything fails."""
    sheet = SHEETS[board]
    assert 200 <= sheet.memory <= 8000 or board == "NVIDIA GB200"
    assert sheet.link in (0, 15.75, 31.5 / 2, 31.5, 63.0) and sheet.peer in (0, 150, 300, 450, 900)
    assert 0.3 <= MEMORY_SHARE <= 1


@pytest.mark.parametrize("name, board", [
    ("NVIDIA L4", "NVIDIA L4"), ("NVIDIA L40", "NVIDIA L40"), ("NVIDIA L40S", "NVIDIA L40S"),
    ("NVIDIA H200", "NVIDIA H200"), ("NVIDIA H200 NVL", "NVIDIA H200 NVL"),
    ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
    # Virtual GPUs, which share a board
    ("NVIDIA A40-8Q", ""), ("NVIDIA L40S-48C", ""), ("NVIDIA H200-141C", ""), ("GRID A100-40C", ""),
    ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), ("NVIDIA A10G", ""), ("NVIDIA GeForce RTX 4090", ""),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""), ("NVIDIA A2", "NVIDIA A2"), ("NVIDIA A16", "NVIDIA A16"),
])
def test_a_name_is_of_one_board(name: str, board: str) -> None:
    assert sheet_of(name) == (SHEETS[board] if board else sheet_of("no such board"))


@pytest.mark.parametrize("rates", [
    # Seen on sound boards: PCIe 4 slots under PCIe 5 boards, nvbandwidth's and Azure's figures (GB/s)
    {"to_device": 24.0, "to_host": 24.5, "memory": 2990.0, "peer": 335.0},
    {"to_device": 35.0, "to_host": 53.0, "memory": 2540.0, "peer": 380.0},
    # In a slot of PCIe 3
    {"to_device": 12.1, "to_host": 12.8, "memory": 2540.0},
])
def test_an_h100_in_any_sound_host_passes(rates: Dict[str, float]) -> None:
    assert too_slow(sheet_of("NVIDIA H100 80GB HBM3"), rates) == ()


def test_a_board_without_a_data_sheet_is_not_judged_and_tells_its_rates() -> None:
    rates = {"memory": 1.0, "to_device": 0.1}
    assert too_slow(sheet_of("NVIDIA GeForce RTX 4090"), rates) == ()
    proof = Proof(Device("GPU-1", "GPU 1"), board="NVIDIA GeForce RTX 4090", multiprocessors=128, seen=128, rates=rates)
    status, evidence, _remedy = judged(proof)
    assert (status, proof.to_dict()["rates"]) == ("passed", rates)
    assert "its memory 1.0 GB/s" in evidence and "copies to it 0.1 GB/s" in evidence
