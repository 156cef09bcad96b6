# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's device plugin: offers the GPUs of validated nodes to their kubelets.

Where a configuration shares GPUs by MPS, NVIDIA's control daemon for it runs beside, as in the chart of the repository
NVIDIA/k8s-device-plugin.
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.quantities import PREFIX, whole
from ..plugin_config import CONFIG_LABEL, DEFAULT, IMAGE, MPS_ROOT, VERSION, completed
from .common import (
    CONFINED,
    GPU_TOLERATION,
    Object,
    Parameters,
    checksum,
    cluster_object,
    config_volume,
    container,
    daemon_set,
    environment,
    field,
    host_path,
    image_of,
    mount,
    namespaced,
    pod_arguments,
    pod_spec,
    pod_template,
    resource_quota,
    scheduling,
    service_account,
)
from .config_manager import ConfigSource, configured
from .groups import Group, groups_of
from .model import Component

APP = "nvidia-device-plugin"
MPS_APP = APP + "-mps"
# GPU feature discovery labels nodes so whose GPUs can be shared by MPS, and whose configuration says so
MPS_CAPABLE = {"nvidia.com/mps.capable": "true"}
# What a container asks NVIDIA's runtime for by its environment: every GPU, and the programs that manage them
DRIVER_PROGRAMS = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
# The daemon's own sign, which a power cut may leave behind, and the mount, which it does not
MPS_READY = "until [ -e /mps/.ready ] && grep -q ' /mps/shm ' /proc/self/mountinfo; do sleep 1; done"
SOCKETS = "/var/lib/kubelet/device-plugins"
# Of a user's namespace
QUOTA = "nvidia-gpu"
_OF_REQUESTS = "requests."
_RESOURCE = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# A variable of the plugin's environment beats the configuration file without a word.
CONFIG_VARIABLES = (
    "CDI_ANNOTATION_PREFIX", "CONFIG_FILE", "CONTAINER_DRIVER_ROOT", "DEVICE_DISCOVERY_STRATEGY", "DEVICE_ID_STRATEGY",
    "DEVICE_LIST_STRATEGY", "DRIVER_ROOT_CTR_PATH", "FAIL_ON_INIT_ERROR", "GDRCOPY_ENABLED", "GDS_ENABLED",
    "IMEX_CHANNEL_IDS", "IMEX_REQUIRED", "MIG_STRATEGY", "MOFED_ENABLED", "MPS_ROOT", "NVIDIA_CDI_HOOK_PATH",
    "NVIDIA_CTK_PATH", "NVIDIA_DEV_ROOT", "NVIDIA_DRIVER_ROOT", "PASS_DEVICE_SPECS", "SHARED_DEVICES_ALLOCATION_POLICY",
)

ARGUMENTS: Dict[str, Any] = {
    **pod_arguments(
        IMAGE, VERSION,
        node_selector={"nvidia.com/gpu.deploy.device-plugin": "true"},
        update_strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        tolerations=[GPU_TOLERATION, {"key": "CriticalAddonsOnly", "operator": "Exists"}],
    ),
    "config": {"type": "dict", "default": DEFAULT},
    "configs": {"type": "dict", "default": {}},
    "config_manager": {"type": "bool", "default": False},
    "env": {"type": "dict", "default": {}},
    "kubelet_root": {"type": "path", "default": "/var/lib/kubelet"},
    "mps_root": {"type": "path", "default": MPS_ROOT},
    "runtime_classes": {"type": "list", "elements": "str", "choices": ["nvidia-cdi", "nvidia-legacy"], "default": []},
    "namespace_quotas": {"type": "dict", "default": {}},
    "expected_allocatable": {"type": "dict", "default": {}},
}


def make(parameters: Parameters) -> List[Object]:
    """ServiceAccount, RuntimeClasses, for each configuration its ConfigMap and its DaemonSets, and quotas of users.

    With config-manager one ConfigMap and one DaemonSet for all configurations, and the right to see Nodes.
    """
    _refuse_two_places(parameters["env"])
    made = [service_account(APP, parameters), *resource_quota(APP, parameters)]
    made += [cluster_object("node.k8s.io/v1", "RuntimeClass", name, APP, handler=name, **scheduling(parameters))
             for name in parameters["runtime_classes"]]
    groups = _groups(parameters)
    if parameters["config_manager"]:
        _refuse_pods_that_differ(groups)
    held, placed = configured(APP, image_of(parameters, ARGUMENTS), parameters, groups)
    made += held
    for group, source in placed:
        made.append(_plugin(group, parameters, source))
        if _shares_by_mps(group.value):
            made.append(_mps(group, parameters))
    return made + [_namespace_quota(name, hard, parameters) for name, hard in parameters["namespace_quotas"].items()]


