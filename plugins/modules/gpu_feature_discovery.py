#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_feature_discovery
short_description: Run NVIDIA's GPU feature discovery in the clusters of a play
version_added: 0.1.0
description:
  - Publishes what the GPUs of validated nodes are, which Node Feature Discovery turns into labels such as
    C(nvidia.com/gpu.product); without it, the role node_maintenance does (see O(use_node_feature_api)).
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
  - gpuops.nvidia.cluster_component.pods
options:
  image:
    description:
      - The image; C(image) of the chart. What is not named keeps its default, so that a mirror needs its repository
        alone.
    type: dict
    default:
      repository: nvcr.io/nvidia/k8s-device-plugin
      tag: v0.19.3
      digest: ""
    suboptions:
      repository:
        description: Registry and path.
        type: str
        default: nvcr.io/nvidia/k8s-device-plugin
      tag:
        description: Tag.
        type: str
        default: v0.19.3
      digest:
        description: Digest, as C(sha256:0123...). Where given, it decides instead of the tag.
        type: str
        default: ""
  node_selector:
    description:
      - Labels of the nodes that it runs on; C(nodeSelector) of the chart. The role node_maintenance sets the default
        one once a node was validated.
    type: dict
    default:
      nvidia.com/gpu.deploy.gpu-feature-discovery: "true"
  tolerations:
    description: Taints that its pods tolerate; C(tolerations) of the charts.
    type: list
    elements: dict
    default:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      - key: CriticalAddonsOnly
        operator: Exists
  update_strategy:
    description: How a new version comes to the nodes, merged with the default; C(updateStrategy) of the chart.
    type: dict
    default:
      type: RollingUpdate
      rollingUpdate:
        maxUnavailable: 10%
  resources:
    description: Requests and limits of its containers, merged with the default; C(resources) of the chart.
    type: dict
    default:
      requests:
        cpu: 10m
        memory: 64Mi
      limits:
        memory: 256Mi
  config:
    description:
      - The configuration file that it shares with the device plugin, C(version v1), merged with the default, so that
        both see one MIG strategy and one sharing; C(config.map) of the chart. C(flags.gfd) is its own part.
    type: dict
    default:
      version: v1
      flags:
        migStrategy: mixed
        failOnInitError: false
  configs:
    description:
      - Configurations by name, each merged over O(config), for the nodes whose label C(nvidia.com/device-plugin.config)
        names one, as those of M(gpuops.nvidia.device_plugin).
    type: dict
    default: {}
  config_manager:
    description:
      - Whether the nodes of all O(configs) are served by one DaemonSet, in which NVIDIA's config-manager links the
        configuration that a node's label names and signals the program, as in NVIDIA's chart with C(config.map). A node
        without the label has O(config), which is called V(default) there; C(config.default) of the chart. Otherwise
        each configuration has a DaemonSet of its own.
      - A label that changes is followed without new pods. What that costs - every pod begins with O(config) and takes
        its node's configuration a moment later, as config-manager does not wait for the label; until then
        the node has the labels of O(config).
        A label with a name that is not in O(configs) makes config-manager end again and again, where
        O(config) would serve the node otherwise. A change of one configuration brings new pods to all nodes. The pods
        may list and watch Nodes.
    type: bool
    default: false
  use_node_feature_api:
    description:
      - Whether what is found is published as a NodeFeature, which Node Feature Discovery makes labels of;
        C(flags.useNodeFeatureAPI) of the configuration file, C(GFD_USE_NODE_FEATURE_API).
      - V(false) is for clusters without Node Feature Discovery. What is found is written on each node to
        C(/etc/kubernetes/node-feature-discovery/features.d/gfd), and M(gpuops.nvidia.gpu_info) reads it there. The
        entry point C(features) of the role node_maintenance makes labels of that; C(gpuops.nvidia.site) calls it. What
        changes on a node between two runs is in its labels with the next one.
      - The directory is also the one that a Node Feature Discovery on the node would read.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Label the nodes by their GPUs
  gpuops.nvidia.gpu_feature_discovery:
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
