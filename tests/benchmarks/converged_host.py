#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host costs on which nothing is to be done: gpuops.nvidia.site against ansible.builtin tasks alone.

Brings up a laboratory host, lets site converge it, and runs both playbooks on it in turn. See README.md.
"""
from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "gates"), str(REPOSITORY / "tests" / "lab")]

import measuring  # noqa: E402
import yaml  # noqa: E402
from workspace import collections_root, venv  # noqa: E402

from gpulab.lab import Lab  # noqa: E402

HOST = "gpu"
TASKS = HERE / "builtin_tasks.yml"
PLAYBOOKS = {"gpuops.nvidia.site": "gpuops.nvidia.site", "ansible.builtin": str(TASKS)}


class Bench:
    """A converged host and the two ways to look after it."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory
        self.variables = directory / "variables.json"
        self.write_variables({})

    def write_variables(self, more: Mapping[str, Any]) -> None:
        policy = yaml.safe_load((REPOSITORY / "tests" / "lab" / "policy.yml").read_text())
        # The part of site that concerns the host; the cluster's has no counterpart in the builtin tasks.
        del policy["gpu_cluster_kubeconfig"]
        self.variables.write_text(json.dumps({**policy, **more}))

    def run(self, playbook: str) -> Dict[str, Any]:
        """One run: wall time, calls that went to the host, tasks that changed something."""
        calls, output = self.directory / "calls.json", self.directory / "output"
        environment = dict(
            os.environ, ANSIBLE_COLLECTIONS_PATH=str(collections_root()), ANSIBLE_PIPELINING="true",
            ANSIBLE_CALLBACK_PLUGINS=str(REPOSITORY / "tests" / "lab" / "callback_plugins"),
            ANSIBLE_CALLBACKS_ENABLED="remote_calls", REMOTE_CALLS_FILE=str(calls), ANSIBLE_NOCOLOR="true",
            ANSIBLE_HOME=str(self.directory / "ansible"), ANSIBLE_DEPRECATION_WARNINGS="false")
        command = [venv() / "bin" / "ansible-playbook", "--inventory", self.lab.inventory, "--limit", HOST,
                   "--extra-vars", "@%s" % self.variables, playbook]
        with output.open("w") as handle:
            started = time.monotonic()
            done = subprocess.run([str(word) for word in command], env=environment, cwd=self.directory, stdout=handle,
                                  stderr=handle, stdin=subprocess.DEVNULL, check=False)
            seconds = time.monotonic() - started
        if done.returncode != 0:
            raise SystemExit("%s failed:\n%s" % (playbook, output.read_text()[-4000:]))
        changed = re.search(r"changed=(\d+)", output.read_text())
        made = json.loads(calls.read_text())[HOST]
        return {"seconds": round(seconds, 3), "calls": made, "changed": int(changed.group(1)) if changed else -1}

    def converge(self) -> None:
        """Let site converge the host, and give its outcome to the builtin tasks as their variables."""
        self.run(PLAYBOOKS["gpuops.nvidia.site"])
        files = sorted(set(re.findall(r"files\['([^']+)'\]", TASKS.read_text())))
        listed = self._say("dpkg-query", "--show", "--showformat", "${Package}=${Version}\n").splitlines()
        anchor = next(line for line in listed if line.startswith("nvidia-driver-cuda="))
        version = anchor.partition("=")[2]
        driver = [anchor] + [line for line in listed if line.endswith("=" + version) and line != anchor]
        toolkit = [line for line in listed if re.match(r"(lib)?nvidia-container", line)]
        self.write_variables({"files": {path: self._say("cat", path) for path in files},
                              "driver_packages": driver, "toolkit_packages": toolkit})

    def _say(self, *argv: str) -> str:
        return str(self.lab.ssh(HOST, list(argv)).stdout)

    def compare(self, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
        """Both playbooks in turn, so that the machine's other work falls on both; the first round only warms up."""
        runs: Dict[str, List[Dict[str, Any]]] = {name: [] for name in PLAYBOOKS}
        for number in range(rounds + 1):
            for name, playbook in PLAYBOOKS.items():
                run = self.run(playbook)
                if run["changed"]:
                    raise SystemExit("%s changed %d things on a converged host: the two do not aim at one state"
                                     % (name, run["changed"]))
                print("%s %-20s %6.2f s  %2d calls" % (
                    "warm-up" if number == 0 else "run %3d" % number, name, run["seconds"], len(run["calls"])))
                if number:
                    runs[name].append(run)
        return runs


def summary(runs: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    return {"median_s": round(statistics.median(seconds), 3), "min_s": min(seconds), "max_s": max(seconds),
            "calls": len(runs[0]["calls"])}


def report(result: Mapping[str, Any]) -> str:
    ours, theirs = (result["summary"][name] for name in PLAYBOOKS)
    lines = ["%-20s %2d remote calls   median %.2f s   (%.2f to %.2f s)" % (
        name, each["calls"], each["median_s"], each["min_s"], each["max_s"])
        for name, each in result["summary"].items()]
    low, middle, high = result["wall_time_ratio"]
    lines.append("builtin / site       %.1f times the calls, %.2f times the wall time (%.2f to %.2f, run by run)" % (
        theirs["calls"] / ours["calls"], middle, low, high))
    return "\n".join(lines)


def main() -> None:
    arguments = measuring.arguments(__doc__, "measured runs of each")
    lab = Lab("benchmark")
    lab.up("bare")
    try:
        with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as directory:
            bench = Bench(lab, Path(directory))
            bench.converge()
            load = os.getloadavg()[0]
            runs = bench.compare(arguments.runs)
    finally:
        if not arguments.keep:
            lab.down()
    result = {
        **measuring.circumstances(load),
        "summary": {name: summary(each) for name, each in runs.items()},
        "wall_time_ratio": measuring.ratios(*(runs[name] for name in PLAYBOOKS)), "runs": runs,
    }
    target = HERE / "results" / "converged_host.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(report(result))


if __name__ == "__main__":
    main()
