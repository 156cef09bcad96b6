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
from typing import Any, Callable, Dict, List, Mapping, Tuple

import pytest
import yaml
from chart_facts import differences, facts
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import objects, removal_jobs
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
    return [
        Listed(tuple(prefix + each for prefix in prefixes(part) for each in entry["facts"]),
               str(entry.get("theirs", "")), str(entry.get("ours", "")), chart)
        for chart, parts in yaml.safe_load(LIST.read_text(encoding="utf-8")).items()
        for part in parts for entry in part["differences"]]


def prefixes(part: Mapping[str, Any]) -> List[str]:
    return ["%s: " % program for program in part.get("programs", ())] or [""]


def made(case: Case) -> List[Object]:
    """Our objects of the components that the case compares."""
    found: List[Object] = []
    for name in case.compared():
        options = case.options(name)
        if options.get("state") != "absent":
            component = COMPONENTS[name]
            found += [*objects(component, options), *removal_jobs(component, options)]
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


def plugin_of(made_objects: List[Object]) -> Object:
    return next(each for each in made_objects if each["kind"] == "DaemonSet")


CHANGES: Dict[str, Callable[[Object, Object], Any]] = {
    "another image": lambda pod, container: container.update(image="example.com/other:1"),
    "another setting": lambda pod, container: container["env"].append({"name": "MIG_STRATEGY", "value": "single"}),
    "another variable": lambda pod, container: container["env"].append({"name": "OTHER", "value": "all"}),
    "a mount less": lambda pod, container: container["volumeMounts"].pop(),
    "a mount that can be written": lambda pod, container: container["volumeMounts"][-1].pop("readOnly"),
    "another directory": lambda pod, container: pod["volumes"][-1]["hostPath"].update(path="/elsewhere"),
    "no toleration": lambda pod, container: pod.update(tolerations=[]),
    "another node": lambda pod, container: pod["nodeSelector"].update(pool="gpu"),
    "a capability": lambda pod, container: container["securityContext"].update(capabilities={"add": ["SYS_PTRACE"]}),
    "the host's network": lambda pod, container: pod.update(hostNetwork=True),
    "a field that no case has": lambda pod, container: pod.update(schedulerName="other"),
    "a container more": lambda pod, container: pod["containers"].append({"name": "helper", "image": "example.com/x:1"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_pod_is_seen(change: str) -> None:
    before, after = made(CASES["defaults"]), made(CASES["defaults"])
    pod = plugin_of(after)["spec"]["template"]["spec"]
    CHANGES[change](pod, pod["containers"][0])
    assert differences(facts(before, "device_plugin", {}), facts(after, "device_plugin", {}))


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
