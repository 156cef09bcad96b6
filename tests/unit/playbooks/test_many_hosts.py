# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One task for the Nodes of many hosts: each as its own variables say, whatever befalls the others."""
from __future__ import annotations

import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Mapping, Tuple

import pytest
from cluster_api import Api, kubeconfig
from cluster_objects import node
from controller import VARIABLES, Controller
from documentation import returned, undocumented
from kubernetes.config import kube_config
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_cluster import Probe, state_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import many_hosts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.clusters import PlayCluster
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.many_hosts import AT_ONCE, NO_ANSWER, Clients
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import defaults

PLAYBOOKS = REPOSITORY / "playbooks"
HOSTS = ("host-1", "host-2", "host-3")
NODE, VALIDATION = "gpuops.nvidia.gpu_node", "gpuops.nvidia.gpu_validation"
EVERY = {"hosts": "{{ ansible_play_hosts }}"}
CHOICE = "nvidia.com/device-plugin.config"


def told(
    controller: Controller, module: str, options: Mapping[str, Any], *words: str, **variables: Any
) -> Dict[str, Any]:
    [[result, *_same]] = controller.tasks([{module: {**EVERY, **options}, "run_once": True}], *words, hosts=HOSTS,
                                          variables=variables)
    assert list(undocumented(result, returned(module.rpartition(".")[2]))) == [], result
    return result


def test_each_has_what_its_own_variables_say(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("host-1"), node("gpu-2"), node("host-3", labels={CHOICE: "theirs"})]
    variables = {
        "gpu_cluster_kubeconfig": str(api.kubeconfig),
        "gpu_cluster_node_name": "{{ 'gpu-2' if inventory_hostname == 'host-2' else inventory_hostname }}",
        "device_plugin_config_name": "{{ {'host-1': 'shared', 'host-3': 'shared'}.get(inventory_hostname, '') }}",
        "node_maintenance_labels": {"of": "{{ inventory_hostname }}", "on": True}}
    result = told(controller, NODE, {}, **variables)
    assert not result.get("failed") and result["changed"], result
    labels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in api.state.nodes}
    assert {name: (found["of"], found["on"], found.get(CHOICE)) for name, found in labels.items()} == {
        "host-1": ("host-1", "true", "shared"), "gpu-2": ("host-2", "true", None),
        "host-3": ("host-3", "true", "theirs")}
    assert result["of_hosts"]["host-3"]["notes"] == [
        "label %s=theirs of node host-3 was set by others and stays" % CHOICE]
    assert not told(controller, NODE, {}, **variables)["changed"]


def test_one_that_fails_keeps_nobody_back(controller: Controller, api: Api) -> None:
    """Be it its Node, its cluster or its variables."""
    api.state.nodes = [node("host-1"), node("host-3")]
    result = told(
        controller, NODE, {"labels": {"on": "x"}}, gpu_cluster_kubeconfig=str(api.kubeconfig),
        node_maintenance_take_over="{{ 'perhaps' if inventory_hostname == 'host-3' else false }}")
    assert {host: (found["failed"], found.get("code")) for host, found in result["of_hosts"].items()} == {
        "host-1": (False, None), "host-2": (True, "cluster.no_such_node"), "host-3": (True, "variables.malformed")}
    elsewhere = told(controller, NODE, {"labels": {"on": "x"}}, gpu_cluster_kubeconfig=(
        "{{ '/nowhere' if inventory_hostname == 'host-3' else '%s' }}" % api.kubeconfig))
    assert [found["failed"] for found in elsewhere["of_hosts"].values()] == [False, True, True]


def of_host(controller: Controller, host: str, **variables: Any) -> Tuple[str, str]:
    """The words that give one host variables of its own."""
    path = controller.directory / "of_host.json"
    path.write_text(json.dumps({"all": {"hosts": {host: variables}}}))
    return "--inventory", str(path)


@pytest.mark.parametrize("broken", [
    {"gpu_cluster_node_name": "{{ {}['of'] | mandatory }}"}, {"gpu_cluster_kubeconfig": "{{ nobody_says_it }}"},
    {"node_maintenance_labels": {"on": "{{ nobody_says_it }}"}}])
def test_a_variable_that_cannot_be_worked_out_is_its_host_s(
    controller: Controller, api: Api, broken: Dict[str, Any]
) -> None:
    api.state.nodes = [node(name) for name in HOSTS]
    result = told(controller, NODE, {}, *of_host(controller, "host-2", **broken),
                  gpu_cluster_kubeconfig=str(api.kubeconfig))
    assert {host: (found["failed"], found.get("code")) for host, found in result["of_hosts"].items()} == {
        "host-1": (False, None), "host-2": (True, "variables.not_worked_out"), "host-3": (False, None)}


