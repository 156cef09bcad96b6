# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The options of monitoring, and the thresholds of its alerts with what they are taken from."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import AbstractSet, Any, Dict, Iterator, Mapping, Tuple

from ....core.errors import GpuOpsError
from ..common import Parameters

PROMETHEUS_RULE, CONFIG_MAP, NONE = "prometheus_rule", "config_map", "none"
SEVERITIES = ("critical", "warning", "info")
RUNBOOK = "https://github.com/gpuops/gpuops.nvidia/blob/main/docs/monitoring.md"
# prometheus/common/model: durations and names of labels
DURATION = re.compile(r"^(0|([0-9]+(ms|s|m|h|d|w|y))+)$")
LABEL = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
PREFIX = re.compile(r"^([a-zA-Z_][a-zA-Z0-9_]*)?$")
# Of Python's regular expressions, what RE2 has not: looking around, groups that are matched whole or on a condition,
# and what refers back
NOT_OF_RE2 = re.compile(r"\(\?(?:<?[=!]|>|\(|P=|#)|\\[1-9]")
RESERVED = frozenset({"alertname", "severity", "node"})


@dataclass(frozen=True)
class Threshold:
    """A number that an alert compares with: its default, what it counts, and why it is that."""

    default: float
    meaning: str
    source: str


THRESHOLDS: Mapping[str, Threshold] = {
    "temperature_warning": Threshold(
        85, "degrees Celsius of the GPU", "the highest temperature of operation of an A100; an H100 has 87"),
    "temperature_critical": Threshold(
        88, "degrees Celsius of the GPU", "A100 and H100 slow down at 89 and switch off at 92"),
    "memory_temperature": Threshold(
        95, "degrees Celsius of the memory", "the highest temperature of operation of the memory of A100 and H100"),
    "clock_events": Threshold(
        0, "readings with the reason in the exporter's window of 5 minutes", "any: no GPU should have them"),
    "ecc_uncorrectable": Threshold(
        0, "uncorrectable errors within an hour", "any: each has ended, or will end, a piece of work"),
    "ecc_correctable": Threshold(
        100, "corrected errors within an hour", "ours; a healthy board has a few in a day"),
    "nvlink_recoveries": Threshold(
        0, "recoveries of a link within an hour", "DCGM's health check fails on any"),
    "nvlink_replays": Threshold(
        0, "replays on links within 10 minutes, for half an hour", "DCGM's health check fails on any"),
    "pcie_replays": Threshold(
        8, "replays a minute", "what DCGM's health check allows a Gen3 link of 16 lanes; Gen4: 16, Gen5: 31"),
    "suspicious_workloads": Threshold(
        2, "pods that had Xid 13 or 31 on one GPU within a day", "ours: two may share a defect of their image"),
    "idle": Threshold(0.01, "share of time with the engines active", "ours: 1 %"),
    "memory_full": Threshold(0.98, "share of the frame buffer in use", "ours: an allocation more may fail"),
}

ARGUMENTS: Dict[str, Any] = {
    "rules": {"type": "str", "choices": [PROMETHEUS_RULE, CONFIG_MAP, NONE], "default": PROMETHEUS_RULE},
    "rule_labels": {"type": "dict", "default": {}},
    "thresholds": {"type": "dict", "default": {name: each.default for name, each in THRESHOLDS.items()}},
    "disabled": {"type": "list", "elements": "str", "default": []},
    "overrides": {"type": "dict", "default": {}},
    "extra_labels": {"type": "dict", "default": {}},
    "runbook_url": {"type": "str", "default": RUNBOOK},
    "exporter_job": {"type": "str", "default": ".*dcgm-exporter.*"},
    "cluster_label": {"type": "str", "default": "cluster"},
    "workload_label_prefix": {"type": "str", "default": "exported_"},
    "dashboard": {"type": "bool", "default": True},
    "dashboard_namespace": {"type": "str", "default": ""},
    "dashboard_labels": {"type": "dict", "default": {"grafana_dashboard": "1"}},
    "dashboard_annotations": {"type": "dict", "default": {}},
    # On the controller: what the objects hold, as files
    "directory": {"type": "path", "default": ""},
}


