# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's device plugin: offers the GPUs of validated nodes to their kubelets."""
from __future__ import annotations

from typing import Any, Dict, List

from ..plugin_config import DEFAULT, IMAGE, MPS_ROOT, VERSION
from .common import GPU_TOLERATION, Object, Parameters, pod_arguments
from .model import Component

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
    "env": {"type": "dict", "default": {}},
    "kubelet_root": {"type": "path", "default": "/var/lib/kubelet"},
    "mps_root": {"type": "path", "default": MPS_ROOT},
    "runtime_classes": {"type": "list", "elements": "str", "choices": ["nvidia-cdi", "nvidia-legacy"], "default": []},
    "expected_allocatable": {"type": "dict", "default": {}},
}


def make(parameters: Parameters) -> List[Object]:
    """ServiceAccount, and for each configuration its ConfigMap and its DaemonSet."""
    raise NotImplementedError


DEVICE_PLUGIN = Component(
    name="device_plugin", title="NVIDIA device plugin", apps=("nvidia-device-plugin",), arguments=ARGUMENTS, make=make)
