# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Groups of nodes: each node has exactly one workload of a kind, that of its own group."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
import yaml
from component_options import (
    MPS,
    REQUIRED,
    SLICED,
    by_name,
    chosen,
    label_sets,
    names,
    options,
    pod,
    terms,
    workloads,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import model
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.groups import groups_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

LABELS = {"device_plugin": ("configs", "nvidia.com/device-plugin.config"),
          "gpu_feature_discovery": ("configs", "nvidia.com/device-plugin.config"),
          "dcgm_exporter": ("metric_sets", "gpuops.nvidia.com/dcgm-exporter.metrics")}
CONFIGURED = pytest.mark.parametrize("name", [name for name, each in LABELS.items() if each[0] == "configs"])
GROUPS = {"config": {"flags": {"migStrategy": "none"}}, "configs": {"shared": SLICED, "single": {
    "flags": {"migStrategy": "single"}}}}
ONE = [{"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "temperature"}]
GROUPED = pytest.mark.parametrize("name", LABELS)


@GROUPED
@settings(max_examples=60)
@given(data=st.data())
def test_every_node_has_the_workload_of_its_group_and_no_other(name: str, data: st.DataObject) -> None:
    component, (option, label) = COMPONENTS[name], LABELS[name]
    parameters = data.draw(options(component))
    node = {**data.draw(label_sets), **model.complete(component, parameters)["node_selector"]}
    groups = sorted(parameters.get(option, {}))
    parameters = {**parameters, "affinity": {}, "config_manager": False}
    made = [each for each in workloads(model.objects(component, parameters)) if "-mps" not in each["metadata"]["name"]]
    assert len(made) == 1 + len(groups)
    for group in (None, "gnobody-names-this", *groups):
        on_it = [each for each in made if chosen(each, {**node, **({label: group} if group else {})})]
        expected = component.apps[0] + ("-" + group if group in groups else "")
        # A label that names no group here is one of another's making; the base serves such nodes
        assert [each["metadata"]["name"] for each in on_it] == [expected]


@settings(max_examples=200)
@given(given_terms=st.lists(terms.filter(bool), min_size=1, max_size=3),
       groups=st.lists(names, unique=True, max_size=3),
       node=st.dictionaries(st.sampled_from(["example.com/a", "example.com/b", "pool"]), names, max_size=3))
def test_a_user_s_affinity_is_kept_and_narrowed(
    given_terms: List[Dict[str, Any]], groups: List[str], node: Dict[str, str]
) -> None:
    affinity = {"podAffinity": {"kept": []}, "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": ["kept"], REQUIRED: {"nodeSelectorTerms": given_terms}}}
    base = groups_of("configs", "pool", None, dict.fromkeys(groups), {})[0].affinity(affinity)

    def workload(found: Dict[str, Any]) -> Dict[str, Any]:
        return {"spec": {"template": {"spec": {"affinity": found}}}}

    assert chosen(workload(base), node) == (chosen(workload(affinity), node) and node.get("pool") not in groups)
    assert base["podAffinity"] == affinity["podAffinity"]
    assert base["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == ["kept"]


def test_a_group_s_configuration_is_merged_over_the_base() -> None:
    made = by_name(model.objects(COMPONENTS["device_plugin"], {
        "config": {"flags": {"migStrategy": "none"}, **SLICED},
        "configs": {"whole": {"sharing": None}, "same": None,
                    "mps": {"sharing": {"timeSlicing": None, **MPS["sharing"]}}},
    }))

    def config(name: str) -> Dict[str, Any]:
        found: Dict[str, Any] = yaml.safe_load(made["ConfigMap", name]["data"]["config.yaml"])
        return found

    base = config("nvidia-device-plugin")
    assert base["sharing"] == SLICED["sharing"] and base["flags"]["migStrategy"] == "none"
    assert config("nvidia-device-plugin-whole") == {key: value for key, value in base.items() if key != "sharing"}
    assert config("nvidia-device-plugin-mps")["sharing"] == MPS["sharing"]
    assert config("nvidia-device-plugin-mps")["flags"] == {**base["flags"], "mpsRoot": "/run/nvidia/mps"}
    assert config("nvidia-device-plugin-same") == base


@GROUPED
def test_pods_are_new_when_their_own_configuration_is(name: str) -> None:
    component, (option, _label) = COMPONENTS[name], LABELS[name]

    def sums(value: Any) -> Dict[str, str]:
        return {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"][
            "gpuops.nvidia.com/config-checksum"]
            for each in workloads(model.objects(component, {option: value}))}

    first, second = (ONE, ONE + [{**ONE[0], "field": "DCGM_FI_DEV_POWER_USAGE"}]) if name == "dcgm_exporter" else (
        {}, {"flags": {"migStrategy": "single"}})
    before, after = sums({"a": first, "b": first}), sums({"a": first, "b": second})
    assert [each for each in before if before[each] != after[each]] == [component.apps[0] + "-b"]


@GROUPED
@pytest.mark.parametrize("group", ["Upper", "a_b", "-a", "a-", "", "a" * 31, "a.b", "a/b"])
def test_names_that_no_object_can_have_are_refused(name: str, group: str) -> None:
    component, (option, _label) = COMPONENTS[name], LABELS[name]
    value: Any = ONE if name == "dcgm_exporter" else {}
    with pytest.raises(GpuOpsError) as refused:
        model.objects(component, {option: {group: value}})
    assert refused.value.code == "cluster.group_name_malformed" and repr(group) in refused.value.found


@GROUPED
def test_a_node_selector_that_says_the_group_is_refused(name: str) -> None:
    component, (option, label) = COMPONENTS[name], LABELS[name]
    value: Any = ONE if name == "dcgm_exporter" else {}
    with pytest.raises(GpuOpsError) as refused:
        model.objects(component, {option: {"a": value}, "node_selector": {label: "a"}})
    assert refused.value.code == "cluster.group_label_in_node_selector"
    assert model.objects(component, {"node_selector": {label: "a"}})


def test_the_monitor_finds_the_services_of_all_sets() -> None:
    made = model.objects(COMPONENTS["dcgm_exporter"], {
        "metric_sets": {"a": ONE, "b": ONE}, "service_monitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitor = by_name(made)["ServiceMonitor", "nvidia-dcgm-exporter"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for each in made if each["kind"] == "Service"]
    assert len(services) == 3 and all(wanted <= each["metadata"]["labels"].items() for each in services)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_mps_runs_where_its_plugin_does_and_the_gpus_can() -> None:
    made = by_name(model.objects(COMPONENTS["device_plugin"], {
        "config": MPS, "configs": {"sliced": {"sharing": {"mps": None, **SLICED["sharing"]}}, "mine": {}},
        "mps_root": "/srv/mps"}))
    daemons = sorted(name for _kind, name in made if name.startswith("nvidia-device-plugin-mps"))
    assert daemons == ["nvidia-device-plugin-mps", "nvidia-device-plugin-mps-mine"]
    for suffix in ("", "-mine"):
        daemon = pod(made["DaemonSet", "nvidia-device-plugin-mps" + suffix])
        plugin = pod(made["DaemonSet", "nvidia-device-plugin" + suffix])
        assert daemon["nodeSelector"] == {**plugin["nodeSelector"], "nvidia.com/mps.capable": "true"}
        assert daemon.get("affinity") == plugin.get("affinity")
        assert daemon["hostPID"]
        assert daemon["containers"][0]["command"] == ["/usr/bin/mps-control-daemon"]
        assert daemon["initContainers"][0]["volumeMounts"][0]["mountPropagation"] == "Bidirectional"
        for spec in (daemon, plugin):
            roots = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]
                     if volume["name"].startswith("mps-")}
            assert roots == {"mps-root": "/srv/mps", "mps-shm": "/srv/mps/shm"}
            # Both run the driver's nvidia-cuda-mps-control, which is none of the image's own
            variables = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
            assert (spec["runtimeClassName"], variables["NVIDIA_VISIBLE_DEVICES"],
                    variables["NVIDIA_DRIVER_CAPABILITIES"]) == ("nvidia", "all", "compute,utility")
        (waits,) = plugin["initContainers"]
        assert "/mps/.ready" in waits["command"][-1]
        # The daemon's mount comes when this container runs already
        assert [each["mountPropagation"] for each in waits["volumeMounts"]] == ["HostToContainer"]
    sliced = pod(made["DaemonSet", "nvidia-device-plugin-sliced"])
    assert not {"runtimeClassName", "initContainers"}.intersection(sliced)
    assert not [volume for volume in sliced["volumes"] if volume["name"].startswith("mps-")]


def test_a_group_named_as_the_daemon_of_mps_is_refused_only_beside_it() -> None:
    plugin = COMPONENTS["device_plugin"]
    assert model.objects(plugin, {"configs": {"mps": MPS}})
    with pytest.raises(GpuOpsError) as refused:
        model.objects(plugin, {"config": MPS, "configs": {"mps": {}}})
    assert refused.value.code == "cluster.one_name_for_two_objects"


@CONFIGURED
def test_config_manager_serves_the_nodes_of_all_groups_by_one_daemon_set(name: str) -> None:
    component = COMPONENTS[name]
    app = component.apps[0]
    made = by_name(model.objects(component, {**GROUPS, "config_manager": True}))
    assert [each for each in made if each[0] in ("DaemonSet", "ConfigMap")] == [
        ("ConfigMap", app + "-configs"), ("DaemonSet", app)]
    (daemon_set,) = workloads(made.values())
    own = component.arguments["node_selector"]["default"]
    assert all(chosen(daemon_set, {**own, **labels}) for labels in (
        {}, {LABELS[name][1]: "shared"}, {LABELS[name][1]: "single"}))
    assert not chosen(daemon_set, {})


@CONFIGURED
def test_config_manager_is_told_what_nvidia_s_chart_tells_it(name: str) -> None:
    component = COMPONENTS[name]
    app = component.apps[0]
    made = by_name(model.objects(component, {**GROUPS, "config_manager": True}))
    spec = pod(made["DaemonSet", app])
    main, beside = spec["containers"]
    (first,) = spec["initContainers"]
    told = {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in beside["env"]}
    assert told == {
        "NODE_NAME": "spec.nodeName", "NODE_LABEL": "nvidia.com/device-plugin.config",
        "CONFIG_FILE_SRCDIR": "/available-configs", "CONFIG_FILE_DST": "/config/config.yaml",
        "DEFAULT_CONFIG": "default", "FALLBACK_STRATEGIES": "named,single", "ONESHOT": "false",
        "SEND_SIGNAL": "true", "SIGNAL": "1", "PROCESS_TO_SIGNAL": app}
    once = {each["name"]: each.get("value") or each["valueFrom"]["fieldRef"]["fieldPath"] for each in first["env"]}
    assert once == {**{key: value for key, value in told.items() if "SIGNAL" not in key},
                    "ONESHOT": "true", "SEND_SIGNAL": "false"}
    # It finds the process by exactly what it was started as, and in the pod alone
    assert main["command"] == [told["PROCESS_TO_SIGNAL"]] and spec["shareProcessNamespace"]
    assert told["DEFAULT_CONFIG"] in made["ConfigMap", app + "-configs"]["data"]
    # The link that it makes leads to where the program sees the files, too
    volumes = {each["name"]: each for each in spec["volumes"]}
    for container in (main, beside, first):
        where = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        assert where["/available-configs"]["configMap"] == {"name": app + "-configs"}
        assert where["/config"]["emptyDir"] == {}


@CONFIGURED
def test_config_manager_may_see_nodes_and_nothing_else_of_the_cluster(name: str) -> None:
    component = COMPONENTS[name]
    app = component.apps[0]
    made = by_name(model.objects(component, {**GROUPS, "config_manager": True}))
    assert made["ClusterRole", "gpuops-" + app]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]
    assert pod(made["DaemonSet", app])["automountServiceAccountToken"]
    assert not [each for each in model.objects(component, GROUPS) if each["kind"].startswith("ClusterRole")]


@CONFIGURED
def test_a_node_has_the_same_configuration_in_either_mode(name: str) -> None:
    """So what a node of a group has to offer, which is worked out from its configuration, does not hang on the mode."""
    component = COMPONENTS[name]
    app = component.apps[0]
    apart, together = (by_name(model.objects(component, {**GROUPS, "config_manager": mode})) for mode in (False, True))
    assert together["ConfigMap", app + "-configs"]["data"] == {
        group or "default": apart["ConfigMap", "-".join(filter(None, (app, group)))]["data"]["config.yaml"]
        for group in ("", *GROUPS["configs"])}


@CONFIGURED
def test_with_config_manager_a_change_of_any_configuration_brings_new_pods(name: str) -> None:
    component = COMPONENTS[name]

    def annotations(configs: Dict[str, Any]) -> Any:
        (made,) = workloads(model.objects(component, {"configs": configs, "config_manager": True}))
        return made["spec"]["template"]["metadata"]["annotations"]

    assert annotations({"a": {}, "b": SLICED}) != annotations({"a": {}, "b": {}})


@CONFIGURED
def test_with_config_manager_a_group_cannot_have_the_name_of_the_base(name: str) -> None:
    component = COMPONENTS[name]
    assert model.objects(component, {"configs": {"default": {}}})
    with pytest.raises(GpuOpsError) as refused:
        model.objects(component, {"configs": {"default": {}}, "config_manager": True})
    assert refused.value.code == "cluster.config_named_default"


@pytest.mark.parametrize(("parameters", "found"), [
    ({"config": MPS}, "`config` shares by MPS"),
    ({"configs": {"mine": MPS}}, "mine of `configs` shares by MPS"),
    ({"configs": {"mine": {"flags": {"nvidiaDriverRoot": "/run/nvidia/driver"}}}}, "mine of `configs` has the driver"),
    ({"configs": {"mine": {"flags": {"plugin": {"containerDriverRoot": "/d"}}}}}, "mine of `configs` has the driver"),
])
def test_configurations_that_one_pod_cannot_have_in_turn_are_refused_with_config_manager(
    parameters: Dict[str, Any], found: str
) -> None:
    plugin = COMPONENTS["device_plugin"]
    assert model.objects(plugin, parameters)
    with pytest.raises(GpuOpsError) as refused:
        model.objects(plugin, {**parameters, "config_manager": True})
    assert refused.value.code == "cluster.configs_need_daemon_sets" and found in refused.value.found
