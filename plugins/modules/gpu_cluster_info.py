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
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
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
  every_cluster:
    description:
      - Whether to read every cluster that a host of the play names by its C(gpu_cluster_*) variables, once each,
        instead of the one that the options name. Hosts that are down or were left out count too.
      - The result has RV(clusters) and RV(of_hosts) then.
    type: bool
    default: false
  named_only:
    description:
      - With O(every_cluster), whether there is no cluster where neither a host of the play nor the environment names
        one. Otherwise that is the one which the usual search for a kubeconfig finds.
    type: bool
    default: false
  rights:
    description:
      - What is to be done in the cluster later. The task fails, and names verbs and resources, where this user lacks a
        right for it; a cluster that does not tell what its users may do is believed to let them.
      - V(nodes) cordons and labels nodes, V(pods) evicts pods with GPUs, V(custody) takes nodes out of service as
        M(gpuops.nvidia.gpu_node_custody) does, V(rollout) keeps the record of M(gpuops.nvidia.gpu_rollout), V(probe)
        runs the pod of M(gpuops.nvidia.gpu_validation). What the
        components need, M(gpuops.nvidia.gpu_components) asks itself.
      - With O(every_cluster), V(probe) is asked of the clusters of those hosts that have the pod run, which a host
        declines by C(gpu_validation_pod=false).
    type: list
    elements: str
    choices: [nodes, pods, custody, rollout, probe]
    default: []
  pod_namespace:
    description:
      - Namespace of the pod of V(probe). With O(every_cluster) and without this option the hosts of each cluster say it
        by C(gpu_validation_pod_namespace).
    type: str
    default: default
"""

EXAMPLES = r"""
- name: Read the cluster
  gpuops.nvidia.gpu_cluster_info:
  run_once: true
  register: cluster

- name: Wait until every GPU is offered
  gpuops.nvidia.gpu_cluster_info:
    expected_allocatable:
      gpu-node-1:
        nvidia.com/gpu: 8
  run_once: true

- name: Read every cluster that the hosts of this play are nodes of
  gpuops.nvidia.gpu_cluster_info:
    every_cluster: true
  run_once: true
  register: clusters

- name: Tell the GPUs that the host's own cluster counts on it
  ansible.builtin.debug:
    msg: "{{ clusters.of_hosts[inventory_hostname].count }}"