def test_a_default_of_a_role_in_the_play_is_not_said_by_the_play(controller: Controller, api: Api) -> None:
    """It has the defaults among the variables of the task, which runs for a host that says nothing else."""
    api.state.nodes = [node(name) for name in HOSTS]
    check = {"ansible.builtin.import_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "check"}}
    controller.tasks([check, {NODE: EVERY, "run_once": True}],
                     *of_host(controller, "host-2", node_maintenance_labels={"own": "x"}), hosts=HOSTS,
                     variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
    assert [(found.get("own"), found.get("nvidia.com/gpu.present")) for found in (
        each["metadata"]["labels"] for each in api.state.nodes)] == [(None, "true"), ("x", None), (None, "true")]


def test_a_host_that_the_play_does_not_have_is_no_silent_success(controller: Controller, api: Api) -> None:
    api.state.nodes = [node(name) for name in HOSTS]
    [[result]] = controller.tasks([{NODE: {"hosts": ["host-1", "hots-2"]}, "run_once": True}], hosts=HOSTS,
                                  variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
    assert result["failed"] and result["code"] == "cluster.hosts_not_of_play" and "hots-2" in result["found"]
    assert api.count("PATCH", "/api/v1/nodes/host-1") == 0


@pytest.mark.parametrize("options", [{}, {"name": "host-1", **EVERY}, {"components": ["device_plugin"], **EVERY}])
def test_one_node_or_those_of_hosts(controller: Controller, options: Dict[str, Any]) -> None:
    [[result]] = controller.tasks([{NODE: options}])
    assert result["failed"] and result["code"] == "cluster.one_node_or_hosts"


def test_check_mode_and_diff_tell_of_every_node(controller: Controller, api: Api) -> None:
    api.state.nodes = [node(name) for name in HOSTS]
    before = json.dumps(api.state.nodes)
    result = told(controller, NODE, {"labels": {"on": "x"}}, "--check", "--diff",
                  gpu_cluster_kubeconfig=str(api.kubeconfig))
    assert len(result["diff"]) == 3 and result["changed"] and all(
        each["after"]["labels"]["on"] == "x" for each in result["diff"])
    assert json.dumps(api.state.nodes) == before


def offers(count: int) -> Dict[str, Any]:
    return {"allocatable": {"nvidia.com/gpu": str(count)}, "capacity": {"nvidia.com/gpu": str(count)}}


def test_what_the_cluster_offers_is_judged_host_by_host(controller: Controller, api: Api) -> None:
    api.state.nodes = [node("host-1", **offers(2)), node("host-2", **offers(1)), node("host-3", **offers(4))]
    result = told(
        controller, VALIDATION, {"scope": ["cluster"], "timeout": 0}, gpu_cluster_kubeconfig=str(api.kubeconfig),
        gpu_validation_pod=False, gpu_validation_expected_gpus="{{ {'host-3': 1}.get(inventory_hostname, 2) }}",
        device_plugin_config="{{ {'sharing': {'timeSlicing': {'resources': [{'name': 'nvidia.com/gpu', "
                             "'replicas': 4}]}}} if inventory_hostname == 'host-3' else {} }}",
        gpu_validation_devices="{{ {'whole': 1, 'divided': 0, 'empty': 0, 'mig': {}} "
                               "if inventory_hostname == 'host-3' else {} }}")
    assert {host: (found["failed"], [check["status"] for check in found["checks"]])
            for host, found in result["of_hosts"].items()} == {
        "host-1": (False, ["passed"]), "host-2": (True, ["failed"]), "host-3": (False, ["passed"])}
    assert "host-2 offers nvidia.com/gpu: 1 allocatable, 2 expected" in result["of_hosts"]["host-2"]["msg"]


def test_nodes_that_offer_nothing_are_waited_for_together(controller: Controller, api: Api) -> None:
    """A fleet without its device plugin is known for it soon, and one that is a little late is well."""
    hosts = ["host-%d" % number for number in range(3 * AT_ONCE)]
    api.state.nodes = [node(name, **offers(0)) for name in hosts]
    late = threading.Timer(3, lambda: api.state.nodes[AT_ONCE - 1]["status"].update(offers(1)))
    late.start()
    [[result]] = controller.tasks(
        [{VALIDATION: {**EVERY, "scope": ["cluster"], "timeout": 5}, "run_once": True}],
        hosts=hosts, variables={"gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_validation_pod": False,
                                "gpu_validation_expected_gpus": 1})
    late.join()
    asked = [request.path for request in api.state.requests]
    assert [host for host, found in result["of_hosts"].items() if not found["failed"]] == [hosts[AT_ONCE - 1]]
    assert asked.count("/api/v1/nodes/host-0") > 2 * asked.count("/api/v1/nodes/" + hosts[-1])


def test_a_host_itself_is_not_checked_by_a_task_for_many(controller: Controller) -> None:
    [[result]] = controller.tasks([{VALIDATION: EVERY}])
    assert result["failed"] and result["code"] == "validation.hosts_from_controller"


@pytest.mark.parametrize("trusted_for, changes, probed", [
    (3600, {}, []), (0, {}, ["host-1"]), (3600, {"at": 1}, ["host-1"]), (3600, {"of": "another"}, ["host-1"])])
def test_what_a_pod_has_proved_is_not_proved_again(
    controller: Controller, api: Api, trusted_for: int, changes: Dict[str, Any], probed: List[str]
) -> None:
    api.state.nodes = [node("host-1", **offers(2))]
    state = state_of(api.state.nodes[0], [], Probe(
        expected={"nvidia.com/gpu": 2}, divided=False, image=defaults("gpu_validation")["gpu_validation_pod_image"],
        namespace="default", tolerations=[], runtime_class="nvidia", compute="quick"), None)
    proof = {"of": state, "at": int(time.time()) - 60, "evidence": "a pod got /dev/nvidia0", **changes}
    [[result]] = controller.tasks(
        [{VALIDATION: {**EVERY, "scope": ["cluster"], "timeout": 0, "pod_trusted_for": trusted_for}, "run_once": True}],
        hosts=HOSTS[:1], variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_validation_proof": proof,
            "gpu_validation_expected_gpus": 2})
    found = result["of_hosts"]["host-1"]
    assert api.count("POST", "/api/v1/namespaces/default/pods") == len(probed)
    assert found["failed"] == bool(probed)
    if not probed:
        assert found["proof"] == proof and "1 minutes ago a pod got" in found["checks"][-1]["evidence"]


@pytest.mark.parametrize("variable, wrong, code", [
    ("gpu_validation_expected_resources", {"nvidia.com/gpu": "some"}, "validation.no_number_of_devices"),
    ("gpu_validation_devices", {"mig": 3}, "cluster.host_not_understood"),
    ("device_plugin_config", "a text", "cluster.host_not_understood")])
def test_what_nobody_has_foreseen_is_one_hosts_own(
    controller: Controller, api: Api, variable: str, wrong: Any, code: str
) -> None:
    api.state.nodes = [node(name, **offers(2)) for name in HOSTS]
    result = told(
        controller, VALIDATION, {"scope": ["cluster"], "timeout": 0}, gpu_cluster_kubeconfig=str(api.kubeconfig),
        gpu_validation_pod=False, gpu_validation_expected_gpus=2,
        **{variable: "{{ %r if inventory_hostname == 'host-2' else {} }}" % (wrong,)})
    assert {host: found.get("code") for host, found in result["of_hosts"].items()} == {
        "host-1": None, "host-2": code, "host-3": None}


def test_a_number_may_be_written_as_a_text(controller: Controller, api: Api) -> None:
    """As templates make it before ansible-core 2.19."""
    api.state.nodes = [node(name, **offers(2)) for name in HOSTS]
    result = told(
        controller, VALIDATION, {"scope": ["cluster"], "timeout": 0}, gpu_cluster_kubeconfig=str(api.kubeconfig),
        gpu_validation_pod=False, gpu_validation_expected_resources={"nvidia.com/gpu": "2"})
    assert not any(found["failed"] for found in result["of_hosts"].values()), result


@pytest.mark.parametrize("options", [{"hosts": ["host-1"]}, {"name": "host-1", "from_variables": True}])
def test_a_token_that_cannot_be_sent_is_not_shown(controller: Controller, api: Api, options: Dict[str, Any]) -> None:
    """With the line break of the file that it was read from."""
    [[result]] = controller.tasks([{NODE: options}], hosts=HOSTS[:1], variables={
        "gpu_cluster_host": api.url, "gpu_cluster_api_key": "a-very-secret-token\n"})
    assert "very-secret" not in json.dumps(result) + controller.told
    assert result.get("of_hosts", {"host-1": result})["host-1"]["code"] == "cluster.credentials_unusable", result


def test_a_certificate_is_written_before_another_thread_reads_it(tmp_path: Path, monkeypatch: Any) -> None:
    """The library names its file to whoever asks next, written or not."""
    slow = kube_config.__dict__.get("open", open)

    def opened(name: Any, mode: str = "r", *more: Any) -> Any:
        if "w" in mode:
            time.sleep(0.2)
        return slow(name, mode, *more)

    monkeypatch.setattr(kube_config, "open", opened, raising=False)
    settings = kubeconfig("https://127.0.0.1:1")
    settings["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(b"of %d" % time.time()).decode()
    clients, read = Clients(), []

    def connect(_number: int) -> None:
        client = clients.to(Connection(kubeconfig=settings))
        read.append(Path(client._configuration.ssl_ca_cert).read_bytes())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(connect, range(4)))
    assert len(read) == 4 and all(read), read


@pytest.mark.parametrize("begun_by, then", [(SimpleNamespace(pid=7), 1), (None, 7)], ids=["at once", "later"])
def test_who_is_left_alone_by_ansible_playbook_asks_nothing_any_more_whichever_thread_asks(
    api: Api, monkeypatch: pytest.MonkeyPatch, begun_by: Any, then: int
) -> None:
    monkeypatch.setattr(many_hosts.multiprocessing, "parent_process", lambda: begun_by)
    monkeypatch.setattr(many_hosts.os, "getppid", lambda: then)
    clients = Clients()
    monkeypatch.setattr(many_hosts.os, "getppid", lambda: 1)
    with ThreadPoolExecutor(1) as pool:
        client = pool.submit(clients.to, Connection(kubeconfig=str(api.kubeconfig))).result()
    # A list is read by threads of its own
    for ask in (client.get, client.items):
        with pytest.raises(GpuOpsError) as told:
            ask("/api/v1/nodes")
        assert told.value.code == "cluster.run_ended"
    assert api.state.requests == []


@pytest.mark.parametrize("validated, begun, checked, last", [
    (True, False, None, "plan"), (False, True, "check", "check"),
    # Converged, and checked once more as others were changed in between
    (True, True, "check", "check"),
    # Changed by the site that was imported before this one, which changes nobody
    (True, False, "check", "plan")])
def test_what_counts_of_a_host_is_what_was_read_last(
    controller: Controller, api: Api, validated: bool, begun: bool, checked: Any, last: str
) -> None:
    there = {name: {"devices": {"of": name}, "proof": {"changes": name}} for name in ("plan", "check")}
    path = controller.directory / "last.json"
    path.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False, "vars_files": [str(VARIABLES)], "tasks": [
            {"ansible.builtin.assert": {"that": [
                "gpu_proof == {'changes': '%s'}" % last, "gpu_devices == {'of': '%s'}" % last]}}]}]))
    done = controller.play(
        str(path), groups={"gpuops_run_change_begun": ["host-1"]} if begun else {}, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_planned": {**there["plan"], "validated": validated},
            **({"gpu_validation_host": there[checked]} if checked else {})})
    assert done.returncode == 0, done.stdout


