# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""site after runs that were killed, beside runs that have taken its places over, and where a change has failed."""
from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Dict, List

import pytest
from canned import ACTION, Hosts
from documentation import returned, undocumented
from sites import (
    BROKEN,
    CHANGE,
    MODULE,
    NOTHING,
    REFUSED,
    SICK,
    SMALL,
    WELL,
    Site,
    held,
    left_by_a_dead_run,
    names,
)

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import run as custody
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Returning, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    DEFAULT_POOL,
    FAILED,
    OpenRollout,
    Pool,
    Run,
    Slot,
)

# While a module is at work for the host, its run counts as dead, and another one takes its place over
TAKEN_OVER = ACTION + '''
from dataclasses import replace
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import Budget, NodeReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection


def taken_over(record):
    pool = record.pool("gpus")
    runs = {"b@other": next(iter(pool.rollout.runs.values()))}
    return record.but("gpus", replace(pool, rollout=replace(pool.rollout, runs=runs), slots={
        name: replace(slot, run="b@other") for name, slot in pool.slots.items()}))


class Stopped(ActionModule):
    def run(self, tmp=None, task_vars=None):
        told = super().run(tmp, task_vars)
        calls = pathlib.Path(task_vars["inventory_dir"]) / (task_vars["inventory_hostname"] + ".%(module)s")
        if int(calls.read_text()) == %(call)d:
            client = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"]))
            Budget(client, "gpuops", "gpus", NodeReading(), lambda run: True).change(taken_over)
        return told


ActionModule = Stopped
'''

TAKEN = {"unschedulable": True, "annotations": {
    "gpuops.nvidia.com/cordoned-by": "gpuops", "gpuops.nvidia.com/cordon-reason": "maintenance"}}

# A repair that another run is at work with fails with a host once the first host of this run has asked for its place
FAILED_MEANWHILE = """
from dataclasses import replace
from datetime import datetime, timezone
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import Budget, NodeReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import FAILED, Slot

SLOT = Slot("gpu-1", "r@other", datetime(2026, 7, 1, tzinfo=timezone.utc), FAILED, policy="repair=a",
            reason="a part is to be taken out")
OURS = {"gpuops.nvidia.com/cordoned-by": "gpuops", "gpuops.nvidia.com/cordon-reason": "Failed: a part is to go"}


def failed(record):
    pool = record.pool("gpus")
    return record.but("gpus", replace(pool, limit="3", slots={**pool.slots, "gpu-1": SLOT}))


class ActionModule(Real):
    def answer(self, task_vars):
        if self._task.args.get("state") == "start":
            client = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"]))
            Budget(client, "gpuops", "gpus", NodeReading(), lambda run: True).change(failed)
            client.patch("/api/v1/nodes/gpu-1", {"metadata": {"annotations": OURS}, "spec": {"unschedulable": True}})
        return super().answer(task_vars)
"""


@pytest.mark.variation
@pytest.mark.parametrize("age, seconds, left", [
    (timedelta(days=1), 1, {}), (timedelta(0), 600, {"gpu-1": "working"})],
    ids=["a dead run", "one at work"])
def test_the_place_of_a_host_that_needs_nothing_any_more(
    in_words: Hosts, now: datetime, age: timedelta, seconds: int, left: Any
) -> None:
    """Its run was killed when it had given the node back, and had not said so yet: that is free for who waits."""
    site = Site(in_words, names(2))
    slot = Slot("gpu-1", "dead@other", now - age)
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=now - age, seconds=seconds)))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_timeout=5)
    assert (done.returncode, site.changed()) == ((2, []) if left else (0, ["gpu-2"])), done.stdout
    assert {node: slot.state for node, slot in site.record().slots.items()} == left


def test_a_failed_canary_that_needs_nothing_any_more_is_not_forgotten(in_words: Hosts, now: datetime) -> None:
    site = Site(in_words, names(2), gpu_1={"unschedulable": True, "annotations": {
        "gpuops.nvidia.com/cordoned-by": "gpuops"}})
    failed = Slot("gpu-1", "a@other", now, FAILED, proofs=("policy: x",), policy="policy", reason="Xid 79")
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots={"gpu-1": failed})))
    for slip, told in (({}, "Xid 79"), ({"gpu_rollout_soak": "10x"}, "`gpu_rollout_soak` is '10x'")):
        done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_limit=2, **slip)
        assert done.returncode == 2 and site.changed() == [] and told in done.stdout, done.stdout
        assert site.record().slots == {"gpu-1": failed} and site.cordoned() == ["gpu-1"], done.stdout


