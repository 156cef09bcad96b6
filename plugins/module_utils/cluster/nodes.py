# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a Node object says about its GPUs, and what in it does not fit together.

The labels are those of GPU feature discovery, Node Feature Discovery and the MIG manager.
"""
from __future__ import annotations

import re
from collections import Counter
from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.quantities import PREFIX, nvidia_resources
from ..core.refusal import Refusal
from .labels import cordoned_by, our_labels
from .offer import MIG, MIXED, NO_STRATEGY

GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
NFD_PCI_LABELS = tuple("feature.node.kubernetes.io/pci-%s.present" % key for key in ("10de", "0302_10de", "0300_10de"))
ROLE_PREFIX = "node-role.kubernetes.io/"
TOPOLOGY = {
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "instance_type": "node.kubernetes.io/instance-type",
}
# Operands that only the GPU Operator deploys: their labels tell that it manages the node.
OPERATOR_OPERANDS = ("driver", "container-toolkit", "operator-validator", "node-status-exporter", "dra-driver",
                     "dra-validator", "dcgm-dra", "dcgm-exporter-dra")
DEPLOY = "nvidia.com/gpu.deploy."
OPERANDS = DEPLOY + "operands"
MIG_COUNT_LABEL = re.compile(r"nvidia\.com/mig-((?:[0-9]+c\.)?[0-9]+g\.[0-9a-z.-]+)\.count$")


def node_facts(node: Mapping[str, Any]) -> Dict[str, Any]:
    """Everything that Ansible may want to know of a GPU node, from its Node object alone."""
    metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
    labels = dict(metadata.get("labels") or {})
    facts: Dict[str, Any] = {
        "name": metadata.get("name"),
        "labels": labels,
        "annotations": dict(metadata.get("annotations") or {}),
        "our_labels": _our_labels(node),
        "created": metadata.get("creationTimestamp"),
        "taints": list(spec.get("taints") or []),
        "unschedulable": bool(spec.get("unschedulable")),
        "cordoned_by": cordoned_by(node),
        "provider_id": spec.get("providerID"),
        "pod_cidr": spec.get("podCIDR"),
        "addresses": _addresses(status),
        "roles": sorted(key[len(ROLE_PREFIX):] for key in labels if key.startswith(ROLE_PREFIX)),
    }
    facts.update({name: labels.get(key) for name, key in TOPOLOGY.items()})
    facts.update(_conditions(status))
    facts.update(_system(status.get("nodeInfo") or {}))
    facts.update(_gpu_labels(labels))
    facts["capacity"] = nvidia_resources(status.get("capacity"))
    facts["allocatable"] = nvidia_resources(status.get("allocatable"))
    facts["present_reason"] = _present_reason(labels, facts)
    facts["present"] = facts["present_reason"] is not None
    facts["findings"] = [finding.to_dict() for finding in node_findings(facts)]
    return facts


def _our_labels(node: Mapping[str, Any]) -> List[str]:
    """A record that nobody can read is refused where labels are to be changed."""
    try:
        return sorted(our_labels(node))
    except GpuOpsError:
        return []


def node_findings(facts: Mapping[str, Any]) -> List[Refusal]:
    """What does not fit together on one node."""
    findings: List[Refusal] = []
    product, name = facts["product"] or "", facts["name"]
    if not facts["ready"]:
        reason = (facts["conditions"].get("Ready") or {}).get("reason") or "no Ready condition"
        findings.append(Refusal(
            "cluster.not_ready", "node %s is not Ready (%s)" % (name, reason), "a Ready node",
            "look at the kubelet and the container runtime of the node"))
    if "MIG-INVALID" in product:
        findings.append(Refusal(
            "cluster.mig_invalid", "node %s has the product label %s" % (name, product),
            "one MIG geometry on every GPU, as MIG strategy `single` asks",
            "apply one layout to all GPUs, or use MIG strategy `mixed`"))
    # Under `mixed` it is the label of every node whose GPUs are all divided
    elif facts["replicas"] == 0 and facts["mig"]["strategy"] == NO_STRATEGY:
        findings.append(Refusal(
            "cluster.mig_without_strategy",
            "node %s has GPUs in MIG mode and the label nvidia.com/gpu.replicas=0" % name,
            "a MIG strategy other than `none`, or GPUs out of MIG mode",
            "set the device plugin's MIG strategy to `single` or `mixed`, or disable MIG"))
    findings.extend(_unhealthy(facts))
    findings.extend(_count_mismatch(facts))
    return findings


def usual_drivers(seen: Iterable[Tuple[Optional[str], Optional[str]]]) -> Dict[str, str]:
    """{product: the driver that most nodes with it run}. seen: product and driver of each node, None where unknown."""
    counts = Counter((product, driver) for product, driver in seen if product and driver)
    usual: Dict[str, Tuple[int, str]] = {}
    for (product, driver), count in sorted(counts.items(), reverse=True):
        if product not in usual or count >= usual[product][0]:
            usual[product] = (count, driver)
    return {product: driver for product, (_count, driver) in usual.items()}


def skew_finding(facts: Mapping[str, Any], usual: Mapping[str, str]) -> Optional[Refusal]:
    """What is wrong where a node's driver differs from that of most nodes with its product (usual_drivers)."""
    product, driver = facts["product"], facts["driver_version"]
    if not driver or usual.get(product, driver) == driver:
        return None
    return Refusal(
        "cluster.driver_skew", "node %s runs driver %s" % (facts["name"], driver),
        "driver %s, which most nodes with %s run" % (usual[product], product),
        "bring the node to the version of the others")


