# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every alert: when it fires, what that means, what to do.

What all expressions have in common. The exporter's series carry the pod that uses the GPU, so they end with it and
begin anew with the next: expressions keep the labels that say which GPU it is and drop the others, else each new pod
would reset an alert that is pending. Of a counter, the highest and the lowest value of the time are compared where the
counter never starts again, as an increase() between two pods is seen by neither's series. A value that the GPU does
not have may come as a number near 2^63 and is left out. The node's label is `Hostname` up to exporter 4.8.2 and
`hostname` after; an alert has it as `node`.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Tuple

from . import xids
from .policy import Settings

Expression = Callable[[Settings], str]

# Which GPU it is, by labels of the exporter
GPU = ("Hostname", "hostname", "gpu", "UUID", "pci_bus_id", "modelName")
INSTANCE = ("GPU_I_ID", "GPU_I_PROFILE")
HIGHEST = "1e15"
NODE = "{{ or $labels.Hostname $labels.hostname $labels.node $labels.instance }}"
ON_GPU = "GPU {{ $labels.gpu }} of " + NODE
# Resources of NVIDIA as kube-state-metrics spells them
RESOURCES = 'resource=~"nvidia_com_(gpu|mig_).*"'
TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
XIDS = "DCGM_EXP_XID_ERRORS_COUNT"
CLOCK_EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"

# What an alert needs beside the exporter
METRICS_OF_NODES = "kube-state-metrics"
LABELS_OF_NODES = METRICS_OF_NODES + ", showing labels of nodes"
REASONS_OF_NODES = METRICS_OF_NODES + ", showing annotations of nodes"


@dataclass(frozen=True)
class Alert:
    """One alert.

    pending:     how long it must hold before it fires.
    expression:  what Prometheus asks, of settings.
    summary:     a line that says where and what; a template of Prometheus.
    description: what it means, a sentence or two.
    remedy:      what to do, a sentence without its end.
    thresholds:  names of the thresholds that the expression has.
    needs:       what must be scraped beside the exporter; without it the alert never fires.
    explanation: what follows the description where that depends on labels; a template of Prometheus.
    """

    name: str
    severity: str
    pending: str
    expression: Expression
    summary: str
    description: str
    remedy: str
    thresholds: Tuple[str, ...] = ()
    needs: str = ""
    explanation: str = ""


@dataclass(frozen=True)
class Group:
    """Alerts that are asked together; interval: how often, '' as Prometheus is set."""

    name: str
    title: str
    alerts: Tuple[Alert, ...]
    interval: str = ""


def _labels(settings: Settings, *more: str) -> str:
    return ", ".join((settings.cluster, *GPU, *more))


def _highest(settings: Settings, series: str, *more: str) -> str:
    """The value of each GPU, whoever uses it, unless it is no value."""
    return "max by (%s) (%s < %s)" % (_labels(settings, *more), series, HIGHEST)


def _grown(settings: Settings, counter: str, window: str) -> str:
    """By how much a counter that never starts again has grown."""
    by = _labels(settings)
    return "((max by (%s) (max_over_time(%s[%s])) < %s) - min by (%s) (min_over_time(%s[%s])))" % (
        by, counter, window, HIGHEST, by, counter, window)


def _increase(settings: Settings, counter: str, window: str) -> str:
    """By how much a counter has grown that starts again with the driver."""
    return "(max by (%s) (increase(%s[%s])) < %s)" % (_labels(settings), counter, window, HIGHEST)


def _by_node(settings: Settings, series: str, *more: str) -> str:
    """A series of the exporter for each node, under the label that kube-state-metrics has for it."""
    renamed = 'label_replace(%s, "node", "$1", "Hostname", "(.+)")' % series
    renamed = 'label_replace(%s, "node", "$1", "hostname", "(.+)")' % renamed
    return "count by (%s) (%s)" % (", ".join((settings.cluster, "node", *more)), renamed)


def _codes(numbers: Tuple[int, ...]) -> str:
    return "|".join(str(number) for number in numbers)


def _above(metric: str, threshold: str) -> Expression:
    return lambda settings: "%s > %s" % (_highest(settings, metric), _text(settings, threshold))


def _text(settings: Settings, threshold: str) -> str:
    return "%.12g" % settings.thresholds[threshold]


def _events(reasons: str, settings: Settings) -> str:
    return _highest(settings, '%s{clock_event=~"%s"}' % (CLOCK_EVENTS, reasons))


