#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the inventory of a large cluster costs: the plugin gpu_nodes, and a bare list of its nodes.

Brings up a real API server with as many Node objects as asked for, and runs all ways in turn. See README.md.
"""
from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests" / "gates"), str(HERE.parents[1] / "tests" / "lab")]

import measuring  # noqa: E402
from many_nodes import GPU_NODES_OF, node, populate  # noqa: E402
from workspace import apart, collections_root, venv  # noqa: E402

from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

READING = HERE / "inventory_reading.py"
LIST, PLAIN, WHOLE, WARM = "list", "plugin", "plugin, with all", "from the cache"
ZONES = 12
# What is promised: of the time of a bare list, and of what is kept
TIMES_LIST, TIMES_KEPT = 1.3, 2.0
MEASURED = {"inside": "the time without imports", "seconds": "the wall time", "cpu_seconds": "the processor time",
            "peak_mib": "the memory"}

# As the examples of the plugin's documentation have it
CONSTRUCTED: Dict[str, Any] = {
    "strict": True,
    "filters": ["ready", "count >= `8`"],
    "keyed_groups": [{"key": "k8s_gpu_zone", "prefix": "zone"},
                     {"key": "k8s_gpu_labels['example.com/rack']", "prefix": "rack"}],
    "compose": {"ansible_user": "'admin'", "ansible_become": "true", "gpu_cluster_node_name": "k8s_gpu_name",
                "local_address": "k8s_gpu_addresses.InternalIP[0]"},
    "groups": {"in_doubt": "k8s_gpu_findings | length > 0", "eight": "k8s_gpu_count == 8"},
}


class Bench:
    """A cluster with many nodes, and those ways to read them that are compared."""

    def __init__(self, lab: Lab, directory: Path, nodes: int) -> None:
        self.lab, self.directory, self.nodes = lab, directory, nodes

    def ways(self) -> Dict[str, Tuple[str, ...]]:
        cache = {"cache": True, "cache_plugin": "ansible.builtin.jsonfile", "cache_timeout": 86400,
                 "cache_connection": str(self.directory / "cache")}
        plain, whole = self._source("plain"), self._source("whole", **CONSTRUCTED, **cache)
        return {LIST: ("list", str(self._access())), PLAIN: ("inventory", plain, "cold"),
                WHOLE: ("inventory", whole, "cold"), WARM: ("inventory", whole, "warm")}

    def _source(self, name: str, **options: Any) -> str:
        path = self.directory / (name + ".gpu_nodes.yml")
        path.write_text(json.dumps(
            {"plugin": "gpuops.nvidia.gpu_nodes", "kubeconfig": str(self.lab.kubeconfig), **options}))
        return str(path)

    def _access(self) -> Path:
        plane = self.lab.control_plane
        assert plane is not None
        admin = plane.authority.issue("admin", "gpulab-admin", "system:masters")
        path = self.directory / "access.json"
        path.write_text(json.dumps({"server": plane.network.api_url, "ca": str(plane.authority.certificate),
                                    "certificate": str(admin.certificate), "key": str(admin.key)}))
        return path

    def run(self, words: Tuple[str, ...]) -> Dict[str, Any]:
        """One run in a process of its own, with what it says of itself."""
        environment = measuring.environment(self.directory, str(collections_root()))
        output = self.directory / "output"
        command = (str(venv() / "bin" / "python"), str(READING), *words)
        spent = measuring.spent(command, environment, self.directory, output)
        told = json.loads(output.read_text().splitlines()[-1])
        if told["nodes"] != self.nodes:
            raise SystemExit("%s found %d nodes of %d" % (" ".join(words[:2]), told["nodes"], self.nodes))
        return {**spent, **told}

    def compare(self, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """All ways in turn; the first round, which writes the cache, is not counted."""
        ways = self.ways()
        runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, words in ways.items():
                run = self.run(words)
                print("%s %-16s %6.2f s without imports %6.2f s %6.2f s of processor %7.1f MiB" % (
                    "warm-up" if number == 0 else "run %3d" % number, way, run["inside"], run["seconds"],
                    run["cpu_seconds"], run["peak_mib"]), flush=True)
                if number:
                    runs[way].append(run)
        return runs

    def memory(self) -> Dict[str, Dict[str, Any]]:
        """What is allocated, which is counted in runs of their own: counting takes long."""
        ways = self.ways()
        return {way: self.run(("memory", ways[way][1])) for way in (PLAIN, WHOLE)}


def gpu_node(number: int) -> Dict[str, Any]:
    """One with GPUs, as every node of a cluster for training has."""
    made = node(number * GPU_NODES_OF)
    made["metadata"]["labels"].update({
        "topology.kubernetes.io/zone": "zone-%d" % (number % ZONES), "example.com/rack": "rack-%d" % (number // 16),
        "nvidia.com/gpu.family": "ampere", "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mig.strategy": "single"})
    made["status"]["addresses"] = [
        {"type": "InternalIP", "address": "10.%d.%d.%d" % (number >> 16, number >> 8 & 255, number & 255)},
        {"type": "Hostname", "address": made["metadata"]["name"]}]
    return made


def summary(runs: Dict[str, List[Dict[str, Any]]]) -> Dict[str, Dict[str, Any]]:
    """{way: medians, and how many times what a bare list costs}."""
    return {way: measuring.compared(runs[LIST], each, MEASURED) for way, each in runs.items()}


def promises(found: Dict[str, Dict[str, Any]], memory: Dict[str, Dict[str, Any]]) -> Dict[str, bool]:
    return {
        **{"%s: at most %.1f times the time of a bare list" % (way, TIMES_LIST):
           found[way]["times_inside"][1] <= TIMES_LIST for way in (PLAIN, WHOLE)},
        **{"%s: at most %.0f times the memory of what is kept" % (way, TIMES_KEPT):
           each["peak"] <= TIMES_KEPT * each["kept"] for way, each in memory.items()},
    }


def report(found: Dict[str, Dict[str, Any]], memory: Dict[str, Dict[str, Any]]) -> Iterator[str]:
    for way, each in found.items():
        yield "%-16s %6.2f s without imports, %6.2f s %6.2f s of processor %7.1f MiB" % (
            way, each["inside"], each["seconds"], each["cpu_seconds"], each["peak_mib"])
    for way, each in found.items():
        if way != LIST:
            yield "%s / %s: %s" % (way, LIST, ", ".join("%.2f times %s (%.2f to %.2f)" % (
                each["times_" + of][1], told, each["times_" + of][0], each["times_" + of][2])
                for of, told in MEASURED.items()))
    for way, each in memory.items():
        yield "%s: at most %.1f MiB, of which %.1f stay; parsed in one piece, %.1f MiB" % (
            way, each["peak"], each["held"], each["kept"])
    yield from measuring.verdicts(promises(found, memory))


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each", nodes="how many nodes there are (default: 15000)")
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as place:
        lab.up(parse({"name": "inventory", "control_plane": True, "hosts": []}, __file__))
        try:
            bench = Bench(lab, Path(place), int(told.nodes or 15000))
            populate(lab, range(bench.nodes), gpu_node)
            load = os.getloadavg()[0]
            runs = bench.compare(told.runs)
            memory = bench.memory()
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs)
    measuring.conclude("inventory", load, "\n".join(report(found, memory)), promises(found, memory),
                       nodes=bench.nodes, summary=found, memory=memory, runs=runs)


if __name__ == "__main__":
    main()
