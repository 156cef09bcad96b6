# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What holds of the objects of every component, whatever its options are."""
from __future__ import annotations

import copy
import time
from typing import Any, Dict, Mapping

import pytest
import yaml
from component_options import DIGEST, RUNNING, by_name, leaves, options, pod, workloads
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import model
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.common import (
    COMPONENT,
    MANAGED_BY,
    NAME,
    PART_OF,
    shared_objects,
    shared_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

EVERY = pytest.mark.parametrize("component", RUNNING.values(), ids=RUNNING)
FEW = settings(max_examples=40)
CLUSTER_SCOPED = ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "NodeFeatureRule", "RuntimeClass")


@EVERY
@FEW
@given(data=st.data())
def test_every_object_says_whose_it_is(component: model.Component, data: st.DataObject) -> None:
    parameters = data.draw(options(component))
    made = model.objects(component, parameters)
    for each in (*made, *model.removal_jobs(component, parameters)):
        labels = each["metadata"]["labels"]
        assert (labels[PART_OF], labels[MANAGED_BY], labels[COMPONENT]) == ("gpuops", "gpuops", component.name)
        assert labels[NAME] and len(labels[NAME]) <= 63
        assert ("namespace" in each["metadata"]) == (each["kind"] not in CLUSTER_SCOPED)
        assert each["metadata"].get("namespace", "") in ("", parameters.get("namespace", "gpuops"))
    assert len(by_name(made)) == len(made)


@EVERY
@FEW
@given(data=st.data())
def test_a_workload_finds_its_own_pods_and_no_others(component: model.Component, data: st.DataObject) -> None:
    made = workloads(model.objects(component, data.draw(options(component))))
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in made]
    for number, each in enumerate(made):
        wanted = each["spec"]["selector"]["matchLabels"].items()
        assert [wanted <= labels.items() for labels in pods] == [place == number for place in range(len(made))]
        assert COMPONENT not in {**each["spec"]["selector"]["matchLabels"], **pods[number]}


def test_no_component_finds_pods_of_another() -> None:
    made = [each for component in COMPONENTS.values() for each in workloads(model.objects(component, {}))]
    selectors = [tuple(sorted(each["spec"]["selector"]["matchLabels"].items())) for each in made]
    assert len(set(selectors)) == len(selectors)


@EVERY
@FEW
@given(data=st.data())
def test_services_and_policies_meet_exactly_one_workload(component: model.Component, data: st.DataObject) -> None:
    made = model.objects(component, data.draw(options(component)))
    pods = [each["spec"]["template"]["metadata"]["labels"].items() for each in workloads(made)]
    for each in made:
        if each["kind"] in ("Service", "NetworkPolicy"):
            spec = each["spec"]
            wanted = (spec["selector"] if each["kind"] == "Service" else spec["podSelector"]["matchLabels"]).items()
            assert sum(wanted <= labels for labels in pods) == 1


@EVERY
@FEW
@given(data=st.data())
def test_what_pods_refer_to_is_there_and_mounted_once(component: model.Component, data: st.DataObject) -> None:
    made = by_name(model.objects(component, data.draw(options(component))))
    for each in workloads(made.values()):
        spec = pod(each)
        assert ("ServiceAccount", spec["serviceAccountName"]) in made
        volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
        assert len(volumes) == len(spec.get("volumes", ()))
        for volume in volumes.values():
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in made
        used = {mount["name"] for container in model.containers_of(each) for mount in container.get("volumeMounts", ())}
        assert used == set(volumes)
        for container in model.containers_of(each):
            variables = [variable["name"] for variable in container.get("env", ())]
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
            assert len(set(variables)) == len(variables) and len(set(paths)) == len(paths)
            assert all(isinstance(variable.get("value", ""), str) for variable in container.get("env", ()))


@EVERY
@FEW
@given(data=st.data())
def test_nothing_is_said_twice_by_reference_nor_left_empty(component: model.Component, data: st.DataObject) -> None:
    """The YAML of an object has no anchors; what is empty the API server does not keep, so that it never is equal."""
    for each in model.objects(component, data.draw(options(component))):
        assert "&id" not in yaml.safe_dump(each)
        if each["kind"] in ("DaemonSet", "Deployment"):
            assert not [path for path, value in leaves(pod(each)) if value in ("", None, [])]
            assert not [key for key, value in pod(each).items() if value == {}]