@pytest.mark.parametrize("module, call, told", [
    pytest.param("gpu_plan", 2, "is at work by run b@other", marks=pytest.mark.variation),
    ("gpu_fleet_progress", 1, "cluster.rollout_place_lost")],
    ids=["while it is planned again", "when it had asked once more"])
def test_a_run_that_lost_its_place_takes_no_node(in_words: Hosts, module: str, call: int, told: str) -> None:
    in_words.put(**{module: TAKEN_OVER % {"module": module, "call": call}})
    site = Site(in_words, names(1))
    done = site.run({"gpu_plan": CHANGE})
    assert done.returncode == 2 and site.changed() == site.cordoned() == [] and told in done.stdout, done.stdout
    assert [request.query for request in in_words.api.state.requests if "dryRun" not in request.query
            and ((request.body or {}).get("spec") or {}).get("unschedulable")] == [], "nor does it on the way"
    assert site.record().slots["gpu-1"].run == "b@other"


@pytest.mark.parametrize("state, outcome, left, words", [
    ("", "freed", [], "Nothing was freed"),
    ("working", "freed", [], ""),
    ("failed", "freed", [], ""),
    ("failed", "done", ["gpu-1"], "It is not written down that Node gpu-1 is done"),
])
def test_who_says_what_became_of_a_node_is_told_where_that_changes_nothing(
    in_words: Hosts, now: datetime, state: str, outcome: str, left: List[str], words: str
) -> None:
    site = Site(in_words, names(1))
    slots = {"gpu-1": Slot("gpu-1", "dead@other", now, state)} if state else {}
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots=slots)))
    path = in_words.controller.directory / "said.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{MODULE: {
        "kubeconfig": str(in_words.api.kubeconfig), "state": "ended", "name": "gpu-1", "outcome": outcome}}]}]))
    done = in_words.controller.play(str(path), hosts=["localhost"])
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0 and list(site.record().slots) == left, told
    assert words in told and ("[WARNING]" in told) == bool(words), told


@pytest.mark.parametrize("run, left, words", [
    ("a@other", ["b@other"], ""),
    ("a", ["a@other", "b@other"], "has no open rollout in pool gpus (namespace gpuops). Open there: a@other, b@other"),
])
def test_who_closes_a_rollout_that_no_run_has_is_told_which_have_one(
    in_words: Hosts, now: datetime, run: str, left: List[str], words: str
) -> None:
    site = Site(in_words, names(1))
    opened = OpenRollout("x", now, {name: Run("other", now, now, 600) for name in ("a@other", "b@other")})
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", rollout=opened)))
    path = in_words.controller.directory / "closes.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{MODULE: {
        "kubeconfig": str(in_words.api.kubeconfig), "state": "closed", "run": run}}]}]))
    done = in_words.controller.play(str(path), hosts=["localhost"])
    told = " ".join((done.stdout + done.stderr).split())
    there = site.record().rollout
    assert done.returncode == 0 and there is not None and sorted(there.runs) == left, told
    assert words in told and ("[WARNING]" in told) == bool(words), told


def test_why_a_host_could_not_be_changed_is_known_to_its_clique(in_words: Hosts) -> None:
    site = Site(in_words, names(1))
    broken = {"failed": True, "changed": False, "msg": "the package is gone"}
    done = site.run({"gpu_plan": [CHANGE, broken]})
    assert done.returncode == 2 and site.changed() == [], done.stdout
    pool = site.record()
    assert pool.slots == {} and pool.rollout is None and pool.last is not None
    assert pool.last.left["gpu-1"].reason == "the package is gone"