"""

RETURN = r"""
clusters:
  description:
    - Each cluster with what is returned of one. One that cannot be read keeps no other one back; the task fails all the
      same.
  returned: with O(every_cluster)
  type: list
  elements: dict
  contains:
    name: {description: How the hosts name it., type: str, returned: success}
    hosts: {description: The play's hosts that name it., type: list, elements: str, returned: success}
    failed: {description: Whether it could not be read., type: bool, returned: success}
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    status: {description: "As RV(status).", type: int, returned: failure}
    others: {description: Its GPU nodes that are no hosts of the play., type: list, elements: str, returned: success}
    namespace: {description: "As RV(namespace).", type: dict, returned: success}
    runtime_class: {description: "As RV(runtime_class).", type: dict, returned: success}
of_hosts:
  description:
    - For each host of the play that is in a cluster the facts of its Node, as in RV(nodes), with
      C(operator_refusal), why it must not be touched (the NVIDIA GPU Operator manages it), and C(offer_refusal), why
      the device plugin must not come to it (others offer its GPUs), or null. Empty where there is no Node of the name
      that C(gpu_cluster_node_name) says, else the inventory.
  returned: with O(every_cluster)
  type: dict
nodes:
  description:
    - Facts of each node, ordered by name; the keys are those of the host variables of the inventory plugin
      P(gpuops.nvidia.gpu_nodes#inventory), without their prefix. What no label says is null.
  returned: success, of one cluster
  type: list
  elements: dict
  contains:
      name: {description: Name of the Node object., type: str, returned: success}
      labels: {description: All labels., type: dict, returned: success}
      annotations: {description: All annotations., type: dict, returned: success}
      our_labels:
        description: Names of those labels that M(gpuops.nvidia.gpu_node) has set, as it keeps them in an annotation.
        type: list
        elements: str
        returned: success
      created: {description: When the Node object was made., type: str, returned: success}
      taints: {description: Taints., type: list, elements: dict, returned: success}
      unschedulable: {description: Whether the node is cordoned., type: bool, returned: success}
      cordoned_by: {description: "Who cordoned it, where that is recorded.", type: str, returned: success}
      provider_id: {description: Name of the machine at its cloud provider., type: str, returned: success}
      pod_cidr: {description: Address range of its pods., type: str, returned: success}
      addresses: {description: Addresses by their type., type: dict, returned: success}
      roles:
        description: "Roles by the labels C(node-role.kubernetes.io/*)."
        type: list
        elements: str
        returned: success
      zone: {description: Zone by its label., type: str, returned: success}
      region: {description: Region by its label., type: str, returned: success}
      instance_type: {description: Instance type by its label., type: str, returned: success}
      conditions: {description: "Status, reason, message and time of each condition.", type: dict, returned: success}
      ready: {description: Whether the node is ready., type: bool, returned: success}
      kernel: {description: Release of its kernel., type: str, returned: success}
      os_image: {description: Its operating system., type: str, returned: success}
      arch: {description: Its architecture., type: str, returned: success}
      container_runtime: {description: Name and version of its container runtime., type: dict, returned: success}
      kubelet_version: {description: Version of its kubelet., type: str, returned: success}
      product: {description: Product of its GPUs., type: str, returned: success}
      count: {description: Number of its GPUs., type: int, returned: success}
      memory_mib: {description: Memory of a GPU in MiB., type: int, returned: success}
      family: {description: Architecture of its GPUs., type: str, returned: success}
      compute_capability: {description: CUDA compute capability., type: str, returned: success}
      driver_version: {description: Version of the driver., type: str, returned: success}
      cuda_version: {description: Highest version of CUDA that the driver runs., type: str, returned: success}
      machine: {description: Type of the machine., type: str, returned: success}
      mode: {description: Whether its GPUs are for computing or for displays., type: str, returned: success}
      sharing_strategy: {description: How its GPUs are shared., type: str, returned: success}
      replicas: {description: How often each GPU is offered., type: int, returned: success}
      clique: {description: Domain and clique of its NVLink fabric., type: str, returned: success}
      vgpu: {description: Whether its GPUs are virtual ones., type: bool, returned: success}
      device_plugin_config:
        description: The configuration of the device plugin that its label chooses.
        type: str
        returned: success
      mig:
        description: "Whether it can MIG, with which strategy, which profiles and which configuration."
        type: dict
        returned: success
      capacity: {description: "What it has of C(nvidia.com/*).", type: dict, returned: success}
      allocatable: {description: "What it offers of C(nvidia.com/*).", type: dict, returned: success}
      present: {description: Whether it has GPUs., type: bool, returned: success}
      present_reason: {description: What tells so., type: str, returned: success}
      findings:
        description: "What does not fit together, each with C(code), C(found), C(wanted), C(remedy) and C(option)."
        type: list
        elements: dict
        returned: success
operator_refusal:
  description: >-
    Why these of the cluster's GPU nodes must not be touched. Null when the NVIDIA GPU Operator manages none of them.
  returned: success, of one cluster
  type: dict
  contains:
    code: {description: Which refusal it is., type: str, returned: success, sample: cluster.managed_by_gpu_operator}
    found: {description: "Which nodes it manages, and what tells so.", type: str, returned: success}
    wanted: {description: What this collection works on., type: str, returned: success}
    remedy: {description: What to do., type: str, returned: success}
    option: {description: "The option that the remedy is about, here none.", type: str, returned: success}
namespace:
  description: What O(namespace) is. Null without that option.
  returned: success, of one cluster
  type: dict
  sample: {"name": "gpuops", "exists": true, "terminating": false, "ours": true}
  contains:
    name: {description: Its name., type: str, returned: success}
    exists: {description: Whether it is there., type: bool, returned: success}
    terminating: {description: Whether it is being deleted., type: bool, returned: success}
    ours: {description: Whether this collection made it., type: bool, returned: success}
runtime_class:
  description: What O(runtime_class) is. Null without that option.
  returned: success, of one cluster
  type: dict
  sample: {"name": "nvidia", "exists": true, "ours": true, "handler": "nvidia"}
  contains:
    name: {description: Its name., type: str, returned: success}
    exists: {description: Whether it is there., type: bool, returned: success}
    ours: {description: Whether this collection made it., type: bool, returned: success}
    handler: {description: Its handler., type: str, returned: success}
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
