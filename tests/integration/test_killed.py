# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A first install whose modules are killed again and again ends where an undisturbed one ends."""
from __future__ import annotations

import json
import os
import random
import re
import subprocess
from typing import Any, Dict, Iterator, List

import pytest
from laboratory import JOURNAL, Fleet, different, new_lab

from gpulab.topology import parse

HOST = "gpu"
TOPOLOGY = parse({"name": "killed", "control_plane": False,
                  "hosts": [{"name": HOST, "board": "h100-sxm-hgx", "gpus": 8}]}, __file__)
SEED = int(os.environ.get("GPUOPS_KILL_SEED", "20261121"))
KILLS = 10

# Waits for the N-th done step in the journal and kills the module that wrote it, or the one that comes next.
_ASSASSIN = """
import os, signal, sys, time
wanted, journal, until = int(sys.argv[1]), sys.argv[2], time.monotonic() + 300
def done():
    try:
        with open(journal) as handle:
            return sum('"event": "done"' in line for line in handle)
    except OSError:
        return 0
def modules():
    for pid in os.listdir("/proc"):
        try:
            with open("/proc/%s/cmdline" % pid) as handle:
                words = handle.read().split("\\0")[:-1]
        except OSError:
            continue
        if words and "python3" in words[0] and (len(words) == 1 or "AnsiballZ" in words[1]):
            yield int(pid)
size = -1
while time.monotonic() < until:
    now = os.stat(journal).st_size if os.path.exists(journal) else -1
    if now != size:
        size = now
        reached = done() >= wanted
    if size >= 0 and reached:
        for pid in modules():
            os.kill(pid, signal.SIGKILL)
            print(pid)
            sys.exit(0)
    time.sleep(0.0005)
sys.exit(1)
"""

# Programs of the distribution write these anew at each run, with times or in no particular order.
UNSTEADY = re.compile(r"|".join((
    r"/var/lib/apt/.*", r"/var/cache/apt/.*", r"/var/lib/dpkg/(lock.*|triggers/.*|.*-old|status)",
    r"/etc/(passwd|group|shadow|gshadow)-", r".*/__pycache__(/.*)?")))
# DKMS signs each build with a key that it has made on the host: no two are alike.
BUILT = re.compile(r"/usr/lib/modules/[^/]+/updates/dkms/[^/]+\.ko")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("killed")
    lab.up(TOPOLOGY)
    yield Fleet(lab, tmp_path_factory.mktemp("killed"))
    lab.down()


def state(fleet: Fleet) -> Dict[str, Any]:
    """Everything that an install is for, and everything that an uninstall needs."""
    tree = {path: seen.split()[0] if BUILT.fullmatch(path) else seen
            for path, seen in fleet.fingerprint(HOST).items() if not UNSTEADY.fullmatch(path)}
    return {
        "tree": tree,
        "packages": fleet.packages(HOST),
        "modules": fleet.say(HOST, "sh", "-c", "head /sys/module/nvidia*/version"),
        "nodes": fleet.say(HOST, "sh", "-c", "stat -c '%A %U %T %n' /dev/nvidia*"),
        "services": fleet.say(HOST, "systemctl", "is-active", "nvidia-persistenced", "nvidia-fabricmanager",
                              "containerd", "nvidia-cdi-refresh.path"),
        "cdi": fleet.say(HOST, "cat", "/var/run/cdi/nvidia.yaml"),
        "runtime": fleet.say(HOST, "containerd", "config", "dump"),
        "originals": json.loads(fleet.say(HOST, "cat", "/var/lib/gpuops/originals.json")),
        "ours": json.loads(fleet.say(HOST, "cat", "/var/lib/gpuops/packages.json")),
    }


def kill_after(fleet: Fleet, steps: int) -> List[str]:
    """Run site and kill a module once so many steps are done. The last two events of the journal then."""
    assassin = subprocess.Popen(
        [*fleet.lab.host(HOST).ssh_command("-o", "BatchMode=yes"), "python3", "-", str(steps), JOURNAL],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert assassin.stdin
    assassin.stdin.write(_ASSASSIN)
    assassin.stdin.close()
    played = fleet.run("gpuops.nvidia.site")
    assert assassin.wait() == 0, "nobody was killed after %d steps" % steps
    assert played.code != 0, "site ended well though a module was killed after %d steps" % steps
    return ["%s %s" % (event["event"], event["step"]["id"]) for event in fleet.events(HOST)[-2:]]


def test_killed_again_and_again_it_ends_as_undisturbed(fleet: Fleet) -> None:
    plan = fleet.play("gpuops.nvidia.plan").result(HOST, "gpu_plan")["plan"]
    fleet.play("gpuops.nvidia.site")
    undisturbed = state(fleet)
    steps = [event["step"]["id"] for event in fleet.events(HOST) if event["event"] == "done"]

    fleet.lab.reset(HOST)
    points = sorted(random.Random(SEED).sample(range(1, len(steps)), KILLS))
    for point in points:
        print("killed after %d steps: %s" % (point, ", ".join(kill_after(fleet, point))))
    fleet.play("gpuops.nvidia.site")
    survived = state(fleet)

    for aspect, wanted in undisturbed.items():
        found = survived[aspect]
        assert (different(wanted, found) if isinstance(wanted, dict) else found) == (
            {} if isinstance(wanted, dict) else wanted), aspect
    # Less than the plan may have been done by us: what a package's script or a daemon did by then is not planned again.
    done = {event["step"]["id"] for event in fleet.events(HOST) if event["event"] == "done"}
    assert done <= {step["id"] for step in plan["steps"]}
    assert fleet.play("gpuops.nvidia.site").changes() == []
