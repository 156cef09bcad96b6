# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each component's own options make of its objects."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
import yaml
from component_options import WORKLOADS, by_name, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import model
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.common import shared_objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


def made(name: str, **parameters: Any) -> Dict[Any, Any]:
    return by_name(model.objects(COMPONENTS[name], parameters))


def exporter(**parameters: Any) -> Dict[str, Any]:
    return pod(made("dcgm_exporter", **parameters)["DaemonSet", "nvidia-dcgm-exporter"])


def variables(spec: Dict[str, Any]) -> Dict[str, Any]:
    return {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}


def test_the_plugin_looks_for_the_driver_where_its_configuration_says() -> None:
    spec = pod(made("device_plugin", config={"flags": {
        "nvidiaDriverRoot": "/run/nvidia/driver", "plugin": {"containerDriverRoot": "/driver"}}},
        kubelet_root="/var/lib/k0s/kubelet")["DaemonSet", "nvidia-device-plugin"])
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert (paths["driver-root"], mounts["driver-root"]) == ("/run/nvidia/driver", "/driver")
    assert (paths["device-plugins"], mounts["device-plugins"]) == (
        "/var/lib/k0s/kubelet/device-plugins", "/var/lib/kubelet/device-plugins")


def test_switches_of_the_plugin_s_health_checks_are_variables() -> None:
    spec = pod(made("device_plugin", env={"DP_DISABLE_HEALTHCHECKS": 79, "KUBELET_SOCKET": "/other"})[
        "DaemonSet", "nvidia-device-plugin"])
    assert variables(spec) == {"CONFIG_FILE": "/config/config.yaml", "NVIDIA_MIG_MONITOR_DEVICES": "all",
                               "DP_DISABLE_HEALTHCHECKS": "79", "KUBELET_SOCKET": "/other"}


def test_runtime_classes_are_made_when_asked_for() -> None:
    found = made("device_plugin", runtime_classes=["nvidia-cdi", "nvidia-legacy"])
    assert [found["RuntimeClass", name]["handler"] for name in ("nvidia-cdi", "nvidia-legacy")] == [
        "nvidia-cdi", "nvidia-legacy"]
    assert not [kind for kind, _name in made("device_plugin") if kind == "RuntimeClass"]


def test_feature_discovery_writes_a_file_where_there_is_no_node_feature_api() -> None:
    found = made("gpu_feature_discovery", use_node_feature_api=False)
    spec = pod(found["DaemonSet", "gpu-feature-discovery"])
    assert variables(spec) == {
        "CONFIG_FILE": "/config/config.yaml", "NVIDIA_MIG_MONITOR_DEVICES": "all", "GFD_USE_NODE_FEATURE_API": "false",
        "GFD_OUTPUT_FILE": "/etc/kubernetes/node-feature-discovery/features.d/gfd"}
    assert {"name": "features", "hostPath": {
        "path": "/etc/kubernetes/node-feature-discovery/features.d", "type": "DirectoryOrCreate"}} in spec["volumes"]
    assert {"name": "features", "mountPath": "/etc/kubernetes/node-feature-discovery/features.d"} in spec[
        "containers"][0]["volumeMounts"]


def test_who_writes_a_file_has_no_rights_in_the_cluster() -> None:
    found = made("gpu_feature_discovery", use_node_feature_api=False)
    assert not [kind for kind, _name in found if "Role" in kind]
    assert not pod(found["DaemonSet", "gpu-feature-discovery"])["automountServiceAccountToken"]


@pytest.mark.parametrize(("api", "flags"), [
    (True, {"useNodeFeatureAPI": False}), (False, {"useNodeFeatureAPI": True}),
    (False, {"gfd": {"outputFile": "/tmp/gfd"}})])