@EVERY
@FEW
@given(data=st.data())
def test_making_objects_changes_nothing(component: model.Component, data: st.DataObject) -> None:
    parameters = data.draw(options(component))
    before = copy.deepcopy(parameters), copy.deepcopy(model.argument_spec(component))
    first = model.objects(component, parameters)
    kept = copy.deepcopy(first)
    for each in first:
        each["metadata"]["labels"].clear()
        each.get("spec", {}).clear()
    assert model.objects(component, parameters) == kept
    assert (parameters, model.argument_spec(component)) == before


@EVERY
@FEW
@given(data=st.data())
def test_every_image_is_the_one_that_was_asked_for(component: model.Component, data: st.DataObject) -> None:
    """Another repository is left as it is; a default one comes from the mirror; a digest decides instead of the tag."""
    parameters = data.draw(options(component))
    given_image, registry = parameters.get("image", {}), parameters.get("registry", "").rstrip("/")
    default = component.arguments["image"]["default"]
    repository = given_image.get("repository", default["repository"])
    if registry and "repository" not in given_image:
        repository = registry + "/" + repository.split("/", 1)[1]
    wanted = repository + ("@" + DIGEST if "digest" in given_image else ":" + given_image.get("tag", default["tag"]))
    assert model.images(component, parameters) == (wanted,)


@EVERY
@FEW
@given(data=st.data())
def test_every_pod_has_what_its_options_say(component: model.Component, data: st.DataObject) -> None:
    parameters = data.draw(options(component))
    for each in workloads(model.objects(component, parameters)):
        spec, metadata = pod(each), each["spec"]["template"]["metadata"]
        assert [one["name"] for one in spec.get("imagePullSecrets", ())] == parameters.get("image_pull_secrets", [])
        assert spec.get("priorityClassName", "") == parameters.get("priority_class", "system-node-critical")
        assert spec["tolerations"] == parameters.get(
            "tolerations", component.arguments["tolerations"]["default"])
        assert parameters.get("pod_labels", {}).items() <= metadata["labels"].items()
        assert parameters.get("pod_annotations", {}).items() <= metadata.get("annotations", {}).items()
        if each["kind"] == "DaemonSet" and parameters.get("update_strategy", {}).get("type") == "OnDelete":
            assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}


@EVERY
@FEW
@given(data=st.data())
def test_a_subset_of_options_drops_no_default_of_another(component: model.Component, data: st.DataObject) -> None:
    parameters = data.draw(options(component))
    whole = model.complete(component, parameters)
    spec = model.argument_spec(component)
    assert set(whole) == set(spec)
    for name, argument in spec.items():
        given_value, default = parameters.get(name), argument.get("default")
        if given_value is None:
            assert whole[name] == default
        elif isinstance(default, Mapping):
            expected = dict(leaves(default))
            for path, value in leaves(given_value):
                expected = {place: each for place, each in expected.items() if place[:len(path)] != path}
                expected[path] = value
            assert dict(leaves(whole[name])) == expected
        else:
            assert whole[name] == given_value


@EVERY
@FEW
@given(data=st.data())
def test_what_null_removes_stays_removed(component: model.Component, data: st.DataObject) -> None:
    """Completed parameters go from hand to hand; each may complete them."""
    selector = component.arguments["node_selector"]["default"]
    parameters = {**data.draw(options(component)), "node_selector": dict.fromkeys(selector)}
    whole = model.complete(component, parameters)
    assert model.complete(component, whole) == whole
    made = model.objects(component, parameters)
    assert model.objects(component, whole) == made
    for each in made:
        if each["kind"] == "DaemonSet":
            assert not set(selector) & set(pod(each).get("nodeSelector", {}))


@EVERY
def test_each_default_is_of_its_type(component: model.Component) -> None:
    types = {"str": str, "path": str, "bool": bool, "int": int, "list": list, "dict": dict}
    for name, argument in model.argument_spec(component).items():
        assert isinstance(argument["default"], types[argument["type"]]), name


