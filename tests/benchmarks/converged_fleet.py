#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the whole of site costs the controller on a fleet where nothing is to be done, whose hosts answer at once.

Brings up a real API server with the Nodes and the components; what the module finds on a host is stored. See README.md.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / name) for name in ("gates", "lab", "unit/playbooks", "unit/cluster")]

import many_nodes  # noqa: E402
import measuring  # noqa: E402
from canned import planned  # noqa: E402
from plan_of_fleet import IDLE, MEASURED, inventory_of  # noqa: E402
from stand_ins import STORED_PLAN, collection  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan  # noqa: E402
from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

MANY, FEW, NOTHING = "site", "site, a quarter of them", "a task that does nothing"
# What is promised. Of the most memory that one process has, to that of a quarter of the hosts
CPU_SECONDS_A_HOST, MOST_TIMES = 0.5, 1.25


@dataclass(frozen=True)
class Way:
    playbook: str
    hosts: int


class Bench:
    """A cluster whose nodes have their components, and hosts on which nothing is to be done."""

    def __init__(self, lab: Lab, directory: Path, hosts: int) -> None:
        self.lab, self.directory = lab, directory
        self.names = [many_nodes.name(number * many_nodes.GPU_NODES_OF) for number in range(hosts)]
        self.stored = directory / "stored"
        idle = directory / "idle.json"
        idle.write_text(json.dumps(IDLE))
        self.ways = {MANY: Way("gpuops.nvidia.site", hosts), FEW: Way("gpuops.nvidia.site", hosts // 4),
                     NOTHING: Way(str(idle), hosts)}

    def prepare(self) -> None:
        collection(self.directory, {"gpu_plan": STORED_PLAN})
        many_nodes.Bench(self.lab, self.directory, 0, 0, "").bring()
        many_nodes.populate(self.lab, [number * many_nodes.GPU_NODES_OF for number in range(len(self.names))],
                            many_nodes.node)
        # Labels of ours are part of what a pod proves
        self.store({})
        self.run(self.ways[MANY], converged=False)
        with ThreadPoolExecutor(8) as pool:
            proofs = pool.map(lambda name: many_nodes.proved(str(self.lab.kubeconfig), name), self.names)
            self.store(dict(zip(self.names, proofs)))

    def store(self, proofs: Dict[str, Any]) -> None:
        """Have the module find so much of each host."""
        self.stored.mkdir(exist_ok=True)
        devices = {"whole": many_nodes.GPUS, "divided": 0, "empty": 0, "mig": {}}
        for name in self.names:
            (self.stored / (name + ".json")).write_text(json.dumps({"result": planned(
                Plan(), gpus=many_nodes.GPUS, devices=devices, proof=proofs.get(name, {}), observation={"pci": {
                    "gpus": list(range(many_nodes.GPUS))}}, ansible_facts={})}))

    def run(self, way: Way, converged: bool = True) -> Dict[str, Any]:
        inventory, output = self.directory / "inventory.json", self.directory / "output"
        inventory.write_text(inventory_of(self.names[:way.hosts], self.stored))
        variables = {"gpu_cluster_kubeconfig": str(self.lab.kubeconfig), "gpu_components": many_nodes.BROUGHT,
                     "gpu_validation_pod": converged, "gpu_validation_pod_trusted_for": 86400}
        spent = measuring.spent(
            ("ansible-playbook", way.playbook, "--inventory", str(inventory), "--extra-vars", json.dumps(variables)),
            measuring.environment(self.directory, "%s:%s" % (self.directory, collections_root())), self.directory,
            output)
        if converged and measuring.changes(output):
            raise SystemExit("%s has changed something: %s" % (way.playbook, output.read_text()[-4000:]))
        return spent

    def compare(self, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """All ways in turn; the first round is not counted."""
        runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in self.ways}
        for number in range(rounds + 1):
            for name, way in self.ways.items():
                run = self.run(way)
                print("%s %-25s %7.2f s %7.2f s of processor %6.1f MiB" % (
                    "warm-up" if number == 0 else "run %3d" % number, name, run["seconds"], run["cpu_seconds"],
                    run["peak_mib"]), flush=True)
                if number:
                    runs[name].append(run)
        return runs


def summary(runs: Dict[str, List[Dict[str, Any]]], hosts: Dict[str, int]) -> Dict[str, Dict[str, Any]]:
    """{way: medians, what a host costs in all, and how many times what site costs}."""
    return {way: {
        **measuring.compared(runs[MANY], each, MEASURED),
        "cpu_seconds_a_host": round(statistics.median(run["cpu_seconds"] for run in each) / hosts[way], 4),
    } for way, each in runs.items()}


def promises(found: Dict[str, Dict[str, Any]]) -> Dict[str, bool]:
    return {
        "at most %.2f s of processor a host, all in" % CPU_SECONDS_A_HOST:
            found[MANY]["cpu_seconds_a_host"] <= CPU_SECONDS_A_HOST,
        "at most %.2f times the memory for four times the hosts" % MOST_TIMES:
            found[MANY]["peak_mib"] <= MOST_TIMES * found[FEW]["peak_mib"],
    }


def report(found: Dict[str, Dict[str, Any]]) -> Iterator[str]:
    for way, each in found.items():
        yield "%-25s %7.2f s %7.2f s of processor (%.4f a host) %7.1f MiB; %.2f times the processor of %s" % (
            way, each["seconds"], each["cpu_seconds"], each["cpu_seconds_a_host"], each["peak_mib"],
            each["times_cpu_seconds"][1], MANY)
    yield from measuring.verdicts(promises(found))


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each", hosts="how many hosts there are (default: 200)")
    hosts = int(told.hosts or 200)
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as place:
        lab.up(parse({"name": "converged-fleet", "control_plane": True, "hosts": []}, __file__))
        try:
            bench = Bench(lab, Path(place), hosts)
            bench.prepare()
            load = os.getloadavg()[0]
            runs = bench.compare(told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs, {name: way.hosts for name, way in bench.ways.items()})
    measuring.conclude("converged_fleet", load, "\n".join(report(found)), promises(found), hosts=hosts, summary=found,
                       runs=runs)


if __name__ == "__main__":
    main()
