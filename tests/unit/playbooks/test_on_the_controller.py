# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What runs on the controller needs neither root nor sudo there, whatever the inventory says about the hosts."""
from __future__ import annotations

import importlib
import json
from typing import Any, Dict, Iterator, Mapping, Set

import pytest
import role_files
import yaml
from cluster_api import Api
from cluster_objects import h100_node, node
from controller import Controller
from documentation import returned, undocumented
from object_store import Store
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import argument_spec
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS

TASK_FILES = [*sorted(REPOSITORY.glob("roles/*/tasks/*.yml")), *sorted(REPOSITORY.glob("playbooks/**/*.yml"))]


def tasks(content: Any) -> Iterator[Dict[str, Any]]:
    """Every task of a task file or playbook, those in blocks and handlers too."""
    for entry in content or ():
        if isinstance(entry, dict):
            yield entry
            for part in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
                yield from tasks(entry.get(part))


def test_no_task_is_delegated_and_so_none_needs_a_python_or_become_on_the_controller() -> None:
    """What talks to a cluster runs where Ansible runs, by its action plugin.

    A host that has no power runs no module, and those that give it power are somebody else's: they need a Python there,
    where an inventory asks for one, and never become.
    """
    everything = [(path, task) for path in TASK_FILES for task in tasks(yaml.safe_load(path.read_text()))]
    assert len(everything) > 50
    delegated = [(path.relative_to(REPOSITORY / "playbooks").as_posix(), task["delegate_to"], task.get("become"))
                 for path, task in everything if "delegate_to" in task]
    assert set(delegated) == {("tasks/power_cycle.yml", "localhost", False)}


def test_become_of_the_inventory_stays_on_the_hosts(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("host-1")]
    play = controller.directory / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [
        {"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "{{ item }}"},
         "loop": ["check", "take", "renew", "give_back", "label", "unlabel"]}]}]))
    done = controller.play(str(play), variables={
        "gpu_cluster_kubeconfig": str(api.kubeconfig), "ansible_user": "admin", "ansible_become": True,
        "ansible_become_exe": "/nonexistent/sudo", "ansible_connection": "ssh"},
        # Else a root that runs these tests becomes root by doing nothing.
        environment={"ANSIBLE_BECOME_ALLOW_SAME_USER": "true"})
    assert done.returncode == 0, done.stdout
    assert api.state.nodes[0]["metadata"]["labels"] == {"kubernetes.io/hostname": "host-1"}
    assert "unschedulable" not in api.state.nodes[0]["spec"]
    assert len([request for request in api.state.requests if request.method == "PATCH"]) > 4


def test_no_host_is_asked_for_the_cluster(controller: Controller, api: Api) -> None:
    """Not over ssh, with no Python of the host, and where no become is possible: its Node is the cluster's."""
    api.state.nodes = [node("host-1")]
    results = controller.tasks(
        [{"gpuops.nvidia.gpu_node": {"name": "host-1", "labels": {"of": "ours"}}},
         {"gpuops.nvidia.gpu_cluster_info": {}},
         {"gpuops.nvidia.gpu_pods": {"node": "host-1"}},
         {"gpuops.nvidia.gpu_pod_eviction": {"node": "host-1"}}],
        variables={"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "ansible_become": True,
                   "ansible_python_interpreter": "/nonexistent/python"},
        environment={"K8S_AUTH_KUBECONFIG": str(api.kubeconfig), "ANSIBLE_TIMEOUT": "1"})
    assert [[result.get("msg") for result in task if result.get("failed") or result.get("unreachable")]
            for task in results] == [[], [], [], []]
    assert api.state.nodes[0]["metadata"]["labels"]["of"] == "ours"


def test_the_environment_that_a_task_says_counts(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("host-1")]
    [[told]] = controller.tasks([{"gpuops.nvidia.gpu_cluster_info": {},
                                  "environment": {"K8S_AUTH_KUBECONFIG": str(api.kubeconfig)}}])
    assert [each["name"] for each in told["nodes"]] == ["host-1"]


