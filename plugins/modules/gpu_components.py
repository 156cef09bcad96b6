#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_components
short_description: Bring all components to the clusters of a play
version_added: 0.1.0
description:
  - Brings several components, or takes them away, with one look at each cluster and one plan for it.
  - With O(from_variables) it serves every cluster that a host of the play names, once each, and refuses hosts of one
    cluster that say different things. What goes wrong with one cluster does not keep the others back.
  - Runs on the controller; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.cluster_component.attributes
options:
  components:
    description: Which components, in the order in which they are brought. Those that go leave in the reverse order.
    type: list
    elements: str
    choices: [node_feature_discovery, gpu_feature_discovery, device_plugin, dcgm_exporter, gpu_monitoring]
    default: [node_feature_discovery, gpu_feature_discovery, device_plugin, dcgm_exporter]
  state:
    description: The state of all of them. Without it each has its own.
    type: str
    choices: [present, absent]
  node_feature_discovery:
    description: Options of M(gpuops.nvidia.node_feature_discovery).
    type: dict
    default: {}
  gpu_feature_discovery:
    description: Options of M(gpuops.nvidia.gpu_feature_discovery).
    type: dict
    default: {}
  device_plugin:
    description: Options of M(gpuops.nvidia.device_plugin).
    type: dict
    default: {}
  dcgm_exporter:
    description: Options of M(gpuops.nvidia.dcgm_exporter).
    type: dict
    default: {}
  gpu_monitoring:
    description: Options of M(gpuops.nvidia.gpu_monitoring).
    type: dict
    default: {}
  from_variables:
    description:
      - Whether options of components that the task does not give are variables of the hosts, and every cluster that a
        host of the play names is served; as with M(gpuops.nvidia.device_plugin).
    type: bool
    default: false
  show:
    description: Whether to show the plan on the screen of the controller, as it is made.
    type: bool
    default: false
  require_rights:
    description:
      - Whether to refuse in check mode too what this user has no right to do. Without it check mode needs rights to
        read only; a note says what the server could not be asked then.
    type: bool
    default: false
  save_to:
    description:
      - Directory on the controller to save the plan of each cluster in, as C(cluster-<uid of its namespace
        kube-system>.json), readable for its owner only. The directory is made when it is missing; a relative one is one
        of that which Ansible was started in.
      - In check mode the plan is saved too, as that is how to ask for it.
    type: path
  approved_from:
    description:
      - Directory on the controller with approved plans, as O(save_to) left them there. Where something is to be done to
        a cluster, it is what the plan in that directory has or less of it, or the module fails before the first write
        and names what differs.
    type: path
"""

EXAMPLES = r"""
- name: Bring all components to every cluster of this play's hosts, as their variables say
  gpuops.nvidia.gpu_components:
    from_variables: true
  run_once: true

- name: Offer GPUs without labels and metrics
  gpuops.nvidia.gpu_components:
    components: [device_plugin]
    device_plugin:
      config:
        flags:
          migStrategy: single
"""

RETURN = r"""
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
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    status: {description: "As RV(status).", type: int, returned: failure}
text:
  description: The plans of all clusters for a person.
  returned: always, unless the options are malformed
  type: str
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
