# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pages of metrics as NVIDIA's exporter and kube-state-metrics write them.

Order of labels, the window of counted events, the text of an Xid and series without a reason are those of the template
and the collectors in NVIDIA/dcgm-exporter 4.5.3-4.8.2 (internal/pkg/rendermetrics, internal/pkg/collector).
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.dcgm_exporter import METRICS

WINDOW = "300000"
XIDS, CLOCK_EVENTS, LAST_XID = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_FI_DEV_XID_ERRORS"
# A healthy H100 under load
HEALTHY: Mapping[str, float] = {
    "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 72, "DCGM_FI_DEV_POWER_USAGE": 612.4, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 9.1e11,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0, "DCGM_FI_DEV_GPU_UTIL": 97, "DCGM_FI_DEV_MEM_COPY_UTIL": 40,
    "DCGM_FI_DEV_ENC_UTIL": 0, "DCGM_FI_DEV_DEC_UTIL": 0, LAST_XID: 0, "DCGM_FI_DEV_FB_FREE": 40000,
    "DCGM_FI_DEV_FB_USED": 41081, "DCGM_FI_DEV_FB_RESERVED": 478, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 2, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 0,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0, "DCGM_FI_DEV_ROW_REMAP_PENDING": 0, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 3,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 210000, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 0,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.97,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.41, "DCGM_FI_PROF_DRAM_ACTIVE": 0.35, "DCGM_FI_PROF_PCIE_TX_BYTES": 2.1e9,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 1.4e9,
}


@dataclass
class Gpu:
    """A GPU of a node, or one instance of MIG on it.

    values:   {metric: value}, beside those of a healthy one; None for one that it does not have.
    pod:      (namespace, pod, container) that uses it; empty for none.
    instance: (profile, id)
    xids:     {code: times within the window}
    events:   {reason: readings within the window}
    """

    number: int
    values: Dict[str, object] = field(default_factory=dict)
    pod: Tuple[str, ...] = ()
    instance: Tuple[str, ...] = ()
    xids: Dict[int, int] = field(default_factory=dict)
    events: Dict[str, int] = field(default_factory=lambda: {"power_cap": 9})

    def labels(self, node: str, node_label: str) -> List[Tuple[str, str]]:
        known = [
            ("gpu", str(self.number)), ("UUID", "GPU-%s-%d" % (node, self.number)),
            ("pci_bus_id", "00000000:%02X:00.0" % (self.number + 27)), ("device", "nvidia%d" % self.number),
            ("modelName", "NVIDIA H100 80GB HBM3"),
        ]
        if self.instance:
            known += [("GPU_I_PROFILE", self.instance[0]), ("GPU_I_ID", self.instance[1])]
        return [*known, (node_label, node), ("DCGM_FI_DRIVER_VERSION", "580.126.09")]

    def samples(self, metric: str) -> List[Tuple[List[Tuple[str, str]], object]]:
        """[(labels behind those of the GPU, value)] of a metric, in no order."""
        counted = {XIDS: ("xid", self.xids), CLOCK_EVENTS: ("clock_event", self.events)}
        if metric in counted:
            name, found = counted[metric]
            window = [("window_size_in_ms", WINDOW)]
            return [([*window, (name, str(what))], times) for what, times in found.items()] or [(window, 0)]
        value = {**HEALTHY, **self.values}.get(metric)
        if value is None:
            return []
        return [([("err_code", str(value)), ("err_msg", "No Error")] if metric == LAST_XID else [], value)]


def exporter(node: str, gpus: List[Gpu], node_label: str = "Hostname") -> str:
    """The page of a node's exporter with the metrics of the component's default."""
    lines: List[str] = []
    for metric in METRICS:
        name = metric["field"]
        if metric["type"] == "label":
            continue
        lines += ["# HELP %s %s" % (name, metric["help"]), "# TYPE %s %s" % (name, metric["type"])]
        for gpu in gpus:
            of_pod = list(zip(("namespace", "pod", "container"), gpu.pod))
            for behind, value in gpu.samples(name):
                # The template goes through labels and attributes in the order of their names
                attributes = sorted([*behind, *of_pod])
                lines.append(_line(name, [*gpu.labels(node, node_label), *attributes], value))
    return "\n".join(lines) + "\n"


def kube_state(samples: List[Tuple[str, Dict[str, str], float]]) -> str:
    """A page of kube-state-metrics: (metric, labels, value) of each series."""
    lines: List[str] = []
    for name in sorted({name for name, _labels, _value in samples}):
        lines.append("# TYPE %s gauge" % name)
        lines += [_line(name, list(labels.items()), value) for each, labels, value in samples if each == name]
    return "\n".join(lines) + "\n"


def _line(name: str, labels: List[Tuple[str, str]], value: object) -> str:
    return "%s{%s} %s" % (name, ",".join('%s="%s"' % each for each in labels), value)