def test_a_token_of_the_options_is_in_no_result(controller: Controller, api: Api) -> None:
    [[told]] = controller.tasks([{"gpuops.nvidia.gpu_pods": {"host": api.url, "api_key": "a-wrong-token"}}])
    assert told["failed"] and told["code"] == "cluster.credentials_refused"
    assert "a-wrong-token" not in str({key: value for key, value in told.items() if key != "invocation"})


@pytest.mark.parametrize("module", [
    "gpu_cluster_info", "gpu_components", "gpu_manifests", "gpu_node", "gpu_node_custody", "gpu_pod_eviction",
    "gpu_pods"])
def test_the_options_are_those_of_the_documentation(module: str) -> None:
    """Nobody else compares the two where a module has no code of its own."""
    plugin = importlib.import_module("ansible_collections.gpuops.nvidia.plugins.action." + module)
    documented = role_files.documented_options(module)
    known = ("type", "elements", "choices", "default", "required")
    told = {name: {key: option[key] for key in known if key in option} for name, option in documented.items()
            if name != "from_variables"}
    assert told == {name: {key: option[key] for key in known if key in option}
                    for name, option in plugin.ActionModule.ARGUMENTS.items()}


def of_specification(options: Mapping[str, Any]) -> Dict[str, Any]:
    """What a specification and a documentation both say; the one has 'options' where the other has 'suboptions'."""
    known = ("type", "elements", "choices", "default", "required")
    return {name: {**{key: option[key] for key in known if option.get(key) not in (None, False) or key == "default"
                      and key in option},
                   "inside": of_specification(option.get("options") or option.get("suboptions") or {})}
            for name, option in options.items()}


@pytest.mark.parametrize("module", list(COMPONENTS))
def test_the_options_of_a_component_are_those_of_its_documentation(module: str) -> None:
    documented = {name: option for name, option in role_files.documented_options(module).items()
                  if name not in role_files.OF_TASK}
    assert of_specification(documented) == of_specification(argument_spec(COMPONENTS[module]))


def test_a_malformed_option_is_told_before_the_cluster_is_asked(controller: Controller, api: Api) -> None:
    [[told]] = controller.tasks([{"gpuops.nvidia.gpu_node": {"nmae": "host-1", "kubeconfig": str(api.kubeconfig)}}])
    assert told["failed"] and told["code"] == "cluster.options_malformed" and "nmae" in told["msg"]
    assert api.state.requests == []


def test_every_cluster_of_a_play_is_read_once(controller: Controller, api: Api, tmp_path_factory: Any) -> None:
    """And a host has the Node of its own cluster, whatever the others call theirs."""
    other = Api(tmp_path_factory.mktemp("other"))
    try:
        api.state.nodes = [node("host-1"), h100_node("gpu-9")]
        other.state.nodes = [node("host-1", labels={"of": "other"})]
        path = controller.directory / "play.json"
        path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
            {"ansible.builtin.set_fact": {"gpu_cluster_kubeconfig": str(other.kubeconfig),
                                          "gpu_cluster_node_name": "host-1"},
             "when": "inventory_hostname == 'host-3'"},
            {"gpuops.nvidia.gpu_cluster_info": {"every_cluster": True}, "run_once": True, "register": "told"},
            {"ansible.builtin.copy": {"content": "{{ told | to_json }}", "dest": str(controller.here / "told")},
             "run_once": True}]}]))
        done = controller.play(str(path), hosts=("host-1", "host-2", "host-3"),
                               variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
        assert done.returncode == 0, done.stdout
        told = json.loads((controller.here / "told").read_text())
    finally:
        other.close()
    assert list(undocumented(told, returned("gpu_cluster_info"))) == []
    assert [(each["hosts"], each["others"]) for each in told["clusters"]] == [
        (["host-1", "host-2"], ["gpu-9"]), (["host-3"], [])]
    assert {host: found.get("labels", {}).get("of") for host, found in told["of_hosts"].items()} == {
        "host-1": None, "host-2": None, "host-3": "other"}
    assert told["of_hosts"]["host-2"] == {} and told["of_hosts"]["host-1"]["name"] == "host-1"
    assert api.count("GET", "/api/v1/nodes") == other.count("GET", "/api/v1/nodes") == 1


@pytest.mark.parametrize("of_host_2, code", [
    ({"gpu_cluster_node_name": "host-1"}, "cluster.one_node_of_several_hosts"),
    ({"gpu_validation_pod": "{{ nobody_says_it }}"}, "variables.not_worked_out"),
    ({"gpu_validation_pod_namespace": "{{ nobody_says_it }}"}, "variables.not_worked_out"),
    ({"gpu_cluster_node_name": "{{ nobody_says_it }}"}, "variables.not_worked_out"),
])
def test_what_is_wrong_with_one_host_is_its_own(
    controller: Controller, api: Api, of_host_2: Dict[str, Any], code: str
) -> None:
    """Two hosts that are one Node are wrong both: what is found of one would count for the other."""
    api.state.nodes = [node("host-1"), node("host-2"), node("host-3")]
    path = controller.directory / "play.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.gpu_cluster_info": {"every_cluster": True}, "run_once": True, "register": "told",
         "failed_when": False},
        {"ansible.builtin.copy": {"content": "{{ told | to_json }}", "dest": str(controller.here / "told")},
         "run_once": True}]}]))
    own = controller.directory / "of_host.json"
    own.write_text(json.dumps({"all": {"hosts": {"host-2": of_host_2}}}))
    done = controller.play(str(path), "--inventory", str(own), hosts=("host-1", "host-2", "host-3"),
                           variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
    assert done.returncode == 0, done.stdout
    told = json.loads((controller.here / "told").read_text())
    wrong = ["host-1", "host-2"] if "one_node" in code else ["host-2"]
    assert [(each["hosts"], each.get("code")) for each in told["clusters"]] == [
        (wrong, code), ([host for host in ("host-1", "host-2", "host-3") if host not in wrong], None)]
    assert sorted(told["of_hosts"]) == sorted({"host-1", "host-2", "host-3"} - set(wrong))


@pytest.mark.parametrize("pods, expected", [
    ({}, {"gpu-1": {"", "probes-of-gpu-1"}, "gpu-2": {"", "probes-of-gpu-2", "probes-of-gpu-3"}}),
    ({"gpu-1": False}, {"gpu-1": set(), "gpu-2": {"", "probes-of-gpu-2", "probes-of-gpu-3"}}),
    ({"gpu-2": "no"}, {"gpu-1": {"", "probes-of-gpu-1"}, "gpu-2": {"", "probes-of-gpu-3"}}),
    ({"gpu-2": False, "gpu-3": False}, {"gpu-1": {"", "probes-of-gpu-1"}, "gpu-2": set()}),
])
def test_rights_to_a_probe_are_asked_for_where_the_hosts_of_the_cluster_have_it(
    controller: Controller, api: Api, tmp_path_factory: Any, pods: Dict[str, Any], expected: Dict[str, Set[str]]
) -> None:
    """Each in its cluster and its namespace, whatever the first host of the play says."""
    other = Api(tmp_path_factory.mktemp("other"))
    servers = {"gpu-1": api, "gpu-2": other, "gpu-3": other}
    for name, server in servers.items():
        server.state.nodes, server.state.store = [*server.state.nodes, node(name)], Store()
    try:
        told = controller.tasks(
            [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "check"}}],
            hosts=tuple(servers), variables={
                "gpu_cluster_kubeconfig": "{{ %r[inventory_hostname] }}" % {
                    name: str(server.kubeconfig) for name, server in servers.items()},
                "gpu_validation_pod": "{{ %r.get(inventory_hostname, true) }}" % pods,
                "gpu_validation_pod_namespace": "probes-of-{{ inventory_hostname }}",
                "node_maintenance_rights": ["probe"]})
    finally:
        other.close()
    asked = {name: {request.body["spec"]["resourceAttributes"].get("namespace") or "" for request in
                    servers[name].state.requests if request.path.endswith("/selfsubjectaccessreviews")}
             for name in expected}
    assert asked == expected, told
