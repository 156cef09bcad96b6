# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What GPU feature discovery finds becomes labels in a cluster without Node Feature Discovery, and goes with it."""
from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import pytest
import yaml
from canned import Hosts, planned
from cluster_api import Api
from cluster_objects import node
from controller import VARIABLES, Controller
from documentation import returned, undocumented
from object_store import Answer, Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

MPS = "nvidia.com/mps.capable"
DEPLOYED = "nvidia.com/gpu.deploy.gpu-feature-discovery"
FOUND = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}


def play(hosts: Hosts, *readings: Dict[str, str], options: Sequence[str] = (), **variables: Any) -> str:
    """What is told of the entry point. readings: what is found, one time after the other."""
    path = hosts.controller.directory / "play.json"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "features"}}]}]))
    for calls in hosts.controller.directory.glob("*.gpu_info"):
        calls.unlink()
    done = hosts.controller.play(
        str(path), *options, hosts=("gpu-1",), environment={"ANSIBLE_COLLECTIONS_PATH": str(hosts.root)}, variables={
            "gpu_cluster_kubeconfig": str(hosts.api.kubeconfig), "node_maintenance_timeout": 1, "canned": {
                "gpu_info": [{"observation": {"features": each}} for each in readings]}, **variables})
    return done.stdout


def labels_of(api: Api) -> Dict[str, str]:
    return {name: value for name, value in api.state.nodes[0]["metadata"]["labels"].items()
            if name.startswith("nvidia.com/") and name != DEPLOYED}


def admitted(**labels: str) -> Dict[str, Any]:
    return node("gpu-1", labels={DEPLOYED: "true", **labels})


def test_they_are_waited_for_and_become_labels(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [admitted()]
    told = play(in_words, {"nvidia.com/vgpu.present": "false"}, FOUND)
    assert labels_of(api) == FOUND, told
    assert "changed=0" in play(in_words, FOUND)


def test_they_go_with_their_component(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [admitted(**{"nvidia.com/gpu.family": "hopper"})]
    play(in_words, FOUND)
    told = play(in_words, node_maintenance_features=False)
    assert labels_of(api) == {"nvidia.com/gpu.family": "hopper"}, told


def test_what_never_comes_is_said_and_changes_no_label(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [admitted()]
    play(in_words, FOUND)
    told = play(in_words, {})
    assert "[cluster.no_features]" in told and labels_of(api) == FOUND, told


APART = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "example.com/pool", "operator": "NotIn", "values": ["edge"]}]}]}}}


@pytest.mark.parametrize("variables", [
    {"gpu_feature_discovery_node_selector": {"example.com/pool": "training"}},
    {"gpu_feature_discovery_affinity": APART},
    {"gpu_feature_discovery_affinity": APART, "gpu_feature_discovery_configs": {"shared": {}},
     "device_plugin_config_name": "shared"},
    {"gpu_feature_discovery_patches": [{"kind": "DaemonSet", "name": "gpu-feature-discovery", "patch": {
        "spec": {"template": {"spec": {"nodeSelector": {"example.com/pool": "training"}}}}}}]},
])
def test_a_node_that_is_left_out_of_it_is_named_and_not_waited_for(
    in_words: Hosts, api: Api, variables: Dict[str, Any]
) -> None:
    """And what it had of these labels before goes; the file that is still on the host is nobody's word any more."""
    api.state.nodes = [admitted(**{"example.com/pool": "edge"})]
    play(in_words, FOUND)
    assert labels_of(api) == FOUND
    told = play(in_words, FOUND, **variables)
    assert "failed=0" in told and "Node gpu-1 are not those" in " ".join(told.split()), told
    assert labels_of(api) == {} and in_words.calls("gpu_info") == 0, told