def _namespace_quota(name: str, hard: Any, parameters: Parameters) -> Object:
    """How many GPUs the pods of a user's namespace may ask for.

    Of extended resources there are quotas of requests alone:
    https://kubernetes.io/docs/concepts/policy/resource-quotas/#resource-quota-for-extended-resources
    """
    amounts = hard if isinstance(hard, Mapping) else {}
    quantities = {str(resource): whole(amount) for resource, amount in amounts.items()}
    if not quantities or not _NAMESPACE.fullmatch(str(name)) or not all(
            _RESOURCE.fullmatch(resource) and amount is not None for resource, amount in quantities.items()):
        raise GpuOpsError(
            "cluster.namespace_quota_malformed", found="in `namespace_quotas`: %s: %s" % (name, hard),
            wanted="the name of a namespace, and for it names such as nvidia.com/gpu, nvidia.com/gpu.shared or "
            "nvidia.com/mig-1g.10gb, each with a whole number",
            remedy="correct it in `namespace_quotas`", option="namespace_quotas")
    return namespaced("v1", "ResourceQuota", QUOTA, APP, {**parameters, "namespace": name}, spec={
        "hard": {_OF_REQUESTS + resource: str(amount) for resource, amount in sorted(quantities.items())}})


def _groups(parameters: Parameters) -> List[Group]:
    root = parameters["mps_root"]
    base = completed(parameters["config"], {}, root)
    named = {name: completed(config or {}, parameters["config"], root)
             for name, config in parameters["configs"].items()}
    return groups_of("configs", CONFIG_LABEL, base, named, parameters["node_selector"])


def _shares_by_mps(config: Mapping[str, Any]) -> bool:
    return "mps" in (config.get("sharing") or {})


def _refuse_two_places(env: Mapping[str, Any]) -> None:
    twice = sorted(set(env).intersection(CONFIG_VARIABLES))
    if twice:
        raise GpuOpsError(
            "cluster.two_places_of_a_setting", found="%s in `env`" % ", ".join(twice),
            wanted="each setting in one place; the environment silently overrides the configuration file",
            remedy="set it in `config`", option="env")


def _refuse_pods_that_differ(groups: Sequence[Group]) -> None:
    """What of a pod depends on its configuration is the same for all nodes of a DaemonSet. And on a node that is not
    shared by MPS a pod that waits for the daemon would wait for ever; config-manager beside the daemon ends over the
    first process of the host that has no command line."""
    found = ["%s shares by MPS" % _told(group) for group in groups if _shares_by_mps(group.value)]
    found += ["%s has the driver in another place than `config`" % _told(group) for group in groups
              if _driver_roots(group.value) != _driver_roots(groups[0].value)]
    if found:
        raise GpuOpsError(
            "cluster.configs_need_daemon_sets", found="with `config_manager`: %s" % "; ".join(found),
            wanted="configurations that one pod can have in turn: without sharing.mps, and with one "
            "flags.nvidiaDriverRoot and one flags.plugin.containerDriverRoot",
            remedy="leave `config_manager` off, so that each configuration has a DaemonSet of its own",
            option="config_manager")


def _told(group: Group) -> str:
    return "%s of `configs`" % group.name if group.name else "`config`"


def _driver_roots(config: Mapping[str, Any]) -> Tuple[str, str]:
    """(the driver's directory on the host, and in the pod)."""
    flags = config.get("flags") or {}
    return (flags.get("nvidiaDriverRoot") or "/",
            (flags.get("plugin") or {}).get("containerDriverRoot") or "/driver-root")


