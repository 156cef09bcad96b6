# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Node Feature Discovery: finds the NVIDIA devices of nodes, and turns what is published of them into labels."""
from __future__ import annotations

from typing import Any, Dict, List

from .common import GPU_TOLERATION, Object, Parameters, pod_arguments
from .model import Component

CONTROL_PLANE: Dict[str, Any] = {
    "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}

ARGUMENTS: Dict[str, Any] = {
    **pod_arguments(
        "registry.k8s.io/nfd/node-feature-discovery", "v0.17.3",
        node_selector={"kubernetes.io/os": "linux"},
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
    raise NotImplementedError


def before_removal(parameters: Parameters) -> List[Object]:
    """The Job that takes the labels off the nodes: nfd-master leaves them when it goes."""
    raise NotImplementedError


NODE_FEATURE_DISCOVERY = Component(
    name="node_feature_discovery", title="Node Feature Discovery",
    apps=("node-feature-discovery", "nfd-master", "nfd-worker", "nfd-gc", "nfd-topology-updater", "nfd-prune"),
    arguments=ARGUMENTS, make=make, before_removal=before_removal,
    provided_by=(("CustomResourceDefinition", "nodefeatures.nfd.k8s-sigs.io"),))
