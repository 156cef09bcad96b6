#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long a driver upgrade keeps a node out of service: gpuops.nvidia.site, and the same roles without staging.

Brings up the laboratory of the demonstration, and changes one node's driver to and fro in both ways. See README.md.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "gates"), str(REPOSITORY / "tests" / "lab")]

import measuring  # noqa: E402
from workspace import apart, collections_root  # noqa: E402

from gpulab.lab import Lab  # noqa: E402

NODE = "h100"
# There and back: what a way leaves is what the other begins with
VERSIONS = ("595.91.07", "580.178.04")
STAGED, UNSTAGED = "staged", "unstaged"
PLAYBOOKS = {STAGED: "gpuops.nvidia.site", UNSTAGED: str(HERE / "unstaged_upgrade.yml")}
# No upgrade finds what an earlier one has fetched or built
FORGET = "apt-get clean; rm -rf /var/cache/gpuops/staged /var/cache/gpuops/driver"
AHEAD = ("packages.download", "module.stage")
# The laboratory's module builds in a second or two, NVIDIA's in minutes: so many modules more are built with it
BALLAST = 30


class Service:
    """Watches when the node goes out of service, and when it comes back; times are those of time.time()."""

    def __init__(self, lab: Lab) -> None:
        self.left: Optional[float] = None
        self.came: Optional[float] = None
        self.watch = subprocess.Popen(
            lab.kubectl_command(["get", "node", NODE, "--watch", "--output", "jsonpath={.spec.unschedulable}{'\\n'}"]),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        for line in self.watch.stdout or ():
            if line.strip() == "true":
                self.left = self.left or time.time()
            elif self.left:
                self.came = time.time()

    def ended(self) -> "tuple[float, float]":
        # The last event may still be on its way
        deadline = time.monotonic() + 10
        while self.came is None and time.monotonic() < deadline:
            time.sleep(0.1)
        self.watch.terminate()
        self.reader.join()
        if self.left is None or self.came is None:
            raise SystemExit("%s was not seen to leave and to come back" % NODE)
        return self.left, self.came


def command(lab: Lab, playbook: str, version: str) -> List[str]:
    return ["ansible-playbook", playbook, "--inventory", str(lab.inventory),
            "--extra-vars", "@%s" % (REPOSITORY / "tests" / "lab" / "policy.yml"),
            "--extra-vars", "gpu_hosts=%s" % NODE, "--extra-vars", "gpu_driver_version=%s" % version]


def run(lab: Lab, way: str, directory: Path) -> Dict[str, Any]:
    """There and back: seconds out of service, and the actions of the host meanwhile that could have gone before."""
    environment = dict(measuring.environment(directory, str(collections_root())), ANSIBLE_PIPELINING="true")
    out, meanwhile, seconds = 0.0, set(), 0.0
    for version in VERSIONS:
        lab.ssh(NODE, ["sh", "-c", FORGET])
        service = Service(lab)
        spent = measuring.spent(command(lab, PLAYBOOKS[way], version), environment, directory, directory / "output")
        left, came = service.ended()
        out, seconds = out + came - left, seconds + spent["seconds"]
        journal = lab.ssh(NODE, ["cat", "/var/lib/gpuops/journal.jsonl"]).stdout.splitlines()
        meanwhile |= {event["step"]["action"] for event in map(json.loads, journal)
                      if event["event"] == "done" and left < event["time"] < came}
    return {"seconds": round(seconds, 3), "out_of_service": round(out, 3),
            "could_have_gone_before": sorted(meanwhile.intersection(AHEAD))}


def compare(lab: Lab, directory: Path, rounds: int) -> Dict[str, List[Dict[str, Any]]]:
    """Both in turn, so that the machine's other work falls on both; the first round only warms up."""
    runs: Dict[str, List[Dict[str, Any]]] = {way: [] for way in PLAYBOOKS}
    for number in range(rounds + 1):
        for way, told in runs.items():
            found = run(lab, way, directory)
            print("%s %-8s %6.2f s out of service of %6.2f s; in it: %s" % (
                "warm-up" if number == 0 else "run %3d" % number, way, found["out_of_service"], found["seconds"],
                ", ".join(found["could_have_gone_before"]) or "nothing that could have gone before"), flush=True)
            if number:
                told.append(found)
    return runs


def summary(runs: Mapping[str, List[Dict[str, Any]]]) -> Dict[str, Any]:
    """{way: medians}, and how many times as long a node is out of service where nothing is staged."""
    medians = {way: measuring.medians(told, ("out_of_service", "seconds")) for way, told in runs.items()}
    return {**medians, "times": measuring.ratios(runs[STAGED], runs[UNSTAGED], "out_of_service"),
            "ahead": sorted({action for each in runs[STAGED] for action in each["could_have_gone_before"]})}


def promises(found: Mapping[str, Any]) -> Dict[str, bool]:
    return {"no download and no build while the node is out of service": not found["ahead"],
            "less time out of service than without staging": found["times"][0] > 1}


def report(found: Mapping[str, Any]) -> str:
    lines = ["%-8s %6.2f s out of service, %6.2f s in all, there and back" % (
        way, found[way]["out_of_service"], found[way]["seconds"]) for way in PLAYBOOKS]
    lines.append("unstaged / staged: %.2f times (%.2f to %.2f)" % (
        found["times"][1], found["times"][0], found["times"][2]))
    return "\n".join([*lines, *measuring.verdicts(promises(found))])


def main() -> None:
    told = measuring.arguments(__doc__, "measured runs of each way, there and back")
    lab = Lab(apart("benchmark"))
    with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as name:
        directory = Path(name)
        lab.up("demo")
        try:
            lab.ssh(NODE, ["sh", "-c", "echo %d > /etc/ballast" % BALLAST])
            environment = measuring.environment(directory, str(collections_root()))
            measuring.spent(command(lab, PLAYBOOKS[STAGED], VERSIONS[-1]), environment, directory, directory / "output")
            load = os.getloadavg()[0]
            runs = compare(lab, directory, told.runs)
        finally:
            if not told.keep:
                lab.down()
    found = summary(runs)
    measuring.conclude("out_of_service", load, report(found), promises(found), summary=found, runs=runs)


if __name__ == "__main__":
    main()
