# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's DCGM exporter: serves metrics of the GPUs of validated nodes, with the pod that uses each.

Variables, paths and probes as in pkg/cmd/app.go and deployment/templates of the repository NVIDIA/dcgm-exporter.
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence

from ...core.errors import GpuOpsError
from .common import (
    COMPONENT,
    GPU_TOLERATION,
    Object,
    Parameters,
    checksum,
    cluster_role,
    config_map,
    config_volume,
    container,
    daemon_set,
    environment,
    field,
    group,
    host_path,
    image_of,
    mount,
    namespaced,
    pod_arguments,
    pod_spec,
    pod_template,
    resource_quota,
    rule,
    selector,
    service_account,
)
from .dcgm_fields import KNOWN, RELEASE, nearest
from .groups import Group, groups_of
from .merging import merged
from .model import Component

NAME = "dcgm_exporter"
APP = "nvidia-dcgm-exporter"
# Of a Node: the name of the set of metrics that it has
METRICS_LABEL = "gpuops.nvidia.com/dcgm-exporter.metrics"
FILES = "/etc/gpuops-dcgm-exporter"
WEB = "/etc/gpuops-dcgm-exporter-web"
WEB_CONFIG = "web-config.yaml"
# Counters of the profiling hardware
PROFILING = "DCGM_FI_PROF_"
_FIELD = re.compile(r"[A-Z][A-Z0-9_]*")
_KINDS = ("gauge", "counter", "label")
# Variables that options stand for: {variable: option}
OPTIONS_OF = {
    "DCGM_EXPORTER_COLLECTORS": "metrics", "DCGM_EXPORTER_LISTEN": "port", "DCGM_EXPORTER_INTERVAL": "interval_ms",
    "NVIDIA_RESOURCE_NAMES": "resource_names", "DCGM_REMOTE_HOSTENGINE_INFO": "host_engine",
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "pod_labels_in_metrics",
    "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "pod_uid_in_metrics",
    "DCGM_EXPORTER_WEB_CONFIG_FILE": "web_config_secret",
}

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
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", "gauge", "Whether rows are remapped at the next reset"),
    ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "gauge", "How far the GPU is in its NVLink fabric"),
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
    "allow_unknown_metrics": {"type": "bool", "default": False},
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
    """ServiceAccount, its rights, and for each set of metrics its ConfigMap, its Service and its DaemonSet."""
    _refuse_contradictions(parameters)
    made = [service_account(APP, parameters), *resource_quota(APP, parameters)]
    if _reads_pods(parameters):
        made += cluster_role(APP, parameters, [rule("", ["pods"], ["get", "list", "watch"])])
    for each in groups_of("metric_sets", METRICS_LABEL, parameters["metrics"], parameters["metric_sets"],
                          parameters["node_selector"]):
        made += _exporter(each, parameters)
    if parameters["service_monitor"]["enabled"]:
        made.append(_service_monitor(parameters))
    return made


def csv(metrics: Sequence[Mapping[str, Any]], option: str = "metrics") -> str:
    """The exporter's file of metrics. Raises GpuOpsError for a line that it would not read as it is meant.

    option: which the metrics are given by.
    """
    fields = [str(metric.get("field", "")) if isinstance(metric, Mapping) else "" for metric in metrics]
    faults = [_fault(metric, fields) for metric in metrics]
    if not metrics or any(faults):
        raise GpuOpsError(
            "cluster.metric_malformed",
            found="in `%s`: %s" % (option, "; ".join(fault for fault in faults if fault) or "no metric"),
            wanted="metrics with `field`, `type` (%s) and `help`, each field once" % ", ".join(_KINDS),
            remedy="correct them in `%s`" % option, option=option)
    commas = [name for name, metric in zip(fields, metrics) if "," in metric["help"]]
    if commas:
        raise GpuOpsError(
            "cluster.comma_in_help_of_metric", found="a comma in the help text of %s" % ", ".join(commas),
            wanted="lines with exactly two commas, or the exporter does not start",
            remedy="write the help text without commas", option=option)
    return "".join("%(field)s, %(type)s, %(help)s\n" % metric for metric in metrics)