@dataclass(frozen=True)
class Override:
    """What a user wants otherwise of one alert; '' leaves it."""

    pending: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Settings:
    """What alerts and dashboard are made of, checked.

    cluster:      the label that tells clusters apart, where one Prometheus watches several.
    job:          regular expression of the jobs that scrape the exporter.
    workload:     what stands before pod, namespace and container where these name the pod that uses a GPU.
    disabled:     names of alerts that are left out.
    overrides:    {alert: what is otherwise of it}
    extra_labels: labels that every alert gets.
    runbook:      page with a heading for each alert; '' for none.
    """

    thresholds: Mapping[str, float]
    cluster: str
    job: str
    workload: str
    disabled: Tuple[str, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    runbook: str = RUNBOOK


def settings_of(parameters: Parameters, alerts: AbstractSet[str]) -> Settings:
    """The checked options. alerts: the names that there are. Raises GpuOpsError."""
    faults = [*_threshold_faults(parameters["thresholds"]), *_alert_faults(parameters, alerts),
              *_label_faults(parameters)]
    if faults:
        raise GpuOpsError(
            "cluster.monitoring_malformed",
            found="; ".join(faults),
            wanted="options that Prometheus takes, of alerts and thresholds that there are",
            remedy="correct these; docs/monitoring.md has the names of alerts and thresholds",
        )
    return Settings(
        thresholds={name: float(value) for name, value in parameters["thresholds"].items()},
        cluster=parameters["cluster_label"],
        job=parameters["exporter_job"],
        workload=parameters["workload_label_prefix"],
        disabled=tuple(parameters["disabled"]),
        overrides={name: Override(str(value.get("for", "")), value.get("severity", ""))
                   for name, value in parameters["overrides"].items()},
        extra_labels={name: str(value) for name, value in parameters["extra_labels"].items()},
        runbook=parameters["runbook_url"],
    )


def _threshold_faults(thresholds: Mapping[str, Any]) -> Iterator[str]:
    for name, value in thresholds.items():
        if name not in THRESHOLDS:
            yield "thresholds has %s, and there is none of that name" % name
        elif value is not None and not _number(value):
            yield "thresholds.%s is %r, no number" % (name, value)
    for name in THRESHOLDS:
        if thresholds.get(name) is None:
            yield "thresholds.%s is null: leave alerts out with `disabled`" % name


def _number(value: Any) -> bool:
    """Whether it is a finite number, also as text: variables that are templates give text."""
    try:
        return not isinstance(value, bool) and abs(float(value)) < float("inf")
    except (TypeError, ValueError):
        return False


def _alert_faults(parameters: Parameters, alerts: AbstractSet[str]) -> Iterator[str]:
    for option in ("disabled", "overrides"):
        for name in parameters[option]:
            if name not in alerts:
                yield "%s has %s, and there is no alert of that name" % (option, name)
    for name, override in parameters["overrides"].items():
        if not isinstance(override, Mapping) or set(override) - {"for", "severity"}:
            yield "overrides.%s is %r; its keys are for and severity" % (name, override)
            continue
        if not DURATION.match(str(override.get("for", "0"))):
            yield "overrides.%s.for is %r, no duration as 10m or 1h30m" % (name, override["for"])
        if override.get("severity", SEVERITIES[0]) not in SEVERITIES:
            yield "overrides.%s.severity is %r, none of %s" % (name, override["severity"], ", ".join(SEVERITIES))


def _label_faults(parameters: Parameters) -> Iterator[str]:
    for name in (parameters["cluster_label"], *parameters["extra_labels"]):
        if not LABEL.match(str(name)):
            yield "%r is no name of a label" % name
    if not PREFIX.match(parameters["workload_label_prefix"]):
        yield "workload_label_prefix is %r, no beginning of a label's name" % parameters["workload_label_prefix"]
    for name in RESERVED & set(parameters["extra_labels"]):
        yield "extra_labels has %s, which each alert has of its own" % name
    try:
        re.compile(parameters["exporter_job"])
    except re.error as error:
        yield "exporter_job is no regular expression: %s" % error
    beyond = NOT_OF_RE2.search(parameters["exporter_job"])
    if beyond:
        # Prometheus reads no rule of a file in which one is malformed
        yield "exporter_job has %s, which is nothing to Prometheus' regular expressions" % beyond.group()
