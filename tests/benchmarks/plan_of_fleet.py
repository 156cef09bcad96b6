#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the plan of a fleet costs the controller: hosts with one plan, short and long, and each plan in its own result.

No host is asked: what the module finds is stored. Runs all ways in turn. See README.md.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / name) for name in ("gates", "unit/playbooks", "unit/cluster")]

import measuring  # noqa: E402
from workspace import collections_root  # noqa: E402

sys.path.insert(0, str(collections_root()))

from canned import planned  # noqa: E402
from stand_ins import STORED_PLAN, collection  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step  # noqa: E402

SHORT, LONG, EACH, NOTHING = "short plans", "long plans", "each by itself", "nothing"
LINES_SHORT, LINES_LONG = 10, 5_000
# Of the most memory that one process has, with long plans, to that with short ones
MOST_TIMES = 1.25
MOST_LINES = 60
MEASURED = {"seconds": "the time", "cpu_seconds": "the processor", "peak_mib": "the memory"}
# As plan.yml was: each host's plan in its own result, printed and registered
PRINTED = [{"hosts": "all", "gather_facts": False, "tasks": [
    {"gpuops.nvidia.gpu_plan": {"from_variables": True, "show": True}, "register": "gpu_planned"}]}]
# What Ansible takes for a task of its own on each host
IDLE = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.assert": {"that": "true"}}]}]


@dataclass(frozen=True)
class Way:
    """playbook: its name or path; stored: directory of what hosts' plans are."""

    playbook: str
    stored: Path


class Bench:
    """Hosts with stored plans, and the ways to plan them."""

    def __init__(self, directory: Path, hosts: int) -> None:
        self.directory = directory
        self.names = ["gpu-%05d" % number for number in range(hosts)]
        collection(directory, {"gpu_plan": STORED_PLAN})
        self.environment = measuring.environment(directory, str(directory))
        self.environment.pop("KUBECONFIG", None)

    def ways(self) -> Dict[str, Way]:
        short, long = self._stored(LINES_SHORT), self._stored(LINES_LONG)
        return {LONG: Way("gpuops.nvidia.plan", long), SHORT: Way("gpuops.nvidia.plan", short),
                EACH: Way(self._play("printed", PRINTED), long), NOTHING: Way(self._play("idle", IDLE), short)}

    def _stored(self, lines: int) -> Path:
        stored = self.directory / ("stored-%d" % lines)
        stored.mkdir()
        step = Step("runtime", "file.write", "/etc/containerd/config.toml", "It is wanted.", change={
            "before": None, "after": "".join("key-%d = 1\n" % number for number in range(lines))})
        (stored / "whole").write_text(json.dumps(planned(
            Plan(steps=(step,)), observation={"pci": {"gpus": [1]}}, ansible_facts={})))
        for host in self.names:
            (stored / (host + ".json")).write_text(json.dumps({"same_as": "whole"}))
        return stored

    def _play(self, name: str, plays: Any) -> str:
        path = self.directory / (name + ".json")
        path.write_text(json.dumps(plays))
        return str(path)

    def run(self, way: Way) -> Dict[str, Any]:
        inventory, output = self.directory / "inventory.json", self.directory / "output"
        inventory.write_text(inventory_of(self.names, way.stored))
        spent = measuring.spent(("ansible-playbook", way.playbook, "--inventory", str(inventory)), self.environment,
                                self.directory, output)
        with output.open() as lines:
            return {**spent, "lines": shown(lines)}

    def compare(self, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """All ways in turn; the first round is not counted."""
        ways = self.ways()
        runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                run = self.run(way)
                print("%s %-15s %7.2f s %7.2f s of processor %6.1f MiB %d lines" % (
                    "warm-up" if number == 0 else "run %3d" % number, name, run["seconds"], run["cpu_seconds"],
                    run["peak_mib"], run["lines"]), flush=True)
                if number:
                    runs[name].append(run)
        return runs


def inventory_of(names: Sequence[str], stored: Path) -> str:
    """Hosts of which is known what that directory has of each."""
    return json.dumps({"all": {"hosts": dict.fromkeys(names, {}), "vars": {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "stored": str(stored)}}})


def shown(output: Iterable[str]) -> int:
    """How many lines the plan of the fleet has; 0 where there is none. Line by line, as measuring.changes()."""
    count, is_plan = 0, False
    for line in output:
        if is_plan and line.startswith("ok: ["):
            break
        count += is_plan
        is_plan = is_plan or line.startswith("TASK [Say it of all hosts and clusters]")
    return count


def summary(runs: Dict[str, List[Dict[str, Any]]], hosts: int) -> Dict[str, Dict[str, Any]]:
    """{way: medians, how many times those of long plans, and what a host costs beside Ansible's own task}."""
    found = {}
    for way, each in runs.items():
        found[way] = {
            "lines": max(run["lines"] for run in each),
            **measuring.compared(runs[LONG], each, MEASURED),
            "cpu_seconds_a_host": round(statistics.median(run["cpu_seconds"] for run in each) / hosts, 4),
        }
    return found


def promises(found: Dict[str, Dict[str, Any]]) -> Dict[str, bool]:
    return {
        "at most %d lines" % MOST_LINES: all(each["lines"] <= MOST_LINES for each in found.values()),
        "long plans take at most %.2f times the memory of short ones" % MOST_TIMES:
            found[LONG]["peak_mib"] <= MOST_TIMES * found[SHORT]["peak_mib"],
    }


def report(found: Dict[str, Dict[str, Any]]) -> Iterator[str]:
    for way, each in found.items():
        yield "%-15s %7.2f s %7.2f s of processor (%.4f a host) %7.1f MiB" % (
            way, each["seconds"], each["cpu_seconds"], each["cpu_seconds_a_host"], each["peak_mib"])
    for way, each in found.items():
        if way != LONG:
            yield "%s / %s: %s" % (way, LONG, ", ".join("%.2f times %s (%.2f to %.2f)" % (
                each["times_" + of][1], told, each["times_" + of][0], each["times_" + of][2])
                for of, told in MEASURED.items()))
    yield from measuring.verdicts(promises(found))


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each", hosts="how many hosts there are (default: 500)")
    hosts = int(told.hosts or 500)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as place:
        runs = Bench(Path(place), hosts).compare(told.runs)
    found = summary(runs, hosts)
    measuring.conclude("plan_of_fleet", load, "\n".join(report(found)), promises(found), hosts=hosts, summary=found,
                       runs=runs)


if __name__ == "__main__":
    main()
