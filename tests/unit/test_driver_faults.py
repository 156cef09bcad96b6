# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/driver-faults.md: its tests and errors are there, and each fault ends in one of the ways that it explains."""
from __future__ import annotations

import re
from typing import List, Tuple

import pytest
from workspace import REPOSITORY

PAGE = (REPOSITORY / "docs" / "driver-faults.md").read_text()
ROWS: List[Tuple[str, ...]] = [
    tuple(cell.strip() for cell in line.strip("|").split("|")) for line in PAGE.splitlines()
    if line.startswith("|") and line.count("|") == 5 and not line.startswith(("|---", "| Fault"))]
ENDS = re.findall(r"^\| ([a-z ]+) \| [a-z]", PAGE.split("\n## ", 1)[0], re.MULTILINE)
SOURCES = "\n".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
CODES = set(re.findall(r"^### (\S+)$", (REPOSITORY / "docs" / "refusals.md").read_text(), re.MULTILINE))


def test_it_has_no_fewer_faults_than_were_promised() -> None:
    assert len(ROWS) == len({row[0] for row in ROWS}) >= 40


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_fault_has_an_end_its_error_and_its_test(row: Tuple[str, ...]) -> None:
    _fault, end, told, tests = row
    assert end.startswith(tuple(ENDS))
    assert not told or told in CODES
    assert tests and all(re.search(r"def %s\b" % name.strip(), SOURCES) for name in tests.split(","))
