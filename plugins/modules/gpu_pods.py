#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_pods
short_description: Tell which pods use GPUs
version_added: 0.1.0
description:
  - Lists the pods that use GPUs on one node or in the whole cluster, by what they ask for, by ResourceClaims, and by
    what hosts have seen. Finished pods use none.
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.reader
options:
  node:
    description: Name of a node. Empty for the whole cluster.
    type: str
    default: ""
  wait_for_components:
    description:
      - Seconds to wait first until those cluster components of this collection that hold the driver are off O(node), as
        they go once it has lost the labels that admit them. With 0 nothing is waited for.
      - One that the labels of O(node) admit all the same, as its node selector is another than the default or others
        have set such a label, stays and is not waited for.
    type: int
    default: 0
  holders:
    description:
      - Pods that hosts have seen with GPUs, as C(namespace/name), by UID, or by the UID that the kubelet knows a static
        pod by. They are listed though they may ask for none.
    type: list
    elements: str
    default: []
  gpu_resources:
    description:
      - Names of further resources C(nvidia.com/*) that are GPUs, as a device plugin's configuration renames them. The
        prefix may be left out.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Who holds the GPUs of this node
  gpuops.nvidia.gpu_pods:
    node: "{{ inventory_hostname }}"
  register: holders
"""

RETURN = r"""
pods:
  description: The pods that use GPUs, ordered by namespace and name.
  returned: success
  type: list
  elements: dict
  contains:
    namespace:
      description: Namespace of the pod.
      type: str
      returned: success
    name:
      description: Name of the pod.
      type: str
      returned: success
    uid:
      description: UID of the pod.
      type: str
      returned: success
    node:
      description: Node that it runs on.
      type: str
      returned: success
    phase:
      description: Phase of the pod.
      type: str
      returned: success
    resources:
      description: The GPUs that it asks for, by resource with their counts.
      type: dict
      returned: success
      sample: {"nvidia.com/gpu": 2}
    owner:
      description: Kind and name of its controller, empty for a bare pod.
      type: str
      returned: success
      sample: ReplicaSet/trainer-5d8f
    daemonset:
      description: Whether a DaemonSet started it.
      type: bool
      returned: success
    mirror:
      description: Whether it is a static pod of the kubelet.
      type: bool
      returned: success
    local_data:
      description: Whether it keeps data in an emptyDir.
      type: bool
      returned: success
    terminating:
      description: Whether it is being deleted.
      type: bool
      returned: success
    uses:
      description: How it uses GPUs, one text a way.
      type: list
      elements: str
      returned: success
      sample: ["nvidia.com/gpu=2", "ResourceClaim gpus: gpu.nvidia.com/node-1/gpu-0"]
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
