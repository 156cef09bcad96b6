#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hosts that wait for their places cost the controller and the API server, and what they did at an earlier commit.

A real API server with as many Nodes as asked for, of which one that is not Ready has the only place: all hosts of a run
ask until their time is over. Runs all ways in turn. See README.md.
"""
from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / name) for name in ("gates", "lab", "unit/playbooks", "unit/cluster")]

import measuring  # noqa: E402
from converged_host import worktree  # noqa: E402
from many_nodes import GPU_NODES_OF, is_full_list, name, node, populate  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

sys.path.insert(0, str(collections_root()))

from canned import planned  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step  # noqa: E402

NOW, BEFORE = "now", "before"
SECONDS, INTERVAL = 60, 10
# A list of the Nodes a minute, and those of the first and the last question
MOST_LISTS = SECONDS // 60 + 2
STEP = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
MEASURED = {"cpu_seconds": "the controller's processor", "server_seconds": "the API server's processor",
            "lists": "the lists of all Nodes"}
PLAY = [{
    "hosts": "all", "gather_facts": False, "strategy": "free", "tasks": [
        {"gpuops.nvidia.gpu_rollout": {"state": "planned", "kubeconfig": "{{ kubeconfig }}", "limit": "1",
                                       "canaries": "none"},
         "register": "ordered", "run_once": True},
        {"gpuops.nvidia.gpu_rollout": {"state": "start", "planned": "{{ ordered }}", "kubeconfig": "{{ kubeconfig }}",
                                       "timeout": SECONDS, "interval": INTERVAL},
         "register": "asked"},
        {"ansible.builtin.assert": {"that": "not asked.started"}},
    ]}]


@dataclass(frozen=True)
class Bench:
    """A cluster with nodes, and a run whose hosts wait there."""

    lab: Lab
    directory: Path
    hosts: int

    def compare(self, trees: Dict[str, Path], rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """All ways in turn; the first round is not counted."""
        runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in trees}
        for number in range(rounds + 1):
            for way, collections in trees.items():
                run = self.run(collections)
                print("%s %-8s %6.2f s of the controller's processor, %6.2f s of the API server's, %d lists" % (
                    "warm-up" if number == 0 else "run %3d" % number, way, run["cpu_seconds"], run["server_seconds"],
                    run["lists"]), flush=True)
                runs[way] += [run] if number else []
        return runs

    def run(self, collections: Path) -> Dict[str, Any]:
        inventory, playbook = self.directory / "hosts.json", self.directory / "wait.yml"
        change = {"gpu_planned": planned(Plan(steps=(STEP,))), "ansible_connection": "local",
                  "kubeconfig": str(self.lab.kubeconfig)}
        inventory.write_text(json.dumps({"all": {"vars": change, "hosts": {
            name(each * GPU_NODES_OF): {} for each in range(1, 1 + self.hosts)}}}))
        playbook.write_text(json.dumps(PLAY))
        plane = self.lab.control_plane
        assert plane is not None
        known, before = plane.audit_log.stat().st_size, self._server_seconds()
        spent = measuring.spent(
            ("ansible-playbook", str(playbook), "--inventory", str(inventory), "--forks", str(self.hosts)),
            measuring.environment(self.directory, "%s:%s" % (collections, collections_root())), self.directory,
            self.directory / "output")
        with plane.audit_log.open() as log:
            log.seek(known)
            lists = sum(map(is_full_list, map(json.loads, log)))
        return {**spent, "server_seconds": round(self._server_seconds() - before, 2), "lists": lists}

    def _server_seconds(self) -> float:
        plane = self.lab.control_plane
        assert plane is not None
        told = Path("/proc/%s/stat" % plane.daemons["kube-apiserver"].pid).read_text().rpartition(")")[2].split()
        return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def waiting(number: int) -> Dict[str, Any]:
    """A Node with GPUs; the first one is not Ready."""
    made = node(number)
    if number == 0:
        made["status"]["conditions"][0]["status"] = "Unknown"
    return made


def report(found: Dict[str, Dict[str, Any]], hosts: int) -> Iterator[str]:
    for way, each in found.items():
        yield "%-8s %.2f s of the controller's processor, %.2f s of the API server's, %d lists" % (
            way, each["cpu_seconds"], each["server_seconds"], each["lists"])
    for way, each in found.items():
        if way != NOW:
            yield "%s / %s: %s" % (way, NOW, ", ".join("%.2f times %s (%.2f to %.2f)" % (
                each["times_" + of][1], told, each["times_" + of][0], each["times_" + of][2])
                for of, told in MEASURED.items()))
    yield from measuring.verdicts(promises(found, hosts))


def promises(found: Dict[str, Dict[str, Any]], hosts: int) -> Dict[str, bool]:
    return {"at most %d lists of all Nodes for a host that waits %d s" % (MOST_LISTS, SECONDS):
            found[NOW]["lists"] <= MOST_LISTS * hosts + 1}


def main() -> None:
    told = measuring.arguments(
        __doc__, "measured runs of each", before="commit to compare with too",
        nodes="how many nodes the cluster has (default: 500)", hosts="how many hosts wait (default: 10)")
    lab, nodes, hosts = Lab(apart("benchmark")), int(told.nodes or 500), int(told.hosts or 10)
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as place, worktree(told.before or "", Path(place)):
        lab.up(parse({"name": "waiting-hosts", "control_plane": True, "hosts": []}, __file__))
        try:
            populate(lab, [each * GPU_NODES_OF for each in range(nodes)], waiting)
            load = os.getloadavg()[0]
            trees = {NOW: collections_root(), **({BEFORE: Path(place)} if told.before else {})}
            runs = Bench(lab, Path(place), hosts).compare(trees, told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = {way: measuring.compared(runs[NOW], each, MEASURED) for way, each in runs.items()}
    measuring.conclude("waiting_hosts", load, "\n".join(report(found, hosts)), promises(found, hosts), nodes=nodes,
                       hosts=hosts, before=told.before, summary=found, runs=runs)


if __name__ == "__main__":
    main()
