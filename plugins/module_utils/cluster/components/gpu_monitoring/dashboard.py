# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Grafana dashboard, made of a table of panels. Pure.

It has the form that files and the sidecar of Grafana's chart take: the classic model of a dashboard, which newer
releases migrate by themselves. The exporter's label of the node is `Hostname` or `hostname`, by its release: selectors
ask for both, and let an absent one be.
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

from .policy import Settings

TITLE = "NVIDIA GPUs"
UID = "gpuops-nvidia-gpus"
# That of Grafana 12
SCHEMA = 41
WIDTH = 24
HEIGHT = 8
HEADING_HEIGHT = 1
TILE_HEIGHT = 4
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
BY_GPU = "{{Hostname}}{{hostname}} GPU {{gpu}}"
BY_INSTANCE = BY_GPU + " {{GPU_I_PROFILE}} {{GPU_I_ID}}"
# Placeholders of queries: which node, GPU, or instance of MIG a series is of, whoever uses it
NODE, GPU, INSTANCE = "@node", "@gpu", "@instance"
HIGHEST = "1e15"
VALID = "DCGM_FI_DEV_GPU_TEMP"


@dataclass(frozen=True)
class Panel:
    """A panel. In a query `[[` and `]]` hold a metric of the exporter, which gets the selector of the variables, and
    `@node`, `@gpu` and `@instance` are the labels of one.

    queries: (expression, legend) of each.
    unit:    Grafana's word for it.
    kind:    'timeseries' or 'stat'.
    width:   of 24 columns.
    stacked: whether the series are parts of a whole.
    highest: the end of the scale where it is known.
    """

    title: str
    description: str
    queries: Tuple[Tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False
    highest: float = 0


@dataclass(frozen=True)
class Row:
    """Panels under a heading; tiles are lower than graphs."""

    title: str
    panels: Tuple[Panel, ...]


def _each(metric: str, by: str = GPU) -> str:
    """The metric of each GPU; a value that the GPU does not have is left out."""
    return "max by (%s) ([[%s]] < %s)" % (by, metric, HIGHEST)


def _of_gpu(metric: str, legend: str = BY_GPU) -> Tuple[str, str]:
    return _each(metric), legend


def _of_instance(metric: str) -> Tuple[str, str]:
    return _each(metric, INSTANCE), BY_INSTANCE


def _growth(metric: str, by: str = GPU) -> str:
    return "max by (%s) (increase([[%s]][$__rate_interval]) < %s)" % (by, metric, HIGHEST)


def _rows(settings: Settings) -> Tuple[Row, ...]:
    pod = settings.workload + "pod"
    namespace = settings.workload + "namespace"
    gpus = "count(count by (%s, UUID) ([[%s]]))" % (GPU, VALID)
    held = 'count(count by (%s) ([[DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s!=""}]]))' % (INSTANCE, pod)
    idle = 'count(max by (%s) (max_over_time([[DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s!=""}]][15m])) < %.12g)' % (
        INSTANCE, pod, settings.thresholds["idle"])
    return (
        Row("Overview", (
            Panel("GPUs", "GPUs with metrics.", ((gpus, ""),), kind="stat", width=4),
            Panel("Nodes", "Nodes with metrics of GPUs.",
                  (("count(count by (%s) ([[%s]]))" % (NODE, VALID), ""),), kind="stat", width=4),
            Panel("In use by pods", "GPUs and instances of MIG that a pod has.", (("%s or vector(0)" % held, ""),),
                  kind="stat", width=4),
            Panel("In use and idle", "Of these, the ones that did next to nothing for 15 minutes.",
                  (("%s or vector(0)" % idle, ""),), kind="stat", width=4),
            Panel("Power", "All GPUs together.", (("sum(%s)" % _each("DCGM_FI_DEV_POWER_USAGE"), ""),), "watt",
                  kind="stat", width=4),
            Panel("Xids, last hour", "GPUs with an Xid of any kind within an hour.",
                  (('count(count by (%s) (max_over_time([[DCGM_EXP_XID_ERRORS_COUNT{xid!="", xid!="0"}]][1h]) > 0)) '
                    "or vector(0)" % GPU, ""),), kind="stat", width=4),
        )),
        Row("Temperature, power and clocks", (
            Panel("GPU temperature", "Of the GPU.", (_of_gpu("DCGM_FI_DEV_GPU_TEMP"),), "celsius"),
            Panel("Memory temperature", "Boards without a sensor have none.", (_of_gpu("DCGM_FI_DEV_MEMORY_TEMP"),),
                  "celsius"),
            Panel("Power draw", "Of the board.", (_of_gpu("DCGM_FI_DEV_POWER_USAGE"),), "watt"),
            Panel("Energy", "What the GPUs of each node took within an hour.",
                  (("sum by (%s) (max by (%s) (increase([[DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION]][1h]) < %s)) / 3600000"
                    % (NODE, GPU, HIGHEST), "{{Hostname}}{{hostname}}"),), "watth"),
            Panel("SM clock", "Frequency of the multiprocessors.", (_of_gpu("DCGM_FI_DEV_SM_CLOCK"),), "rotmhz"),
            Panel("Memory clock", "Frequency of the memory.", (_of_gpu("DCGM_FI_DEV_MEM_CLOCK"),), "rotmhz"),
            Panel("Throttling by reason", "GPUs whose clocks were held down, by reason, without idle ones. A power cap "
                  "at full load is normal.",
                  (('count by (clock_event) (max by (%s, clock_event) '
                    '([[DCGM_EXP_CLOCK_EVENTS_COUNT{clock_event!="", clock_event!="gpu_idle"}]]) > 0)' % GPU,
                    "{{clock_event}}"),), stacked=True),
            Panel("Throttled by heat or hardware", "Readings within the exporter's window, by GPU.",
                  (('max by (%s, clock_event) ([[DCGM_EXP_CLOCK_EVENTS_COUNT{clock_event=~'
                    '"hw_slowdown|hw_thermal|sw_thermal|hw_power_brake"}]])' % GPU, BY_GPU + " {{clock_event}}"),)),
        )),
        Row("Utilisation", (
            Panel("Engines active", "Share of time in which any engine of graphics or compute was active. The measure "
                  "that instances of MIG have.", (_of_instance("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),), "percentunit",
                  highest=1),
            Panel("GPU utilisation", "Share of time in which a kernel ran, however small. Absent with MIG.",
                  (_of_gpu("DCGM_FI_DEV_GPU_UTIL"),), "percent", highest=100),
            Panel("Tensor cores active", "Share of cycles.", (_of_instance("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),),
                  "percentunit", highest=1),
            Panel("Memory interface active", "Share of cycles.", (_of_instance("DCGM_FI_PROF_DRAM_ACTIVE"),),
                  "percentunit", highest=1),
            Panel("Frame buffer in use", "Without what the driver reserves.", (_of_instance("DCGM_FI_DEV_FB_USED"),),
                  "mbytes"),
            Panel("Frame buffer in use, share", "Of what is used and free.",
                  (("%s / (%s + %s)" % tuple(_each("DCGM_FI_DEV_FB_" + part, INSTANCE)
                                             for part in ("USED", "USED", "FREE")), BY_INSTANCE),),
                  "percentunit", highest=1),
            Panel("Encoder and decoder", "Share of time.",
                  (_of_gpu("DCGM_FI_DEV_ENC_UTIL", BY_GPU + " encoder"),
                   _of_gpu("DCGM_FI_DEV_DEC_UTIL", BY_GPU + " decoder")), "percent", highest=100),
            Panel("Memory copy utilisation", "Share of time.", (_of_gpu("DCGM_FI_DEV_MEM_COPY_UTIL"),), "percent",
                  highest=100),
        )),
        Row("Pods", (
            Panel("GPUs and instances by namespace", "Of pods that the exporter knows.",
                  (('count by (%s) (count by (%s, %s) ([[DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s!=""}]]))' % (
                      namespace, INSTANCE, namespace, pod), "{{%s}}" % namespace),), stacked=True),
            Panel("Engines active, by pod", "Pods at the bottom hold a GPU and do not use it.",
                  (('max by (%s, %s, %s) ([[DCGM_FI_PROF_GR_ENGINE_ACTIVE{%s!=""}]])' % (INSTANCE, namespace, pod, pod),
                    "{{%s}}/{{%s}} %s" % (namespace, pod, BY_INSTANCE)),), "percentunit", highest=1),
            Panel("Idle share of what pods have", "1: all that is allocated does next to nothing.",
                  (("(%s or vector(0)) / %s" % (idle, held), "idle"),), "percentunit", highest=1),
            Panel("Frame buffer in use, by pod", "Without what the driver reserves.",
                  (('max by (%s, %s, %s) ([[DCGM_FI_DEV_FB_USED{%s!=""}]] < %s)' % (
                      INSTANCE, namespace, pod, pod, HIGHEST), "{{%s}}/{{%s}}" % (namespace, pod)),), "mbytes"),
        )),
        Row("MIG", (
            Panel("Instances by profile", "Instances that the exporter sees.",
                  (('count by (GPU_I_PROFILE) (count by (%s) ([[DCGM_FI_DEV_FB_USED{GPU_I_PROFILE!=""}]]))' % INSTANCE,
                    "{{GPU_I_PROFILE}}"),), stacked=True),
            Panel("Instances in use by profile", "Of these, the ones that a pod has.",
                  (('count by (GPU_I_PROFILE) (count by (%s) ([[DCGM_FI_DEV_FB_USED{GPU_I_PROFILE!="", %s!=""}]]))' % (
                      INSTANCE, pod), "{{GPU_I_PROFILE}}"),), stacked=True),
            Panel("Engines active by profile", "Mean of the instances.",
                  (('avg by (GPU_I_PROFILE) (max by (%s) ([[DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_PROFILE!=""}]]))'
                    % INSTANCE, "{{GPU_I_PROFILE}}"),), "percentunit", highest=1),
            Panel("Frame buffer in use by profile", "Sum of the instances.",
                  (('sum by (GPU_I_PROFILE) (max by (%s) ([[DCGM_FI_DEV_FB_USED{GPU_I_PROFILE!=""}]] < %s))' % (
                      INSTANCE, HIGHEST), "{{GPU_I_PROFILE}}"),), "mbytes"),
        )),
        Row("Faults", (
            Panel("Xids", "Within the exporter's window of 5 minutes. docs/monitoring.md says what each asks for.",
                  (('max by (%s, xid) ([[DCGM_EXP_XID_ERRORS_COUNT{xid!="", xid!="0"}]])' % GPU,
                    BY_GPU + " Xid {{xid}}"),), stacked=True),
            Panel("Alerts", "Those of this collection that fire.",
                  (('count by (alertname) (ALERTS{alertname=~"Gpu.*", alertstate="firing", %s=~"$cluster", '
                    'node=~"$node|"})' % settings.cluster, "{{alertname}}"),), stacked=True),
            Panel("Last Xid", "The code of the last one since the exporter started, 0 where there was none.",
                  (("max by (%s) ([[DCGM_FI_DEV_XID_ERRORS]] < %s)" % (GPU, HIGHEST), BY_GPU),), "none"),
            Panel("Uncorrectable memory errors", "Since the board was made.",
                  (_of_gpu("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
                   _of_gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", BY_GPU + " since the driver started")), "none"),
            Panel("Corrected memory errors", "New ones, in the interval of the graph.",
                  ((_growth("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"), BY_GPU),), "none"),
            Panel("Remapped rows", "Rows of memory that were replaced.",
                  (_of_gpu("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", BY_GPU + " uncorrectable"),
                   _of_gpu("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", BY_GPU + " correctable")), "none"),
            Panel("Remapping", "1: rows wait for a reset, or could not be remapped.",
                  (_of_gpu("DCGM_FI_DEV_ROW_REMAP_PENDING", BY_GPU + " pending"),
                   _of_gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", BY_GPU + " failed")), "none"),
        )),
        Row("NVLink, fabric and PCIe", (
            # DCGM works out the rate by itself, though the exporter's own list calls it a counter
            Panel("NVLink bandwidth", "Both directions of all links.", (_of_gpu("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),),
                  "MBs"),
            Panel("NVLink errors", "New ones, in the interval of the graph. Boards with NVLink 5 do not count them.",
                  ((_growth("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"), BY_GPU + " replays"),
                   (_growth("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"), BY_GPU + " recoveries")), "none"),
            Panel("Fabric", "0: none, 1: not started, 2: in progress, 3: ready, 4: failed.",
                  (_of_gpu("DCGM_FI_DEV_FABRIC_MANAGER_STATUS"),), "none"),
            Panel("PCIe replays", "New ones, in the interval of the graph.",
                  ((_growth("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), BY_GPU),), "none"),
            Panel("PCIe sent", "By the GPU.", (_of_gpu("DCGM_FI_PROF_PCIE_TX_BYTES"),), "Bps"),
            Panel("PCIe received", "By the GPU.", (_of_gpu("DCGM_FI_PROF_PCIE_RX_BYTES"),), "Bps"),
        )),
    )


def dashboard(settings: Settings) -> Dict[str, Any]:
    """The dashboard as Grafana has it in JSON."""
    return {
        "annotations": {"list": []},
        "description": "GPUs by the metrics of NVIDIA's DCGM exporter, as gpuops.nvidia configures it.",
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [],
        "panels": _panels(settings),
        "refresh": "1m",
        "schemaVersion": SCHEMA,
        "tags": ["gpu", "nvidia", "dcgm"],
        "templating": {"list": _variables(settings)},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": TITLE,
        "uid": UID,
        "version": 1,
    }


def text(settings: Settings) -> str:
    """The dashboard as a file, the same for the same settings."""
    return json.dumps(dashboard(settings), indent=2, sort_keys=True) + "\n"


def _panels(settings: Settings) -> List[Dict[str, Any]]:
    made: List[Dict[str, Any]] = []
    top = 0
    for row in _rows(settings):
        made.append({"type": "row", "title": row.title, "collapsed": False, "panels": [], "id": len(made) + 1,
                     "gridPos": {"h": HEADING_HEIGHT, "w": WIDTH, "x": 0, "y": top}})
        top += HEADING_HEIGHT
        left = 0
        for panel in row.panels:
            height = TILE_HEIGHT if panel.kind == "stat" else HEIGHT
            made.append(_panel(panel, settings, len(made) + 1, {"h": height, "w": panel.width, "x": left, "y": top}))
            left += panel.width
            if left + panel.width > WIDTH:
                left, top = 0, top + height
        top += height if left else 0
    return made


def _panel(panel: Panel, settings: Settings, number: int, place: Dict[str, int]) -> Dict[str, Any]:
    targets = [
        {"datasource": DATASOURCE, "expr": _selected(query, settings), "legendFormat": legend or "__auto",
         "refId": chr(ord("A") + index), **({"instant": True} if panel.kind == "stat" else {"range": True})}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    defaults: Dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"drawStyle": "line", "fillOpacity": 25 if panel.stacked else 5, "lineWidth": 1,
                              "showPoints": "auto", "stacking": {"mode": "normal" if panel.stacked else "none"}}
    if panel.highest:
        defaults["max"] = panel.highest
    return {
        "type": panel.kind, "title": panel.title, "description": panel.description, "id": number, "gridPos": place,
        "datasource": DATASOURCE, "targets": targets, "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _tile() if panel.kind == "stat" else _graph(),
    }


def _graph() -> Dict[str, Any]:
    legend = {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["lastNotNull", "max"]}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _tile() -> Dict[str, Any]:
    return {"colorMode": "none", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"], "values": False}}


def _selected(query: str, settings: Settings) -> str:
    """The query with the selector of the variables in each of its metrics, and its placeholders filled."""
    selector = '%s=~"$cluster", Hostname=~"$node|", hostname=~"$node|", gpu=~"$gpu"' % settings.cluster
    node = settings.cluster + ", Hostname, hostname"
    query = query.replace(INSTANCE, GPU + ", GPU_I_PROFILE, GPU_I_ID").replace(GPU, NODE + ", gpu").replace(NODE, node)
    parts = query.split("[[")
    made = [parts[0]]
    for part in parts[1:]:
        series, rest = part.split("]]", 1)
        name, _brace, labels = series.partition("{")
        made.append("%s{%s}%s" % (name, ", ".join(each for each in (selector, labels.rstrip("}")) if each), rest))
    return "".join(made)


def _variables(settings: Settings) -> List[Dict[str, Any]]:
    nodes = 'label_replace(%s{%s=~"$cluster"}, "node", "$1", "Hostname", "(.+)")' % (VALID, settings.cluster)
    nodes = 'label_replace(%s, "node", "$1", "hostname", "(.+)")' % nodes
    of_node = '%s{%s=~"$cluster", Hostname=~"$node|", hostname=~"$node|"}' % (VALID, settings.cluster)
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {},
         "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": ""},
        _variable("cluster", "Cluster", "label_values(%s, %s)" % (VALID, settings.cluster)),
        _variable("node", "Node", "query_result(count by (node) (%s))" % nodes, '/node="([^"]+)"/'),
        _variable("gpu", "GPU", "label_values(%s, gpu)" % of_node),
    ]


def _variable(name: str, label: str, query: str, regex: str = "") -> Dict[str, Any]:
    """A variable with several values, of which "all" is any, an absent label as well."""
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "regex": regex, "refresh": 2, "sort": 3, "hide": 0,
        "includeAll": True, "allValue": ".*", "multi": True, "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
