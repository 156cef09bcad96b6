# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmarks of what is converged make of their runs: ratios of neighbours, and whether promises are kept."""
from __future__ import annotations

import sys
from typing import Any, Dict, List

import pytest
from workspace import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "benchmarks"))

import converged_cluster  # noqa: E402
import converged_fleet  # noqa: E402
import converged_host  # noqa: E402
import inventory  # noqa: E402
import plan_of_fleet  # noqa: E402
from converged_host import BEFORE, NOW, PING, promises, report, summary  # noqa: E402


def runs(calls: int, *seconds: float) -> List[Dict[str, Any]]:
    return [{"seconds": each, "cpu_seconds": each / 2, "calls": ["x"] * calls, "changed": 0} for each in seconds]


def test_a_ratio_is_that_of_runs_that_followed_each_other() -> None:
    found = summary({NOW: runs(1, 2, 4, 8), PING: runs(1, 1, 2, 4)})
    assert found[PING]["times_seconds"] == [0.5, 0.5, 0.5] and found[PING]["seconds"] == 2
    assert "ping / site: 1.0 times the calls, 0.50 times the wall time (0.50 to 0.50)" in report(found)


@pytest.mark.parametrize("calls, before, kept", [
    (1, 4.0, [True, True]), (1, 3.9, [True, False]), (2, 4.0, [False, True])])
def test_a_promise_that_is_not_kept_is_said(calls: int, before: float, kept: List[bool]) -> None:
    found = summary({NOW: runs(calls, 2, 2, 2), BEFORE: runs(3, before, before, before)})
    assert list(promises(found).values()) == kept
    assert ("NOT KEPT" in report(found)) == (not all(kept))


def test_nothing_is_promised_of_an_earlier_commit_that_nobody_names() -> None:
    assert list(promises(summary({NOW: runs(1, 2)}))) == ["1 remote call a host"]
    assert BEFORE not in converged_host.ways("", REPOSITORY)


@pytest.mark.parametrize("seconds, kept", [(10.0, True), (10.1, False)])
def test_the_whole_of_site_is_held_to_so_many_pings(seconds: float, kept: bool) -> None:
    found = converged_cluster.summary({"site": runs(1, seconds, seconds, 99), "ping": runs(1, 2, 2, 2)})
    assert list(converged_cluster.promises(found).values()) == [kept]
    assert ("NOT KEPT" in converged_cluster.report(found)) != kept


def read(*seconds: float) -> List[Dict[str, Any]]:
    return [dict.fromkeys(inventory.MEASURED, each) for each in seconds]


@pytest.mark.parametrize("seconds, peak, kept", [
    (13.0, 200.0, [True, True, True, True]), (13.1, 200.0, [True, False, True, True]),
    (13.0, 200.1, [True, True, True, False])])
def test_an_inventory_is_held_to_a_bare_list_and_to_what_it_keeps(
        seconds: float, peak: float, kept: List[bool]) -> None:
    found = inventory.summary({inventory.LIST: read(10, 10, 10), inventory.PLAIN: read(9, 9, 99),
                               inventory.WHOLE: read(seconds, seconds, seconds), inventory.WARM: read(1, 1, 1)})
    memory = {way: {"peak": most, "held": 1.0, "kept": 100.0}
              for way, most in ((inventory.PLAIN, 1.0), (inventory.WHOLE, peak))}
    assert list(inventory.promises(found, memory).values()) == kept
    assert any("NOT KEPT" in line for line in inventory.report(found, memory)) == (not all(kept))


def test_nodes_of_the_inventory_have_gpus_and_names_of_their_own() -> None:
    made = [inventory.gpu_node(number) for number in (0, 1, 14999)]
    assert len({node["metadata"]["name"] for node in made}) == 3
    assert all("nvidia.com/gpu" in node["status"]["allocatable"] for node in made)
    # As measured where 15,000 of them were listed
    assert 9000 < len(str(made[1])) < 15000


@pytest.mark.parametrize("peak, lines, kept", [
    (125, 60, [True, True]), (126, 60, [True, False]), (100, 61, [False, True])])
def test_the_plan_of_a_fleet_is_held_to_its_lines_and_to_the_memory_of_short_plans(
    peak: float, lines: int, kept: List[bool]
) -> None:
    seen = {plan_of_fleet.LONG: {"peak_mib": peak, "lines": lines}, plan_of_fleet.SHORT: {"peak_mib": 100, "lines": 5}}
    found = plan_of_fleet.summary({way: [dict(run, **told) for run in runs(0, 2)] for way, told in seen.items()}, 10)
    assert list(plan_of_fleet.promises(found).values()) == kept
    assert ("NOT KEPT" in "".join(plan_of_fleet.report(found))) != all(kept)
    assert found[plan_of_fleet.SHORT]["cpu_seconds_a_host"] == 0.1


def test_the_lines_of_the_plan_of_a_fleet_are_counted() -> None:
    told = "x\nok: [gpu-1]\nTASK [Say it of all hosts and clusters] ***\na\nb\nok: [gpu-1]\nTASK [x] ***\nc\n"
    assert plan_of_fleet.shown(told.splitlines(True)) == 2
    assert plan_of_fleet.shown(["TASK [Plan] ***\n"]) == 0


@pytest.mark.parametrize("seconds, peak, kept", [
    (10, 125, [True, True]), (10.1, 125, [False, True]), (10, 126, [True, False])])
def test_a_converged_fleet_is_held_to_its_processor_and_to_the_memory_of_a_smaller_one(
    seconds: float, peak: float, kept: List[bool]
) -> None:
    ways = {converged_fleet.MANY: (2 * seconds, peak, 20), converged_fleet.FEW: (6, 100, 5),
            converged_fleet.NOTHING: (2, 80, 20)}
    found = converged_fleet.summary({way: [dict(run, peak_mib=most) for run in runs(0, spent)]
                                     for way, (spent, most, _hosts) in ways.items()},
                                    {way: hosts for way, (_spent, _most, hosts) in ways.items()})
    assert list(converged_fleet.promises(found).values()) == kept
    assert ("NOT KEPT" in "".join(converged_fleet.report(found))) != all(kept)
