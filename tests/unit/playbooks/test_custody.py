# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Custody as a play has it: one run in all of its tasks and processes, another run another one."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from canned import Hosts, planned
from cluster_api import Api
from cluster_objects import node, pod
from controller import Controller
from documentation import returned, undocumented
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step

CUSTODY = "gpuops.nvidia.gpu_node_custody"
HOSTS = ("host-1", "host-2", "host-3")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpuops/leases"
NAME = "{{ inventory_hostname }}"


@pytest.fixture
def store(api: Api) -> Store:
    made = api.state.store = Store(more={"Node": ("v1", "nodes", False)})
    made.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}})
    for name in HOSTS:
        made.put(node(name), "kubelet")
    return made


def played(controller: Controller, api: Api, *tasks: Dict[str, Any], **given: Any) -> List[Any]:
    """[results of a task, host after host] of custody with these options."""
    variables = {"gpu_cluster_kubeconfig": str(api.kubeconfig), **given.pop("variables", {})}
    told = controller.tasks([{CUSTODY: {"from_variables": True, **options}, "ignore_errors": True,
                              "run_once": "hosts" in options} for options in tasks], variables=variables, **given)
    for result in (each for of_task in told for each in of_task):
        documented = returned("gpu_node_custody")
        assert list(undocumented(result, documented)) == [], result
        if result.get("custody"):
            assert [key for key, value in documented.items()
                    if value["returned"] == "success, with O(name)" and key not in result] == []
    return told


def test_all_tasks_of_a_run_are_one_run_and_the_next_run_names_it(
    controller: Controller, api: Api, store: Store
) -> None:
    taken, renewed = played(controller, api, {"name": NAME, "state": "taken"}, {"name": NAME, "state": "renewed"},
                            hosts=HOSTS[:2])
    assert [each["custody"] for each in (*taken, *renewed)] == ["taken"] * 2 + ["renewed"] * 2, (taken, renewed)
    run, = {each["run"] for each in (*taken, *renewed)}
    [[refused]] = played(controller, api, {"name": NAME, "state": "taken", "wait_timeout": 0})
    assert refused["code"] == "cluster.node_held" and refused["holder"] == run and run in refused["msg"]
    [[returned_by_name]] = played(controller, api, {"name": NAME, "state": "returned", "run": run.partition("@")[0]})
    assert returned_by_name["custody"] == "returned" and not returned_by_name["node"]["unschedulable"]


def test_who_is_taken_together_with_a_host_that_the_play_does_not_have_is_not_taken(
    controller: Controller, api: Api, store: Store
) -> None:
    [[refused]] = played(controller, api, {"name": NAME, "state": "taken", "together": ["host-2"]})
    assert refused["code"] == "cluster.hosts_not_of_play", refused
    assert "`node_maintenance_together` names host-2" in refused["found"]
    assert store.get("Node", "", "host-1")["spec"].get("unschedulable") is None


def test_a_refusal_names_the_role_s_variables_where_those_of_the_hosts_count(
    controller: Controller, api: Api, store: Store
) -> None:
    store.more["PodDisruptionBudget"] = ("policy/v1", "poddisruptionbudgets", True)
    store.put(pod("bare", owner=None, node_name="host-1"))
    taken = {"name": NAME, "state": "taken"}
    told = played(
        controller, api, taken, {**taken, "lease_seconds": 0}, {**taken, "together": ["host-1"]},
        {"hosts": ["host-1"], "state": "taken"}, {**taken, "from_variables": False, "kubeconfig": str(api.kubeconfig)},
        variables={"node_maintenance_timeout": 0})
    lost, short, beside, of_many, by_option = [result for [result] in told]
    for refused in (lost, of_many["of_hosts"]["host-1"]):
        assert refused["option"] == "node_maintenance_force", refused["msg"]
        assert "with `node_maintenance_force`." in refused["msg"]
    assert "`node_maintenance_lease_seconds` is 0 and `node_maintenance_wait_timeout` is 900" in short["found"]
    assert "`node_maintenance_timeout` is 0" in beside["found"]
    assert by_option["option"] == "force" and "with `force`." in by_option["msg"]


