# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's GPU feature discovery: publishes what a node's GPUs are, as a NodeFeature or in a file of the node."""
from __future__ import annotations

import posixpath
from typing import Any, Dict, List, Sequence

from ...core.errors import GpuOpsError
from ...core.features import FEATURE_FILE
from ..plugin_config import CONFIG_LABEL, IMAGE, VERSION, completed
from .common import (
    GPU_TOLERATION,
    Object,
    Parameters,
    container,
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
from .config_manager import ConfigSource, configured
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
    "config_manager": {"type": "bool", "default": False},
    "use_node_feature_api": {"type": "bool", "default": True},
}


def make(parameters: Parameters) -> List[Object]:
    """ServiceAccount, its rights, and for each configuration its ConfigMap and its DaemonSet; with config-manager one
    ConfigMap and one DaemonSet for all. Who writes a file needs no rights."""
    named = {name: completed(config or {}, parameters["config"]) for name, config in parameters["configs"].items()}
    made = [service_account(APP, parameters), *resource_quota(APP, parameters)]
    if parameters["use_node_feature_api"]:
        made += role(APP, parameters, [
            rule("nfd.k8s-sigs.io", ["nodefeatures"], ["get", "create", "update"]), rule("", ["pods"], ["get"])])
    groups = groups_of("configs", CONFIG_LABEL, completed(parameters["config"], {}), named,
                       parameters["node_selector"])
    _refuse_two_places(groups, parameters["use_node_feature_api"])
    held, placed = configured(APP, image_of(parameters, ARGUMENTS), parameters, groups)
    return [*made, *held, *(_discovery(group, parameters, source) for group, source in placed)]


def _refuse_two_places(groups: Sequence[Group], api: bool) -> None:
    for group in groups:
        flags = group.value.get("flags") or {}
        said = flags.get("useNodeFeatureAPI", api)
        file = (flags.get("gfd") or {}).get("outputFile", FEATURE_FILE)
        if said != api or not api and file != FEATURE_FILE:
            raise GpuOpsError(
                "cluster.two_places_of_features",
                found="a configuration says flags.useNodeFeatureAPI=%s and flags.gfd.outputFile=%s, the option "
                "`use_node_feature_api` is %s" % (str(said).lower(), file, str(api).lower()),
                wanted="one word on where features are published; as a file it is %s" % FEATURE_FILE,
                remedy="take these keys out of `config` and `configs`", option="use_node_feature_api")


def _discovery(group: Group, parameters: Parameters, source: ConfigSource) -> Object:
    name, api = group.called(APP), parameters["use_node_feature_api"]
    published: Dict[str, Any] = {"GFD_USE_NODE_FEATURE_API": "false", "GFD_OUTPUT_FILE": FEATURE_FILE}
    mounts = [*source.mounts, mount("sys", "/sys", read_only=True)]
    volumes = [*source.volumes, host_path("sys", "/sys", "Directory")]
    if api:
        published = {"NODE_NAME": field("spec.nodeName"), "NAMESPACE": field("metadata.namespace"),
                     "POD_NAME": field("metadata.name")}
    else:
        mounts.append(mount("features", posixpath.dirname(FEATURE_FILE)))
        volumes.append(host_path("features", posixpath.dirname(FEATURE_FILE), "DirectoryOrCreate"))
    discovery = container(
        APP, image_of(parameters, ARGUMENTS), parameters, command=[APP],
        env=environment({"CONFIG_FILE": "/config/config.yaml", "NVIDIA_MIG_MONITOR_DEVICES": "all", **published}),
        # The PCI configuration space beyond its first 64 bytes, where a vGPU shows itself, is for privileged readers.
        securityContext={"privileged": True, "readOnlyRootFilesystem": True}, volumeMounts=mounts)
    spec = pod_spec(
        parameters, APP, [discovery, *source.sidecars], volumes, token=api or source.token,
        **group.placement(parameters), runtimeClassName=parameters["runtime_class"],
        initContainers=list(source.init_containers), shareProcessNamespace=source.shares_processes)
    return daemon_set(name, parameters, pod_template(name, parameters, spec, source.annotations))


GPU_FEATURE_DISCOVERY = Component(
    name="gpu_feature_discovery", title="GPU feature discovery", apps=(APP,), arguments=ARGUMENTS, make=make)
