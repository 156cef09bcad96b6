#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the handler in containerd costs: the module container_runtime against nvidia-ctk and a restart.

The latter as two tasks, and as two commands over ssh without Ansible. Brings up two laboratory hosts, containerd 1.6
and the newest that hosts run, and configures them in turn, as they were delivered and when it is done already.
See README.md.
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
from typing import Any, Dict, List, Mapping, Sequence, Tuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / directory) for directory in ("gates", "lab", "integration")]

import command_count  # noqa: E402
import measuring  # noqa: E402
from workspace import apart, collections_root, venv  # noqa: E402

from gpulab.lab import Lab  # noqa: E402
from gpulab.topology import parse  # noqa: E402

RESULTS = HERE / "results" / "runtime_configure.json"
HOSTS = {"old": "debian", "new": "2.3"}
OURS, TASKS, COMMANDS = WAYS = ("container_runtime", "nvidia-ctk, 2 tasks", "nvidia-ctk, ssh")
# As NVIDIA's installation guide calls it, and the restart that follows there
CONFIGURE = ["nvidia-ctk", "runtime", "configure", "--runtime=containerd", "--set-as-default=false", "--cdi.enabled"]
PLAYS: Dict[str, List[Dict[str, Any]]] = {
    OURS: [{"gpuops.nvidia.container_runtime": {}}],
    TASKS: [
        {"ansible.builtin.command": {"argv": CONFIGURE}},
        {"ansible.builtin.systemd_service": {"name": "containerd", "state": "restarted"}},
    ],
}
STATES = ("first", "converged")
PACKAGES = "http://packages.gpulab:8480/libnvidia-container"
TOOLKIT = {"gpuops.nvidia.container_toolkit": {
    "repository_url": PACKAGES + "/stable/deb/$(ARCH)", "repository_key": PACKAGES + "/gpgkey"}}
# systemd.journal-fields(7): a unit has started
STARTED = "MESSAGE_ID=39f53479d3a045ac8e11786248231fbf"
Runs = Dict[Tuple[str, str, str], List[Dict[str, Any]]]


