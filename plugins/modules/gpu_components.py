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
  - gpuops.nvidia.cluster_component.task
  - gpuops.nvidia.cluster_component.several
  - gpuops.nvidia.cluster_component.from_variables
  - gpuops.nvidia.cluster_component.attributes
options:
  state:
    description: The state of all of them. Without it each has its own.
    type: str
    choices: [present, absent]
  hosts:
    description:
      - Only clusters that have one of these hosts of the play are asked, whole as they are. Without it all are.
      - Needs O(from_variables), by which hosts have clusters.
    type: list
    elements: str
  labels_to_come:
    description:
      - Whether the role node_maintenance is yet to make labels of what GPU feature discovery writes on the hosts. In a
        cluster where it writes there, O(gpuops.nvidia.gpu_feature_discovery#module:use_node_feature_api=false), this
        task waits for its pods alone then, as others may wait for those labels; call it once more when they are there.
    type: bool
    default: false
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
