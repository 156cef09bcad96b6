# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The campaigns: a world that cases share, and a case of a seed in it."""
from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List

import chart_nodes
import core_matrix
import cores
import fleet_storm
import host_boots
import host_cuts
import host_life
import plugin_matrix
import request_faults
import workspace
from api_proxy import Proxy
from laboratory import Fleet, new_lab

HOST = "gpu"
LIFE_CHAPTERS = 30
ROUNDS = 300
MIG_STEPS = "1000"


@dataclass(frozen=True)
class Campaign:
    """title: for people. count: cases of a whole campaign. case: tells what it did.

    A case fails by an AssertionError, after which it has made the world fit for the next one; any other exception ends
    the world too.
    """

    title: str
    count: int
    world: Callable[[Path], ContextManager[Any]]
    case: Callable[[Any, int], List[str]]


@contextlib.contextmanager
def cut_host(scratch: Path) -> Iterator[host_cuts.Bed]:
    lab = new_lab("soakcuts")
    try:
        lab.up(host_cuts.topology(HOST))
        bed = host_cuts.Bed(Fleet(lab, scratch), HOST)
        bed.deliver()
        for phase in host_cuts.PHASES:
            bed.undisturbed(phase)
        bed.assert_bare()
        yield bed
    finally:
        lab.down()


def three_cuts(bed: host_cuts.Bed, seed: int) -> List[str]:
    told, wrong = [], []
    for phase in host_cuts.PHASES:
        try:
            told.append(bed.cut(phase, seed))
        except AssertionError as error:
            wrong.append(str(error))
            bed.renew(phase)
    assert not wrong, "\n".join([*wrong, *told])
    return told


@contextlib.contextmanager
def booting_node(scratch: Path) -> Iterator[host_boots.Bed]:
    lab = new_lab("soakboots")
    try:
        lab.up(host_boots.topology(HOST))
        bed = host_boots.Bed(Fleet(lab, scratch), HOST)
        bed.deliver()
        yield bed
    finally:
        lab.down()


def boots(bed: host_boots.Bed, seed: int) -> List[str]:
    """After a failure the node is delivered anew."""
    try:
        return bed.cut(seed)
    except AssertionError:
        bed.renew()
        raise


@contextlib.contextmanager
def cores_host(scratch: Path) -> Iterator[Any]:
    lab = new_lab("soakcores")
    try:
        lab.up(core_matrix.topology(HOST))
        yield lab, scratch
    finally:
        lab.down()