@pytest.mark.parametrize("renewed, left", [(timedelta(0), {"gpu-1": "a@other"}), (timedelta(hours=1), {})])
def test_who_renews_a_lease_is_at_work_wherever_the_record_is(
    in_words: Hosts, now: datetime, renewed: timedelta, left: Dict[str, str]
) -> None:
    site, run = Site(in_words, names(1)), custody.Run("a", "other")
    slot = Slot("gpu-1", run.identity, now - timedelta(days=1))
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=slot.since)), "team-b")
    site.client.apply("/api/v1/namespaces/gpuops", {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "gpuops"}})
    site.client.create(leases.path_of("gpuops"), leases.new(
        site.client.get("/api/v1/nodes/gpu-1"), "gpuops", run, 600, (now - renewed).timestamp()))
    [[told]] = in_words.controller.tasks(
        [{MODULE: {"state": "settled", "from_variables": True, "hosts": names(1)}}], hosts=names(1), variables={
            "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig), "gpu_rollout_namespace": "team-b"})
    assert told["changed"] == (not left) and list(undocumented(told, returned("gpu_rollout"))) == [], told
    assert {node: slot.run for node, slot in site.record(namespace="team-b").slots.items()} == left


@pytest.mark.parametrize("plan", [NOTHING, CHANGE], ids=["nothing to do", "a change"])
def test_a_node_that_a_repair_has_left_sick_meanwhile_is_not_opened(in_words: Hosts, plan: Dict[str, Any]) -> None:
    site = Site(in_words, names(2))
    in_words.around("gpu_rollout", FAILED_MEANWHILE)
    done = site.run({"gpu-1": {"gpu_plan": plan}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_limit=3)
    assert site.changed() == ["gpu-2"] and site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "failed"}
    assert "[rollout.failed_before]" in done.stdout and "a part is to be taken out" in done.stdout, done.stdout


def test_one_that_it_fails_with_before_any_host_begins_is_not_opened_either(in_words: Hosts, now: datetime) -> None:
    """It was out of service when this run was planned, and what needs nothing and is so is opened first."""
    site = Site(in_words, names(2), gpu_1=TAKEN)
    in_words.around("gpu_node_custody", FAILED_MEANWHILE.replace('== "start"', '== "admitted"'))
    slot = Slot("gpu-1", "r@other", now, policy="repair=a", aim="repair")
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=now)))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_timeout=1)
    assert site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "failed"}
    assert "[rollout.failed_before]" in done.stdout and "a part is to be taken out" in done.stdout, done.stdout


@pytest.mark.parametrize("slot, why", [
    ('"failed"', "has failed with node gpu-1 in pool gpus (a part is to be taken out)"),
    ('"working"', "began with node gpu-1 in pool gpus at ")])
def test_nor_is_one_that_another_run_has_come_to_once_that_was_seen(in_words: Hosts, slot: str, why: str) -> None:
    """It has let the node go, or was killed, and this run has its Lease."""
    site = Site(in_words, names(2))
    meanwhile = FAILED_MEANWHILE
    for old, new in (
            ('        if self._task.args.get("state") == "start":',
             '        told = super().answer(task_vars)\n'
             '        if self._task.args.get("state") == "settled" and self._task.check_mode:'),
            ("return super().answer(task_vars)", "return told"), ("FAILED, policy", slot + ", policy"),
            ("datetime(2026, 7, 1, tzinfo=timezone.utc)", "datetime.now(timezone.utc)")):
        meanwhile = meanwhile.replace(old, new)
    in_words.around("gpu_rollout", meanwhile)
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": NOTHING}})
    told = " ".join(done.stdout.split())
    assert site.cordoned() == ["gpu-1"] and list(site.held()) == ["gpu-1"], done.stdout
    assert "run r@other " + why in told and "[cluster.node_changed_since]" in told, done.stdout


