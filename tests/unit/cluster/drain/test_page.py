# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/drain.md: its table is that of the cases, which run beside kubectl on a real API server (test_drain.py)."""
from __future__ import annotations

import drain_cases
from workspace import REPOSITORY

PAGE = (REPOSITORY / "docs" / "drain.md").read_text()
HEAD = ["Case", "kubectl drain", "gpu_pod_eviction", "Why they differ"]


def test_the_page_has_every_case_and_its_outcomes() -> None:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in PAGE.splitlines()
            if line.startswith("|")]
    assert rows[rows.index(HEAD) + 2:] == [list(row) for row in drain_cases.rows()]


def test_a_difference_has_its_reason_and_nothing_else_has_one() -> None:
    assert [name for name, kubectl, ours, why in drain_cases.rows() if (kubectl != ours) != bool(why)] == []


def test_each_outcome_is_explained() -> None:
    told = {outcome for _name, kubectl, ours, _why in drain_cases.rows() for outcome in (kubectl, ours)}
    assert told == set(drain_cases.OUTCOMES)
    assert [outcome for outcome in drain_cases.OUTCOMES if "\n- %s: " % outcome not in PAGE] == []