class Play:
    """The variables of a play whose hosts say nothing."""

    def __init__(self, hosts: List[str]) -> None:
        self.hosts = hosts

    def alike(self, hosts: List[str], *_names: Any) -> List[Tuple[str, ...]]:
        return [tuple(hosts)] if hosts else []

    def value(self, *_of: Any) -> None:
        return None


def test_a_cluster_that_does_not_answer_holds_up_no_other_and_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, well = ["dead-%d" % number for number in range(20 * AT_ONCE)], ["well-1", "well-2"]
    monkeypatch.setattr(many_hosts, "clusters_of", lambda _play: [
        PlayCluster({"host": "dead"}, tuple(dead)), PlayCluster({"host": "well"}, tuple(well))])
    answered = threading.Event()
    asked: List[str] = []

    def do(options: Dict[str, Any], name: str) -> Dict[str, Any]:
        asked.append(name)
        if options["host"] == "well":
            if {*well} <= {*asked}:
                answered.set()
            return {"changed": False}
        assert answered.wait(20), "the other cluster has had no turn"
        raise GpuOpsError(NO_ANSWER, "silence", "an answer", "see")

    play: Any = Play([*dead, *well])
    told = many_hosts.for_hosts(play, play.hosts, "node_maintenance", (), lambda _host: {}, "node", do)["of_hosts"]
    assert [told[host]["failed"] for host in well] == [False, False]
    assert {told[host]["code"] for host in dead} == {NO_ANSWER}
    assert len(asked) <= 2 * AT_ONCE