@pytest.mark.parametrize("then, is_opened, told", [
    (CHANGE, False, "so that it needs something: steps of class driver_reload."),
    pytest.param(REFUSED, False, "so that it needs something: the driver is held.", marks=pytest.mark.variation),
    pytest.param(NOTHING, True, "", marks=pytest.mark.variation),
    pytest.param(SICK, True, "", marks=pytest.mark.variation),
], ids=["half done", "refused", "done", "to be validated"])
def test_a_host_is_looked_at_once_more_when_the_run_that_had_it_is_no_more(
    in_words: Hosts, now: datetime, then: Dict[str, Any], is_opened: bool, told: str
) -> None:
    """That was at work yet when the host was planned, and is killed; where it shows itself once more after that, the
    host is known better by now, too."""
    site, run = Site(in_words, names(1)), custody.Run("a", "other")
    seen = now + timedelta(seconds=6 if is_opened else -60)
    site.record(lambda record: record.but(DEFAULT_POOL, held(Slot("gpu-1", run.identity, seen - timedelta(
        seconds=60)), seen=seen, seconds=1)))
    Custody(site.client, run, "gpuops", 8, 0, str).take("gpu-1", Taking("maintenance"))
    done = site.run({"gpu_plan": [NOTHING, then]})
    assert (done.returncode == 0, site.cordoned() == []) == (is_opened, is_opened), done.stdout
    assert told in " ".join(done.stdout.split()) and ("[playbook.needed_again]" in done.stdout) != is_opened
    if not is_opened:
        assert site.held() == {"gpu-1": "working"}, "it is gone on with"
        in_words.put(gpu_plan=ACTION)
        done = site.run({"gpu-1": {"gpu_plan": CHANGE}}, gpu_rollout_timeout=30)
        assert done.returncode == 0 and site.changed() == ["gpu-1"] and site.cordoned() == [], done.stdout
    assert site.held() == {}, done.stdout


@pytest.mark.parametrize("plan", [
    [NOTHING], pytest.param([CHANGE, NOTHING], marks=pytest.mark.variation)], ids=["at once", "at its turn"])
def test_what_a_killed_run_had_finished_is_opened_before_others_wait_for_its_place(
    in_words: Hosts, now: datetime, plan: List[Dict[str, Any]]
) -> None:
    """By a run with one process; nobody knows at first that who has the place is dead."""
    site = left_by_a_dead_run(in_words, now, seconds=5)
    done = site.run({"gpu-1": {"gpu_plan": plan}, "gpu-2": {"gpu_plan": CHANGE}}, "--forks", "1",
                    gpu_rollout_timeout=60)
    assert done.returncode == 0 and site.changed() == ["gpu-2"], done.stdout
    assert site.cordoned() == [] and site.held() == {}, done.stdout


def test_what_could_not_be_given_back_at_first_is_at_the_end(in_words: Hosts, now: datetime) -> None:
    site = Site(in_words, names(2))
    in_words.around("gpu_rollout", '''

class ActionModule(Real):
    def answer(self, task_vars):
        once = pathlib.Path(task_vars["inventory_dir"]) / "once"
        if self._task.args.get("state") == "settled" and not self._task.check_mode and not once.exists():
            once.write_text("")
            raise GpuOpsError("cluster.request_refused", found="HTTP 500", wanted="an answer", remedy="ask again")
        return super().answer(task_vars)
''')
    slot = Slot("gpu-1", "dead@other", now - timedelta(hours=1))
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=slot.since, seconds=1)))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_timeout=30)
    assert done.returncode == 0 and site.changed() == ["gpu-2"] and site.held() == {}, done.stdout


@pytest.mark.parametrize("variables", [
    {"gpu_cordon_unwell": False}, pytest.param({}, marks=pytest.mark.variation)], ids=["none is cordoned", "cordoned"])
def test_a_sick_host_that_a_killed_run_had_finished_is_left_to_a_repair(
    in_words: Hosts, now: datetime, variables: Dict[str, Any]
) -> None:
    """Whose node stays in service, too: in the middle of a change it would be site's."""
    site = Site(in_words, names(2))
    slot = Slot("gpu-1", "dead@other", now - timedelta(days=1))
    site.record(lambda record: record.but(DEFAULT_POOL, held(slot, seen=slot.since, seconds=1)))
    done = site.run({"gpu-1": {"gpu_plan": SICK, "gpu_validation": BROKEN}, "gpu-2": {"gpu_plan": NOTHING}},
                    **variables)
    assert done.returncode == 2 and "level 1 fails" in done.stdout and site.held() == {}, done.stdout
    assert site.cordoned() == ([] if variables else ["gpu-1"])


