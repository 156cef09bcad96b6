#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host costs on which nothing is to be done: gpuops.nvidia.site, an earlier commit of it, builtin tasks, a ping.

Brings up a laboratory, lets site converge a host of its own for each commit, and runs all ways in turn. See README.md.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Tuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "gates"), str(REPOSITORY / "tests" / "lab")]

import measuring  # noqa: E402
import yaml  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

TASKS = HERE / "builtin_tasks.yml"
SITE = ("ansible-playbook", "gpuops.nvidia.site")
NOW, BEFORE, BUILTIN, PING = "site", "site before", "builtin tasks", "ping"
# Of what a run costs, what is compared beside the calls
MEASURED = {"seconds": "the wall time", "cpu_seconds": "the controller's processor time"}
# What the design promises of a host that needs nothing
CALLS = 1
TIMES_FASTER = 2.0
Runs = Dict[str, List[Dict[str, Any]]]


@dataclass(frozen=True)
class Way:
    """One way to look after a host that needs nothing.

    host:        a host of its own for each release, since each keeps its own code there once it has changed something.
    command:     a program of Ansible and its words.
    collections: directory of the collections that it finds.
    """

    host: str
    command: Tuple[str, ...]
    collections: Path


def ways(before: str, directory: Path) -> Dict[str, Way]:
    """before: the commit of the earlier site, '' for none; its worktree lies in the directory."""
    ours = collections_root()
    found = {NOW: Way("gpu", SITE, ours)}
    if before:
        found[BEFORE] = Way("gpu-before", SITE, directory)
    found[BUILTIN] = Way("gpu", ("ansible-playbook", str(TASKS)), ours)
    found[PING] = Way("gpu", ("ansible", "gpu", "--module-name", "ansible.builtin.ping"), ours)
    return found


@contextlib.contextmanager
def worktree(commit: str, directory: Path) -> Iterator[None]:
    """The collection as a commit has it, where Ansible looks for it below a directory."""
    if not commit:
        yield
        return
    target = str(content(directory))
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    subprocess.run([*git, "add", "--detach", target, commit], check=True)
    try:
        yield
    finally:
        subprocess.run([*git, "remove", "--force", target], check=True)


def content(collections: Path) -> Path:
    return collections / "ansible_collections" / "gpuops" / "nvidia"


