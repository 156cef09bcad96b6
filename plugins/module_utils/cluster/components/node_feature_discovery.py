# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Node Feature Discovery: finds the NVIDIA devices of nodes, and turns what is published of them into labels."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ..startup_taint import tolerations
from .common import (
    GPU_TOLERATION,
    UNPRIVILEGED,
    Object,
    Parameters,
    as_yaml,
    checksum,
    cluster_object,
    cluster_role,
    config_map,
    config_volume,
    container,
    daemon_set,
    deployment,
    environment,
    field,
    host_path,
    image_of,
    labels,
    mount,
    namespaced,
    pod_arguments,
    pod_spec,
    pod_template,
    pull_secrets,
    resource_quota,
    role,
    rule,
    service_account,
)
from .model import Component
from .nfd_crds import node_feature, node_feature_rule, node_resource_topology

APP = "node-feature-discovery"
MASTER, WORKER, GC, TOPOLOGY, PRUNE = "nfd-master", "nfd-worker", "nfd-gc", "nfd-topology-updater", "nfd-prune"
API = "nfd.k8s-sigs.io"
CONFIG = "/etc/kubernetes/node-feature-discovery"
LEASE = "nfd-master.nfd.kubernetes.io"
LINUX = {"kubernetes.io/os": "linux"}
CONTROL_PLANE: Dict[str, Any] = {
    "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}
CORDONED: Dict[str, Any] = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
PROBES: Mapping[str, Dict[str, Any]] = {
    "grpc": {"grpc": {"port": 8082}}, "http": {"httpGet": {"path": "/healthz", "port": 8080}}}
# Of the node, for nfd-worker to read
SEEN = (("boot", "/boot"), ("os-release", "/etc/os-release"), ("sys", "/sys"), ("usr-lib", "/usr/lib"), ("lib", "/lib"),
        ("proc-swaps", "/proc/swaps"))
SEEN_AT = {"/etc/os-release": "/host-etc/os-release", "/usr/lib": "/host-usr/lib", "/proc/swaps": "/host-proc/swaps"}
# {rule: the kernel module that shows that a node can}; the labels are those that the GPU Operator's rules set
RULES = {"peermem": "nvidia_peermem", "gds": "nvidia_fs", "gdrcopy": "gdrdrv"}

ARGUMENTS: Dict[str, Any] = {
    **pod_arguments(
        "registry.k8s.io/nfd/node-feature-discovery", "v0.17.3",
        node_selector=LINUX,
        update_strategy={},
        resources={
            "master": {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
            "worker": {"requests": {"cpu": "5m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
            "gc": {"requests": {"cpu": "5m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
            "topology_updater": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        },
        tolerations=[GPU_TOLERATION, CONTROL_PLANE],
    ),
    "master_affinity": {"type": "dict", "default": {}},
    "master_config": {"type": "dict", "default": {}},
    "master_replicas": {"type": "int", "default": 1},
    "worker_config": {"type": "dict", "default": {
        "core": {
            "sleepInterval": "60s",
            "labelSources": ["pci", "system", "kernel"],
            "featureSources": ["pci", "system", "kernel", "cpu"],
        },
        "sources": {"pci": {
            "deviceClassWhitelist": ["02", "0200", "0207", "0300", "0302"],
            "deviceLabelFields": ["vendor"],
        }},
    }},
    "gc": {"type": "bool", "default": True},
    "topology_updater": {"type": "bool", "default": False},
    "topology_updater_config": {"type": "dict", "default": {}},
    "kubelet_root": {"type": "path", "default": "/var/lib/kubelet"},
    "feature_rules": {"type": "list", "elements": "str", "choices": ["peermem", "gds", "gdrcopy"], "default": []},
    "probe": {"type": "str", "choices": ["grpc", "http"], "default": "grpc"},
}


def make(parameters: Parameters) -> List[Object]:
    """Custom resources, accounts and their rights, configurations and workloads."""
    made = [_custom_resource(node_feature()), _custom_resource(node_feature_rule())]
    made += resource_quota(APP, parameters) + _master(parameters) + _worker(parameters)
    if parameters["gc"]:
        made += _gc(parameters)
    if parameters["topology_updater"]:
        made += _topology_updater(parameters)
    return made + [_feature_rule(name) for name in parameters["feature_rules"]]


def before_removal(parameters: Parameters) -> List[Object]:
    """The Job that takes the labels off the nodes: nfd-master leaves them when it goes."""
    container = {
        "name": PRUNE,
        "image": image_of(parameters, ARGUMENTS),
        "imagePullPolicy": parameters["image_pull_policy"],
        "command": ["nfd-master", "-prune"],
        "env": environment({"NODE_NAME": field("spec.nodeName"), "KUBERNETES_NAMESPACE": field("metadata.namespace")}),
        "securityContext": UNPRIVILEGED,
    }
    secrets = pull_secrets(parameters)
    pod = {
        "serviceAccountName": MASTER,
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        # Of a cluster that is being taken apart a cordoned node will do; one that is NotReady, which it would be on if
        # it tolerated everything, would never begin it, and hold the removal for ever.
        "nodeSelector": LINUX,
        "tolerations": [*parameters["tolerations"], *tolerations(parameters["startup_taint"]), CORDONED],
        "containers": [container],
        **({"imagePullSecrets": secrets} if secrets else {}),
    }
    return [namespaced("batch/v1", "Job", PRUNE, PRUNE, parameters, spec={
        "template": {"metadata": {"labels": labels(PRUNE)}, "spec": pod}})]


def _custom_resource(definition: Dict[str, Any]) -> Object:
    made = cluster_object("apiextensions.k8s.io/v1", "CustomResourceDefinition", definition["metadata"]["name"], APP,
                          spec=definition["spec"])
    made["metadata"].update(definition["metadata"])
    return made


def _feature_rule(name: str) -> Object:
    module = RULES[name]
    return cluster_object(API + "/v1alpha1", "NodeFeatureRule", "gpuops-%s" % name, APP, spec={"rules": [{
        "name": "gpuops %s" % name,
        "labels": {"nvidia.com/%s.capable" % name: "true"},
        "matchFeatures": [{"feature": "kernel.loadedmodule", "matchExpressions": {module: {"op": "Exists"}}}],
    }]})


def _master(parameters: Parameters) -> List[Object]:
    made = [service_account(MASTER, parameters), *cluster_role(MASTER, parameters, [
        rule("", ["namespaces"], ["list", "watch"]),
        rule("", ["nodes"], ["get", "list", "patch", "update"]),
        rule("", ["nodes/status"], ["patch", "update"]),
        rule(API, ["nodefeatures", "nodefeaturerules"], ["get", "list", "watch"]),
    ])]
    config, command = parameters["master_config"], [MASTER]
    if parameters["master_replicas"] > 1:
        command.append("-enable-leader-election")
        made += role(MASTER, parameters, [
            rule("coordination.k8s.io", ["leases"], ["create"]),
            rule("coordination.k8s.io", ["leases"], ["get", "update"], [LEASE]),
        ])
    if config:
        made.append(config_map(MASTER, parameters, {"nfd-master.conf": as_yaml(config)}))
    container = {
        **_container(MASTER, "master", parameters, command),
        **_probes(parameters),
        **({"volumeMounts": [mount("config", CONFIG, read_only=True)]} if config else {}),
    }
    spec = _controller(MASTER, container, parameters, [config_volume("config", MASTER)] if config else [])
    template = pod_template(MASTER, parameters, spec, checksum(config) if config else None)
    return [*made, deployment(MASTER, parameters, template, parameters["master_replicas"])]


def _gc(parameters: Parameters) -> List[Object]:
    rules = [rule("", ["nodes"], ["list", "watch"]), rule(API, ["nodefeatures"], ["list", "delete"])]
    if parameters["topology_updater"]:
        rules.append(rule("topology.node.k8s.io", ["noderesourcetopologies"], ["list", "delete"]))
    spec = _controller(GC, _container(GC, "gc", parameters, [GC]), parameters)
    return [service_account(GC, parameters), *cluster_role(GC, parameters, rules),
            deployment(GC, parameters, pod_template(GC, parameters, spec))]


def _worker(parameters: Parameters) -> List[Object]:
    config = parameters["worker_config"]
    container = {
        **_container(WORKER, "worker", parameters, [WORKER]),
        **_probes(parameters),
        "volumeMounts": [mount("config", CONFIG, read_only=True), *(
            mount("host-" + name, SEEN_AT.get(path, "/host-" + name), read_only=True) for name, path in SEEN)],
    }
    volumes = [config_volume("config", WORKER), *(host_path("host-" + name, path) for name, path in SEEN)]
    spec = pod_spec(parameters, WORKER, [container], volumes, token=True)
    return [
        service_account(WORKER, parameters),
        *role(WORKER, parameters, [rule(API, ["nodefeatures"], ["get", "create", "update", "delete"]),
                                   rule("", ["pods"], ["get"])]),
        config_map(WORKER, parameters, {"nfd-worker.conf": as_yaml(config)}),
        daemon_set(WORKER, parameters, pod_template(WORKER, parameters, spec, checksum(config))),
    ]


def _topology_updater(parameters: Parameters) -> List[Object]:
    config, kubelet = parameters["topology_updater_config"], parameters["kubelet_root"]
    container = {
        **_container(TOPOLOGY, "topology_updater", parameters, [
            TOPOLOGY, "-podresources-socket=/host-var/lib/kubelet/pod-resources/kubelet.sock",
            "-kubelet-state-dir=/host-var/lib/kubelet"]),
        **_probes(parameters),
        # The kubelet's socket is for root
        "securityContext": {**{key: value for key, value in UNPRIVILEGED.items() if key != "runAsNonRoot"},
                            "runAsUser": 0},
        "volumeMounts": [mount("config", CONFIG, read_only=True), mount("host-sys", "/host-sys", read_only=True),
                         mount("kubelet", "/host-var/lib/kubelet", read_only=True)],
    }
    container["env"] += environment({"NODE_ADDRESS": field("status.hostIP")})
    volumes = [config_volume("config", TOPOLOGY), host_path("host-sys", "/sys"),
               host_path("kubelet", kubelet, "Directory")]
    spec = pod_spec(parameters, TOPOLOGY, [container], volumes, token=True, dnsPolicy="ClusterFirstWithHostNet")
    return [
        _custom_resource(node_resource_topology()),
        service_account(TOPOLOGY, parameters),
        *cluster_role(TOPOLOGY, parameters, [
            rule("", ["nodes"], ["get", "list"]),
            rule("", ["namespaces", "nodes/proxy", "pods"], ["get"]),
            rule("topology.node.k8s.io", ["noderesourcetopologies"], ["create", "get", "update"]),
        ]),
        config_map(TOPOLOGY, parameters, {"nfd-topology-updater.conf": as_yaml(config)}),
        daemon_set(TOPOLOGY, parameters, pod_template(TOPOLOGY, parameters, spec, checksum(config))),
    ]


def _controller(name: str, container: Dict[str, Any], parameters: Parameters,
                volumes: Optional[List[Dict[str, Any]]] = None) -> Dict[str, Any]:
    """The pod of a program that looks at the cluster, and not at the node that it runs on."""
    return pod_spec(parameters, name, [container], volumes or (), token=True, node_selector=LINUX,
                    affinity=parameters["master_affinity"])


def _container(name: str, part: str, parameters: Parameters, command: List[str]) -> Dict[str, Any]:
    return container(
        name, image_of(parameters, ARGUMENTS), parameters, command=command,
        env=environment({"NODE_NAME": field("spec.nodeName"), "POD_NAME": field("metadata.name"),
                         "POD_UID": field("metadata.uid"), "KUBERNETES_NAMESPACE": field("metadata.namespace")}),
        securityContext=UNPRIVILEGED, resources=parameters["resources"].get(part) or {})


def _probes(parameters: Parameters) -> Dict[str, Any]:
    probe = PROBES[parameters["probe"]]
    return {"livenessProbe": {**probe, "initialDelaySeconds": 10, "periodSeconds": 10},
            "readinessProbe": {**probe, "periodSeconds": 5, "failureThreshold": 10}}


NODE_FEATURE_DISCOVERY = Component(
    name="node_feature_discovery", title="Node Feature Discovery",
    apps=(APP, MASTER, WORKER, GC, TOPOLOGY, PRUNE), arguments=ARGUMENTS, make=make, before_removal=before_removal,
    provided_by=(("CustomResourceDefinition", "nodefeatures.nfd.k8s-sigs.io"),))