@pytest.mark.variation
def test_one_that_needs_something_again_at_its_turn_stays_half_done(in_words: Hosts, now: datetime) -> None:
    site = left_by_a_dead_run(in_words, now, seconds=1)
    done = site.run({"gpu-1": {"gpu_plan": [CHANGE, NOTHING, CHANGE]}, "gpu-2": {"gpu_plan": NOTHING}},
                    gpu_rollout_timeout=30)
    assert done.returncode == 2 and "[playbook.needed_again]" in done.stdout, done.stdout
    assert site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "working"}


@pytest.mark.variation
def test_one_that_was_opened_first_is_validated_again_where_others_were_changed_since(
    in_words: Hosts, now: datetime
) -> None:
    site = left_by_a_dead_run(in_words, now, seconds=1)
    done = site.run({"gpu-1": {"gpu_plan": NOTHING, "gpu_validation": [WELL, WELL, BROKEN]},
                     "gpu-2": {"gpu_plan": CHANGE}}, "--forks", "1", gpu_rollout_timeout=30)
    assert done.returncode == 2 and site.changed() == ["gpu-2"] and "level 1 fails" in done.stdout, done.stdout
    assert "in service again" in done.stdout and site.cordoned() == ["gpu-1"] and site.held() == {}


@pytest.mark.variation
def test_one_that_another_manager_has_is_not_opened_without_a_look(in_words: Hosts, now: datetime) -> None:
    """It is left to the end, and looked at then."""
    site, run = Site(in_words, names(2)), custody.Run("a", "other")
    Custody(site.client, run, "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    in_words.around("gpu_node_custody", '''
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection


class ActionModule(Real):
    def answer(self, task_vars):
        looked = pathlib.Path(task_vars["inventory_dir"]) / "looked"
        if self._task.args["state"] == "admitted" and not looked.exists():
            looked.write_text("")
        elif self._task.args["state"] == "admitted":
            Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"])).patch("/api/v1/nodes/gpu-1", {
                "metadata": {"annotations": {"weave.works/kured-reboot-in-progress": "%s"}}})
        return super().answer(task_vars)
''' % now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_limit=2,
                    node_maintenance_wait_timeout=2)
    assert done.returncode == 2 and site.changed() == ["gpu-2"] and site.cordoned() == ["gpu-1"], done.stdout
    assert done.stdout.count("in the hands of kured") >= 2, done.stdout


@pytest.mark.variation
def test_where_the_order_is_not_known_no_node_is_opened_that_nobody_has_looked_at(
    in_words: Hosts, now: datetime
) -> None:
    """Its device plugin offers nothing any more."""
    site = left_by_a_dead_run(in_words, now, seconds=1)
    in_words.around("gpu_rollout", '''

class ActionModule(Real):
    def answer(self, task_vars):
        asked = pathlib.Path(task_vars["inventory_dir"]) / "asked"
        if self._task.args.get("state") == "planned":
            if asked.exists():
                raise GpuOpsError("cluster.request_refused", found="HTTP 500", wanted="an answer", remedy="ask again")
            asked.write_text("")
        return super().answer(task_vars)
