# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's DCGM exporter: serves metrics of the GPUs of validated nodes, with the pod that uses each."""
from __future__ import annotations

from typing import Any, Dict, List

from .common import GPU_TOLERATION, Object, Parameters, group, pod_arguments
from .model import Component

# Beside those of the image's own list: ECC, NVLink errors and counts of Xids and clock events, without which alerts on
# them never fire.
_METRICS = (
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)"),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ)"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)"),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)"),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)"),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Last Xid error"),
    ("DCGM_EXP_XID_ERRORS_COUNT", "gauge", "Xid errors within the window by code"),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "gauge", "Clock events within the window by reason"),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Free frame buffer memory (in MiB)"),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Used frame buffer memory (in MiB)"),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Reserved frame buffer memory (in MiB)"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors"),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors"),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter", "Single-bit persistent ECC errors"),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Double-bit persistent ECC errors"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Uncorrectable remaps of rows"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Correctable remaps of rows"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "NVLink bandwidth of all lanes"),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "NVLink retries"),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "NVLink recoveries"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Share of time with the engine active"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Share of cycles with tensor work"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Share of cycles with memory traffic"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "Bytes sent over PCIe per second"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "Bytes received over PCIe per second"),
    ("DCGM_FI_DRIVER_VERSION", "label", "Driver version"),
)
METRICS: List[Dict[str, str]] = [{"field": field, "type": kind, "help": text} for field, kind, text in _METRICS]

ARGUMENTS: Dict[str, Any] = {
    **pod_arguments(
        "nvcr.io/nvidia/k8s/dcgm-exporter", "4.5.3-4.8.2-distroless",
        node_selector={"nvidia.com/gpu.deploy.dcgm-exporter": "true"},
        update_strategy={"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        resources={"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        tolerations=[GPU_TOLERATION, {"key": "CriticalAddonsOnly", "operator": "Exists"}],
    ),
    "port": {"type": "int", "default": 9400},
    "interval_ms": {"type": "int", "default": 30000},
    "kubelet_root": {"type": "path", "default": "/var/lib/kubelet"},
    "resource_names": {"type": "list", "elements": "str", "default": []},
    "env": {"type": "dict", "default": {}},
    "host_engine": {"type": "str", "default": ""},
    "metrics": {"type": "list", "elements": "dict", "default": METRICS, "options": {
        "field": {"type": "str", "required": True},
        "type": {"type": "str", "required": True, "choices": ["gauge", "counter", "label"]},
        "help": {"type": "str", "required": True},
    }},
    "metric_sets": {"type": "dict", "default": {}},
    "pod_labels_in_metrics": {"type": "bool", "default": False},
    "pod_uid_in_metrics": {"type": "bool", "default": False},
    "scrape_annotations": {"type": "bool", "default": False},
    "service_monitor": group({
        "enabled": {"type": "bool", "default": False},
        "interval": {"type": "str", "default": "15s"},
        "scrape_timeout": {"type": "str", "default": "10s"},
        "honor_labels": {"type": "bool", "default": False},
        "labels": {"type": "dict", "default": {}},
        "relabelings": {"type": "list", "elements": "dict", "default": []},
        "metric_relabelings": {"type": "list", "elements": "dict", "default": []},
        "endpoint": {"type": "dict", "default": {}},
    }),
    "tls_secret": {"type": "str", "default": "", "no_log": False},
    "web_config_secret": {"type": "str", "default": "", "no_log": False},
    "network_policy": {"type": "bool", "default": False},
}


def make(parameters: Parameters) -> List[Object]:
    """ServiceAccount, and for each set of metrics its ConfigMap, its Service and its DaemonSet."""
    raise NotImplementedError


DCGM_EXPORTER = Component(
    name="dcgm_exporter", title="NVIDIA DCGM exporter", apps=("nvidia-dcgm-exporter",), arguments=ARGUMENTS, make=make)