def gpu_capacity(resources: Mapping[str, int]) -> int:
    """Whole or shared GPUs in a resource map."""
    return sum(resources.get(name, 0) for name in GPU_RESOURCES)


def operator_refusal(policies: Sequence[Mapping[str, Any]], managed: Collection[str]) -> Optional[Dict[str, str]]:
    """Why we must not touch these nodes (see managed_by_operator): the GPU Operator manages them. None without any."""
    if not managed:
        return None
    names = [str((policy.get("metadata") or {}).get("name")) for policy in policies]
    source = "ClusterPolicy %s" % ", ".join(names) if names else "nvidia.com/gpu.deploy.* labels"
    return Refusal(
        "cluster.managed_by_gpu_operator",
        "the NVIDIA GPU Operator manages %s (%s)" % (", ".join(sorted(managed)), source),
        "nodes whose GPU stack nobody else manages",
        "delete the ClusterPolicy or GPUCluster, or, for the hosts alone, label each node "
        "`nvidia.com/gpu.deploy.operands=false` and leave the components out (`gpu_components: []`); where the "
        "operator is gone already, remove the `nvidia.com/gpu.deploy.*` labels that it left").to_dict()


def operator_is_active(policies: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of these ClusterPolicies is carried out."""
    return any((policy.get("status") or {}).get("state") != "ignored" for policy in policies)


def managed_by_operator(policies: Sequence[Mapping[str, Any]], node: Mapping[str, Any]) -> bool:
    """Whether the GPU Operator with these ClusterPolicies manages a node, or has left its labels on it."""
    return bool(_operator_evidence(operator_is_active(policies), node))


def offer_refusal(
    facts: Mapping[str, Any], ours: Sequence[Mapping[str, str]], by_claims: Collection[str], operator: bool
) -> Optional[Dict[str, str]]:
    """Why our device plugin must not come to a node: others offer its GPUs already. None when nobody does.

    A kubelet keeps the resources of a plugin that has left as nothing, so that what is to be had is offered by one that
    runs. Two of them take the kubelet's socket from each other; a plugin and a DRA driver give one GPU out twice.

    ours:      the node selectors of our device plugin's DaemonSets.
    by_claims: names of the nodes whose GPUs a DRA driver has published.
    operator:  whether the GPU Operator works in the cluster. From a node that it is to leave alone it takes away, again
               and again, the labels of its operands, which admit ours by default
               (removeAllGPUStateLabels in controllers/state_manager.go of NVIDIA/gpu-operator).
    """
    admitted = [selector for selector in ours if selector.items() <= facts["labels"].items()]
    if operator and facts["labels"].get(OPERANDS) == "false" and not any(
            all(not key.startswith(DEPLOY) for key in selector) for selector in admitted):
        return Refusal(
            "cluster.labels_taken_by_gpu_operator",
            "node %s has `%s=false`, and the NVIDIA GPU Operator works in its cluster: it takes away the labels that "
            "admit our device plugin" % (facts["name"], OPERANDS),
            "labels that stay",
            "delete the ClusterPolicy, or leave the components out (`gpu_components: []`)").to_dict()
    if facts["name"] in by_claims:
        return Refusal(
            "cluster.offered_by_dra", "the DRA driver gpu.nvidia.com offers the GPUs of node %s" % facts["name"],
            "one way for pods to get them", "keep that driver off the node (or switch its GPUs off), or leave "
            "device_plugin out of `gpu_components`").to_dict()
    offered = {name: count for name, count in facts["allocatable"].items()
               if count and (name in GPU_RESOURCES or name.startswith(MIG))}
    if not offered or admitted:
        return None
    return Refusal(
        "cluster.offered_by_others",
        "node %s offers %s, and our device plugin does not run there" % (
            facts["name"], ", ".join("%s=%d" % each for each in sorted(offered.items()))),
        "one device plugin on a node",
        "take the other one off the node (a DaemonSet of NVIDIA's chart or of the cloud, or a static pod), or leave "
        "device_plugin out of `gpu_components` to use it").to_dict()


def _operator_evidence(active: bool, node: Mapping[str, Any]) -> str:
    labels = (node.get("metadata") or {}).get("labels") or {}
    if labels.get(OPERANDS) == "false":
        return ""
    ours = our_labels(node)
    for operand in OPERATOR_OPERANDS:
        key = DEPLOY + operand
        value = labels.get(key, "")
        if key not in ours and (value == "true" or "paused-for" in value):
            return "%s=%s" % (key, value)
    carries_gpu = any(labels.get(key) == "true" for key in (*NFD_PCI_LABELS, "nvidia.com/gpu.present"))
    return "ClusterPolicy" if active and carries_gpu else ""


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the kubelet of a Node is heard of and starts pods. What another Node says that it offers is what it did
    when its kubelet was last heard of."""
    return bool(_conditions(node.get("status") or {})["ready"])


def resource_shortfall(
    expected: Mapping[str, Mapping[str, int]], nodes: Sequence[Mapping[str, Any]]
) -> List[str]:
    """Where the allocatable resources differ from what was expected, in words; empty when all agree."""
    there = {facts["name"]: facts for facts in nodes}
    lines = []
    for name in sorted(expected):
        if name not in there:
            lines.append("node %s is not in the cluster" % name)
            continue
        allocatable = there[name]["allocatable"]
        for resource, count in sorted(expected[name].items()):
            if allocatable.get(resource, 0) != int(count):
                lines.append("node %s offers %s=%d, not %d" % (name, resource, allocatable.get(resource, 0), count))
    return lines


def _unhealthy(facts: Mapping[str, Any]) -> List[Refusal]:
    lost = []
    for resource, count in sorted(facts["capacity"].items()):
        healthy = facts["allocatable"].get(resource, 0)
        if healthy < count:
            lost.append("%s: %d of %d" % (resource, healthy, count))
    if not lost:
        return []
    return [Refusal(
        "cluster.unhealthy_devices",
        "node %s can allocate only part of its devices (%s)" % (facts["name"], ", ".join(lost)),
        "every device healthy",
        "read the device plugin's log for the Xid; after the cure restart the plugin, which never takes a device back")]


def _count_mismatch(facts: Mapping[str, Any]) -> List[Refusal]:
    if not facts["capacity"] or not facts["count"] or facts["mig"]["profiles"]:
        return []
    expected = facts["count"] * (facts["replicas"] or 0)
    offered = gpu_capacity(facts["capacity"])
    if expected in (0, offered):
        return []
    # GPUs in MIG mode are counted too, and no label tells of one without a MIG device
    if offered < expected and facts["mig"]["capable"] and facts["mig"]["strategy"] == MIXED:
        return []
    return [Refusal(
        "cluster.count_mismatch",
        "node %s offers %d GPUs and its labels count %d" % (facts["name"], offered, expected),
        "as many GPUs offered as GPU feature discovery counts (nvidia.com/gpu.count x nvidia.com/gpu.replicas)",
        "compare `nvidia-smi -L` on the node with the device plugin's log; restart both after a change. Of GPUs of "
        "several products the labels count those of one alone")]


def _addresses(status: Mapping[str, Any]) -> Dict[str, List[str]]:
    addresses: Dict[str, List[str]] = {}
    for address in status.get("addresses") or []:
        addresses.setdefault(str(address.get("type")), []).append(str(address.get("address")))
    return addresses


def _conditions(status: Mapping[str, Any]) -> Dict[str, Any]:
    keys = ("status", "reason", "message", "lastTransitionTime")
    conditions = {
        str(condition.get("type")): {key: condition.get(key) for key in keys}
        for condition in status.get("conditions") or []
    }
    return {"conditions": conditions, "ready": (conditions.get("Ready") or {}).get("status") == "True"}


def _system(info: Mapping[str, Any]) -> Dict[str, Any]:
    runtime, _separator, version = str(info.get("containerRuntimeVersion") or "").partition("://")
    return {
        "kernel": info.get("kernelVersion"),
        "os_image": info.get("osImage"),
        "arch": info.get("architecture"),
        "container_runtime": {"name": runtime or None, "version": version or None},
        "kubelet_version": info.get("kubeletVersion"),
    }


def _gpu_labels(labels: Mapping[str, str]) -> Dict[str, Any]:
    def text(name: str) -> Optional[str]:
        return labels.get(PREFIX + name) or None

    def joined(prefix: str, *parts: str) -> Optional[str]:
        values = [labels.get("%s%s.%s" % (PREFIX, prefix, part)) for part in parts]
        return ".".join(str(value) for value in values) if all(values) else None

    return {
        "product": text("gpu.product"),
        "count": _integer(text("gpu.count")),
        "memory_mib": _integer(text("gpu.memory")),
        "family": text("gpu.family"),
        "compute_capability": joined("gpu.compute", "major", "minor"),
        "driver_version": text("cuda.driver-version.full") or joined("cuda.driver", "major", "minor", "rev"),
        "cuda_version": text("cuda.runtime-version.full") or joined("cuda.runtime", "major", "minor"),
        "machine": text("gpu.machine"),
        "mode": text("gpu.mode"),
        "sharing_strategy": text("gpu.sharing-strategy"),
        "replicas": _integer(text("gpu.replicas")),
        "clique": text("gpu.clique"),
        "vgpu": labels.get(PREFIX + "vgpu.present") == "true",
        "device_plugin_config": text("device-plugin.config"),
        "mig": {
            "capable": labels.get(PREFIX + "mig.capable") == "true",
            "strategy": text("mig.strategy") or NO_STRATEGY,
            "profiles": _mig_profiles(labels),
            "config": text("mig.config"),
            "config_state": text("mig.config.state"),
        },
    }


def _mig_profiles(labels: Mapping[str, str]) -> Dict[str, int]:
    profiles = {}
    for key, value in labels.items():
        # A node has scores of labels, most of them of its processor
        match = MIG_COUNT_LABEL.match(key) if key.startswith(MIG) else None
        if match:
            profiles[match.group(1)] = _integer(value) or 0
    return profiles


def _present_reason(labels: Mapping[str, str], facts: Mapping[str, Any]) -> Optional[str]:
    evidence: Tuple[Tuple[str, bool], ...] = (
        ("label", labels.get(PREFIX + "gpu.present") == "true"),
        ("count", bool(facts["count"])),
        ("nfd_pci", any(labels.get(key) == "true" for key in NFD_PCI_LABELS)),
        ("capacity", any(facts["capacity"].values())),
    )
    for reason, there in evidence:
        if there:
            return reason
    return None


def _integer(value: Any) -> Optional[int]:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