''')
    done = site.run({"gpu_plan": NOTHING})
    assert done.returncode == 2 and site.cordoned() == ["gpu-1"], done.stdout


@pytest.mark.variation
def test_a_host_that_is_sick_and_half_done_is_not_left_to_a_repair(in_words: Hosts, now: datetime) -> None:
    """Its checks fail, and the run that had it had not come to its end, as a second look tells."""
    site, run = Site(in_words, names(1)), custody.Run("a", "other")
    site.record(lambda record: record.but(DEFAULT_POOL, held(Slot(
        "gpu-1", run.identity, now - timedelta(minutes=2)), seen=now - timedelta(minutes=1), seconds=1)))
    Custody(site.client, run, "gpuops", 1, 0, str).take("gpu-1", Taking("maintenance"))
    done = site.run({"gpu_plan": [NOTHING, CHANGE], "gpu_validation": BROKEN})
    assert done.returncode == 2 and site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "working"}, done.stdout


@pytest.mark.parametrize("is_well", [True, pytest.param(False, marks=pytest.mark.variation)])
def test_a_small_change_opens_what_another_has_failed_with_as_any_other_does(
    in_words: Hosts, now: datetime, is_well: bool
) -> None:
    """Not before a pod has a GPU there, and no pod leaves for it that runs on."""
    site, run = Site(in_words, names(1)), custody.Run("a", "other")
    failed = Slot("gpu-1", run.identity, now, FAILED, policy="another", reason="Xid 79")
    site.record(lambda record: record.but(DEFAULT_POOL, Pool(limit="1", slots={"gpu-1": failed})))
    Custody(site.client, run, "gpuops", 1, 0, str).give_back("gpu-1", Returning(failures=["Xid 79"]))
    done = site.run({"gpu_plan": SMALL, "gpu_validation": [WELL, WELL if is_well else BROKEN]})
    assert "Take the node out of service" in done.stdout and "evict" not in done.stdout.lower(), done.stdout
    assert (done.returncode, site.cordoned(), site.held()) == (
        (0, [], {}) if is_well else (2, ["gpu-1"], {"gpu-1": "failed"})), done.stdout


def test_one_that_stands_beside_opens_nothing_that_another_has_taken_since(in_words: Hosts, now: datetime) -> None:
    site = Site(in_words, names(2))
    in_words.around("gpu_rollout", FAILED_MEANWHILE)
    done = site.run({"gpu-1": {"gpu_plan": SMALL}, "gpu-2": {"gpu_plan": NOTHING}})
    assert site.cordoned() == ["gpu-1"] and site.held() == {"gpu-1": "failed"}, done.stdout


@pytest.mark.parametrize("variables", [
    {"gpu_startup_taint": "{{ inventory_hostname }}.example/new"},
    pytest.param({"gpu_rollout_pool": "{{ inventory_hostname }}"}, marks=pytest.mark.variation)])
def test_the_record_is_asked_where_it_is_whatever_else_hosts_do_not_agree_about(
    in_words: Hosts, variables: Dict[str, Any]
) -> None:
    site, meanwhile = Site(in_words, names(2)), FAILED_MEANWHILE
    for old, new in (
            ('        if self._task.args.get("state") == "start":',
             '        told = super().answer(task_vars)\n'
             '        if self._task.args.get("state") == "settled" and self._task.check_mode:'),
            ("return super().answer(task_vars)", "return told"), ('(client, "gpuops"', '(client, "team-b"')):
        meanwhile = meanwhile.replace(old, new)
    in_words.around("gpu_rollout", meanwhile)
    site.record(namespace="team-b")
    done = site.run({"gpu_plan": NOTHING}, gpu_rollout_namespace="team-b", **variables)
    assert site.cordoned() == ["gpu-1"] and "[cluster.node_changed_since]" in done.stdout, done.stdout


def test_where_nobody_can_read_what_has_failed_no_node_is_opened(in_words: Hosts) -> None:
    """Another release on a second controller has written what this one does not know."""
    newer = """
            path = "/api/v1/namespaces/gpuops/configmaps/gpuops-rollout"
            record = json.loads(client.get(path)["data"]["record"])
            client.patch(path, {"data": {"record": json.dumps({**record, "written_by": "a newer release"})}})
        return super()"""
    site = Site(in_words, names(2))
    in_words.around("gpu_rollout", "import json" + FAILED_MEANWHILE.replace("\n        return super()", newer))
    done = site.run({"gpu-1": {"gpu_plan": NOTHING}, "gpu-2": {"gpu_plan": CHANGE}}, gpu_rollout_limit=3)
    assert "gpu-1" in site.cordoned(), done.stdout
    told = " ".join((done.stdout + done.stderr).split())
    assert "is opened: Found: the record of rollouts in the cluster cannot be read" in told, told
    assert "is not known: Found: the record of rollouts" in told.partition("Say what waits for somebody")[2], told


def test_hosts_that_do_not_agree_about_what_nobody_needs_are_offered_all_the_same(in_words: Hosts) -> None:
    site = Site(in_words, names(2))
    done = site.run({"gpu_plan": NOTHING}, gpu_rollout_limit="{{ 2 if inventory_hostname == 'gpu-1' else 3 }}")
    labels = [each["metadata"]["labels"] for each in in_words.api.state.nodes]
    assert done.returncode == 0 and all("nvidia.com/gpu.present" in each for each in labels), done.stdout