def whole_way(world: Any, seed: int) -> List[str]:
    """The seed only chooses: release by release, each without and with pipelining."""
    lab, scratch = world
    possible = cores.possible()
    release, pipelining = possible[seed % len(possible)], bool(seed // len(possible) % 2)
    try:
        done = core_matrix.whole_way(lab, scratch, HOST, release, pipelining)
    except AssertionError:
        lab.reset(HOST)
        raise
    return ["ansible-core %s, pipelining %s: %s" % (cores.RELEASES[release][0], "on" if pipelining else "off", done)]


@contextlib.contextmanager
def directory(scratch: Path) -> Iterator[Path]:
    yield scratch


def life(scratch: Path, seed: int) -> List[str]:
    """Two hosts of its own, since no life begins where another has ended."""
    lab = new_lab("soaklife")
    try:
        lab.up(host_life.topology())
        return host_life.Life(Fleet(lab, scratch), seed, LIFE_CHAPTERS).live()
    finally:
        lab.down()


def controllers(scratch: Path, seed: int) -> List[str]:
    """The unit tests of the lock, with more rounds; they seed themselves."""
    return ["%d rounds: %s" % (ROUNDS, unit_tests("tests/unit/core/test_lock.py", GPUOPS_ROUNDS=str(ROUNDS)))]


def calls(scratch: Path, seed: int) -> List[str]:
    """The unit tests that cut and fail system calls, at every call instead of a few; there is nothing to draw."""
    return ["every system call: %s" % unit_tests("tests/unit/core/test_injected.py", GPUOPS_CUT_EVERY="1")]


def layouts(scratch: Path, seed: int) -> List[str]:
    """The unit tests that walk from MIG layout to MIG layout, with a thousand steps on each board, and every label of
    mig-parted on every board."""
    return ["%s steps on each board: %s" % (MIG_STEPS, unit_tests(
                "tests/unit/mig/test_transitions.py", GPUOPS_TRANSITIONS=MIG_STEPS, GPUOPS_SEED=str(seed))),
            "every label beside nvidia-mig-parted: %s" % unit_tests(
                "tests/unit/mig/test_beside_mig_parted.py", GPUOPS_MIG_LABELS="all")]


@contextlib.contextmanager
def chart_node(scratch: Path) -> Iterator[chart_nodes.Bed]:
    lab = new_lab("soakcharts")
    try:
        lab.up(chart_nodes.topology())
        bed = chart_nodes.Bed(Fleet(lab, scratch))
        bed.prepare()
        yield bed
    finally:
        lab.down()


def chart_and_ours(bed: chart_nodes.Bed, seed: int) -> List[str]:
    """The seed only chooses. After a failure the node is delivered anew."""
    cases = chart_nodes.cases()
    try:
        return bed.compare(cases[seed % len(cases)])
    except AssertionError:
        bed.fleet.lab.down()
        bed.fleet.lab.up(chart_nodes.topology())
        bed.prepare()
        raise


@contextlib.contextmanager
def two_boards(scratch: Path) -> Iterator[plugin_matrix.Bed]:
    lab = new_lab("soakmatrix")
    try:
        lab.up(plugin_matrix.topology())
        yield plugin_matrix.Bed(Fleet(lab, scratch))
    finally:
        lab.down()


def configuration(bed: plugin_matrix.Bed, seed: int) -> List[str]:
    """The seed only chooses. Nodes on which one failed are delivered anew."""
    try:
        return bed.try_out(plugin_matrix.CASES[seed % len(plugin_matrix.CASES)])
    except AssertionError:
        bed.fleet.lab.down()
        bed.fleet.lab.up(plugin_matrix.topology())
        raise


@contextlib.contextmanager
def proxied_cluster(scratch: Path) -> Iterator[request_faults.Bed]:
    lab = new_lab("soakrequests")
    try:
        lab.up(request_faults.topology())
        with Proxy(lab) as proxy, contextlib.closing(request_faults.Bed(Fleet(lab, scratch), proxy)) as bed:
            yield bed
    finally:
        lab.down()


def spoiled_requests(bed: request_faults.Bed, seed: int) -> List[str]:
    """The seed chooses the case, and draws what its faults leave open."""
    return bed.attack(request_faults.CASES[seed % len(request_faults.CASES)], seed)


@contextlib.contextmanager
def api_server(scratch: Path) -> Iterator[fleet_storm.Bed]:
    bed = fleet_storm.Bed(scratch)
    try:
        bed.start()
        yield bed
    finally:
        bed.stop()


def storm(bed: fleet_storm.Bed, seed: int) -> List[str]:
    return bed.storm(seed)


def unit_tests(path: str, **environment: str) -> str:
    """Run tests with these variables; the last line of what they say."""
    words = [str(workspace.venv() / "bin" / "pytest"), "-q", "-p", "no:cacheprovider", path]
    done = subprocess.run(words, cwd=workspace.REPOSITORY, env=dict(os.environ, **environment),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout.strip().splitlines()[-1]


ALL: Dict[str, Campaign] = {
    "cuts": Campaign("a host cut off while it installs, upgrades and uninstalls: three cuts a case", 67, cut_host,
                     three_cuts),
    "boots": Campaign("a node whose power is cut, at work and while it boots, with no controller to mend it", 50,
                      booting_node, boots),
    "life": Campaign("six months of an admin's life and our runs in between", 10, directory, life),
    "controllers": Campaign("two and five controllers at once, %d rounds" % ROUNDS, 1, directory, controllers),
    "calls": Campaign("killed and failing at every system call of an install, upgrade and uninstall", 1, directory,
                      calls),
    "charts": Campaign("NVIDIA's chart and our components in turn on the same node", len(chart_nodes.cases()),
                       chart_node, chart_and_ours),
    "cores": Campaign("every supported ansible-core, without and with pipelining", 2 * len(cores.RELEASES), cores_host,
                      whole_way),
    "matrix": Campaign("each way to offer GPUs, on two boards: brought, validated, repeated, and with all in use",
                       len(plugin_matrix.CASES), two_boards, configuration),
    "fleet": Campaign("a fleet changed in bad weather: hosts, admins, budgets, controllers and the API server", 200,
                      api_server, storm),
    "requests": Campaign("the API server misbehaving, or the controller killed, at each request of a run",
                         len(request_faults.CASES), proxied_cluster, spoiled_requests),
    "mig": Campaign("%s changes of MIG layout on each board, many with a failing call" % MIG_STEPS, 1, directory,
                    layouts),
}
