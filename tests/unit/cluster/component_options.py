# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options that a component takes, as hypothesis draws them, and questions to the objects that it makes of them."""
from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple

from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.common import Object
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import Component
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS

DIGEST = "sha256:" + "0123456789abcdef" * 4
WORKLOADS = ("DaemonSet", "Deployment", "Job")
MPS = {"flags": {"migStrategy": "none"}, "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
SLICED = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
keys = names.map("example.com/{}".format)
label_sets = st.dictionaries(keys, names, max_size=2)
plugin_configs = st.one_of(
    st.just({}), st.just(SLICED), st.just(MPS), st.just({"flags": {"migStrategy": "single"}}),
    st.just({"flags": {"plugin": {"deviceListStrategy": "envvar"}}}))
terms = st.fixed_dictionaries({}, optional={
    "matchExpressions": st.lists(st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        keys, st.sampled_from(["In", "NotIn"]), st.lists(names, min_size=1, max_size=2)), max_size=2),
    "matchFields": st.just([{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}])})
affinities = st.one_of(
    st.just({}), st.just({"podAntiAffinity": {}}),
    st.lists(terms, min_size=1, max_size=3).map(lambda drawn: {"nodeAffinity": {REQUIRED: {
        "nodeSelectorTerms": drawn}}}))
metric_lists = st.lists(
    st.sampled_from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_XID_ERRORS"]),
    min_size=1, unique=True).map(
    lambda fields: [{"field": field, "type": "gauge", "help": "of " + field} for field in fields])

SHARED: Dict[str, st.SearchStrategy[Any]] = {
    "namespace": names,
    "runtime_class": names,
    "runtime_class_scheduling": st.fixed_dictionaries({}, optional={
        "node_selector": label_sets, "tolerations": st.just([{"operator": "Exists"}])}),
    "registry": st.sampled_from(["", "mirror.example:5000", "mirror.example/nvidia/"]),
    "image_pull_secrets": st.lists(names, max_size=2),
    "image": st.fixed_dictionaries({}, optional={
        "repository": st.just("other.example/image"), "tag": st.just("v9"), "digest": st.just(DIGEST)}),
    "node_selector": label_sets,
    "affinity": affinities,
    "tolerations": st.just([{"operator": "Exists"}]),
    "priority_class": st.sampled_from(["", "high"]),
    "resource_quota": st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "pods": st.integers(1, 9)}),
    "pod_annotations": label_sets,
    "pod_labels": label_sets,
    "update_strategy": st.sampled_from([{"type": "OnDelete"}, {"rollingUpdate": {"maxUnavailable": 3}}]),
}
OWN: Dict[str, Dict[str, st.SearchStrategy[Any]]] = {
    "device_plugin": {
        "config": plugin_configs,
        "configs": st.dictionaries(names.map("g{}".format), plugin_configs, max_size=3),
        "config_manager": st.booleans(),
        "env": st.just({"DP_DISABLE_HEALTHCHECKS": "all"}),
        "kubelet_root": st.just("/var/lib/k0s/kubelet"),
        "mps_root": st.just("/srv/mps"),
        "runtime_classes": st.lists(st.sampled_from(["nvidia-cdi", "nvidia-legacy"]), unique=True),
        "resources": st.just({"limits": {"memory": "1Gi"}}),
    },
    "gpu_feature_discovery": {
        "config": plugin_configs,
        "configs": st.dictionaries(names.map("g{}".format), plugin_configs, max_size=3),
        "config_manager": st.booleans(),
        "use_node_feature_api": st.booleans(),
        "resources": st.just({"limits": {"cpu": "1"}}),
    },
    "node_feature_discovery": {
        "master_affinity": affinities,
        "master_config": st.just({"extraLabelNs": ["example.com"]}),
        "master_replicas": st.integers(1, 3),
        "worker_config": st.just({"core": {"sleepInterval": "5s"}}),
        "gc": st.booleans(),
        "topology_updater": st.booleans(),
        "feature_rules": st.lists(st.sampled_from(["peermem", "gds", "gdrcopy"]), unique=True),
        "probe": st.sampled_from(["grpc", "http"]),
        "resources": st.just({"master": {"limits": {"memory": "4Gi"}}}),
    },
    "dcgm_exporter": {
        "port": st.integers(1024, 65535),
        "resource_names": st.just(["nvidia.com/gpu.shared"]),
        "env": st.just({"DCGM_EXPORTER_DEBUG": True}),
        "host_engine": st.just("dcgm:5555"),
        "metrics": metric_lists,
        "metric_sets": st.dictionaries(names.map("g{}".format), metric_lists, max_size=3),
        "allow_unknown_metrics": st.booleans(),
        "pod_labels_in_metrics": st.booleans(),
        "pod_uid_in_metrics": st.booleans(),
        "scrape_annotations": st.booleans(),
        "service_monitor": st.fixed_dictionaries({}, optional={
            "enabled": st.booleans(), "interval": st.just("1m"), "labels": label_sets}),
        "network_policy": st.booleans(),
        "resources": st.just({"limits": {"memory": "2Gi"}}),
    },
}
# Those with pods
RUNNING: Dict[str, Component] = {name: component for name, component in COMPONENTS.items() if name in OWN}


def options(component: Component) -> st.SearchStrategy[Dict[str, Any]]:
    """Any subset of a component's options, each with a value that it takes, and no two that contradict each other."""
    drawn = st.fixed_dictionaries({}, optional={**SHARED, **OWN[component.name]})
    drawn = drawn.filter(lambda found: not _contradicts(found))
    if component.name == "dcgm_exporter":
        web = st.sampled_from([{}, {"tls_secret": "tls"}, {"web_config_secret": "web"}])
        return st.tuples(drawn, web).map(lambda both: {**both[0], **both[1]})
    return drawn


def _contradicts(found: Mapping[str, Any]) -> bool:
    """Whether a group would be shared in two ways, its own and the one that it has from the base, or by MPS where one
    DaemonSet serves all."""
    kinds = [set(config.get("sharing", {})) for config in (found.get("config", {}), *found.get("configs", {}).values())]
    if found.get("config_manager") and any("mps" in each for each in kinds):
        return True
    if not kinds or not kinds[0]:
        return False
    base = found["config"]
    return any(each and each != kinds[0] for each in kinds[1:]) or (
        base == MPS and any(config.get("flags", {}).get("migStrategy") == "mixed"
                            for config in found.get("configs", {}).values()))


def workloads(objects: Iterable[Object]) -> List[Object]:
    return [each for each in objects if each["kind"] in WORKLOADS]


def pod(workload: Object) -> Dict[str, Any]:
    found: Dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


def by_name(objects: Iterable[Object]) -> Dict[Tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def chosen(workload: Object, node_labels: Mapping[str, str]) -> bool:
    """Whether a workload's pods go to a node with these labels, by node selector and required node affinity."""
    spec = pod(workload)
    if any(node_labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED)
    return required is None or any(_matches(term, node_labels) for term in required["nodeSelectorTerms"])


def _matches(term: Mapping[str, Any], node_labels: Mapping[str, str]) -> bool:
    for expression in term.get("matchExpressions", ()):
        inside = node_labels.get(expression["key"]) in expression["values"]
        if inside != (expression["operator"] == "In"):
            return False
    return bool(term)


def leaves(data: Any, path: Tuple[Any, ...] = ()) -> Iterator[Tuple[Tuple[Any, ...], Any]]:
    """What stands at the ends of nested mappings."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data
