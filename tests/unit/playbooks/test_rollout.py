# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A fleet's rollout as playbooks have it: ansible-playbook, several at once, and a real API server that they share."""
from __future__ import annotations

import json
import signal
import socket
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import canned
import pytest
import store_client
from clock import Time
from controller import Controller
from documentation import returned, undocumented
from object_store import Store
from real_api import RealApi, node, watched
from sites import freeze

from ansible_collections.gpuops.nvidia.plugins.action.gpu_rollout import ActionModule
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import Budget, NodeReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import WORKING, Answer, read_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.model import Host

MODULE = "gpuops.nvidia.gpu_rollout"
PATH = "/api/v1/namespaces/%s/configmaps/gpuops-rollout"
DRIVER = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
# What is done to a host, and how it is told
RUN = """
- hosts: all
  gather_facts: false
  tasks:
    - gpuops.nvidia.gpu_rollout: {state: planned, run: "{{ run }}", from_variables: true}
      register: rollout
      run_once: true
    - ansible.builtin.group_by: {key: "gpuops_turn_{{ inventory_hostname in rollout.order }}"}
- hosts: "{{ hostvars[groups.all[0]].rollout.order }}"
  strategy: host_pinned
  gather_facts: false
  tasks:
    - gpuops.nvidia.gpu_rollout:
        {state: start, run: "{{ run }}", planned: "{{ rollout }}", from_variables: true, timeout: "{{ patience }}",
         interval: 1}
      register: start
    - ansible.builtin.meta: end_host
      when: not start.started
    - ansible.builtin.command: sleep 0.2
      changed_when: true
    - gpuops.nvidia.gpu_rollout:
        {state: ended, run: "{{ run }}", planned: "{{ rollout }}", from_variables: true,
         outcome: "{{ 'failed' if inventory_hostname in failing else 'done' }}", reason: Xid 79}
- hosts: all
  gather_facts: false
  tasks:
    - gpuops.nvidia.gpu_rollout: {state: closed, run: "{{ run }}", from_variables: true}
      register: closed
      run_once: true
"""