def _fault(metric: Any, fields: Sequence[str]) -> str:
    if not isinstance(metric, Mapping) or sorted(metric) != ["field", "help", "type"]:
        return "%s has not exactly field, type and help" % (metric,)
    if not _FIELD.fullmatch(str(metric["field"])) or fields.count(metric["field"]) > 1:
        return "field %s is no name of a field, or stands twice" % (metric["field"],)
    if metric["type"] not in _KINDS:
        return "%s has type %s" % (metric["field"], metric["type"])
    if not isinstance(metric["help"], str) or not metric["help"].strip() or "\n" in metric["help"]:
        return "%s has no help text of one line" % metric["field"]
    if '"' in metric["help"]:
        # Go's reader of CSV takes none inside of a field, and the exporter ends over it
        return "%s has a quotation mark in its help text" % metric["field"]
    return ""


def _refuse_unknown(metrics: Sequence[Mapping[str, Any]], option: str) -> None:
    unknown = [metric["field"] for metric in metrics if metric["field"] not in KNOWN]
    if unknown:
        meant = {name: nearest(name) for name in unknown}
        told = ["%s for %s" % (near, name) for name, near in meant.items() if near]
        raise GpuOpsError(
            "cluster.metric_unknown", found="in `%s`: %s" % (option, ", ".join(unknown)),
            wanted="fields of DCGM %s or metrics of the exporter; it does not start with a name that it does not know"
            % RELEASE,
            remedy="%s, or set `allow_unknown_metrics` where `image` is of a release that has it"
            % ("write " + ", ".join(told) if told else "take out what is not one"), option=option)


def _refuse_contradictions(parameters: Parameters) -> None:
    twice = sorted(set(parameters["env"]).intersection(OPTIONS_OF))
    if twice:
        options = ", ".join("`%s`" % OPTIONS_OF[name] for name in twice)
        raise GpuOpsError(
            "cluster.option_in_environment", found="%s in `env`" % ", ".join(twice),
            wanted="each setting in one place: these are the options %s" % options,
            remedy="take it out of `env`, and set the option", option="env")
    if parameters["tls_secret"] and parameters["web_config_secret"]:
        raise GpuOpsError(
            "cluster.two_web_configurations",
            found="`tls_secret` is %s and `web_config_secret` is %s" % (
                parameters["tls_secret"], parameters["web_config_secret"]),
            wanted="one of them: a certificate, or a whole configuration of the exporter's web server",
            remedy="leave `tls_secret` out, and name the certificate in that configuration", option="tls_secret")


def _reads_pods(parameters: Parameters) -> bool:
    return bool(parameters["pod_labels_in_metrics"] or parameters["pod_uid_in_metrics"])