def test_an_image_needs_only_what_is_different_of_it() -> None:
    """Ansible fills in with null what was not given of a mapping whose keys it knows."""
    device_plugin = COMPONENTS["device_plugin"]
    tag = device_plugin.arguments["image"]["default"]["tag"]
    for image in ({"repository": "mirror.example/plugin"},
                  {"repository": "mirror.example/plugin", "tag": None, "digest": None}):
        assert model.images(device_plugin, {"image": image}) == ("mirror.example/plugin:" + tag,)


def test_objects_come_after_what_they_need() -> None:
    for component in RUNNING.values():
        kinds = [each["kind"] for each in model.objects(component, {})]
        assert kinds == sorted(kinds, key=list(model.ORDER).index)
    rules = model.objects(COMPONENTS["node_feature_discovery"], {"feature_rules": ["gds"]})
    assert rules[-1]["kind"] == "NodeFeatureRule"


def test_what_all_share_is_no_component_s() -> None:
    namespace, runtime_class = shared_objects({
        "namespace": "gpus", "runtime_class": "gpu", "runtime_handler": "nvidia", "runtime_class_scheduling": {}})
    assert (namespace["metadata"]["name"], runtime_class["metadata"]["name"], runtime_class["handler"]) == (
        "gpus", "gpu", "nvidia")
    assert [namespace["metadata"]["labels"]["pod-security.kubernetes.io/" + mode]
            for mode in ("enforce", "audit", "warn")] == ["privileged"] * 3
    for each in (namespace, runtime_class):
        assert each["metadata"]["labels"][MANAGED_BY] == "gpuops" and COMPONENT not in each["metadata"]["labels"]


@pytest.mark.parametrize("otherwise, option", [
    ({"runtime_class_scheduling": {"node_selector": {"a": "b"}}}, "runtime_class_scheduling"),
    ({"runtime_handler": "other"}, "runtime_handler"),
])
def test_what_all_share_has_one_word(otherwise: Dict[str, Any], option: str) -> None:
    base = {"namespace": "gpus", "runtime_class": "gpu", "runtime_handler": "nvidia", "runtime_class_scheduling": {}}
    alike = {"device_plugin": base, "dcgm_exporter": {**base, "namespace": "others"}}
    assert [each["metadata"]["name"] for each in shared_of(alike)] == ["gpus", "gpu", "others"]
    assert len(shared_of({**alike, "gpu_monitoring": {**base, "runtime_class": "another", **otherwise}})) == 4
    with pytest.raises(GpuOpsError) as refused:
        shared_of({**alike, "gpu_monitoring": {**base, **otherwise}})
    refusal = refused.value.refusals[0]
    assert (refusal.code, refusal.option) == ("cluster.components_disagree", option)
    assert "for device_plugin" in refusal.found and "for gpu_monitoring" in refusal.found


def test_text_with_tags_of_ansible_becomes_plain() -> None:
    class Tagged(str):
        """As Ansible marks where a text comes from."""

    made = model.objects(COMPONENTS["device_plugin"], {
        "config": {"flags": {"nvidiaDriverRoot": Tagged("/run/nvidia/driver")}}})
    config = by_name(made)["ConfigMap", "nvidia-device-plugin"]["data"]["config.yaml"]
    assert yaml.safe_load(config)["flags"]["nvidiaDriverRoot"] == "/run/nvidia/driver" and "!" not in config


def test_all_objects_are_made_in_milliseconds() -> None:
    def all_of_them() -> float:
        started = time.process_time()
        for component in COMPONENTS.values():
            model.objects(component, {})
        return time.process_time() - started

    assert min(all_of_them() for _ in range(5)) < 0.02


def test_the_order_of_components_is_that_of_their_needs() -> None:
    """GPU feature discovery publishes NodeFeatures; the MPS daemon waits for its labels."""
    assert list(COMPONENTS)[:4] == [
        "node_feature_discovery", "gpu_feature_discovery", "device_plugin", "dcgm_exporter"]