WINDOW = {"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC"}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    server = RealApi(tmp_path_factory.mktemp("api"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def namespace(real: RealApi, request: pytest.FixtureRequest) -> Iterator[str]:
    """A place of its own for the record, and no Nodes but those of the test."""
    name = "t-%s" % digest(request.node.name)
    real.client().create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    client = real.client()
    for each in client.items("/api/v1/nodes"):
        client.delete("/api/v1/nodes/" + each["metadata"]["name"])


def planned(disruption: str = "driver_reload", **more: Any) -> Dict[str, Any]:
    """What gpu_plan returns of a host, as far as a rollout looks at it."""
    return {"converged": disruption == "none", "disruption": disruption, "refusals": [], "unfinished": [], "change": {
        "digest": "" if disruption == "none" else "p", "policy": "q", "board": "8 x 10de:2330",
        "system": "debian-13 x86_64", "runtime": "containerd", "driver_from": "570.1", "driver_to": "580.2",
        "clique": ""}, **more}


def variables(real: RealApi, namespace: str, **more: Any) -> Dict[str, Any]:
    return {"gpu_cluster_kubeconfig": str(real.kubeconfig), "gpu_rollout_namespace": namespace,
            "gpu_planned": planned(), "run": "run-1", "patience": 120, "failing": [], **more}


def add_nodes(real: RealApi, names: Sequence[str]) -> None:
    client = real.client()
    for name in names:
        client.create("/api/v1/nodes", node(name))


def of_hosts(controller: Controller, hosts: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
    """The words that give hosts variables of their own."""
    path = controller.directory / "of_hosts.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    return "--inventory", str(path)


def ask(controller: Controller, options: Mapping[str, Any], *words: str, **given: Any) -> Dict[str, Any]:
    [[result, *_same]] = controller.tasks(
        [{MODULE: {"from_variables": True, **options}, "run_once": True}], *words, **given)
    assert list(undocumented(result, returned("gpu_rollout"))) == [], result
    return result


def names(number: int) -> List[str]:
    return ["gpu-%d" % each for each in range(number)]


def test_all_hosts_are_planned_by_one_task(controller: Controller, real: RealApi, namespace: str) -> None:
    """Those too that could not be asked, that need nothing, and whose node somebody else has."""
    add_nodes(real, names(6))
    real.client().patch("/api/v1/nodes/gpu-3", {"spec": {"unschedulable": True}})
    refusal = {"code": "driver.version_not_offered", "found": "a", "wanted": "b", "remedy": "c", "option": ""}
    own = of_hosts(controller, {
        "gpu-0": {"gpu_planned": planned("none")}, "gpu-1": {"gpu_planned": planned("service_restart")},
        "gpu-2": {"gpu_planned": {"unreachable": True, "msg": "unreachable"}},
        "gpu-4": {"gpu_planned": planned(refusals=[refusal])}})
    result = ask(controller, {"state": "planned", "limit": 3}, *own, hosts=names(7),
                 variables=variables(real, namespace))
    assert not result.get("failed"), result
    places = {name: told["place"] for name, told in result["of_hosts"].items()}
    assert places == {"gpu-0": "beside", "gpu-1": "beside", "gpu-2": "refused", "gpu-3": "refused",
                      "gpu-4": "refused", "gpu-5": "canary", "gpu-6": "in_order"}
    assert result["order"] == ["gpu-0", "gpu-1", "gpu-5", "gpu-6"]
    for words in ("[rollout.cordoned_by_others]", "[rollout.unreachable]", "[driver.version_not_offered]",
                  "canary of 8 x 10de:2330, debian-13 x86_64, containerd, driver 570.1 to 580.2"):
        assert words in result["text"]
    (cluster,) = result["clusters"]
    assert cluster["decision"]["may_start"] == ["host gpu-5"] and cluster["held"] == []
    assert "places: 1 of 3 free; 1 cordoned by others (gpu-3); 1 unreachable (gpu-2)" in cluster["text"]
    assert real.client().find(PATH % namespace) is None


def test_a_selector_that_does_not_name_the_nodes_of_its_own_hosts_is_told(
    controller: Controller, real: RealApi, namespace: str
) -> None:
    add_nodes(real, names(3))
    for name, team in (("gpu-0", "a"), ("gpu-1", "b")):
        real.client().patch("/api/v1/nodes/" + name, {"metadata": {"labels": {"team": team}}})
    result = ask(controller, {"state": "planned"}, hosts=["gpu-0", "gpu-1", "gpu-9"], variables=variables(
        real, namespace, gpu_rollout_label_selector="team=a", gpu_rollout_limit=1))
    [told] = result["warnings"]
    assert "`gpu_rollout_label_selector`" in told and told.endswith(": gpu-1"), told
    assert result["clusters"][0]["rollout"]["hosts"]["gpu-1"].get("in_service", True)


def test_hosts_run_at_their_own_pace_within_the_budget(controller: Controller, real: RealApi, namespace: str) -> None:
    add_nodes(real, names(8))
    path = controller.directory / "run.yml"
    path.write_text(RUN)
    with watched(real, PATH % namespace) as versions:
        done = controller.play(str(path), "--forks", "5", hosts=names(8), variables=variables(
            real, namespace, gpu_rollout_limit=2, gpu_rollout_max_failures=1, failing=["gpu-4"]))
    assert done.returncode == 0, done.stdout + done.stderr
    pools = [read_record((each.get("data") or {}).get("record", "")).pool("gpus") for each in versions]
    assert max(len(pool.slots) for pool in pools) == 2
    # The canary was alone until it had passed
    alone = [pool for pool in pools if not pool.proofs]
    assert max(len(pool.slots) for pool in alone) == 1
    last = [pool for pool in pools if pool.rollout is None][-1]
    assert {name: slot.reason for name, slot in last.slots.items()} in ({"gpu-4": "Xid 79"},)
    again = ask(controller, {"state": "planned"}, hosts=names(8), variables=variables(real, namespace))
    assert again["of_hosts"]["gpu-4"]["place"] == "refused" and "[rollout.failed_before]" in again["text"]
    freed = ask(controller, {"state": "ended", "name": "gpu-4", "outcome": "freed"}, hosts=["gpu-0"],
                variables=variables(real, namespace))
    assert freed["changed"] and not ask(controller, {"state": "ended", "name": "gpu-4", "outcome": "freed"},
                                        hosts=["gpu-0"], variables=variables(real, namespace))["changed"]


def test_two_controllers_share_it_and_another_rollout_waits(
    controller: Controller, real: RealApi, namespace: str, tmp_path: Path
) -> None:
    add_nodes(real, names(6))
    (tmp_path / "other").mkdir()
    other = Controller(tmp_path / "other")
    path = controller.directory / "run.yml"
    path.write_text(RUN)
    common = {"gpu_rollout_canaries": "none", "gpu_rollout_limit": 2}
    with watched(real, PATH % namespace) as versions:
        first = controller.start(str(path), "--forks", "3", hosts=names(3), variables=variables(
            real, namespace, **common))
        second = other.start(str(path), "--forks", "3", hosts=names(6)[3:], variables=variables(
            real, namespace, run="run-2", **common))
        told = [process.communicate(timeout=200) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), told
    pools = [read_record((each.get("data") or {}).get("record", "")).pool("gpus") for each in versions]
    assert max(len(pool.slots) for pool in pools) == 2
    assert {slot.run for pool in pools for slot in pool.slots.values()} == {
        "run-1@" + socket.gethostname(), "run-2@" + socket.gethostname()}
    assert {name for pool in pools for name in (pool.rollout.done if pool.rollout else ())} == set(names(6))


def test_a_run_that_waits_is_told_for_whom(controller: Controller, real: RealApi, namespace: str) -> None:
    add_nodes(real, names(2))
    given = variables(real, namespace)
    whole = {"hosts": names(2), "variables": given}
    tasks = [{MODULE: {"state": "planned", "run": "a", "from_variables": True}, "register": "rollout",
              "run_once": True},
             {MODULE: {"state": "start", "run": "a", "planned": "{{ rollout }}", "from_variables": True},
              "when": "inventory_hostname == rollout.order[0]"},
             {MODULE: {"state": "start", "run": "b", "planned": "{{ other }}", "from_variables": True, "timeout": 1,
                       "interval": 1}, "when": "inventory_hostname == rollout.order[1]", "vars": {
                 "other": "{{ {'clusters': [rollout.clusters[0] | combine({'options': "
                          "rollout.clusters[0].options | combine({'aim': 'other'})})]} }}"}},
             *({MODULE: {"state": "closed", "run": run, "from_variables": True}, "run_once": True} for run in "ba")]
    results = controller.tasks(tasks, **whole)
    (waits,) = [each for each in results[2] if not each.get("skipped")]
    assert not waits["started"] and waits["waiting"]["cause"] == "rollout" and waits["waited"] >= 1
    assert "run a@%s of " % socket.gethostname() in waits["waiting"]["why"]
    assert "has another rollout open" in waits["waiting"]["why"]
    assert list(undocumented(waits, returned("gpu_rollout"))) == []
    assert [run["run"] for run in results[3][0]["open"]["runs"]] == ["a@" + socket.gethostname()]
    for closed, told in ((results[3][0], False), (results[4][0], True)):
        (slot,) = closed["held"]
        assert slot["state"] == WORKING and ("what became of it is not known" in slot["told"]) == told


def test_what_has_a_place_is_asked_for_first_whoever_began_with_it(
    controller: Controller, real: RealApi, namespace: str
) -> None:
    """Hosts that wait for it would keep it from the forks."""
    add_nodes(real, names(4))
    given = variables(real, namespace, gpu_rollout_canaries="none")
    results = controller.tasks([
        {MODULE: {"state": "planned", "run": "a", "from_variables": True}, "register": "rollout", "run_once": True},
        {MODULE: {"state": "start", "run": "a", "planned": "{{ rollout }}", "from_variables": True},
         "when": "inventory_hostname == rollout.order[2]"},
        {MODULE: {"state": "planned", "run": "b", "from_variables": True}, "run_once": True}],
        hosts=names(4), variables=given)
    before, after = (results[number][0]["order"] for number in (0, 2))
    assert after == [before[2], before[0], before[1], before[3]]


def test_who_is_taken_with_a_host_is_seen_once_a_server_that_is_away_is_back() -> None:
    """It has its place by then, and others of its unit may be at work."""
    passing, server = Time(), store_client.StoreClient(Store())

    def away(_number: int) -> None:
        if passing.now < 100:
            raise store_client.no_answer()

    server.before = away
    budget = Budget(server, "gpuops", "gpus", NodeReading(), lambda run: True, clock=passing.clock,
                    sleep=passing.sleep)
    action = ActionModule.__new__(ActionModule)
    action._host = "h1"
    hosts = {name: Host(name, "n-" + name) for name in ("h1", "h2", "h3")}
    of_unit: Any = SimpleNamespace(hosts=tuple(hosts))
    rollout: Any = SimpleNamespace(hosts=hosts)
    assert action._together(budget, "gpus", rollout, of_unit, Answer(before={"n-h1": None, "n-h2": None})) == ["h2"]


@pytest.mark.variation
def test_a_run_that_was_killed_says_of_none_of_its_hosts_that_it_waits_still(
    controller: Controller, real: RealApi, namespace: str
) -> None:
    """The processes of its tasks live on: of one that has its place and is at work, and of one that waits."""
    add_nodes(real, names(2))
    path = controller.directory / "run.yml"
    path.write_text(RUN.replace("sleep 0.2", "sleep 60").replace("interval: 1}", "interval: 1, lease_seconds: 4}"))

    def seen() -> Mapping[str, datetime]:
        found = real.client().find(PATH % namespace) or {}
        opened = read_record((found.get("data") or {}).get("record", "")).pool("gpus").rollout
        return {name: run.seen for name, run in opened.runs.items()} if opened is not None else {}

    run = controller.start(str(path), hosts=names(2), variables=variables(real, namespace))
    begun, _there = wait_for(seen, bool, 60, 0.2)
    goes_on, _in_time = wait_for(seen, lambda now: now != begun, 30, 0.2)
    assert goes_on != begun, "it says so while it waits"
    run.send_signal(signal.SIGKILL)
    time.sleep(2)
    then = seen()
    time.sleep(4)
    assert seen() == then


def test_check_mode_says_what_would_be_and_writes_nothing(
    controller: Controller, real: RealApi, namespace: str
) -> None:
    add_nodes(real, names(2))
    tasks = [{MODULE: {"state": "planned", "from_variables": True}, "register": "rollout", "run_once": True},
             {MODULE: {"state": "start", "run": "a", "planned": "{{ rollout }}", "from_variables": True}},
             {MODULE: {"state": "ended", "run": "a", "planned": "{{ rollout }}", "from_variables": True,
                       "outcome": "failed", "reason": "x"}},
             {MODULE: {"state": "closed", "run": "a", "from_variables": True}, "run_once": True}]
    _planned, started, over, _closed = controller.tasks(
        tasks, "--check", hosts=names(2), variables=variables(real, namespace))
    assert sorted(each["started"] for each in started) == [False, True]
    assert all(each["changed"] for each in over) and real.client().find(PATH % namespace) is None


@pytest.mark.parametrize("given, words", [
    ({"gpu_rollout_limit": "many"}, "`gpu_rollout_limit` is 'many'"),
    ({"gpu_rollout_windows": [{"days": "caturday"}]}, "entry 1 of `gpu_rollout_windows` has no start"),
    ({"gpu_rollout_limit": "{{ 1 if inventory_hostname == 'gpu-0' else 2 }}"},
     "say different things of `gpu_rollout_limit`: 1 on gpu-0; 2 on gpu-1"),
])
def test_a_slip_is_refused_in_the_words_of_who_made_it(
    controller: Controller, real: RealApi, namespace: str, given: Dict[str, Any], words: str
) -> None:
    result = ask(controller, {"state": "planned"}, hosts=names(2), variables=variables(real, namespace, **given))
    assert result["failed"] and words in result["msg"]


@pytest.mark.parametrize("options, words", [
    ({"state": "start"}, "`planned`"), ({"state": "ended"}, "`outcome`"),
    ({"state": "ended", "outcome": "failed", "run": "a"}, "`reason`")])
def test_what_is_missing_is_named(controller: Controller, options: Dict[str, Any], words: str) -> None:
    result = ask(controller, options, hosts=["gpu-0"])
    assert result["code"] == "cluster.rollout_option_missing" and ("without %s" % words) in result["msg"]


def test_a_rollout_that_does_not_know_the_host_is_refused(
    controller: Controller, real: RealApi, namespace: str
) -> None:
    result = ask(controller, {"state": "start", "run": "a", "planned": {"clusters": [{"hosts": ["other"]}]}},
                 hosts=["gpu-0"], variables=variables(real, namespace))
    assert result["code"] == "cluster.rollout_not_planned"


def test_hosts_of_no_cluster_have_an_order_and_no_budget(controller: Controller) -> None:
    tasks = [{MODULE: {"state": "planned", "from_variables": True}, "register": "rollout", "run_once": True},
             {MODULE: {"state": "start", "run": "a", "planned": "{{ rollout }}", "from_variables": True}}]
    told, started = controller.tasks(tasks, hosts=names(3), variables={"gpu_planned": planned()})
    assert [(each["name"], each["alone"]) for each in told[0]["clusters"]] == [("", True)]
    assert len(told[0]["order"]) == 3
    assert all(each["started"] and "in no cluster" in each["notes"][0] for each in started)


@pytest.mark.parametrize("is_frozen, later, small", [
    (False, "driver_reload", False), (True, "driver_reload", True), (True, "reboot", None)])
def test_a_reboot_that_the_driver_may_ask_for_waits_for_the_window_in_no_cluster_too(
    controller: Controller, is_frozen: bool, later: str, small: Optional[bool]
) -> None:
    """Beside that nothing waits for a driver that is not loaded."""
    tasks = [{MODULE: {"state": "planned", "from_variables": True}, "register": "rollout"},
             *({MODULE: {"state": "start", "run": "a", "planned": "{{ rollout }}", "from_variables": True, "timeout": 0,
                         **more}, "failed_when": False} for more in ({}, {"was_small": False}))]
    [_planned, [started], [again]] = controller.tasks(tasks, hosts=names(1), variables={
        "gpu_planned": planned(disruption="service_restart", may_disturb=later),
        "gpu_rollout_freezes": [freeze()] if is_frozen else []})
    assert started["started"] == (small is not None) and started["allowed_later"] == "driver_reload", started
    assert small is None or started["small"] == small
    # What it was let begin for, while its window was open, is not known to be small
    assert again["started"] == (not is_frozen), again


def test_an_order_beside_a_cluster_that_is_away_is_not_alone(controller: Controller) -> None:
    """People could not tell of which hosts it is."""
    own = of_hosts(controller, {"gpu-0": {"gpu_cluster_kubeconfig": "/nowhere/config"}})
    result = ask(controller, {"state": "planned"}, *own, hosts=names(2), variables={"gpu_planned": planned()})
    assert [(each["name"], each["failed"], each["alone"]) for each in result["clusters"]] == [
        ("/nowhere/config", True, False), ("", False, False)]


@pytest.mark.parametrize("option, empty", [("windows", ""), ("windows", None), ("freezes", " "), ("unit_modes", "")])
def test_windows_that_nobody_has_filled_in_open_none(controller: Controller, option: str, empty: Any) -> None:
    """A survey's question without an answer counts more than the windows of the inventory."""
    variable = "gpu_rollout_" + option
    result = ask(controller, {"state": "planned"}, "-e", json.dumps({variable: empty}), hosts=["gpu-1"],
                 variables={"gpu_planned": planned(), variable: [WINDOW]})
    assert result["failed"] and "`%s`" % variable in result["msg"] and result["option"] == variable


def test_groups_of_windows_are_those_of_the_whole_inventory(controller: Controller) -> None:
    """Whatever the run is limited to."""
    result = ask(controller, {"state": "planned"}, "--limit", "gpu-1", hosts=["gpu-1", "gpu-2"],
                 groups={"racks": ["gpu-2"], "empty": []}, variables={
                     "gpu_planned": planned(), "gpu_rollout_windows": [WINDOW], "gpu_rollout_freezes": [
                         {"from": "2026-12-20", "to": "2027-01-06", "reason": "year's end",
                          "groups": ["racks", "empty", "ungrouped", "rakcs"]}]})
    assert result["code"] == "rollout.group_unknown" and result["option"] == "gpu_rollout_freezes", result
    assert result["found"] == "entry 1 of `gpu_rollout_freezes`: the inventory has no group 'rakcs'"


def test_a_list_in_text_is_told_to_be_text(controller: Controller) -> None:
    result = ask(controller, {"state": "planned"}, hosts=["gpu-1"], variables={
        "gpu_planned": planned(), "gpu_rollout_windows": json.dumps([WINDOW, WINDOW]),
        "gpu_rollout_unit_modes": '{"c.1": "rolling"}'})
    assert [each["code"] for each in result["refusals"]] == ["rollout.entries_no_list"]
    assert "`gpu_rollout_windows` is text, '[{" in result["msg"] and "-e '{" in result["msg"]


# As users write them: the second time, the host has been validated with its new driver
CHECKS = [
    {"ansible.builtin.set_fact": {"gpu_rollout_found": "{{ found if gpu_validation_host is defined else [] }}"}},
    {"ansible.builtin.fail": {"msg": "4 GB/s"}, "when": "slow | bool and gpu_validation_host is defined"}]


@pytest.mark.parametrize("found, slow, words", [
    (["Xid 31"], False, "Xid 31"), pytest.param([], True, "4 GB/s", marks=pytest.mark.variation)])
def test_what_checks_of_the_users_find_of_a_changed_host_stops_what_follows(
    controller: Controller, real: RealApi, namespace: str, found: List[str], slow: bool, words: str
) -> None:
    add_nodes(real, ("gpu-1", "gpu-2"))
    path = controller.directory / "checks.yml"
    path.write_text(json.dumps(CHECKS))
    hosts = canned.Hosts(controller, real)  # type: ignore[arg-type]
    told = hosts.site({"gpu_plan": canned.planned(Plan(steps=(DRIVER,)))}, "--forks", "1", hosts=("gpu-1", "gpu-2"),
                      gpu_rollout_namespace=namespace, gpu_rollout_timeout=1, gpu_rollout_checks=str(path),
                      found=found, slow=slow)
    begun = [hosts.calls("gpu_driver_activation", name) for name in ("gpu-1", "gpu-2")]
    assert sorted(begun) == [0 if words else 1, 1] and words in told, told