def _exporter(each: Group, parameters: Parameters) -> List[Object]:
    name = each.called(APP)
    option = "metric_sets" if each.name else "metrics"
    lines = csv(each.value, option)
    if not parameters["allow_unknown_metrics"]:
        _refuse_unknown(each.value, option)
    files = {"metrics.csv": lines}
    if parameters["tls_secret"]:
        files[WEB_CONFIG] = "tls_server_config:\n    cert_file: %s/tls.crt\n    key_file: %s/tls.key\n" % (WEB, WEB)
    made = [
        config_map(name, parameters, files),
        namespaced("v1", "Service", name, name, parameters, spec={"selector": selector(name), "ports": [{
            "name": "metrics", "port": parameters["port"], "targetPort": "metrics", "protocol": "TCP"}]}),
        _daemon_set(each, parameters, lines),
    ]
    if parameters["network_policy"]:
        made.append(namespaced("networking.k8s.io/v1", "NetworkPolicy", name, name, parameters, spec={
            "podSelector": {"matchLabels": selector(name)}, "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]}))
    return made


def _daemon_set(each: Group, parameters: Parameters, lines: str) -> Object:
    name = each.called(APP)
    mounts = [mount("metrics", FILES, read_only=True),
              mount("pod-resources", "/var/lib/kubelet/pod-resources", read_only=True)]
    volumes = [config_volume("metrics", name),
               host_path("pod-resources", parameters["kubelet_root"] + "/pod-resources", "Directory")]
    web = parameters["tls_secret"] or parameters["web_config_secret"]
    if web:
        mounts.append(mount("web", WEB, read_only=True))
        volumes.append({"name": "web", "secret": {"secretName": web}})
    # The profiling counters are for holders of this capability.
    profiling = any(metric["field"].startswith(PROFILING) for metric in each.value)
    exporter = container(
        APP, image_of(parameters, ARGUMENTS), parameters,
        env=environment(_variables(parameters), parameters["env"]),
        ports=[{"name": "metrics", "containerPort": parameters["port"], "protocol": "TCP"}],
        readinessProbe={**_probe(parameters), "initialDelaySeconds": 5, "periodSeconds": 5, "failureThreshold": 12},
        livenessProbe={**_probe(parameters), "initialDelaySeconds": 45, "periodSeconds": 15},
        securityContext={"allowPrivilegeEscalation": False, "capabilities": {
            "drop": ["ALL"], **({"add": ["SYS_ADMIN"]} if profiling else {})}},
        volumeMounts=mounts)
    spec = pod_spec(
        parameters, APP, [exporter], volumes, token=_reads_pods(parameters), **each.placement(parameters),
        runtimeClassName=parameters["runtime_class"])
    return daemon_set(name, parameters, pod_template(name, parameters, spec, {
        **checksum(lines), **_scraping(parameters)}))


def _variables(parameters: Parameters) -> Dict[str, Any]:
    optional = {
        "NVIDIA_RESOURCE_NAMES": ",".join(parameters["resource_names"]),
        "DCGM_REMOTE_HOSTENGINE_INFO": parameters["host_engine"],
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS": "true" if parameters["pod_labels_in_metrics"] else "",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID": "true" if parameters["pod_uid_in_metrics"] else "",
        "DCGM_EXPORTER_WEB_CONFIG_FILE": _web_config(parameters),
    }
    return {
        "DCGM_EXPORTER_COLLECTORS": FILES + "/metrics.csv",
        "DCGM_EXPORTER_LISTEN": ":%d" % parameters["port"],
        "DCGM_EXPORTER_INTERVAL": str(parameters["interval_ms"]),
        "DCGM_EXPORTER_KUBERNETES": "true",
        "NODE_NAME": field("spec.nodeName"),
        **{name: value for name, value in optional.items() if value},
    }


def _web_config(parameters: Parameters) -> str:
    """Where the configuration of the exporter's web server is: beside the metrics where it is ours."""
    if parameters["web_config_secret"]:
        return "%s/%s" % (WEB, WEB_CONFIG)
    return "%s/%s" % (FILES, WEB_CONFIG) if parameters["tls_secret"] else ""


def _probe(parameters: Parameters) -> Dict[str, Any]:
    """A configuration of the user's may ask for a password, which the kubelet has not."""
    if parameters["web_config_secret"]:
        return {"tcpSocket": {"port": "metrics"}}
    secure = {"scheme": "HTTPS"} if parameters["tls_secret"] else {}
    return {"httpGet": {"path": "/health", "port": "metrics", **secure}}


def _scraping(parameters: Parameters) -> Dict[str, str]:
    """What a Prometheus without its operator finds pods by."""
    if not parameters["scrape_annotations"]:
        return {}
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(parameters["port"]),
            "prometheus.io/path": "/metrics",
            "prometheus.io/scheme": "https" if parameters["tls_secret"] else "http"}


def _service_monitor(parameters: Parameters) -> Object:
    """One for the Services of all sets of metrics; its labels are what a Prometheus chooses it by."""
    monitor = parameters["service_monitor"]
    endpoint: Dict[str, Any] = {
        "port": "metrics", "path": "/metrics", "interval": monitor["interval"],
        "scrapeTimeout": monitor["scrape_timeout"], "honorLabels": monitor["honor_labels"]}
    if monitor["relabelings"]:
        endpoint["relabelings"] = monitor["relabelings"]
    if monitor["metric_relabelings"]:
        endpoint["metricRelabelings"] = monitor["metric_relabelings"]
    if parameters["tls_secret"]:
        endpoint.update(scheme="https", tlsConfig={
            "ca": {"secret": {"name": parameters["tls_secret"], "key": "ca.crt"}},
            "serverName": "%s.%s.svc" % (APP, parameters["namespace"])})
    made = namespaced("monitoring.coreos.com/v1", "ServiceMonitor", APP, APP, parameters, spec={
        "selector": {"matchLabels": {COMPONENT: NAME}},
        "namespaceSelector": {"matchNames": [parameters["namespace"]]},
        "endpoints": [merged(endpoint, monitor["endpoint"])]})
    made["metadata"]["labels"] = {**monitor["labels"], **made["metadata"]["labels"]}
    return made


DCGM_EXPORTER = Component(
    name=NAME, title="NVIDIA DCGM exporter", apps=(APP,), arguments=ARGUMENTS, make=make)
