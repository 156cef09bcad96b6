# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""For each alert series in which it fires, beside series in which it must not: just below, of another GPU, of no value.

Values are promtool's: `86x30` is 86 at 0 and at each of the 30 minutes after, `0+2x90` rises by 2 a minute, `_` is no
sample, `stale` the end of a series.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring import xids

Series = Tuple[str, str]
Labels = Mapping[str, str]

# What DCGM has for a value that there is not, where an exporter prints it
BLANK = "9223372036854775794"


@dataclass(frozen=True)
class Case:
    """Series, and the labels of what fires of them.

    at:  when it is asked, and
    not_yet: when nothing fires yet, because it must hold for a while; '' where it fires at once.
    """

    alert: str
    title: str
    series: Tuple[Series, ...]
    at: str
    fires: Tuple[Dict[str, str], ...] = ()
    not_yet: str = ""


def of_gpu(metric: str, gpu: int, values: str, **labels: str) -> Series:
    """A series of a GPU as Prometheus has it from the exporter: the pod that uses the GPU is exported_pod."""
    known = {
        "gpu": str(gpu), "UUID": "GPU-%d" % gpu, "pci_bus_id": "00000000:%02X:00.0" % (gpu + 16),
        "device": "nvidia%d" % gpu, "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-a",
        "instance": "10.0.0.1:9400", "job": "nvidia-dcgm-exporter", "namespace": "gpuops", "pod": "exporter-x",
    }
    known.update(labels)
    return named(metric, values, **{name: value for name, value in known.items() if value})


def named(metric: str, values: str, **labels: str) -> Series:
    return "%s{%s}" % (metric, ", ".join('%s="%s"' % each for each in sorted(labels.items()))), values


def fired(gpu: int, node: str = "node-a", **labels: str) -> Dict[str, str]:
    return {"node": node, "gpu": str(gpu), **labels}


def at_level(alert: str, metric: str, bad: str, good: str, at: str, not_yet: str = "", **labels: str) -> List[Case]:
    """An alert on a value: one GPU has it, its neighbour has not quite, a third has no such value."""
    return [
        Case(alert, "a GPU has it, its neighbours have not",
             (of_gpu(metric, 3, bad + "x90", **labels), of_gpu(metric, 4, good + "x90", **labels),
              of_gpu(metric, 5, BLANK + "x90", **labels)), at, (fired(3),), not_yet),
        Case(alert, "of whoever uses the GPU meanwhile, and under the newer name of the node's label",
             (of_gpu(metric, 3, "%sx3 stale" % bad, exported_pod="one", Hostname="", hostname="node-b", **labels),
              of_gpu(metric, 3, "_x3 %sx90" % bad, exported_pod="two", Hostname="", hostname="node-b", **labels)),
             at, (fired(3, "node-b"),)),
    ]


def growing(alert: str, metric: str, bad: str, good: str, at: str, not_yet: str = "") -> List[Case]:
    """An alert on a counter: one GPU counts, its neighbour too little, a third has stood there all the time."""
    series = (of_gpu(metric, 3, bad), of_gpu(metric, 4, good), of_gpu(metric, 5, "7x90"))
    return [Case(alert, "a GPU counts, its neighbours too little or nothing", series, at, (fired(3),), not_yet)]


def xid(gpu: int, code: object, values: str = "1x30", **labels: str) -> Series:
    return of_gpu("DCGM_EXP_XID_ERRORS_COUNT", gpu, values, xid=str(code), window_size_in_ms="300000", **labels)


def clock_event(gpu: int, event: str, values: str = "3x30") -> Series:
    return of_gpu("DCGM_EXP_CLOCK_EVENTS_COUNT", gpu, values, clock_event=event, window_size_in_ms="300000")


def resource(state: str, node: str, values: str, name: str = "nvidia_com_gpu", **labels: str) -> Series:
    return named("kube_node_status_" + state, values, node=node, resource=name, unit="integer",
                 job="kube-state-metrics", instance="10.0.0.9:8080", **labels)


def of_node(metric: str, node: str, values: str, **labels: str) -> Series:
    return named(metric, values, node=node, job="kube-state-metrics", instance="10.0.0.9:8080", **labels)


def temperatures(gpus: int, values: str = "50x90", **labels: str) -> Tuple[Series, ...]:
    return tuple(of_gpu("DCGM_FI_DEV_GPU_TEMP", gpu, values, **labels) for gpu in range(gpus))


ALL_XIDS = tuple(xid(code, code) for code in range(181))
CRITICAL = tuple(fired(code, xid=str(code)) for code in xids.codes(xids.CRITICAL))
# Those that nobody knows are in
WARNING = tuple(fired(code, xid=str(code)) for code in range(1, 181)
                if code not in (*xids.codes(xids.CRITICAL), *xids.APPLICATION))
