# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/health.md: its numbers are those of the catalogue, and its policy is one."""
from __future__ import annotations

import re
from dataclasses import fields
from typing import Iterator, List

import yaml
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import LADDER
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import VERSION, XIDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.metrics import METRICS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import VERDICTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.problems import CONDITIONS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import (
    CONDITIONS as CONDITIONS_FILE,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import (
    KEPT,
    LATEST,
    SUMMARY,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.state import (
    METRICS as METRICS_FILE,
)

PAGE = (REPOSITORY / "docs" / "health.md").read_text()


def rows() -> Iterator[List[str]]:
    table = PAGE.split("| Xid |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def numbers(cell: str) -> Iterator[int]:
    for part in cell.split(", "):
        first, _dash, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def test_each_number_is_on_the_page_with_its_kind_and_remedy() -> None:
    told = {number: (kind, remedy, "second time" in note, "action decides" in note.lower(), "Nonfatal" in note)
            for cell, _means, kind, remedy, note in rows() for number in numbers(cell)}
    assert told == {number: (each.kind, each.remedy, each.after == 2, each.by_action, each.by_severity)
                    for number, each in XIDS.items()}
    assert VERSION.rpartition(".")[0] in PAGE


def test_the_policy_of_the_page_is_the_default_but_for_its_overrides() -> None:
    (shown,) = re.findall(r"^```yaml\n(overrides:\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    given = yaml.safe_load(shown)
    assert set(given) == {each.name for each in fields(HealthPolicy)}
    assert policy_of(dict(given, overrides={})) == HealthPolicy()
    assert policy_of(given).overrides["xid", 92] == {"kind": "sick", "remedy": "reset", "after": 3}


def test_what_it_names_is_there() -> None:
    named = set(re.findall(r"`([^`\n]+)`", PAGE))
    assert named >= {*LADDER[1:], *VERDICTS, *CONDITIONS, KEPT, LATEST, SUMMARY, CONDITIONS_FILE, METRICS_FILE}
    metrics = {name.partition("{")[0] for name in named if name.startswith(("gpuops_health_", "gpuops_boot_"))}
    assert metrics - {METRICS_FILE} == set(METRICS)