def _plugin(group: Group, parameters: Parameters, source: ConfigSource) -> Object:
    name, config = group.called(APP), group.value
    driver_root, root_in_pod = _driver_roots(config)
    mounts = [
        *source.mounts,
        mount("device-plugins", SOCKETS),
        mount("cdi", "/var/run/cdi"),
        mount("driver-root", root_in_pod, read_only=True, propagation="HostToContainer"),
    ]
    volumes = [
        *source.volumes,
        host_path("device-plugins", parameters["kubelet_root"] + "/device-plugins", "Directory"),
        host_path("cdi", "/var/run/cdi", "DirectoryOrCreate"),
        host_path("driver-root", driver_root, "Directory"),
    ]
    variables: Dict[str, Any] = {}
    before = [*source.init_containers]
    runtime_class = ""
    if _shares_by_mps(config):
        mounts += [mount("mps-root", "/mps"), mount("mps-shm", "/dev/shm")]
        volumes += _mps_volumes(config["flags"]["mpsRoot"])
        # It asks the control daemon by the driver's own program, which comes from the runtime
        variables = DRIVER_PROGRAMS
        runtime_class = parameters["runtime_class"]
        before.append(_wait_for_mps(parameters))
    plugin = container(
        APP, image_of(parameters, ARGUMENTS), parameters, command=[APP],
        env=environment({"CONFIG_FILE": "/config/config.yaml", "KUBELET_SOCKET": SOCKETS + "/kubelet.sock",
                         "NVIDIA_MIG_MONITOR_DEVICES": "all", **variables}, parameters["env"]),
        # NVML opens the device node of every GPU of the node, and the CDI specification is made from the driver's
        # files, so the container needs the host's devices; nothing else of the host is writable but the two sockets'
        # directories.
        securityContext={"privileged": True, "readOnlyRootFilesystem": True}, volumeMounts=mounts)
    spec = pod_spec(parameters, APP, [plugin, *source.sidecars], volumes, token=source.token,
                    **group.placement(parameters), runtimeClassName=runtime_class,
                    initContainers=before, shareProcessNamespace=source.shares_processes)
    return daemon_set(name, parameters, pod_template(name, parameters, spec, source.annotations))


def _wait_for_mps(parameters: Parameters) -> Dict[str, Any]:
    """The plugin would offer GPUs whose limits the daemon has yet to set (NVIDIA/k8s-device-plugin#1946), and keep the
    directory over which the daemon mounts the memory that it shares with its clients."""
    return container(
        "mps-control-daemon-ready", image_of(parameters, ARGUMENTS), parameters, command=["/bin/sh", "-c", MPS_READY],
        securityContext=CONFINED,
        volumeMounts=[mount("mps-root", "/mps", read_only=True, propagation="HostToContainer")])


def _mps(group: Group, parameters: Parameters) -> Object:
    """The daemon sets GPUs to the compute mode EXCLUSIVE_PROCESS, and back to DEFAULT when it is ended in order."""
    name, config = group.called(MPS_APP), group.value
    image = image_of(parameters, ARGUMENTS)
    mounts = container(
        "mps-control-daemon-mounts", image, parameters, command=["/usr/bin/mps-control-daemon", "mount-shm"],
        securityContext={"privileged": True}, volumeMounts=[mount("mps-root", "/mps", propagation="Bidirectional")])
    daemon = container(
        # Whole, because NVIDIA's config-manager finds a process by exactly what it was started as
        "mps-control-daemon", image, parameters, command=["/usr/bin/mps-control-daemon"],
        env=environment({
            "CONFIG_FILE": "/config/config.yaml", "NODE_NAME": field("spec.nodeName"),
            "NVIDIA_MIG_MONITOR_DEVICES": "all", **DRIVER_PROGRAMS}),
        securityContext={"privileged": True},
        volumeMounts=[mount("config", "/config", read_only=True), mount("mps-root", "/mps"),
                      mount("mps-shm", "/dev/shm")])
    spec = pod_spec(
        parameters, APP, [daemon], [config_volume("config", group.called(APP)),
                                    *_mps_volumes(config["flags"]["mpsRoot"])],
        node_selector={**group.node_selector(parameters["node_selector"]), **MPS_CAPABLE},
        affinity=group.affinity(parameters["affinity"]),
        # The driver's programs that it starts come from the runtime; their processes are those of the node
        runtimeClassName=parameters["runtime_class"], hostPID=True, initContainers=[mounts])
    return daemon_set(name, parameters, pod_template(name, parameters, spec, checksum(config)))


def _mps_volumes(root: str) -> List[Dict[str, Any]]:
    return [host_path("mps-root", root, "DirectoryOrCreate"), host_path("mps-shm", root + "/shm")]


DEVICE_PLUGIN = Component(
    name="device_plugin", title="NVIDIA device plugin", apps=(APP, MPS_APP), arguments=ARGUMENTS, make=make)