def _throttled(reasons: str) -> Expression:
    return lambda settings: "%s > %s" % (_events(reasons, settings), _text(settings, "clock_events"))


def _slowed_down(settings: Settings) -> str:
    # The bit stands beside that of its reason, where the GPU knows it
    slowed, explained = (_events(reasons, settings) for reasons in ("hw_slowdown", "hw_thermal|hw_power_brake"))
    return "%s > %s unless %s > 0" % (slowed, _text(settings, "clock_events"), explained)


def _xids(matching: str) -> Expression:
    # Beyond the exporter's window of 5 minutes, so that one Xid does not fire, end and fire again
    return lambda settings: "max by (%s) (max_over_time(%s{%s}[15m])) > 0" % (
        _labels(settings, "xid"), XIDS, matching)


def _suspicious(settings: Settings) -> str:
    workload = (settings.workload + "namespace", settings.workload + "pod")
    seen = 'max_over_time(%s{xid=~"%s", %s!=""}[1d]) > 0' % (XIDS, _codes(xids.SUSPICIOUS), workload[1])
    return "count by (%s) (count by (%s) (%s)) > %s" % (
        _labels(settings), _labels(settings, *workload), seen, _text(settings, "suspicious_workloads"))


def _lost(settings: Settings) -> str:
    """A GPU that had a temperature within a day and has none, on a node whose exporter tells of others."""
    here = (settings.cluster, "Hostname", "hostname")
    return "max by (%s) (max_over_time(%s[1d])) unless on (%s, UUID) %s and on (%s) %s" % (
        _labels(settings), TEMPERATURE, settings.cluster, TEMPERATURE, ", ".join(here), TEMPERATURE)


def _differs_from_label(settings: Settings) -> str:
    # A label cannot be compared as a number, so what is counted becomes a label. With the strategy `single` the label
    # counts instances. On a node with GPUs of several products it counts those of one, whichever that is.
    gpus = _by_node(settings, "count by (%s, Hostname, hostname, UUID, modelName) (%s)" % (
        settings.cluster, TEMPERATURE), "modelName")
    counted = 'count_values by (%s, node) ("label_nvidia_com_gpu_count", %s)' % (settings.cluster, gpus)
    labelled = ("max by (%s, node, label_nvidia_com_gpu_count) "
                '(kube_node_labels{label_nvidia_com_gpu_count!="", label_nvidia_com_mig_strategy!="single"})')
    return "%s unless on (%s, node, label_nvidia_com_gpu_count) %s and on (%s, node) %s" % (
        labelled % settings.cluster, settings.cluster, counted, settings.cluster, gpus)


def _held_back(settings: Settings) -> str:
    by = "sum by (%s, node, resource)" % settings.cluster
    return "%s (kube_node_status_capacity{%s}) - %s (kube_node_status_allocatable{%s}) > 0" % (
        by, RESOURCES, by, RESOURCES)


def _with_gpus(settings: Settings) -> str:
    return "sum by (%s, node) (kube_node_status_capacity{%s}) > 0" % (settings.cluster, RESOURCES)


def _without_metrics(settings: Settings) -> str:
    return "%s unless on (%s, node) %s" % (_with_gpus(settings), settings.cluster, _by_node(settings, TEMPERATURE))


def _out_of_service(settings: Settings) -> str:
    cordoned = "max by (%s, node) (kube_node_spec_unschedulable) == 1" % settings.cluster
    return "%s and on (%s, node) (%s)" % (cordoned, settings.cluster, _with_gpus(settings))


def _failed(settings: Settings) -> str:
    by = "%s, node, annotation_gpuops_nvidia_com_cordon_reason" % settings.cluster
    reasons = 'max by (%s) (kube_node_annotations{annotation_gpuops_nvidia_com_cordon_reason!=""})' % by
    return "%s and on (%s, node) (kube_node_spec_unschedulable == 1)" % (reasons, settings.cluster)


def _layout_failed(settings: Settings) -> str:
    return ('max by (%s, node, label_nvidia_com_mig_config) '
            '(kube_node_labels{label_nvidia_com_mig_config_state="failed"})' % settings.cluster)