def test_a_job_of_awx_is_told(controller: Controller, api: Api, store: Store) -> None:
    [[taken]] = played(controller, api, {"name": NAME, "state": "taken"}, variables={"awx_job_id": 4711})
    assert taken["run"].startswith("awx-4711-")


def test_many_nodes_that_nobody_has_cost_a_request_each_and_one_list(
    controller: Controller, api: Api, store: Store
) -> None:
    options = {"hosts": "{{ ansible_play_hosts }}", "state": "returned"}
    [[told, *_same]] = played(controller, api, options, hosts=HOSTS)
    assert told["changed"] and not told.get("failed") and set(told["of_hosts"]) == set(HOSTS)
    api.state.requests.clear()
    [[again, *_same]] = played(controller, api, options, hosts=HOSTS)
    assert not again["changed"]
    assert api.count("GET", LEASES) == 1 and len(api.state.requests) == 1 + len(HOSTS)


def test_one_of_many_that_another_run_has_keeps_no_other_back(
    controller: Controller, api: Api, store: Store
) -> None:
    played(controller, api, {"name": "host-2", "state": "taken", "run": "other"})
    [[told, *_same]] = played(controller, api, {
        "hosts": "{{ ansible_play_hosts }}", "state": "returned", "wait_timeout": 0}, hosts=HOSTS)
    assert {host: each.get("code") for host, each in told["of_hosts"].items()} == {
        "host-1": None, "host-2": "cluster.node_held", "host-3": None}


def test_check_mode_leaves_everything_as_it_is(controller: Controller, api: Api, store: Store) -> None:
    there = [{"name": NAME, "state": state} for state in ("taken", "renewed", "returned")]
    told = controller.tasks([{CUSTODY: {"from_variables": True, **options}} for options in there], "--check", "--diff",
                            variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
    assert [task[0]["changed"] for task in told] == [True, False, False], told
    assert told[0][0]["diff"]["after"] and store.writes == []


@pytest.mark.parametrize("options, code", [
    ({"name": "host-1", "run": "no name"}, "cluster.run_malformed"),
    ({"name": "host-1", "lease_seconds": 0}, "cluster.custody_seconds_malformed"),
    ({"name": "host-1", "wait_timeout": -1}, "cluster.custody_seconds_malformed"),
    ({"name": "host-1", "drain": False, "timeout": 0}, "cluster.drain_without_time"),
    ({"name": "host-1", "drain": False, "timeout": -5}, "cluster.time_negative"),
    ({}, "cluster.custody_of_one_or_many"),
    ({"name": "host-1", "hosts": ["host-1"]}, "cluster.custody_of_one_or_many")])
def test_what_makes_no_sense_is_refused_before_the_cluster_is_asked(
    controller: Controller, api: Api, store: Store, options: Dict[str, Any], code: str
) -> None:
    [[told, *_same]] = played(controller, api, {"state": "taken", **options})
    assert told["code"] == code and api.state.requests == []


@pytest.mark.parametrize("options, is_kept", [({}, True), pytest.param(
    {"node_maintenance_skip_selector": ""}, False, marks=pytest.mark.variation)])
def test_a_pod_that_a_label_keeps_on_its_gpus_is_refused_with_the_option_that_lets_it_go(
    in_words: Hosts, options: Dict[str, Any], is_kept: bool
) -> None:
    """NVIDIA's controller looks at the label in its full drain alone, and takes such a pod off."""
    offer = {"nvidia.com/gpu": "1"}
    in_words.api.state.nodes = [node("gpu-1", allocatable=offer, capacity=offer)]
    in_words.api.state.pods = [pod("a", labels={"nvidia.com/gpu-driver-upgrade-drain.skip": "true"})]
    driver = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
    told = " ".join(in_words.site({"gpu_plan": planned(Plan(steps=(driver,)))}, gpu_components=[], **options).split())
    assert ("[playbook.pods_that_stay]" in told) == is_kept == bool(in_words.api.state.pods), told
    assert in_words.calls("gpu_driver_activation") == (0 if is_kept else 1)
    if is_kept:
        assert "team/a, which has a label that `skip_selector` names" in told
        assert "(`node_maintenance_skip_selector`, empty for no label)" in told
        assert not in_words.api.state.nodes[0]["spec"].get("unschedulable")
