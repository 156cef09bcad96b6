#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_node
short_description: Label and taint a node, and remember what was ours
version_added: 0.1.0
description:
  - Changes the Node object in one patch that also holds the record of what we changed, in annotations under
    C(gpuops.nvidia.com/). A run that dies leaves neither without the other.
  - A label that somebody else set is never replaced or taken away; RV(notes) names it.
  - Nodes are taken out of service, and given back, by M(gpuops.nvidia.gpu_node_custody).
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.changes
options:
  name:
    description: Name of the node. This or O(hosts) is needed.
    type: str
  hosts:
    description:
      - Hosts of the play whose Nodes are to be changed, all of them by one task, which wants C(run_once). A fleet does
        not pay for a process a host then. RV(of_hosts) says what became of each, and a host that failed does not fail
        the task.
      - The Node, its cluster, O(labels), O(choices), O(purge_labels), O(keep_labels), O(take_over) and
        O(startup_taint) are, where the task does not say them, what each host's variables C(node_maintenance_*) and
        C(gpu_cluster_*) say, or the defaults of the role C(gpuops.nvidia.node_maintenance). Hosts that have no cluster
        are left out.
    type: list
    elements: str
  labels:
    description: Labels to set. Those that we set are recorded in annotation C(gpuops.nvidia.com/labels).
    type: dict
    default: {}
  choices:
    description: Labels to set, as O(labels), but that one without a value is taken away if we set it.
    type: dict
    default: {}
  unset_labels:
    description: Keys of labels to take away if we set them.
    type: list
    elements: str
    default: []
  take_over:
    description:
      - Whether labels of O(labels) that somebody else has set get our value and are ours from then on, as those that
        report a state, which no two can.
    type: bool
    default: false
  purge_labels:
    description:
      - Whether to take away every label that we set and that O(labels) does not name. Those of GPU feature discovery
        stay; O(features) is about them.
    type: bool
    default: false
  startup_taint:
    description:
      - Key of the taint that nodes join with, so that pods keep off until they are validated, as
        C(gpuops.nvidia.com/not-ready). Kubelets set it by C(--register-with-taints), clouds by their node pools.
    type: str
    default: ""
  tainted:
    description:
      - Whether the node has the taint of O(startup_taint). Unset leaves it as it is. V(true) sets it with the effect
        C(NoSchedule), unless it is there with another. V(false) takes it away whoever has set it, with every effect.
    type: bool
  keep_labels:
    description: Labels of ours that O(purge_labels) leaves, as another task sets them.
    type: list
    elements: str
    default: []
  features:
    description:
      - What GPU feature discovery publishes on the host, RV(gpuops.nvidia.gpu_info#module:observation.features), to be
        labels of the node where there is no Node Feature Discovery. Those that we set of an earlier reading go with it;
        an empty dictionary takes all away. Other labels than those of GPU feature discovery are left out.
    type: dict
  components:
    description:
      - Components of which RV(admitted) tells whether the node is one of theirs. Where their pods go, the host's
        variables say, as C(gpu_feature_discovery_node_selector) and C(gpu_feature_discovery_affinity).
    type: list
    elements: str
    choices:
      - node_feature_discovery
      - gpu_feature_discovery
      - device_plugin
      - dcgm_exporter
      - gpu_monitoring
    default: []
"""

EXAMPLES = r"""
- name: Take the start-up taint off a node that was validated
  gpuops.nvidia.gpu_node:
    name: "{{ inventory_hostname }}"
    startup_taint: gpuops.nvidia.com/not-ready
    tainted: false

- name: Set the labels of all nodes of the play as their variables say
  gpuops.nvidia.gpu_node:
    hosts: "{{ ansible_play_batch }}"
  run_once: true

- name: Admit the device plugin
  gpuops.nvidia.gpu_node:
    name: "{{ inventory_hostname }}"
    labels:
      nvidia.com/gpu.deploy.device-plugin: "true"
"""

RETURN = r"""
of_hosts:
  description:
    - What became of the Node of each host of O(hosts), by the host's name in the inventory. Each has C(failed) and
      C(changed), with RV(node) and RV(notes), or C(msg) and what else a failure has.
  returned: with O(hosts)
  type: dict
  sample: {"gpu-1": {"failed": false, "changed": true, "notes": []}}
node:
  description: Cordon, labels, our annotations and taints of the node after the change.
  returned: success, with O(name)
  type: dict
  contains:
    unschedulable:
      description: Whether the node is cordoned.
      type: bool
      returned: success
    labels:
      description: All labels.
      type: dict
      returned: success
    annotations:
      description: Our annotations.
      type: dict
      returned: success
    taints:
      description: All taints, with C(key), C(effect) and, where it has one, C(value).
      type: list
      elements: dict
      returned: success
admitted:
  description:
    - Those of O(components) that have a DaemonSet whose node selector and node affinity fit the labels of the node,
      as they are after the change. Taints, and whether the DaemonSet is there, are no part of it.
  returned: with O(components)
  type: list
  elements: str
notes:
  description: What was left alone because others set it.
  returned: success, with O(name)
  type: list
  elements: str
# From docs/results.yml
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