@pytest.mark.parametrize("base", [True, False])
def test_where_features_are_published_is_said_in_one_place(api: bool, flags: Dict[str, Any], base: bool) -> None:
    config = {"flags": flags}
    with pytest.raises(GpuOpsError) as refused:
        made("gpu_feature_discovery", use_node_feature_api=api, **({"config": config} if base else {
            "configs": {"mine": config}}))
    assert refused.value.code == "cluster.two_places_of_features"
    assert made("gpu_feature_discovery", config={"flags": {"useNodeFeatureAPI": True}})


def test_every_runtime_class_has_the_scheduling_that_is_asked_for() -> None:
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    asked = {"node_selector": {"nvidia.com/gpu.present": "true"}, "tolerations": tolerations}
    found = made("device_plugin", runtime_classes=["nvidia-cdi"], runtime_class_scheduling=asked)
    wanted = {"nodeSelector": {"nvidia.com/gpu.present": "true"}, "tolerations": tolerations}
    assert found["RuntimeClass", "nvidia-cdi"]["scheduling"] == wanted
    shared = {"namespace": "gpuops", "runtime_class": "nvidia", "runtime_handler": "nvidia"}
    assert shared_objects({**shared, "runtime_class_scheduling": asked})[1]["scheduling"] == wanted
    for nothing in ({}, {"node_selector": {}, "tolerations": None}):
        assert "scheduling" not in shared_objects({**shared, "runtime_class_scheduling": nothing})[1]


