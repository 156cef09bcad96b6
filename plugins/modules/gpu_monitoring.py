#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_monitoring
short_description: Watch the GPUs of the clusters of a play with Prometheus and Grafana
version_added: 0.1.0
description:
  - Brings alert rules and a dashboard that fit the metrics of M(gpuops.nvidia.dcgm_exporter). C(docs/monitoring.md) has
    every alert, with what it means and what to do.
  - With O(from_variables) it serves every cluster that a host of the play names, once each, and refuses hosts of one
    cluster that say different things. Runs on the controller; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.cluster_component
  - gpuops.nvidia.cluster_component.task
  - gpuops.nvidia.cluster_component.from_variables
  - gpuops.nvidia.cluster_component.attributes
options:
  rules:
    description:
      - How the alert rules come to Prometheus. V(prometheus_rule) is a PrometheusRule of the Prometheus Operator, whose
        custom resource has to be there; V(config_map) a ConfigMap with a file of rules, to be mounted where Prometheus
        looks for them; V(none) nothing in the cluster.
    type: str
    choices: [prometheus_rule, config_map, none]
    default: prometheus_rule
  rule_labels:
    description:
      - Labels of that object, by which Prometheus finds it; what the C(ruleSelector) of a Prometheus asks for, as
        C(release=kube-prometheus-stack).
    type: dict
    default: {}
  thresholds:
    description:
      - What alerts compare with, merged with the default; C(docs/monitoring.md) has what each counts and where it is
        taken from.
    type: dict
    default:
      temperature_warning: 85
      temperature_critical: 88
      memory_temperature: 95
      clock_events: 0
      ecc_uncorrectable: 0
      ecc_correctable: 100
      nvlink_recoveries: 0
      nvlink_replays: 0
      pcie_replays: 8
      suspicious_workloads: 2
      idle: 0.01
      memory_full: 0.98
  disabled:
    description: Names of alerts that are left out.
    type: list
    elements: str
    default: []
  overrides:
    description:
      - What is otherwise of single alerts, by their names, with the keys C(for), how long one must hold before it
        fires, and C(severity), V(critical), V(warning) or V(info).
    type: dict
    default: {}
  extra_labels:
    description: Labels that every alert gets, for the routes of an Alertmanager.
    type: dict
    default: {}
  runbook_url:
    description: Page whose headings are the names of alerts, which each alert links to. Empty for none.
    type: str
    default: https://github.com/gpuops/gpuops.nvidia/blob/main/docs/monitoring.md
  exporter_job:
    description: Regular expression of the whole name of the jobs by which Prometheus scrapes the exporter.
    type: str
    default: .*dcgm-exporter.*
  cluster_label:
    description: Label that tells clusters apart, where one Prometheus has the metrics of several.
    type: str
    default: cluster
  workload_label_prefix:
    description:
      - What stands before C(pod), C(namespace) and C(container) where these name the pod that uses a GPU. Prometheus
        puts it there unless a scrape has C(honorLabels), for which it is empty.
    type: str
    default: exported_
  dashboard:
    description: Whether there is a ConfigMap with the dashboard, for the sidecar of Grafana's chart.
    type: bool
    default: true
  dashboard_namespace:
    description: Namespace of that ConfigMap, where the sidecar looks into one alone. Empty is O(namespace).
    type: str
    default: ""
  dashboard_labels:
    description: Its labels, by which the sidecar finds it, merged with the default.
    type: dict
    default:
      grafana_dashboard: "1"
  dashboard_annotations:
    description: Its annotations, as C(grafana_folder).
    type: dict
    default: {}
  directory:
    description:
      - Directory on the controller for the rules and the dashboard as files, C(nvidia-gpu-alerts.yml) and
        C(nvidia-gpu-dashboard.json), whatever is in the cluster. With O(state=absent) they are removed. Empty for none.
      - A relative one is below the directory that Ansible was started in.
    type: path
    default: ""
"""

EXAMPLES = r"""
- name: Alert where a Prometheus Operator asks for its release, without the alerts on use
  gpuops.nvidia.gpu_monitoring:
    rule_labels:
      release: kube-prometheus-stack
    disabled: [GpuIdle, GpuMemoryFull]
    thresholds:
      temperature_warning: 80

- name: Write rules and dashboard for a Prometheus and a Grafana outside of the cluster
  gpuops.nvidia.gpu_monitoring:
    rules: none
    dashboard: false
    directory: monitoring/
"""

RETURN = r"""
# From docs/results.yml
clusters:
  description: What became of each cluster, also of one that failed.
  returned: always, unless the options are malformed
  type: list
  elements: dict
  contains:
    name: {description: How its hosts name it., type: str, returned: success}
    hosts: {description: The play's hosts that name it., type: list, elements: str, returned: success}
    changed: {description: Whether it is changed., type: bool, returned: success}
    failed: {description: Whether it failed or was refused., type: bool, returned: success}
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    status: {description: "As RV(status).", type: int, returned: failure}
    plan:
      description:
        - What is changed and why, the same in check mode, in the form of RV(gpuops.nvidia.gpu_plan#module:plan). Its
          steps create, change, adopt, replace, prune or remove an object.
      type: dict
      returned: once it is planned
    text: {description: The plan for a person., type: str, returned: once it is planned}
    saved_as: {description: File of the plan., type: str, returned: "with O(save_to), once it is planned"}
    not_ready:
      description: Nodes that are not ready, whose pods were not waited for.
      type: list
      elements: str
      returned: once it is applied
    files:
      description: The files in O(directory), or in the directory that the variables name.
      type: list
      elements: str
      returned: where there is a directory
text:
  description: The plans of all clusters for a person; empty where nothing is planned.
  returned: always, unless the options are malformed
  type: str
status:
  description: HTTP status of the API server's answer.
  returned: failure, where the API server answered with an error
  type: int
code:
  description: Which refusal or failure it is. Stable; C(docs/refusals.md) lists them all.
  returned: failure
  type: str
  sample: driver.version_not_offered
found:
  description: What is there, when the module refuses or fails.
  returned: failure
  type: str
wanted:
  description: What was asked for, when the module refuses or fails.
  returned: failure
  type: str
remedy:
  description: What to do, when the module refuses or fails.
  returned: failure
  type: str
option:
  description: The option, or the role's variable, that RV(remedy) is about; empty where it is about none.
  returned: failure
  type: str
refusals:
  description: Every reason to refuse or fail; the first is the one that C(msg) tells in full.
  returned: failure
  type: list
  elements: dict
  contains:
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
"""
