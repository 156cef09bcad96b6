# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""site looks at the health of a host before and after its change: what is sick since fails it, and what else is new is
compared with hosts that wait for theirs. A canary is watched."""
from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Sequence

import pytest
from canned import Hosts
from sites import CHANGE, NOTHING, SMALL, Site, names

from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import DEFAULT_POOL, Record

WITH_A_WAY_BACK = dict(CHANGE, returns_to={"version": "570.1", "how": "archive", "why": ""})
SICK, WEAK = "sick xid 95", "pending xid 63"
# Tells what the variable 'looks' has of each look, as the module does of what it knows
HEALTH = '''
import pathlib
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        calls = pathlib.Path(task_vars["inventory_dir"]) / (task_vars["inventory_hostname"] + ".gpu_health")
        number = int(calls.read_text()) if calls.exists() else 0
        calls.write_text(str(number + 1))
        found = [each.partition(" ") for each in task_vars["looks"][number]]
        news = [code for kind, _blank, code in found if code not in self._task.args["known"]]
        if self._task.args["fail_on"] != "nothing" and any(
                kind == "sick" and code in news for kind, _blank, code in found):
            return {"failed": True, "changed": False, "msg": "sick since: %s" % news, "code": "health.sick"}
        return {"changed": False, "news": news, "findings": [
            {"key": code, "code": code, "kind": kind} for kind, _blank, code in found]}
'''


def changed(in_words: Hosts, looks: Sequence[Sequence[str]], **variables: Any) -> Any:
    """A site of three, which are all found to be so, and what the run has said."""
    in_words.put(gpu_health=HEALTH)
    site = Site(in_words, names(3))
    done = site.run({"gpu_plan": WITH_A_WAY_BACK}, "--forks", "1", looks=looks, gpu_rollout_limit=3,
                    gpu_rollout_timeout=1, **variables)
    return site, done.stdout + done.stderr


def test_what_is_sick_since_its_change_fails_the_host_and_stops_the_others(in_words: Hosts) -> None:
    site, told = changed(in_words, [[], [], [SICK]])
    (failed,) = site.changed()
    assert site.held() == {failed: "failed"} and site.cordoned() == [failed], told
    assert "sick since: ['xid 95']" in told
    assert "Rolled back to driver 570.1" in told or "could not be rolled back" in told, told
    assert all(in_words.calls("gpu_health", name) == (3 if name == failed else 1) for name in names(3))


@pytest.mark.variation
def test_what_came_while_it_waited_is_no_fault_of_its_change(in_words: Hosts) -> None:
    site, told = changed(in_words, [[], [SICK], [SICK]])
    assert site.changed() == names(3) and site.cordoned() == [] and site.held() == {}, told


@pytest.mark.variation
@pytest.mark.parametrize("looks, goes_on", [
    ([[], [], [WEAK]], False),
    # Those that wait have it as often
    pytest.param([[WEAK], [], [WEAK]], True, marks=pytest.mark.variation)])
def test_what_else_is_new_is_compared_with_hosts_that_wait(in_words: Hosts, looks: Any, goes_on: bool) -> None:
    site, told = changed(in_words, looks)
    if goes_on:
        assert len(site.changed()) > 1 and site.cordoned() == [], told
    else:
        assert len(site.changed()) == 1 and site.cordoned() == [] and "health: xid 63" in told, told


@pytest.mark.variation
def test_nothing_is_looked_at_where_no_gpu_is_touched(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": SMALL}})
    assert done.returncode == 0, done.stdout
    assert [in_words.calls("gpu_health", name) for name in names(2)] == [0, 0]


@pytest.mark.variation
@pytest.mark.parametrize("options, variables", [(["--check"], {}), ([], {"gpu_rollout_health": False})])
def test_nor_in_check_mode_nor_where_nobody_wants_it(in_words: Hosts, options: Any, variables: Any) -> None:
    site = Site(in_words, names(1))
    done = site.run({"gpu_plan": CHANGE}, *options, **variables)
    assert done.returncode == 0 and in_words.calls("gpu_health") == 0, done.stdout


def hours_later(record: Record) -> Record:
    pool = record.pool(DEFAULT_POOL)
    return record.but(DEFAULT_POOL, replace(pool, proofs={
        proof: replace(told, at=told.at - timedelta(hours=2)) for proof, told in pool.proofs.items()}))


@pytest.mark.variation
def test_others_follow_a_canary_once_it_was_watched(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    first = site.run({"gpu_plan": CHANGE}, "--forks", "1", gpu_rollout_limit=2, gpu_rollout_soak="1h")
    (canary,) = site.changed()
    assert first.returncode == 2 and site.cordoned() == [], first.stdout
    assert "and watched until" in first.stdout, first.stdout
    site.record(hours_later)
    canned = {name: {"gpu_plan": NOTHING if name == canary else CHANGE} for name in names(2)}
    done = site.run(canned, gpu_rollout_limit=2, gpu_rollout_soak="1h")
    assert done.returncode == 0 and site.changed() == names(2) and site.cordoned() == [], done.stdout
