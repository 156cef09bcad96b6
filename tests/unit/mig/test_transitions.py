# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Walks from layout to layout on simulated GPUs: the campaign `mig` has ten thousand steps of them."""
from __future__ import annotations

import os
from collections import Counter
from typing import Callable

import pytest
from mig_boards import WITH_MIG
from mig_host import MigHost
from mig_transitions import Transition

STEPS = int(os.environ.get("GPUOPS_TRANSITIONS", "12"))
# Whose layouts differ most
FEW = ("a30", "gb200-nvl72", "h100-sxm-hgx", "rtx-pro-6000-server")
SEED = int(os.environ.get("GPUOPS_SEED", "20261122"))


@pytest.mark.parametrize("board", [
    pytest.param(board, marks=[] if board in FEW else [pytest.mark.variation]) for board in WITH_MIG])
def test_every_step_ends_where_it_should_or_where_it_began(gpus: Callable[..., MigHost], board: str) -> None:
    host = gpus(board)
    host.apply(config="all-enabled")
    ends = Counter(Transition(host, board, SEED + number, faults=number % 2 == 1).go() for number in range(STEPS))
    assert ends["made"] > 0
