#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_pod_eviction
short_description: Evict the pods that hold GPUs from a node
version_added: 0.1.0
description:
  - Evicts the pods of a node that hold C(nvidia.com/*) resources, and only those, through the eviction API, so that
    disruption budgets are honoured, and waits until they are gone.
  - Pods of a DaemonSet and static pods are never evicted; RV(stayed) names them.
  - Refuses before the first eviction when a pod would be lost for good, that is, when it has no controller or keeps
    data in an emptyDir, unless O(force) or O(delete_emptydir_data) allows it.
  - In check mode the server tries every eviction without doing it.
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.changes
options:
  node:
    description: Name of the node.
    type: str
    required: true
  pods:
    description:
      - The pods to evict, as C(namespace/name) or by UID. Others stay, and so does one of these that holds no GPU;
        RV(uncounted) names it.
      - Left out, all pods of the node that hold GPUs.
    type: list
    elements: str
  force:
    description: Whether to evict pods that no controller starts again.
    type: bool
    default: false
  delete_emptydir_data:
    description: Whether to evict pods that keep data in an emptyDir.
    type: bool
    default: false
  grace_period:
    description: Seconds that the pods get to end. Their own setting by default.
    type: int
  timeout:
    description: Seconds to wait until all of them are gone, disruption budgets included.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Free the GPUs of this node
  gpuops.nvidia.gpu_pod_eviction:
    node: "{{ inventory_hostname }}"
    timeout: 600
"""

RETURN = r"""
evicted:
  description: The pods that were evicted, as M(gpuops.nvidia.gpu_pods) describes them.
  returned: success
  type: list
  elements: dict
stayed:
  description: The GPU pods that are never evicted, with the reason.
  returned: success
  type: list
  elements: dict
uncounted:
  description:
    - C(namespace/name) of those of O(pods) on the node that hold no GPU as the cluster counts them, without a resource
      C(nvidia.com/*). They stay. Not those that end anyway, and none of this collection's components.
  returned: success
  type: list
  elements: str
blocked:
  description: In check mode, the pods whose eviction a disruption budget would block now.
  returned: success
  type: list
  elements: dict
  sample: [{"pod": "team/trainer-0", "reason": "Cannot evict pod as it would violate the pod's disruption budget."}]
pods:
  description: The pods that are in the way, as M(gpuops.nvidia.gpu_pods) describes them.
  returned: failure, where pods would be lost or did not go in time
  type: list
  elements: dict
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
