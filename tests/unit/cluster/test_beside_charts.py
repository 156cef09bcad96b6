# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's charts, rendered by Helm, and our objects, beside each other: the same wishes, and every difference listed.

tests/lab/charts/differences.yml is the list, each with its reason. A difference that is not listed fails, and so does a
listed one that occurs no more. GPUOPS_CHART_DIFFERENCES names a file for all that were found.
"""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import pytest
import yaml
from chart_facts import ABSENT, PROGRAMS, differences, facts, runs
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from gpulab import charts
from gpulab.charts import Case

LIST = REPOSITORY / "tests" / "lab" / "charts" / "differences.yml"
FOUND = os.environ.get("GPUOPS_CHART_DIFFERENCES", "")
CASES = {case.name: case for case in charts.cases()}
Object = Dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One that occurs: of a fact, on a node of a case."""

    case: str
    chart: str
    fact: str
    theirs: str
    ours: str


@dataclass(frozen=True)
class Listed:
    """One that is meant. facts, theirs and ours are patterns; an empty one of the last two is of any value."""

    facts: Tuple[str, ...]
    theirs: str
    ours: str
    chart: str

    def covers(self, found: Difference) -> bool:
        return (found.chart == self.chart and any(fnmatchcase(found.fact, each) for each in self.facts)
                and fnmatchcase(found.theirs, self.theirs or "*") and fnmatchcase(found.ours, self.ours or "*"))


def listed() -> List[Listed]:
    return [Listed(tuple(each["facts"]), str(each.get("theirs", "")), str(each.get("ours", "")), chart)
            for chart, parts in yaml.safe_load(LIST.read_text(encoding="utf-8")).items()
            for part in parts for each in part["differences"]]


def made(case: Case) -> List[Object]:
    """Our objects of the components that the case compares."""
    found: List[Object] = []
    for name in case.compared():
        options = case.options(name)
        if options.get("state") != "absent":
            component = COMPONENTS[name]
            found += [*objects(component, options), *component.before_removal(options)]
    return list({(each["kind"], each["metadata"]["name"]): each for each in found}.values())


@lru_cache(maxsize=None)
def occurring(name: str) -> Tuple[Difference, ...]:
    case = CASES[name]
    theirs, ours = charts.rendered(case), made(case)
    found: Dict[Tuple[str, str, str], Difference] = {}
    for labels in (case.nodes or {"": {}}).values():
        for component in case.compared():
            pairs = differences(facts(theirs, component, labels), facts(ours, component, labels))
            for fact, (their_value, our_value) in pairs.items():
                found[fact, their_value, our_value] = Difference(name, case.chart, fact, their_value, our_value)
    return tuple(found.values())


def possible(case: Case) -> bool:
    return charts.directory(case.chart) is not None


def test_there_are_cases_enough_and_each_is_told_apart() -> None:
    assert len([case for case in CASES.values() if case.chart == charts.DEVICE_PLUGIN]) >= 20
    assert len({case.title for case in CASES.values()}) == len(CASES)


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_listed(name: str) -> None:
    if not possible(CASES[name]):
        pytest.skip("no chart of the DCGM exporter: GPUOPS_DCGM_CHART names its directory")
    meant = listed()
    unlisted = [each for each in occurring(name) if not any(entry.covers(each) for entry in meant)]
    if FOUND:
        with Path(FOUND).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps([each.case, each.fact, each.theirs, each.ours]) + "\n" for each in unlisted)
    assert not unlisted, "\n".join("%s\n    chart: %s\n    ours:  %s" % (each.fact, each.theirs, each.ours)
                                   for each in unlisted)


def test_what_is_listed_occurs() -> None:
    known = {case.chart for case in CASES.values() if possible(case)}
    found = [each for case in CASES.values() if possible(case) for each in occurring(case.name)]
    gone = [entry for entry in listed() if entry.chart in known and not any(entry.covers(each) for each in found)]
    assert not gone, "\n".join("%s: %s, ours %s" % (", ".join(entry.facts), entry.theirs, entry.ours)
                               for entry in gone)
