# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A rollout as people read it: a few lines, whatever the fleet is."""
from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar, List, Optional, Sequence

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.model import fleet_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.text import text as of_fleet
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import Host, Kind, Present
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.planner import decide, plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.text import head, lasting, render

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=timezone.utc)
H100 = Kind("8 x 10de:2330", "ubuntu-24.04", "containerd", "570.1", "580.2")


def host(name: str, **more: Any) -> Host:
    return Host(**dict({"name": name, "node": name, "plan": "p1", "policy": "q1", "kind": H100, "domain": "r1",
                        "disruption": Disruption.driver_reload, "seconds": 1500}, **more))


def text(fleet: List[Host], **options: Any) -> str:
    rollout = plan(fleet, policy_of(options), NOW)
    return render(rollout, decide(rollout, Present(NOW)))


def test_it_is_told_in_its_order() -> None:
    fleet = [host("h1"), host("h2", jobs=frozenset(["train"])), host("h3", jobs=frozenset(["train"])),
             host("h4", plan=""), host("h5", cordoned_by="somebody else"), host("h6", half_done=True)]
    told = """\
4 hosts of 6 to be changed in turn, 1 beside, 1 refused
  at once: 2 in all; 2 of failure domain r1
  places: 2 of 2 free
    1. host h6; a run began with it and did not end; 25 min 0 s
    2. host h1; canary of 8 x 10de:2330, ubuntu-24.04, containerd, driver 570.1 to 580.2; 25 min 0 s
    3. 2 hosts: h2, h3; 1 job, failure domain r1; 25 min 0 s each
  expected: 50 min 0 s of changes, beside the time until a window opens; 1 job to end or wait
  waits: host h1: waits for another canary of its kind, host h6 (and 2 more)
  refused: h5: node h5 was taken out of service by somebody else; do: uncordon it when its cause is gone, and run \
again [rollout.cordoned_by_others]"""
    assert text(fleet, limit=2, domain_limit=2) == told


def test_the_plan_of_the_fleet_tells_how_long_each_takes_and_how_many_jobs_end() -> None:
    """It has the units as data."""
    fleet = [host("h1", seconds=600), *(host("h%d" % each, jobs=frozenset(["ns/job-%d" % each])) for each in (2, 3))]
    rollout = plan(fleet, policy_of({}), NOW).to_dict()
    told = of_fleet(fleet_of([each.name for each in fleet], [], {}, rollouts=[{"rollout": rollout}]))
    assert told.splitlines()[-3:] == [
        "In this order:",
        "  1. h1: canary of 8 x 10de:2330, ubuntu-24.04, containerd, driver 570.1 to 580.2; expected to take 10 min "
        "0 s",
        "  2. 2 hosts: 1 job, failure domain r1; 2 turns; expected to take 25 min 0 s each; 2 jobs hit: ns/job-2, "
        "ns/job-3: h[2-3]"]


class TestHead:
    """What of a rollout is of the instant, beside the plan of the fleet."""

    FLEET: ClassVar[List[Host]] = [host("h%d" % each) for each in range(1, 5)]

    def head(self, present: Optional[Present] = None, fleet: Sequence[Host] = (), **options: Any) -> List[str]:
        rollout = plan(fleet or self.FLEET, policy_of(options), NOW)
        return head(rollout, decide(rollout, present or Present(NOW)))

    def test_what_goes_on_says_how_many_go_at_once(self) -> None:
        assert self.head(limit=2, domain_limit=1) == [
            "at once: 2 in all; 1 of failure domain r1", "places: 2 of 2 free"]

    def test_what_is_stopped_says_why_and_what_to_do(self) -> None:
        told = self.head(Present(NOW, failed={"h1": "no GPU"}))
        assert told[0].startswith("stopped: 1 failed: h1 (no GPU); do: find the cause") and len(told) == 3, told
        assert told[1:] == ["at once: 1 in all", "places: 0 of 1 free; 1 failed (h1)"]

    def test_closed_windows_are_told_though_others_go_on(self) -> None:
        window = {"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC"}
        assert self.head(windows=[window])[0].startswith("waits: host h")
        fleet = [host("h1"), host("h2", groups=("night",))]
        always = {"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "start": "00:00", "duration": "24h",
                  "zone": "UTC", "groups": ["day"]}
        told = self.head(fleet=[replace(fleet[0], groups=("day",)), fleet[1]], limit=2, canaries="none", windows=[
            always, dict(window, groups=["night"])])
        assert told[0].startswith("waits: host h2: no window is open; the next opens at Sat 2026-07-04"), told

    def test_it_is_six_lines_at_most(self) -> None:
        present = Present(NOW, failed={"h1": "x", "h2": "y"}, unreachable=frozenset(["h3", "h4"]))
        assert len(self.head(present, canaries="every_kind")) <= 6

    def test_hosts_of_no_cluster_are_counted_by_nobody(self) -> None:
        """So that nothing of it stops, and no clique of them is too large; but windows hold for them, too."""
        fleet = [host("h%d" % each, node="", clique="c" if each < 3 else "") for each in (1, 2, 3)]
        present = Present(NOW, unreachable=frozenset(["h8", "h9"]))
        at_once = "at once: as many as the play takes (`gpu_serial` of gpuops.nvidia.site), as they are in no cluster"
        assert self.head(present, fleet) == [at_once]
        window = {"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC"}
        waits, last = self.head(present, fleet, windows=[window])
        assert re.match("waits: [^:]*: no window is open; .* [(]and 1 more[)]", waits) and last == at_once


def test_five_hundred_hosts_are_a_page() -> None:
    fleet = [host("h%03d" % each, domain="r%d" % (each // 20), jobs=frozenset(map(str, range(each % 5))),
                  clique="" if each % 4 else "c%d" % (each // 16), seconds=600 + 60 * (each % 3),
                  kind=Kind("b%d" % (each % 7)), cordoned_by="x" if each % 50 == 1 else "",
                  plan="" if each < 100 else "p", reachable=each % 70 != 5) for each in range(500)]
    told = text(fleet, limit="5%", domain_limit="10%")
    assert len(told.splitlines()) <= 40 and max(map(len, told.splitlines())) < 300
    assert "groups more" in told


@pytest.mark.parametrize("number, limit, soak, seconds", [
    (4, 1, "0", 6000), (4, 2, "0", 4500), (4, 4, "0", 3000), (4, 1, "10m", 6600), (1, 1, "0", 1500), (0, 1, "0", 0)])
def test_how_long_it_takes_follows_from_what_goes_side_by_side(
    number: int, limit: int, soak: str, seconds: int
) -> None:
    """A canary first, then as many as there are places."""
    fleet = [host("h%d" % each) for each in range(number)]
    assert lasting(plan(fleet, policy_of({"limit": limit, "soak": soak if soak != "0" else 0}), NOW)) == seconds


def test_without_canaries_all_go_at_once() -> None:
    fleet = [host("h%d" % each, seconds=60 * (each + 1)) for each in range(4)]
    assert lasting(plan(fleet, policy_of({"limit": 9, "canaries": "none"}), NOW)) == 240


def test_where_nothing_is_to_be_changed_there_is_little_to_say() -> None:
    assert text([host("h1", plan="")]) == "0 hosts of 1 to be changed in turn, 1 beside, 0 refused"