@pytest.mark.parametrize("component", [name for name in COMPONENTS if name != "gpu_monitoring"])
def test_a_quota_lets_pods_of_a_limited_priority_class_in(component: str) -> None:
    def quotas(**parameters: Any) -> List[Any]:
        return [each for (kind, _name), each in made(component, **parameters).items() if kind == "ResourceQuota"]

    assert quotas() == quotas(resource_quota={"pods": 5}) == []
    assert quotas(resource_quota={"enabled": True}, priority_class="") == []
    (quota,) = quotas(resource_quota={"enabled": True, "pods": 5}, priority_class="critical", namespace="gpus")
    assert quota["metadata"]["namespace"] == "gpus"
    assert quota["spec"] == {"hard": {"pods": "5"}, "scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["critical"]}]}}
    kinds = [each["kind"] for each in model.objects(COMPONENTS[component], {"resource_quota": {"enabled": True}})]
    assert kinds.index("ResourceQuota") < min(kinds.index(kind) for kind in kinds if kind in WORKLOADS)


@pytest.mark.parametrize("config_manager", [False, True])
def test_quotas_of_namespaces_are_of_requests(config_manager: bool) -> None:
    found = made("device_plugin", config_manager=config_manager, namespace_quotas={"team-a": {
        "nvidia.com/mig-1g.10gb": "7", "nvidia.com/gpu": 8, "nvidia.com/gpu.shared": "2k"}})
    quota = found["ResourceQuota", "nvidia-gpu"]
    assert quota["metadata"]["namespace"] == "team-a"
    assert quota["spec"] == {"hard": {"requests.nvidia.com/gpu": "8", "requests.nvidia.com/gpu.shared": "2000",
                                      "requests.nvidia.com/mig-1g.10gb": "7"}}


@pytest.mark.parametrize("component", [name for name in COMPONENTS if name != "gpu_monitoring"])
def test_every_pod_of_ours_tolerates_the_startup_taint(component: str) -> None:
    def tolerated(**parameters: Any) -> List[Any]:
        pods = [pod(each) for each in made(component, **parameters).values() if each["kind"] in WORKLOADS]
        assert pods
        return [spec.get("tolerations", []) for spec in pods]

    added = {"key": "gpuops.nvidia.com/not-ready", "operator": "Exists"}
    assert not any(added in each for each in tolerated())
    assert all(each[-1] == added for each in tolerated(startup_taint="gpuops.nvidia.com/not-ready"))


def test_a_capability_comes_only_with_the_metrics_that_need_it() -> None:
    temperature = {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "temperature"}
    engine = {"field": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "type": "gauge", "help": "engine"}

    def capabilities(metrics: List[Dict[str, str]]) -> Any:
        return exporter(metrics=metrics)["containers"][0]["securityContext"]["capabilities"]

    assert capabilities([temperature]) == {"drop": ["ALL"]}
    assert capabilities([temperature, engine]) == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


@pytest.mark.parametrize("option, variable", [
    ("pod_labels_in_metrics", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"),
    ("pod_uid_in_metrics", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"),
])
def test_the_exporter_reads_pods_only_when_asked_to(option: str, variable: str) -> None:
    found = made("dcgm_exporter", **{option: True})
    spec = pod(found["DaemonSet", "nvidia-dcgm-exporter"])
    assert variables(spec)[variable] == "true" and spec["automountServiceAccountToken"]
    assert found["ClusterRole", "gpuops-nvidia-dcgm-exporter"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert found["ClusterRoleBinding", "gpuops-nvidia-dcgm-exporter"]["subjects"][0]["namespace"] == "gpuops"
    bare = made("dcgm_exporter")
    assert not [kind for kind, _name in bare if "Role" in kind]
    assert not pod(bare["DaemonSet", "nvidia-dcgm-exporter"])["automountServiceAccountToken"]


def test_a_certificate_makes_all_of_the_exporter_speak_tls() -> None:
    found = made("dcgm_exporter", tls_secret="certificate", scrape_annotations=True,
                 service_monitor={"enabled": True, "endpoint": {"tlsConfig": {"serverName": "gpus"}}})
    workload = found["DaemonSet", "nvidia-dcgm-exporter"]
    spec = pod(workload)
    config = found["ConfigMap", "nvidia-dcgm-exporter"]["data"]["web-config.yaml"]
    assert yaml.safe_load(config) == {"tls_server_config": {
        "cert_file": "/etc/gpuops-dcgm-exporter-web/tls.crt", "key_file": "/etc/gpuops-dcgm-exporter-web/tls.key"}}
    assert variables(spec)["DCGM_EXPORTER_WEB_CONFIG_FILE"] == "/etc/gpuops-dcgm-exporter/web-config.yaml"
    assert {"name": "web", "secret": {"secretName": "certificate"}} in spec["volumes"]
    assert [spec["containers"][0][probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")] == [
        "HTTPS", "HTTPS"]
    assert workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    endpoint = found["ServiceMonitor", "nvidia-dcgm-exporter"]["spec"]["endpoints"][0]
    assert endpoint["scheme"] == "https" and endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "certificate", "key": "ca.crt"}}, "serverName": "gpus"}


def test_a_web_configuration_of_the_user_s_may_ask_for_a_password() -> None:
    """The kubelet has none, so its probes ask no more than a connection."""
    spec = exporter(web_config_secret="web")
    assert variables(spec)["DCGM_EXPORTER_WEB_CONFIG_FILE"] == "/etc/gpuops-dcgm-exporter-web/web-config.yaml"
    assert [spec["containers"][0][probe]["tcpSocket"] for probe in ("livenessProbe", "readinessProbe")] == [
        {"port": "metrics"}] * 2


def test_a_network_policy_lets_only_the_metrics_in() -> None:
    policy = made("dcgm_exporter", network_policy=True)["NetworkPolicy", "nvidia-dcgm-exporter"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]


def test_several_masters_elect_a_leader() -> None:
    one, three = made("node_feature_discovery"), made("node_feature_discovery", master_replicas=3)
    assert one["Deployment", "nfd-master"]["spec"]["replicas"] == 1 and ("Role", "nfd-master") not in one
    assert three["Deployment", "nfd-master"]["spec"]["replicas"] == 3
    assert pod(three["Deployment", "nfd-master"])["containers"][0]["command"] == [
        "nfd-master", "-enable-leader-election"]
    assert {verb for rule in three["Role", "nfd-master"]["rules"] for verb in rule["verbs"]} == {
        "create", "get", "update"}


def test_a_configuration_of_the_master_is_mounted_and_watched() -> None:
    bare = made("node_feature_discovery")
    assert ("ConfigMap", "nfd-master") not in bare and "volumes" not in pod(bare["Deployment", "nfd-master"])
    found = made("node_feature_discovery", master_config={"denyLabelNs": ["example.com"]})
    assert yaml.safe_load(found["ConfigMap", "nfd-master"]["data"]["nfd-master.conf"]) == {
        "denyLabelNs": ["example.com"]}
    assert "annotations" in found["Deployment", "nfd-master"]["spec"]["template"]["metadata"]


def test_programs_of_discovery_come_only_when_asked_for() -> None:
    found = made("node_feature_discovery", gc=False, topology_updater=True, kubelet_root="/k")
    assert not [name for _kind, name in found if "nfd-gc" in name]
    assert ("CustomResourceDefinition", "noderesourcetopologies.topology.node.k8s.io") in found
    volumes = pod(found["DaemonSet", "nfd-topology-updater"])["volumes"]
    assert {"name": "kubelet", "hostPath": {"path": "/k", "type": "Directory"}} in volumes
    with_both = made("node_feature_discovery", topology_updater=True)
    assert {"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"],
            "verbs": ["list", "delete"]} in with_both["ClusterRole", "gpuops-nfd-gc"]["rules"]


def test_rules_label_nodes_by_the_module_that_is_loaded() -> None:
    found = made("node_feature_discovery", feature_rules=["peermem", "gds", "gdrcopy"])
    for name, module in (("peermem", "nvidia_peermem"), ("gds", "nvidia_fs"), ("gdrcopy", "gdrdrv")):
        rule, = found["NodeFeatureRule", "gpuops-" + name]["spec"]["rules"]
        assert rule["labels"] == {"nvidia.com/%s.capable" % name: "true"}
        assert list(rule["matchFeatures"][0]["matchExpressions"]) == [module]


def test_labels_are_taken_off_with_the_master_s_own_rights() -> None:
    component = COMPONENTS["node_feature_discovery"]
    job, = model.removal_jobs(component, {"image_pull_secrets": ["pull"], "registry": "mirror.example"})
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "nfd-prune")
    spec = pod(job)
    assert spec["serviceAccountName"] == "nfd-master" and spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["containers"][0]["image"].startswith("mirror.example/nfd/node-feature-discovery:")
    assert [each for name, each in COMPONENTS.items() if model.removal_jobs(each, {}) and each is not component] == []