class Bench:
    """Hosts, and tasks that are run on them."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory
        for host in HOSTS:
            self.play(host, [TOOLKIT], {})
            self.watched = command_count.watch(lab, host)
            lab.ssh(host, ["cp", "-a", "/etc/containerd", "/root/delivered"])
        self.releases = {host: lab.ssh(host, ["containerd", "--version"]).stdout.split()[2] for host in HOSTS}
        self.rival = lab.ssh("new", ["nvidia-ctk", "--version"]).stdout.splitlines()[0]

    def deliver(self, host: str) -> None:
        """The files as they were, and a daemon that runs with them."""
        script = ("systemctl stop containerd && rm -rf /etc/containerd /var/lib/gpuops/*.json* && "
                  "cp -a /root/delivered /etc/containerd && systemctl start containerd")
        self.lab.ssh(host, ["sh", "-c", script])

    def play(self, host: str, tasks: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> Tuple[float, int]:
        """(seconds, tasks that changed something)."""
        book, output = self.directory / "play.json", self.directory / "output"
        book.write_text(json.dumps([{"hosts": host, "gather_facts": False, "environment": dict(environment),
                                     "tasks": list(tasks)}]))
        variables = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=str(collections_root()), ANSIBLE_PIPELINING="true",
                         ANSIBLE_HOME=str(self.directory / "ansible"), ANSIBLE_DEPRECATION_WARNINGS="false",
                         ANSIBLE_NOCOLOR="true")
        command = [str(venv() / "bin" / "ansible-playbook"), "--inventory", str(self.lab.inventory), str(book)]
        with output.open("w") as handle:
            started = time.monotonic()
            done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, stdout=handle, stderr=handle,
                                  check=False)
            seconds = time.monotonic() - started
        if done.returncode != 0:
            raise SystemExit("on %s: %s" % (host, output.read_text()[-4000:]))
        changed = re.search(r"changed=(\d+)", output.read_text())
        return seconds, int(changed.group(1)) if changed else -1

    def starts(self, host: str) -> int:
        script = "journalctl --quiet --output=cat %s UNIT=containerd.service | wc -l" % STARTED
        return int(self.lab.ssh(host, ["sh", "-c", script]).stdout)

    def run(self, host: str, way: str) -> Dict[str, Any]:
        before = self.starts(host)
        command_count.commands(self.lab, host)
        if way == COMMANDS:
            lines, changed = [" ".join(CONFIGURE), "systemctl restart containerd"], -1
            started = time.monotonic()
            self.lab.ssh(host, ["sh", "-c", " && ".join(lines)])
            seconds = time.monotonic() - started
        else:
            seconds, changed = self.play(host, PLAYS[way], self.watched)
            lines = [" ".join(argv) for argv in command_count.commands(self.lab, host)]
        return {"seconds": round(seconds, 3), "changed": changed, "restarts": self.starts(host) - before,
                "commands": lines}

    def compare(self, rounds: int) -> Runs:
        """All ways in turn, so that the machine's other work falls on all; the first round only warms up."""
        runs: Runs = {}
        for number in range(rounds + 1):
            for host in HOSTS:
                for way in WAYS:
                    self.deliver(host)
                    for state in STATES:
                        run = self.run(host, way)
                        print("%s %-4s %-21s %-9s %5.2f s  %d restarts  %2d commands" % (
                            "warm-up" if number == 0 else "run %3d" % number, host, way, state, run["seconds"],
                            run["restarts"], len(run["commands"])))
                        if way == OURS and (state == "converged") == bool(run["changed"]):
                            raise SystemExit("%s changed %d things on a %s host" % (way, run["changed"], state))
                        if number:
                            runs.setdefault((host, state, way), []).append(run)
        return runs


def summary(host: str, state: str, runs: Runs) -> Dict[str, Any]:
    told: Dict[str, Any] = {}
    for way in WAYS:
        each = runs[host, state, way]
        told[way] = {"median_s": round(statistics.median(run["seconds"] for run in each), 3),
                     "times_ours": measuring.ratios(runs[host, state, OURS], each),
                     "restarts": max(run["restarts"] for run in each),
                     "commands": max(len(run["commands"]) for run in each)}
    return told


def report(result: Mapping[str, Any]) -> str:
    lines = []
    for host, states in result["summary"].items():
        for state, told in states.items():
            lines.append("containerd %s, %s" % (result["containerd"][host], state))
            for way, each in told.items():
                low, middle, high = each["times_ours"]
                lines.append("  %-20s %d restarts  %d commands  median %.2f s, %.2f times ours (%.2f to %.2f)" % (
                    way, each["restarts"], each["commands"], each["median_s"], middle, low, high))
    return "\n".join(lines)


def main() -> None:
    arguments = measuring.arguments(__doc__, "measured rounds")
    lab = Lab(apart("benchmark"))
    hosts = [{"name": name, "board": "a30", "gpus": 1, "containerd": version} for name, version in HOSTS.items()]
    lab.up(parse({"name": "runtime-configure", "control_plane": False, "hosts": hosts}, __file__))
    try:
        with tempfile.TemporaryDirectory(prefix="gpuops-benchmark-") as directory:
            bench = Bench(lab, Path(directory))
            load = os.getloadavg()[0]
            runs = bench.compare(arguments.runs)
    finally:
        if not arguments.keep:
            lab.down()
    result = {
        **measuring.circumstances(load),
        "containerd": bench.releases, "rival": bench.rival,
        "summary": {host: {state: summary(host, state, runs) for state in STATES} for host in HOSTS},
        "runs": {"%s, %s, %s" % key: each for key, each in runs.items()},
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(report(result))


if __name__ == "__main__":
    main()
