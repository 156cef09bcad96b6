#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What two nodes and their cluster cost on which nothing is to be done: the whole of gpuops.nvidia.site, and a ping.

Brings up the laboratory of the demonstration, lets site converge it, and runs both in turn. See README.md.
"""
from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / "gates"), str(REPOSITORY / "tests" / "lab")]

import measuring  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from gpulab.lab import Lab  # noqa: E402

SITE, PING = "site", "ping"
COMMANDS = {
    SITE: ("ansible-playbook", "gpuops.nvidia.site", "--extra-vars", "@%s" % (
        REPOSITORY / "tests" / "lab" / "policy.yml")),
    PING: ("ansible", "all", "--module-name", "ansible.builtin.ping"),
}
MEASURED = {"seconds": "the wall time", "cpu_seconds": "the controller's processor time"}
# What is promised
TIMES_A_PING = 5.0


def run(lab: Lab, name: str, directory: Path) -> Dict[str, Any]:
    environment = dict(measuring.environment(directory, str(collections_root())), ANSIBLE_PIPELINING="true")
    output = directory / "output"
    command = [*COMMANDS[name], "--inventory", str(lab.inventory)]
    return {**measuring.spent(command, environment, directory, output), "changed": measuring.changes(output)}


def compare(lab: Lab, directory: Path, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
    """Both in turn, so that the machine's other work falls on both; the first round only warms up."""
    runs: Dict[str, List[Dict[str, Any]]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, told in runs.items():
            found = run(lab, name, directory)
            print("%s %-5s %6.2f s, %5.2f s of processor, %d changes" % (
                "warm-up" if number == 0 else "run %3d" % number, name, found["seconds"], found["cpu_seconds"],
                found["changed"]), flush=True)
            if number:
                if found["changed"]:
                    raise SystemExit("%s changed %d things on what is converged" % (name, found["changed"]))
                told.append(found)
    return runs


def summary(runs: Mapping[str, List[Dict[str, Any]]]) -> Dict[str, Any]:
    """{way: medians}, and how many times a ping site takes."""
    medians = {name: measuring.medians(told, MEASURED) for name, told in runs.items()}
    return {**medians, "times": {of: measuring.ratios(runs[PING], runs[SITE], of) for of in MEASURED}}


def promises(found: Mapping[str, Any]) -> Dict[str, bool]:
    return {"at most %g times the wall time of a ping" % TIMES_A_PING: found["times"]["seconds"][1] <= TIMES_A_PING}


def report(found: Mapping[str, Any]) -> str:
    lines = ["%-5s %6.2f s, %5.2f s of the controller" % (name, found[name]["seconds"], found[name]["cpu_seconds"])
             for name in COMMANDS]
    lines.append("site / ping: %s" % ", ".join("%.2f times %s (%.2f to %.2f)" % (
        found["times"][of][1], told, found["times"][of][0], found["times"][of][2]) for of, told in MEASURED.items()))
    return "\n".join([*lines, *measuring.verdicts(promises(found))])


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each")
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as name:
        lab.up("demo")
        try:
            run(lab, SITE, Path(name))
            load = os.getloadavg()[0]
            runs = compare(lab, Path(name), told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs)
    measuring.conclude("converged_cluster", load, report(found), promises(found), summary=found, runs=runs)


if __name__ == "__main__":
    main()
