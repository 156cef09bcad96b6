#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cluster_info
short_description: Read what a cluster says about its GPU nodes
version_added: 0.1.0
description:
  - Reads the nodes with their GPU labels, resources and findings, whether the NVIDIA GPU Operator manages them, and
    the namespace and RuntimeClass that the cluster components use.
  - With O(rolled_out) and O(expected_allocatable) it waits until these workloads run and the nodes offer exactly
    these resources, and fails with what the kubelet or the node says when they do not.
  - Runs where the Kubernetes API can be reached, which is normally the controller (C(delegate_to) localhost).
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.reader
options:
  label_selector:
    description: Only nodes with these labels.
    type: str
    default: ""
  namespace:
    description: A namespace to describe.
    type: str
    default: ""
  namespace_contents:
    description: Whether to list what lives in O(namespace).
    type: bool
    default: false
  runtime_class:
    description: A RuntimeClass to describe.
    type: str
    default: ""
  expected_allocatable:
    description: For each node the allocatable C(nvidia.com/*) resources that it must offer.
    type: dict
    default: {}
  rolled_out:
    description:
      - Workloads of O(namespace), as C(DaemonSet/NAME) or C(Deployment/NAME), whose roll-out must be complete.
    type: list
    elements: str
    default: []
  wait_timeout:
    description: Seconds to wait for O(rolled_out) and again for O(expected_allocatable).
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Read the cluster
  gpuops.nvidia.gpu_cluster_info:
  delegate_to: localhost
  run_once: true
  register: cluster

- name: Wait until every GPU is offered
  gpuops.nvidia.gpu_cluster_info:
    expected_allocatable:
      gpu-node-1:
        nvidia.com/gpu: 8
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
nodes:
  description:
    - Facts of each node, ordered by name; the keys are those of the host variables of the inventory plugin
      P(gpuops.nvidia.gpu_nodes#inventory), without their prefix.
  returned: success
  type: list
  elements: dict
operator_refusal:
  description: Why the cluster's GPU nodes must not be touched, with C(found), C(wanted) and C(remedy). Null when
    the NVIDIA GPU Operator does not manage them.
  returned: success
  type: dict
namespace:
  description: Whether O(namespace) exists, is terminating, is ours, and what lives in it.
  returned: success
  type: dict
  sample: {"name": "gpuops", "exists": true, "terminating": false, "ours": true, "occupants": []}
runtime_class:
  description: Whether O(runtime_class) exists, is ours, and its handler.
  returned: success
  type: dict
  sample: {"name": "nvidia", "exists": true, "ours": true, "handler": "nvidia"}
"""

from typing import Any, Dict

from ..module_utils.cluster.client import Cluster
from ..module_utils.cluster.overview import overview, wait_for_resources, wait_for_rollout
from ..module_utils.cluster.runner import run_cluster_module

ARGUMENTS = {
    "label_selector": {"type": "str", "default": ""},
    "namespace": {"type": "str", "default": ""},
    "namespace_contents": {"type": "bool", "default": False},
    "runtime_class": {"type": "str", "default": ""},
    "expected_allocatable": {"type": "dict", "default": {}},
    "rolled_out": {"type": "list", "elements": "str", "default": []},
    "wait_timeout": {"type": "int", "default": 120},
}


def _read(cluster: Cluster, parameters: Dict[str, Any], check_mode: bool) -> Dict[str, Any]:
    if parameters["rolled_out"]:
        wait_for_rollout(cluster, parameters["namespace"], parameters["rolled_out"], parameters["wait_timeout"])
    if parameters["expected_allocatable"]:
        wait_for_resources(cluster, parameters["expected_allocatable"], parameters["wait_timeout"])
    found = overview(
        cluster,
        parameters["label_selector"],
        parameters["namespace"],
        parameters["runtime_class"],
        parameters["namespace_contents"],
    )
    return dict(found, changed=False)


def main() -> None:
    """Read the cluster."""
    run_cluster_module(ARGUMENTS, _read)


if __name__ == "__main__":
    main()
