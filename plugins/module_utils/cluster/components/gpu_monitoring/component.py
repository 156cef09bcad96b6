# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alert rules and a dashboard for the GPUs of a cluster: as objects, and as files for Prometheus and Grafana."""
from __future__ import annotations

from typing import Dict, List

from ..common import Object, Parameters, as_yaml, namespaced
from ..model import Component, settled
from . import dashboard
from .policy import ARGUMENTS, CONFIG_MAP, PROMETHEUS_RULE, settings_of
from .rules import ALERT_NAMES, rules

APP = "nvidia-gpu-monitoring"
ALERTS, DASHBOARD = "nvidia-gpu-alerts", "nvidia-gpu-dashboard"
RULES_FILE, DASHBOARD_FILE = "nvidia-gpu-alerts.yml", "nvidia-gpu-dashboard.json"


def make(parameters: Parameters) -> List[Object]:
    """The rules in the form that is wanted, and the dashboard. Raises GpuOpsError."""
    settings = settings_of(parameters, ALERT_NAMES)
    made: List[Object] = []
    if parameters["rules"] == PROMETHEUS_RULE:
        made.append(namespaced("monitoring.coreos.com/v1", "PrometheusRule", ALERTS, APP, parameters,
                               spec=rules(settings)))
    if parameters["rules"] == CONFIG_MAP:
        made.append(namespaced("v1", "ConfigMap", ALERTS, APP, parameters, data={RULES_FILE: as_yaml(rules(settings))}))
    for each in made:
        _describe(each, parameters["rule_labels"], {})
    if parameters["dashboard"]:
        place = {**parameters, "namespace": parameters["dashboard_namespace"] or parameters["namespace"]}
        shown = namespaced("v1", "ConfigMap", DASHBOARD, APP, place, data={DASHBOARD_FILE: dashboard.text(settings)})
        _describe(shown, parameters["dashboard_labels"], parameters["dashboard_annotations"])
        made.append(shown)
    return made


def _describe(each: Object, labels: Parameters, annotations: Parameters) -> None:
    """Labels and annotations by which others find the object; ours stay."""
    metadata = each["metadata"]
    metadata["labels"] = {**{name: str(value) for name, value in labels.items()}, **metadata["labels"]}
    if annotations:
        metadata["annotations"] = {name: str(value) for name, value in annotations.items()}


def files(parameters: Parameters) -> Dict[str, str]:
    """{name: text} of the rules and the dashboard, for a Prometheus and a Grafana that read directories.

    parameters: checked options; what is missing is the default. Which objects are wanted changes nothing here.
    """
    settings = settings_of(settled(GPU_MONITORING, parameters), ALERT_NAMES)
    return {RULES_FILE: as_yaml(rules(settings)), DASHBOARD_FILE: dashboard.text(settings)}


GPU_MONITORING = Component(
    name="gpu_monitoring", title="GPU monitoring", apps=(APP,), arguments=ARGUMENTS, make=make)
