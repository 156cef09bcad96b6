# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes and pods as an API server shows them."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence


def node(
    name: str = "gpu-1",
    labels: Optional[Dict[str, str]] = None,
    annotations: Optional[Dict[str, str]] = None,
    capacity: Optional[Dict[str, str]] = None,
    allocatable: Optional[Dict[str, str]] = None,
    unschedulable: bool = False,
    ready: bool = True,
    taints: Sequence[Dict[str, str]] = (),
) -> Dict[str, Any]:
    spec: Dict[str, Any] = {"podCIDR": "10.244.1.0/24", "providerID": "kind://" + name}
    if taints:
        spec["taints"] = list(taints)
    if unschedulable:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": "uid-" + name,
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
            "annotations": dict(annotations or {}),
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": spec,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.%d" % (sum(map(ord, name)) % 250 + 1)},
                {"type": "Hostname", "address": name},
            ],
            "capacity": {"cpu": "64", "memory": "1056762404Ki", "pods": "110", **(capacity or {})},
            "allocatable": {"cpu": "64", "pods": "110", **(capacity if allocatable is None and capacity else {}),
                            **(allocatable or {})},
            "conditions": [{
                "type": "Ready",
                "status": "True" if ready else "Unknown",
                "reason": "KubeletReady" if ready else "NodeStatusUnknown",
                "message": "kubelet is posting ready status",
                "lastHeartbeatTime": "2026-01-01T00:05:00Z",
                "lastTransitionTime": "2026-01-01T00:00:10Z",
            }],
            "nodeInfo": {
                "architecture": "amd64",
                "containerRuntimeVersion": "containerd://2.2.0",
                "kernelVersion": "6.1.0-40-amd64",
                "kubeletVersion": "v1.34.4",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
            },
            "images": [{"names": ["registry.k8s.io/pause:3.10"], "sizeBytes": 1}],
        },
    }


def h100_labels(**changes: Optional[str]) -> Dict[str, str]:
    """What GPU feature discovery publishes for eight H100; a change to None takes a label away (dots as __)."""
    labels: Dict[str, Optional[str]] = {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.machine": "DGXH100",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/cuda.driver-version.full": "580.126.09",
        "nvidia.com/cuda.runtime-version.full": "13.0",
    }
    labels.update({"nvidia.com/" + key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in labels.items() if value is not None}


def h100_node(name: str = "gpu-1", **options: Any) -> Dict[str, Any]:
    options.setdefault("labels", h100_labels())
    options.setdefault("capacity", {"nvidia.com/gpu": "8"})
    return node(name, **options)


def pod(
    name: str = "trainer",
    gpus: int = 1,
    owner: Optional[str] = "ReplicaSet",
    node_name: str = "gpu-1",
    phase: str = "Running",
    volumes: Optional[List[Dict[str, Any]]] = None,
    annotations: Optional[Dict[str, str]] = None,
    resource: str = "nvidia.com/gpu",
    labels: Optional[Dict[str, str]] = None,
    ready: bool = True,
    **metadata: Any,
) -> Dict[str, Any]:
    references = [{"kind": owner, "name": name + "-owner", "controller": True}] if owner else []
    resources = {"limits": {resource: str(gpus)}, "requests": {resource: str(gpus)}} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "uid-" + name,
            "ownerReferences": references,
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
            **metadata,
        },
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "resources": resources}],
            "volumes": volumes or [],
        },
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }
