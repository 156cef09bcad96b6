#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_pod_eviction
short_description: Evict the pods that use GPUs from a node, or all pods
version_added: 0.1.0
description:
  - Drains a node as C(kubectl drain) does, of the pods that use GPUs or of all, and waits until they are gone.
    C(docs/drain.md) has every case, and what kubectl does otherwise. It never cordons; M(gpuops.nvidia.gpu_node) does.
  - A pod uses GPUs when it asks for them (C(nvidia.com/gpu) and names that begin so, C(nvidia.com/mig-*), shared ones),
    has them by a ResourceClaim, or is one of O(holders) or O(pods). Network adapters and other resources
    C(nvidia.com/*) are no GPUs.
  - Pods go through the eviction API, so that disruption budgets are honoured. Each is read and compared before it is
    evicted, so that a pod that has come back elsewhere under its name is left alone.
  - Pods of a DaemonSet and static pods are never evicted; RV(stayed) names them. The pods of this collection's
    components are not looked at, as they leave with the labels of their node.
  - Refuses before the first eviction when a pod would be lost for good, when no disruption budget will ever let it go,
    or when nobody would end it, and names the option that allows the loss where there is one.
  - In check mode the evictions are added up for each disruption budget, which a dry run of the server does not, and the
    server tries each that nothing holds up, without doing it.
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.changes
  - gpuops.nvidia.drain
options:
  node:
    description: Name of the node.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Free the GPUs of this node
  gpuops.nvidia.gpu_pod_eviction:
    node: "{{ inventory_hostname }}"
    timeout: 600

- name: Drain the whole node, and let training end by itself for two hours
  gpuops.nvidia.gpu_pod_eviction:
    node: "{{ inventory_hostname }}"
    scope: node
    delete_emptydir_data: true
    wait_for_completion: app.kubernetes.io/component=training
    wait_for_completion_timeout: 7200
    timeout: 7800
"""

RETURN = r"""
evicted:
  description:
    - The pods that were evicted, or would be, as M(gpuops.nvidia.gpu_pods) describes them.
  returned: success
  type: list
  elements: dict
stayed:
  description: The pods that are never evicted, as M(gpuops.nvidia.gpu_pods) describes them, each with its C(reason).
  returned: success
  type: list
  elements: dict
waiting:
  description:
    - The pods that are or were waited for without an eviction, each with its C(reason), as they are being deleted, go
      with their namespace or complete by themselves.
  returned: success
  type: list
  elements: dict
blocked:
  description:
    - In check mode, the pods that could not go now. They are waited for; what would never go is refused.
  returned: success
  type: list
  elements: dict
  sample: [{"pod": "team/a-0", "reason": "disruption budget a allows 1 disruption(s) now, and 2 are to come"}]
budgets:
  description: The disruption budgets that evictions count for.
  returned: success
  type: list
  elements: dict
  contains:
    namespace: {description: Namespace of the budget., type: str, returned: success}
    name: {description: Its name., type: str, returned: success}
    allowed: {description: Disruptions that it allowed when it was read., type: int, returned: success}
    desired_healthy: {description: Pods that have to be healthy., type: int, returned: success}
    current_healthy: {description: Pods that are healthy., type: int, returned: success}
    expected_pods: {description: Pods that it is about., type: int, returned: success}
    now: {description: Pods that it lets go now., type: list, elements: str, returned: success}
    later: {description: Pods that wait for it., type: list, elements: str, returned: success}
left:
  description:
    - The pods that should have ended and were not waited for any longer, each with its C(reason). See
      O(skip_wait_for_delete_timeout).
  returned: success
  type: list
  elements: dict
pods:
  description: The pods that are in the way, as M(gpuops.nvidia.gpu_pods) describes them.
  returned: failure, where the drain is refused or pods did not go in time
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