class Bench:
    """Converged hosts and the ways to look after them."""

    def __init__(self, inventory: Path, directory: Path, compared: Mapping[str, Way]) -> None:
        self.inventory = inventory
        self.directory = directory
        self.ways = compared

    def write_variables(self, way: Way, more: Mapping[str, Any]) -> None:
        policy = yaml.safe_load((content(way.collections) / "tests" / "lab" / "policy.yml").read_text())
        # The part of site that concerns the host; the cluster's has no counterpart in the builtin tasks.
        del policy["gpu_cluster_kubeconfig"]
        self.variables(way).write_text(json.dumps({**policy, **more}))

    def variables(self, way: Way) -> Path:
        return self.directory / (way.host + ".json")

    def run(self, name: str) -> Dict[str, Any]:
        """One run: wall time, the controller's processor time, calls that went to the host, changes."""
        way, calls, output = self.ways[name], self.directory / "calls.json", self.directory / "output"
        environment = dict(
            measuring.environment(self.directory, str(way.collections)), ANSIBLE_PIPELINING="true",
            ANSIBLE_CALLBACK_PLUGINS=str(REPOSITORY / "tests" / "lab" / "callback_plugins"),
            ANSIBLE_CALLBACKS_ENABLED="remote_calls", ANSIBLE_LOAD_CALLBACK_PLUGINS="true",
            REMOTE_CALLS_FILE=str(calls))
        command = [*way.command, "--inventory", str(self.inventory),
                   "--limit", way.host, "--extra-vars", "@%s" % self.variables(way)]
        # A connection that is kept open is none of the processes that are counted
        spent = measuring.spent(command, environment, self.directory, output)
        return {**spent, "calls": json.loads(calls.read_text())[way.host], "changed": measuring.changes(output)}

    def converge(self, lab: Lab) -> None:
        """Let each site converge its host, and give the outcome to the builtin tasks as their variables."""
        for name in (NOW, BEFORE):
            if name in self.ways:
                self.write_variables(self.ways[name], {})
                self.run(name)

        def say(*argv: str) -> str:
            return str(lab.ssh(self.ways[BUILTIN].host, list(argv)).stdout)

        files = sorted(set(re.findall(r"files\['([^']+)'\]", TASKS.read_text())))
        listed = say("dpkg-query", "--show", "--showformat", "${Package}=${Version}\n").splitlines()
        anchor = next(line for line in listed if line.startswith("nvidia-driver-cuda="))
        version = anchor.partition("=")[2]
        driver = [anchor] + [line for line in listed if line.endswith("=" + version) and line != anchor]
        toolkit = [line for line in listed if re.match(r"(lib)?nvidia-container", line)]
        self.write_variables(self.ways[BUILTIN], {
            "files": {path: say("cat", path) for path in files}, "driver_packages": driver,
            "toolkit_packages": toolkit})

    def compare(self, rounds: int) -> Runs:
        """All ways in turn, so that the machine's other work falls on all; the first round only warms up."""
        runs: Runs = {name: [] for name in self.ways}
        for number in range(rounds + 1):
            for name in self.ways:
                run = self.run(name)
                if run["changed"]:
                    raise SystemExit("%s changed %d things on a converged host: they do not aim at one state"
                                     % (name, run["changed"]))
                print("%s %-13s %6.2f s  %5.2f s of the controller  %2d calls" % (
                    "warm-up" if number == 0 else "run %3d" % number, name, run["seconds"], run["cpu_seconds"],
                    len(run["calls"])))
                if number:
                    runs[name].append(run)
        return runs


def summary(runs: Runs) -> Dict[str, Dict[str, Any]]:
    """{way: medians, calls, and how many times what site costs now}."""
    own, told = runs[NOW], {}
    for name, each in runs.items():
        calls = max(len(run["calls"]) for run in each)
        told[name] = {
            "calls": calls,
            "times_calls": round(calls / max(len(run["calls"]) for run in own), 2),
            **measuring.compared(own, each, MEASURED),
        }
    return told


def promises(found: Mapping[str, Mapping[str, Any]]) -> Dict[str, bool]:
    """{what is promised: whether it is kept}; the times are judged by the median of neighbouring runs."""
    kept = {"%d remote call a host" % CALLS: found[NOW]["calls"] == CALLS}
    if BEFORE in found:
        kept["at most half the wall time of before"] = found[BEFORE]["times_seconds"][1] >= TIMES_FASTER
    return kept


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["%-13s %2d calls  %6.2f s  %5.2f s of the controller" % (
        name, each["calls"], each["seconds"], each["cpu_seconds"]) for name, each in found.items()]
    for name, each in found.items():
        if name != NOW:
            times = ["%.2f times %s (%.2f to %.2f)" % (each["times_" + of][1], told, each["times_" + of][0],
                                                       each["times_" + of][2]) for of, told in MEASURED.items()]
            lines.append("%s / %s: %.1f times the calls, %s" % (name, NOW, each["times_calls"], ", ".join(times)))
    return "\n".join([*lines, *measuring.verdicts(promises(found))])


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each", before="commit of the site to compare with too")
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as name, worktree(told.before or "", Path(name)):
        compared = ways(told.before or "", Path(name))
        hosts = [{"name": host, "board": "a30", "gpus": 2} for host in sorted({way.host for way in compared.values()})]
        lab.up(parse({"name": "converged-host", "control_plane": False, "hosts": hosts}, __file__))
        try:
            bench = Bench(lab.inventory, Path(name), compared)
            bench.converge(lab)
            load = os.getloadavg()[0]
            runs = bench.compare(told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs)
    measuring.conclude("converged_host", load, report(found), promises(found), before=told.before, summary=found,
                       runs=runs)


if __name__ == "__main__":
    main()