def test_labels_are_taken_off_on_a_node_that_runs_pods() -> None:
    """A node that is NotReady has few pods, so that it is where a scheduler would put one that tolerates everything."""
    job, = model.removal_jobs(COMPONENTS["node_feature_discovery"], {
        "tolerations": [{"key": "ours", "operator": "Exists"}], "startup_taint": "example.com/new"})
    keys = [each["key"] for each in pod(job)["tolerations"]]
    assert keys == ["ours", "example.com/new", "node.kubernetes.io/unschedulable"]
    assert pod(job)["nodeSelector"] == {"kubernetes.io/os": "linux"}


def test_custom_resources_have_schemas_that_a_server_takes() -> None:
    """Structural, as apiextensions.k8s.io/v1 wants it: every level says its type."""
    def check(schema: Dict[str, Any]) -> None:
        assert "type" in schema or schema.get("x-kubernetes-int-or-string")
        for below in (*schema.get("properties", {}).values(), *(
                schema[key] for key in ("items", "additionalProperties") if key in schema)):
            check(below)

    for (kind, name), each in made("node_feature_discovery", topology_updater=True).items():
        if kind == "CustomResourceDefinition":
            spec = each["spec"]
            assert name == "%s.%s" % (spec["names"]["plural"], spec["group"])
            assert [version["storage"] for version in spec["versions"]].count(True) == 1
            for version in spec["versions"]:
                check(version["schema"]["openAPIV3Schema"])
