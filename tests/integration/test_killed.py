# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is killed ends where an undisturbed run ends, once it is run again.

Two tests on one host in this order: a first install whose modules are killed again and again, then a power cut as
such. Cuts in the middle of an install, of an upgrade and of an uninstall are a campaign (docs/soak.md).
"""
from __future__ import annotations

import os
import random
import subprocess
from typing import Iterator, List

import host_cuts
import pytest
from laboratory import JOURNAL, Fleet, host_state, new_lab

HOST = "gpu"
SEED = int(os.environ.get("GPUOPS_KILL_SEED", "20261121"))
KILLS = 6

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


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[host_cuts.Bed]:
    lab = new_lab("killed")
    lab.up(host_cuts.topology(HOST))
    bed = host_cuts.Bed(Fleet(lab, tmp_path_factory.mktemp("killed")), HOST)
    bed.deliver()
    yield bed
    lab.down()


def kill_after(fleet: Fleet, steps: int) -> List[str]:
    """Run site and kill a module once so many steps are done. The last two events of the journal then.

    Empty when site has ended well before: a killed run leaves steps to a package's script or a daemon, and so there are
    fewer of ours.
    """
    assassin = subprocess.Popen(
        [*fleet.lab.host(HOST).ssh_command("-o", "BatchMode=yes"), "python3", "-", str(steps), JOURNAL],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert assassin.stdin
    assassin.stdin.write(_ASSASSIN)
    assassin.stdin.close()
    played = fleet.run("gpuops.nvidia.site")
    if played.code == 0:
        assert assassin.poll() is None, "site ended well though a module was killed after %d steps" % steps
        fleet.say(HOST, "pkill", "--full", JOURNAL)
        assassin.wait()
        return []
    assert assassin.wait() == 0, "nobody was killed after %d steps" % steps
    return ["%s %s" % (event["event"], event["step"]["id"]) for event in fleet.events(HOST)[-2:]]


@pytest.mark.variation
def test_killed_again_and_again_it_ends_as_undisturbed(bed: host_cuts.Bed) -> None:
    fleet = bed.fleet
    plan = fleet.play("gpuops.nvidia.plan").result(HOST, "gpu_plan")["plan"]
    bed.undisturbed("install")
    steps = [event["step"]["id"] for event in fleet.events(HOST) if event["event"] == "done"]

    fleet.lab.reset(HOST)
    bed.deliver()
    points = sorted(random.Random(SEED).sample(range(1, len(steps)), KILLS))
    killed = [ended for ended in (kill_after(fleet, point) for point in points) if ended]
    print("\n".join(map(", ".join, killed)))
    assert len(killed) >= KILLS - 2
    fleet.play("gpuops.nvidia.site")
    assert host_cuts.apart(bed.known["install"].end, host_state(fleet, HOST)) == {}
    # Less than the plan may have been done by us: what a package's script or a daemon did by then is not planned again.
    done = {event["step"]["id"] for event in fleet.events(HOST) if event["event"] == "done"}
    assert done <= {step["id"] for step in plan["steps"]}
    assert fleet.play("gpuops.nvidia.site").changes() == []


def test_a_power_cut_loses_what_nobody_has_synced(bed: host_cuts.Bed) -> None:
    """Or the campaign of cuts would show nothing."""
    script = "echo kept > /root/synced; sync; echo lost > /root/unsynced"
    bed.fleet.say(HOST, "sh", "-c", script)
    bed.fleet.lab.kill(HOST)
    bed.fleet.lab.start(HOST)
    assert bed.fleet.say(HOST, "sh", "-c", "cat /root/synced /root/unsynced; rm -f /root/*synced") == "kept"