ENGINES, PERCENT = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
TRAINING = {"exported_namespace": "team", "exported_pod": "train", "exported_container": "main"}
USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"

CASES: Tuple[Case, ...] = (
    *at_level("GpuHot", "DCGM_FI_DEV_GPU_TEMP", "86", "85", "10m", "4m"),
    *at_level("GpuTooHot", "DCGM_FI_DEV_GPU_TEMP", "89", "88", "10m", "0m"),
    *at_level("GpuMemoryHot", "DCGM_FI_DEV_MEMORY_TEMP", "96", "95", "10m", "4m"),
    Case("GpuThermalThrottling", "throttled for heat, beside one at its power cap, an idle one and one without events",
         (clock_event(3, "hw_thermal"), clock_event(2, "sw_thermal"), clock_event(4, "power_cap"),
          clock_event(5, "gpu_idle"), of_gpu("DCGM_EXP_CLOCK_EVENTS_COUNT", 6, "0x30")),
         "15m", (fired(3), fired(2)), "9m"),
    Case("GpuPowerBrake", "the server asks for it, beside one at its power cap",
         (clock_event(3, "hw_power_brake"), clock_event(4, "power_cap")), "10m", (fired(3),), "4m"),
    Case("GpuPowerBrake", "it was once, and is not any more",
         (clock_event(3, "hw_power_brake", "3x4 0x30"),), "12m"),
    Case("GpuHardwareSlowdown", "no reason given, beside one that gives heat as the reason",
         (clock_event(3, "hw_slowdown"), clock_event(4, "hw_slowdown"), clock_event(4, "hw_thermal")),
         "15m", (fired(3),), "9m"),
    *growing("GpuEccUncorrectable", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "4x10 5x80", "4x90", "15m"),
    Case("GpuEccUncorrectable", "the error ended the pod, so that it is counted in the series of the next",
         (of_gpu("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 3, "4x9 stale", exported_pod="one"),
          of_gpu("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 3, "_x9 5x80", exported_pod="two")), "15m", (fired(3),)),
    Case("GpuEccUncorrectable", "the error was more than an hour ago, or is no number",
         (of_gpu("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 3, "4x10 5x200"),
          of_gpu("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 4, "4x100 %sx100" % BLANK)), "120m"),
    *growing("GpuEccCorrectableRate", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "0+2x120", "0+1x120", "80m"),
    *at_level("GpuRowRemapFailure", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "1", "0", "1m"),
    *at_level("GpuRowRemapPending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "1", "0", "40m", "25m"),
    Case("GpuXidCritical", "of all Xids that there are", ALL_XIDS, "5m", CRITICAL),
    Case("GpuXidWarning", "of all Xids that there are", ALL_XIDS, "5m", WARNING),
    Case("GpuXidCritical", "it has left the exporter's window, and is still to be seen to",
         (xid(3, 79, "0x2 1x5 stale"),), "18m", (fired(3, xid="79"),)),
    Case("GpuXidCritical", "it is over, or there was none",
         (xid(3, 79, "0x2 1x5 stale"), of_gpu("DCGM_EXP_XID_ERRORS_COUNT", 4, "0x60")), "30m"),
    Case("GpuXidWarning", "there was none", (of_gpu("DCGM_EXP_XID_ERRORS_COUNT", 4, "0x60"), xid(5, 0)), "5m"),
    Case("GpuXidsOfSeveralWorkloads", "three pods on one GPU, two on another, three on three, three with another Xid",
         tuple(xid(gpu, code, exported_namespace="team", exported_pod=pod) for gpu, code, pod in (
             (3, 13, "one"), (3, 13, "two"), (3, 31, "three"), (4, 13, "one"), (4, 31, "one"), (4, 13, "two"),
             (5, 13, "one"), (6, 13, "two"), (7, 13, "three"), (8, 43, "one"), (8, 43, "two"), (8, 43, "three"))),
         "5m", (fired(3),)),
    *growing("GpuNvlinkRecovery", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "0x5 1x80", "0x90", "10m"),
    *growing("GpuNvlinkReplays", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "0+5x90", "0x20 9x90", "50m", "25m"),
    Case("GpuFabricNotReady", "not started, in progress and failed, beside boards with none, ready, of an old driver",
         tuple(of_gpu("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", status, "%dx30" % status) for status in range(7)),
         "15m", (fired(1), fired(2), fired(4)), "9m"),
    *growing("GpuPcieReplays", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "0+9x90", "0+7x90", "40m", "12m"),
    Case("GpuLost", "one of four GPUs ends",
         (*temperatures(3), of_gpu("DCGM_FI_DEV_GPU_TEMP", 3, "50x30 stale")), "40m", (fired(3, UUID="GPU-3"),), "33m"),
    Case("GpuLost", "the exporter of the node ends, the pod of a GPU changes, a GPU goes to another node",
         (*temperatures(3, "50x30 stale"), *temperatures(1, Hostname="node-b", instance="10.0.0.2:9400", UUID="GPU-9"),
          of_gpu("DCGM_FI_DEV_GPU_TEMP", 4, "50x30 stale", Hostname="node-b", UUID="GPU-8", exported_pod="one"),
          of_gpu("DCGM_FI_DEV_GPU_TEMP", 4, "_x30 50x90", Hostname="node-b", UUID="GPU-8", exported_pod="two"),
          of_gpu("DCGM_FI_DEV_GPU_TEMP", 5, "50x30 stale", Hostname="node-b", UUID="GPU-7"),
          of_gpu("DCGM_FI_DEV_GPU_TEMP", 5, "_x30 50x90", Hostname="node-c", UUID="GPU-7")), "60m"),
    Case("GpuCountDiffers", "seven of eight, beside eight of eight",
         (*temperatures(7), *temperatures(8, Hostname="", hostname="node-b"),
          *(of_node("kube_node_labels", node, "1x90", label_nvidia_com_gpu_count="8",
                    label_nvidia_com_mig_strategy="mixed") for node in ("node-a", "node-b"))),
         "20m", ({"node": "node-a"},), "14m"),
    Case("GpuCountDiffers", "instances are counted, there are no metrics, a GPU has two pods, another label",
         (*temperatures(8), *temperatures(1, Hostname="node-c"),
          *temperatures(1, Hostname="node-c", exported_pod="one"),
          of_node("kube_node_labels", "node-a", "1x90", label_nvidia_com_gpu_count="56",
                  label_nvidia_com_mig_strategy="single"),
          of_node("kube_node_labels", "node-b", "1x90", label_nvidia_com_gpu_count="8"),
          of_node("kube_node_labels", "node-c", "1x90", label_nvidia_com_gpu_count="1"),
          of_node("kube_node_labels", "node-d", "1x90", label_zone="here")), "20m"),
    Case("GpuCountDiffers", "the label counts the GPUs of one of two products, beside one that counts those of none",
         tuple(series for node in ("node-a", "node-b") for gpus, model in ((1, "NVIDIA A100"), (2, "NVIDIA L4"))
               for series in (*(of_gpu("DCGM_FI_DEV_GPU_TEMP", gpu, "50x90", Hostname=node, modelName=model,
                                       UUID="GPU-%s-%d" % (model, gpu)) for gpu in range(gpus)),))
         + (of_node("kube_node_labels", "node-a", "1x90", label_nvidia_com_gpu_count="2"),
            of_node("kube_node_labels", "node-b", "1x90", label_nvidia_com_gpu_count="3")),
         "20m", ({"node": "node-b"},), "14m"),
    Case("GpuHeldBack", "seven of eight, an instance of MIG, beside all of them and other resources",
         (resource("capacity", "node-a", "8x30"), resource("allocatable", "node-a", "7x30"),
          resource("capacity", "node-b", "7x30", "nvidia_com_mig_1g_10gb"),
          resource("allocatable", "node-b", "6x30", "nvidia_com_mig_1g_10gb"),
          resource("capacity", "node-c", "8x30"), resource("allocatable", "node-c", "8x30"),
          resource("capacity", "node-c", "64x30", "cpu"), resource("allocatable", "node-c", "60x30", "cpu")),
         "20m", ({"node": "node-a"}, {"node": "node-b"}), "14m"),
    Case("GpuExporterDown", "an exporter, beside another that answers and somebody else's job",
         (named("up", "0x30", job="nvidia-dcgm-exporter", instance="10.0.0.1:9400"),
          named("up", "1x30", job="nvidia-dcgm-exporter", instance="10.0.0.2:9400"),
          named("up", "0x30", job="node-exporter", instance="10.0.0.1:9100")),
         "10m", ({"node": "10.0.0.1:9400"},), "4m"),
    Case("GpuExporterDown", "of a set of metrics, found through pods",
         (named("up", "0x30", job="gpuops/nvidia-dcgm-exporter-wide", instance="10.0.0.1:9400"),),
         "10m", ({"node": "10.0.0.1:9400"},)),
    Case("GpuNodeWithoutMetrics", "a node with GPUs, beside one with metrics, one without GPUs, one without a plugin",
         (resource("capacity", "node-b", "8x30"), *temperatures(8), resource("capacity", "node-a", "8x30"),
          resource("capacity", "node-c", "64x30", "cpu"), resource("capacity", "node-d", "0x30")),
         "20m", ({"node": "node-b"},), "14m"),
    Case("GpuNodeWithoutMetrics", "of two clusters with nodes of one name",
         (*temperatures(2, cluster="east"), resource("capacity", "node-a", "2x30", cluster="east"),
          resource("capacity", "node-a", "2x30", cluster="west")), "20m", ({"node": "node-a", "cluster": "west"},)),
    Case("GpuMetricsAbsent", "nothing of any GPU", (named("up", "1x30", job="other"),), "15m", ({},), "9m"),
    Case("GpuMetricsAbsent", "one GPU is enough", temperatures(1), "15m"),
    Case("GpuNodeFailed", "cordoned with our reason, beside one that is in service, and one that others cordoned",
         tuple(of_node(metric, node, value, **labels) for node, value, labels in (
             ("node-a", "1x30", {"annotation_gpuops_nvidia_com_cordon_reason": "driver.not_loaded"}),
             ("node-b", "0x30", {"annotation_gpuops_nvidia_com_cordon_reason": "driver.not_loaded"}),
             ("node-c", "1x30", {}))
             for metric, value, labels in (("kube_node_spec_unschedulable", value, {}),
                                           ("kube_node_annotations", "1x30", labels))),
         "10m", ({"node": "node-a"},), "4m"),
    Case("GpuNodeOutOfService", "cordoned for hours, beside one in service and one without GPUs",
         (resource("capacity", "node-a", "8x200"), of_node("kube_node_spec_unschedulable", "node-a", "1x200"),
          resource("capacity", "node-b", "8x200"), of_node("kube_node_spec_unschedulable", "node-b", "0x200"),
          resource("capacity", "node-c", "64x200", "cpu"), of_node("kube_node_spec_unschedulable", "node-c", "1x200")),
         "150m", ({"node": "node-a"},), "110m"),
    Case("GpuMigLayoutFailed", "failed, beside one that is as it should be",
         (of_node("kube_node_labels", "node-a", "1x30", label_nvidia_com_mig_config_state="failed",
                  label_nvidia_com_mig_config="all-1g.10gb"),
          of_node("kube_node_labels", "node-b", "1x30", label_nvidia_com_mig_config_state="success",
                  label_nvidia_com_mig_config="all-1g.10gb")), "15m", ({"node": "node-a"},), "9m"),
    Case("GpuIdle", "a pod that does nothing, beside one that works now and then, one at work and a GPU without a pod",
         (of_gpu(ENGINES, 3, "0.005x90", **TRAINING),
          of_gpu(ENGINES, 4, "0x8 0.4 0x11 0.5 0x11 0.4 0x11 0.6 0x11 0.7x40", **TRAINING),
          of_gpu(ENGINES, 5, "0.9x90", **TRAINING), of_gpu(ENGINES, 6, "0x90")),
         "60m", (fired(3, exported_pod="train", exported_namespace="team"),), "44m"),
    Case("GpuIdle", "a board without profiling counters, beside one whose counters say that it works",
         (of_gpu(PERCENT, 3, "0x90", **TRAINING), of_gpu(PERCENT, 4, "0x90", **TRAINING),
          of_gpu(ENGINES, 4, "0.3x90", **TRAINING)), "60m", (fired(3),)),
    Case("GpuIdle", "one instance of MIG of two",
         (of_gpu(ENGINES, 3, "0x90", GPU_I_ID="1", GPU_I_PROFILE="1g.10gb", **TRAINING),
          of_gpu(ENGINES, 3, "1x90", GPU_I_ID="2", GPU_I_PROFILE="1g.10gb", **TRAINING)),
         "60m", (fired(3, GPU_I_ID="1"),)),
    Case("GpuMemoryFull", "full, beside nearly full and one without values",
         (of_gpu(USED, 3, "99x30"), of_gpu(FREE, 3, "1x30"), of_gpu(USED, 4, "98x30"), of_gpu(FREE, 4, "2x30"),
          of_gpu(USED, 5, BLANK + "x30"), of_gpu(FREE, 5, "1x30")), "20m", (fired(3),), "14m"),
    Case("GpuMemoryFull", "an instance of MIG, of a GPU with memory left",
         (of_gpu(USED, 3, "50x30"), of_gpu(FREE, 3, "50x30"),
          of_gpu(USED, 3, "10x30", GPU_I_ID="1", GPU_I_PROFILE="1g.10gb"),
          of_gpu(FREE, 3, "0x30", GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")), "20m", (fired(3, GPU_I_ID="1"),)),
)
