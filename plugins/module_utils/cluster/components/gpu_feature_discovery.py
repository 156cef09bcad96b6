# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's GPU feature discovery: publishes what a node's GPUs are, as a NodeFeature."""
from __future__ import annotations

from typing import Any, Dict, List

from ..plugin_config import CONFIG_LABEL, IMAGE, VERSION, completed
from .common import (
    GPU_TOLERATION,
    Object,
    Parameters,
    as_yaml,
    checksum,
    config_map,
    config_volume,
    daemon_set,
    environment,
    field,
    host_path,
    image_of,
    mount,
    pod_arguments,
    pod_spec,
    pod_template,
    resource_quota,
    role,
    rule,
    service_account,
)
from .groups import Group, groups_of
from .model import Component

APP = "gpu-feature-discovery"

ARGUMENTS: Dict[str, Any] = {
    **pod_arguments(
        IMAGE, VERSION,
        node_selector={"nvidia.com/gpu.deploy.gpu-feature-discovery": "true"},
        update_strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        tolerations=[GPU_TOLERATION, {"key": "CriticalAddonsOnly", "operator": "Exists"}],
    ),
    "config": {"type": "dict", "default": {
        "version": "v1", "flags": {"migStrategy": "mixed", "failOnInitError": False}}},
    "configs": {"type": "dict", "default": {}},
}


def make(parameters: Parameters) -> List[Object]:
    """ServiceAccount, its rights, and for each configuration its ConfigMap and its DaemonSet."""
    named = {name: completed(config or {}, parameters["config"]) for name, config in parameters["configs"].items()}
    made = [service_account(APP, parameters), *resource_quota(APP, parameters), *role(APP, parameters, [
        rule("nfd.k8s-sigs.io", ["nodefeatures"], ["get", "create", "update"]), rule("", ["pods"], ["get"])])]
    for group in groups_of("configs", CONFIG_LABEL, completed(parameters["config"], {}), named,
                           parameters["node_selector"]):
        made += [config_map(group.called(APP), parameters, {"config.yaml": as_yaml(group.value)}),
                 _discovery(group, parameters)]
    return made


def _discovery(group: Group, parameters: Parameters) -> Object:
    name = group.called(APP)
    container = {
        "name": APP,
        "image": image_of(parameters, ARGUMENTS),
        "imagePullPolicy": parameters["image_pull_policy"],
        "command": [APP],
        "env": environment({
            "CONFIG_FILE": "/config/config.yaml", "NVIDIA_MIG_MONITOR_DEVICES": "all",
            "NODE_NAME": field("spec.nodeName"), "NAMESPACE": field("metadata.namespace"),
            "POD_NAME": field("metadata.name")}),
        # The PCI configuration space beyond its first 64 bytes, where a vGPU shows itself, is for privileged readers.
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "resources": parameters["resources"],
        "volumeMounts": [mount("config", "/config", read_only=True), mount("sys", "/sys", read_only=True)],
    }
    spec = pod_spec(
        parameters, APP, [container], [config_volume("config", name), host_path("sys", "/sys", "Directory")],
        token=True, node_selector=group.node_selector(parameters["node_selector"]),
        affinity=group.affinity(parameters["affinity"]), runtimeClassName=parameters["runtime_class"])
    return daemon_set(name, parameters, pod_template(name, parameters, spec, checksum(group.value)))


GPU_FEATURE_DISCOVERY = Component(
    name="gpu_feature_discovery", title="GPU feature discovery", apps=(APP,), arguments=ARGUMENTS, make=make)