def test_a_node_that_a_selector_of_the_users_names_is_waited_for(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [node("gpu-1", labels={"example.com/pool": "training"})]
    told = play(in_words, {}, FOUND, gpu_feature_discovery_node_selector={
        "example.com/pool": "training", DEPLOYED: None})
    assert labels_of(api) == FOUND and in_words.calls("gpu_info") == 2, told


def test_a_node_is_told_which_components_it_admits(controller: Controller, api: Api) -> None:
    api.state.nodes = [admitted()]
    task = {"gpuops.nvidia.gpu_node": {"name": "gpu-1", "from_variables": True, "components": [
        "gpu_feature_discovery", "device_plugin", "gpu_monitoring"]}}
    common = {"gpu_cluster_kubeconfig": str(api.kubeconfig)}
    told = [controller.tasks([task], hosts=("gpu-1",), variables={**common, **more})[0][0] for more in (
        {}, {"device_plugin_node_selector": {"nvidia.com/gpu.deploy.device-plugin": None}},
        {"gpu_feature_discovery_state": "absent"})]
    assert [each["admitted"] for each in told] == [
        ["gpu_feature_discovery"], ["gpu_feature_discovery", "device_plugin"], []]
    assert not any(each["changed"] for each in told) and list(undocumented(told[0], returned("gpu_node"))) == []


def test_check_mode_takes_no_node_for_left_out_that_has_yet_to_get_its_labels(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [node("gpu-1")]
    told = play(in_words, FOUND, options=("--check",))
    assert "failed=0" in told and "are not those" not in told and in_words.calls("gpu_info") == 1, told


@pytest.mark.parametrize(("variables", "labels", "expected"), [
    ({}, {}, (False, False)),
    ({"gpu_feature_discovery_use_node_feature_api": False}, {}, (True, False)),
    ({"gpu_feature_discovery_use_node_feature_api": False, "gpu_feature_discovery_state": "absent"}, {},
     (False, False)),
    ({"gpu_feature_discovery_use_node_feature_api": False, "gpu_components": ["device_plugin"]}, {},
     (False, False)),
    ({"gpu_feature_discovery_use_node_feature_api": False},
     {"nvidia.com/gpu.deploy.gpu-feature-discovery": "false"}, (False, False)),
    ({}, FOUND, (False, True)),
])
def test_site_knows_whose_they_are(
    controller: Controller, variables: Dict[str, Any], labels: Dict[str, str], expected: Tuple[bool, bool]
) -> None:
    ours = sorted(labels) if labels == FOUND else []
    (told,), = controller.tasks(
        [{"ansible.builtin.debug": {"msg": [
            "{{ gpu_features_are_ours | bool }}", "{{ gpu_node_has_features | bool }}"]},
          "vars": {**yaml.safe_load(VARIABLES.read_text()),
                   "gpu_node": {"labels": labels, "our_labels": ours}}}], hosts=("gpu-1",), variables=variables)
    assert told["msg"] == list(expected)


class WaitingForTheDaemon(Store):
    """The device plugin's pod waits for that of the MPS daemon, which runs where the label is."""

    def __init__(self, api: Api) -> None:
        super().__init__(has_controllers=True)
        self.api = api

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any, applied: bool = True
               ) -> Optional[Answer]:
        code, item = answer = super().answer(method, path, query, body, applied) or (0, {})
        if (code, method) == (200, "GET") and path.endswith("/daemonsets/nvidia-device-plugin"):
            ready = int(MPS in self.api.state.nodes[0]["metadata"]["labels"])
            item["status"] = {"desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": ready}
        return answer if code else None


def test_pods_that_wait_for_a_label_are_waited_for_once_the_node_has_it(in_words: Hosts, api: Api) -> None:
    api.state.nodes = [node("gpu-1")]
    api.state.store = WaitingForTheDaemon(api)
    told = in_words.controller.play(
        "gpuops.nvidia.site", hosts=("gpu-1",), environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root)},
        variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), "node_maintenance_timeout": 1,
            "gpu_feature_discovery_use_node_feature_api": False, "node_feature_discovery_state": "absent",
            "device_plugin_wait_timeout": 3, "device_plugin_config": {
                "flags": {"migStrategy": "none"},
                "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}},
            "canned": {"gpu_plan": planned(Plan()), "gpu_info": {"observation": {
                "features": {**FOUND, MPS: "true"}}}}})
    assert labels_of(api).get(MPS) == "true" and "failed=0" in told.stdout, told.stdout


def test_site_looks_at_those_that_have_or_speak_of_them_and_at_no_others(controller: Controller) -> None:
    """Node Feature Discovery names its labels in an annotation too."""
    theirs = {"nfd.node.kubernetes.io/feature-labels": "nvidia.com/gpu.product"}
    inventory = controller.directory / "own.json"
    inventory.write_text(json.dumps({"all": {"hosts": {
        "gpu-3": {"gpu_feature_discovery_use_node_feature_api": "no"},
        "gpu-4": {"gpu_feature_discovery_use_node_feature_api": True}}}}))
    facts = {"gpu-1": {"annotations": theirs, "our_labels": ["x"]}, "gpu-2": {"our_labels": ["nvidia.com/gpu.product"]}}
    hosts = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
    (told,), = controller.tasks(
        [{"ansible.builtin.debug": {"msg": "{{ gpu_hosts_with_features }}"}, "run_once": True,
          "vars": {**yaml.safe_load(VARIABLES.read_text()), "gpu_components_told": {},
                   "node_maintenance_clusters": {"clusters": [{"hosts": list(hosts)}], "of_hosts": facts}}}],
        "--inventory", str(inventory), hosts=hosts)
    assert sorted(told["msg"]) == ["gpu-2", "gpu-3", "gpu-4"]