def _idle(settings: Settings) -> str:
    workload = tuple(settings.workload + name for name in ("namespace", "pod", "container"))
    by = _labels(settings, *INSTANCE, *workload)
    series = "max by (%s) (max_over_time(%s{%s!=\"\"}[15m]))"
    # Boards without profiling counters have the older measure, in per cent
    return "(%s or %s / 100) < %s" % (
        series % (by, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", workload[1]), series % (by, "DCGM_FI_DEV_GPU_UTIL", workload[1]),
        _text(settings, "idle"))


def _full(settings: Settings) -> str:
    used, free = (_highest(settings, "DCGM_FI_DEV_FB_" + kind, *INSTANCE) for kind in ("USED", "FREE"))
    return "%s / (%s + %s) > %s" % (used, used, free, _text(settings, "memory_full"))


def _fabric(settings: Settings) -> str:
    # dcgmFabricManagerStatus_t: 0 the board has none, 1 not started, 2 in progress, 3 success, 4 failure
    status = _highest(settings, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    return "(%s > 0 < 3) or %s == 4" % (status, status)


def _replays(settings: Settings) -> str:
    rate = "max by (%s) (rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[15m]))" % _labels(settings)
    return "(%s < %s) * 60 > %s" % (rate, HIGHEST, _text(settings, "pcie_replays"))


GROUPS: Tuple[Group, ...] = (
    Group("gpuops-temperature", "Temperature and clocks", (
        Alert(
            "GpuHot", "warning", "5m", _above(TEMPERATURE, "temperature_warning"),
            ON_GPU + " has {{ $value }} degrees",
            "The GPU is hotter than its highest temperature of operation; a little more and it slows down.",
            "look at fans, air flow and inlet temperature, and at the neighbours: one hot GPU is its heat sink, all "
            "of a node are its fans, all of a rack are its cooling",
            ("temperature_warning",)),
        Alert(
            "GpuTooHot", "critical", "1m", _above(TEMPERATURE, "temperature_critical"),
            ON_GPU + " has {{ $value }} degrees",
            "The GPU halves its clocks to protect itself, and switches off a few degrees further.",
            "take work off the node (`kubectl cordon`), and see to its cooling now",
            ("temperature_critical",)),
        Alert(
            "GpuMemoryHot", "warning", "5m", _above("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature"),
            "The memory of " + ON_GPU + " has {{ $value }} degrees",
            "The memory is hotter than its highest temperature of operation: errors and a slow-down follow.",
            "as for GpuHot; if the GPU itself is cool, have the board looked at",
            ("memory_temperature",)),
        Alert(
            "GpuThermalThrottling", "warning", "10m", _throttled("hw_thermal|sw_thermal"),
            ON_GPU + " runs slower than it could: it is too hot",
            "For ten minutes the clocks were held down again and again because of the temperature. Work with several "
            "GPUs goes at the pace of the slowest.",
            "as for GpuHot",
            ("clock_events",)),
        Alert(
            "GpuPowerBrake", "warning", "5m", _throttled("hw_power_brake"),
            ON_GPU + " halves its clocks: its server asks for it",
            "The power brake is a signal of the server: its power supplies, or the power cap of its rack, are at their "
            "limit. Software power capping at full load is normal and no alert.",
            "look at power supplies and power capping with the server's management controller",
            ("clock_events",)),
        Alert(
            "GpuHardwareSlowdown", "warning", "10m", _slowed_down,
            ON_GPU + " halves its clocks, neither for heat nor for the power brake",
            "The GPU draws more power than its supply can give, or does not tell the reason.",
            "look at `nvidia-smi -q -d PERFORMANCE,POWER`, and at the board's power cables",
            ("clock_events",)),
    )),
    Group("gpuops-memory", "Memory errors", (
        Alert(
            "GpuEccUncorrectable", "warning", "0m",
            lambda settings: "%s > %s" % (_grown(settings, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "1h"),
                                          _text(settings, "ecc_uncorrectable")),
            ON_GPU + " had {{ $value }} uncorrectable memory errors within an hour",
            "The work that had the memory is lost. The GPU may go on where the error was contained; the alerts on Xids "
            "say so.",
            "read the Xids beside it: 94 is contained, with 95 or 48 drain the node and reset the GPU",
            ("ecc_uncorrectable",)),
        Alert(
            "GpuEccCorrectableRate", "warning", "5m",
            lambda settings: "%s > %s" % (_increase(settings, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "1h"),
                                          _text(settings, "ecc_correctable")),
            ON_GPU + ' had {{ printf "%.0f" $value }} corrected memory errors within an hour',
            "Nothing is lost yet. Many corrected errors come before uncorrectable ones.",
            "watch it; if it stays after a reset of the GPU, have the board looked at",
            ("ecc_correctable",)),
        Alert(
            "GpuRowRemapFailure", "critical", "0m",
            lambda settings: "%s == 1" % _highest(settings, "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            ON_GPU + " has run out of spare rows of memory",
            "A broken row could not be replaced. No reset helps.",
            "take the node out of service; NVIDIA's field diagnostic decides on the replacement of the board"),
        Alert(
            "GpuRowRemapPending", "warning", "30m",
            lambda settings: "%s == 1" % _highest(settings, "DCGM_FI_DEV_ROW_REMAP_PENDING"),
            ON_GPU + " replaces rows of its memory at its next reset",
            "A broken row was found and is not used. Running work is not touched.",
            "reset the GPU, or reboot the node, at the next drain"),
    )),
    Group("gpuops-xid", "Xids", (
        Alert(
            "GpuXidCritical", "critical", "0m", _xids('xid=~"%s"' % _codes(xids.codes(xids.CRITICAL))),
            ON_GPU + ": Xid {{ $labels.xid }}",
            "The GPU, or what it needs, is broken until somebody acts.",
            "what the alert says of this Xid; the recovery action that `nvidia-smi -q` shows outranks it",
            explanation=xids.explained(xids.CRITICAL, xids.OF_NO_TABLE)),
        Alert(
            "GpuXidWarning", "warning", "0m",
            _xids('xid!="", xid!~"0|%s"' % _codes(tuple(sorted((*xids.codes(xids.CRITICAL), *xids.APPLICATION))))),
            ON_GPU + ": Xid {{ $labels.xid }}",
            "Work may go on. Xids of applications are left out, and one that NVIDIA's catalogue does not know is in.",
            "what the alert says of this Xid; the recovery action that `nvidia-smi -q` shows outranks it",
            explanation=xids.explained(xids.WARNING, xids.OF_NO_TABLE)),
        Alert(
            "GpuXidsOfSeveralWorkloads", "info", "0m", _suspicious,
            ON_GPU + ": Xid 13 or 31 in {{ $value }} pods within a day",
            "These Xids are faults of applications. On one GPU, of work that has nothing to do with each other, they "
            "are a reason to suspect the GPU.",
            "see whether the pods share an image; if not, drain the node and run a long test (`dcgmi diag -r 3`)",
            ("suspicious_workloads",)),
    )),
    Group("gpuops-links", "NVLink, fabric and PCIe", (
        Alert(
            "GpuNvlinkRecovery", "warning", "0m",
            lambda settings: "%s > %s" % (_increase(settings, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "1h"),
                                          _text(settings, "nvlink_recoveries")),
            "An NVLink of " + ON_GPU + " had to be trained anew",
            "The link failed and came back. Work between GPUs stood still meanwhile, or failed. Boards with NVLink 5 "
            "(Blackwell) do not count this; their Xids 144 to 150 tell.",
            "look at `nvidia-smi nvlink -e`; if it comes back on one link, have board or cable looked at",
            ("nvlink_recoveries",)),
        Alert(
            "GpuNvlinkReplays", "warning", "30m",
            lambda settings: "%s > %s" % (_increase(settings, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "10m"),
                                          _text(settings, "nvlink_replays")),
            "NVLinks of " + ON_GPU + " keep sending again",
            "Packets arrive damaged and are sent again, without loss and with less bandwidth. Boards with NVLink 5 do "
            "not count this.",
            "as for GpuNvlinkRecovery",
            ("nvlink_replays",)),
        Alert(
            "GpuFabricNotReady", "critical", "10m", _fabric,
            ON_GPU + " is not in its NVLink fabric: {{ if eq $value 4.0 }}it failed{{ else }}it waits{{ end }}",
            "CUDA does not start on the GPU until it is registered with the fabric (error 802).",
            "look at `nvidia-smi -q` (Fabric), at nvidia-fabricmanager.service and its log; in a rack with IMEX at "
            "nvidia-imex.service of every node"),
        Alert(
            "GpuPcieReplays", "warning", "15m", _replays,
            ON_GPU + ' sends {{ printf "%.1f" $value }} PCIe packets a minute again',
            "The slot, the riser or the board damages packets; bandwidth between host and GPU suffers.",
            "look at generation and width of the link (`nvidia-smi -q`), seat the board anew, try another slot",
            ("pcie_replays",)),
    )),
    Group("gpuops-presence", "GPUs that are missing", (
        Alert(
            "GpuLost", "critical", "5m", _lost,
            ON_GPU + " ({{ $labels.UUID }}) is gone",
            "The GPU was there within the last day, and the node's exporter still tells of others. One that was taken "
            "out on purpose is forgotten after a day.",
            "look for Xid 79 in the kernel log; drain the node and reboot it, then cycle its power"),
        Alert(
            "GpuCountDiffers", "critical", "15m", _differs_from_label,
            NODE + " is labelled with {{ $labels.label_nvidia_com_gpu_count }} GPUs and has metrics of another number",
            "What GPU feature discovery found at its start and what the exporter sees differ.",
            "compare `nvidia-smi -L` with the label nvidia.com/gpu.count; look for lost GPUs (Xid 79), and restart "
            "feature discovery after a change of the hardware",
            needs=LABELS_OF_NODES),
        Alert(
            "GpuHeldBack", "warning", "15m", _held_back,
            NODE + " holds back {{ $value }} of its {{ $labels.resource }}",
            "The device plugin calls devices unhealthy after an Xid, and never takes that back by itself.",
            "find the Xid in the plugin's log, do what it asks for, then restart the plugin's pod of this node",
            needs=METRICS_OF_NODES),
        Alert(
            "GpuExporterDown", "warning", "5m", lambda settings: 'up{job=~"%s"} == 0' % _quoted(settings.job),
            "No metrics of {{ $labels.instance }}",
            "Prometheus cannot read this exporter: nothing is known of its GPUs.",
            "look at the exporter's pod on the node; it does not start without a loaded driver"),
        Alert(
            "GpuNodeWithoutMetrics", "warning", "15m", _without_metrics,
            NODE + " offers GPUs and has no metrics of them",
            "Nothing would tell of a fault of its GPUs.",
            "see whether the exporter's pod runs on the node (label nvidia.com/gpu.deploy.dcgm-exporter), and whether "
            "Prometheus scrapes it",
            needs=METRICS_OF_NODES),
        Alert(
            "GpuMetricsAbsent", "critical", "10m", lambda settings: "absent(%s)" % TEMPERATURE,
            "No metrics of any GPU",
            "None of these alerts can fire.",
            "look at the exporter's DaemonSet, its Service, and what Prometheus scrapes (ServiceMonitor, annotations)"),
    ), interval="1m"),
    Group("gpuops-nodes", "Nodes", (
        Alert(
            "GpuNodeFailed", "critical", "5m", _failed,
            NODE + " is out of service: {{ $labels.annotation_gpuops_nvidia_com_cordon_reason }}",
            "A change or the validation of the node failed. It is cordoned, and the reason is on the Node.",
            "read the reason, mend it, and run site for the node again: it is given back once it is valid",
            needs=REASONS_OF_NODES),
        Alert(
            "GpuNodeOutOfService", "warning", "2h", _out_of_service,
            NODE + " has been cordoned for two hours",
            "Its GPUs get no work. A node that fails its validation stays like this.",
            "`kubectl describe node` shows who cordoned it and why, in annotations of gpuops.nvidia.com; run site for "
            "the node, or uncordon it if it was forgotten",
            needs=METRICS_OF_NODES),
        Alert(
            "GpuMigLayoutFailed", "warning", "10m", _layout_failed,
            NODE + " could not be divided as {{ $labels.label_nvidia_com_mig_config }}",
            "The GPUs have not the instances that were asked for, so pods that want them stay pending.",
            "run the plan of the node: it says what is in the way",
            needs=LABELS_OF_NODES),
    )),
    Group("gpuops-use", "Use", (
        Alert(
            "GpuIdle", "info", "45m", _idle,
            "A pod has " + ON_GPU + " and does not use it",
            "For an hour the GPU was held by a pod and did next to nothing.",
            "ask the owner of the pod: the labels name it",
            ("idle",)),
        Alert(
            "GpuMemoryFull", "info", "15m", _full,
            "The memory of " + ON_GPU + " is {{ $value | humanizePercentage }} full",
            "The next allocation may fail. Frameworks that take all memory at their start look like this too: disable "
            "the alert where they are the rule.",
            "look at what runs on the GPU",
            ("memory_full",)),
    )),
)
ALERTS: Tuple[Alert, ...] = tuple(alert for group in GROUPS for alert in group.alerts)


def _quoted(text: str) -> str:
    """As it stands between quotation marks in PromQL."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
