# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every number of NVIDIA's catalog, and what it may not do: an application's error takes no node out."""
from __future__ import annotations

from typing import Any, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import XIDS, sxid, xid

# (numbers, NVIDIA's action in its catalog, what it comes to here, its remedy)
ROWS: List[Any] = [
    ((13, 31), "RESTART_APP", "suspicion", ""),
    ((8, 11, 25, 32, 68, 69, 80, 39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "RESTART_APP", "event",
     ""),
    ((43, 44, 66, 67, 93, 106, 107, 137, 141), "IGNORE", "event", ""),
    ((45,), "follow the other Xid", "event", ""),
    ((46, 62, 109, 110, 119, 120, 136, 140, 143, 155, 158), "RESET_GPU", "sick", "reset"),
    ((48, 95), "RESET_GPU", "sick", "reset"),
    ((63,), "IGNORE", "pending", "reset"),
    ((94,), "RESTART_APP, contained", "pending", "reset"),
    ((64,), "CONTACT", "sick", "out"),
    ((92, 121, 157), "IGNORE, else CONTACT", "warning", ""),
    ((54,), "CHECK_MECHANICALS", "sick", "out"),
    ((61, 122, 123, 124, 125, 142), "CONTACT", "sick", "out"),
    ((74,), "workflow of NVLink", "sick", "board_reset"),
    ((79,), "restart the machine", "sick", "reboot"),
    (tuple(range(144, 151)), "by severity and bit table", "sick", "reset"),
    ((151,), "RESTART_VM", "sick", "reboot"),
    ((156, 160, 161), "RESET, else IGNORE", "pending", "reset"),
    ((154,), "the driver's own word", "warning", ""),
    ((78, 159, 162, 163, 164, 165), "update", "warning", ""),
    ((167, 168, 169, 171, 172, 173, 174, 175, 176, 999), "not in the catalog", "warning", ""),
]
NUMBERS = [(number, kind, remedy) for numbers, _action, kind, remedy in ROWS for number in numbers]


@pytest.mark.parametrize("number, kind, remedy", NUMBERS)
def test_each_number_of_the_catalog(number: int, kind: str, remedy: str) -> None:
    assert (xid(number).kind, xid(number).remedy) == (kind, remedy)


def test_no_number_of_ours_is_without_a_row_here() -> None:
    assert set(XIDS) <= {number for number, _kind, _remedy in NUMBERS}


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 69, 80])
def test_an_application_takes_no_node_out(number: int) -> None:
    assert xid(number).kind in ("event", "suspicion") and xid(number).remedy == ""


@pytest.mark.parametrize("number, says_fatal, kind", [
    (10003, False, "sick"), (12020, False, "sick"), (23017, False, "sick"), (22011, True, "sick"),
    (11004, True, "warning"), (20009, True, "warning"), (19049, True, "sick"), (19049, False, "warning")])
def test_a_switch_is_judged_by_the_guide_and_then_by_its_own_word(number: int, says_fatal: bool, kind: str) -> None:
    assert sxid(number, says_fatal).kind == kind
