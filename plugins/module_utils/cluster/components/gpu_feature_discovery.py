# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's GPU feature discovery: publishes what a node's GPUs are, as a NodeFeature."""
from __future__ import annotations

from typing import Any, Dict, List

from ..plugin_config import IMAGE, VERSION
from .common import GPU_TOLERATION, Object, Parameters, pod_arguments
from .model import Component

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
    raise NotImplementedError


GPU_FEATURE_DISCOVERY = Component(
    name="gpu_feature_discovery", title="GPU feature discovery", apps=("gpu-feature-discovery",), arguments=ARGUMENTS,
    make=make)
