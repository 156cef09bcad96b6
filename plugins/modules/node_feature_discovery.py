#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: node_feature_discovery
short_description: Run Node Feature Discovery in the clusters of a play
version_added: 0.1.0
description:
  - Finds the NVIDIA devices of every node, and turns what GPU feature discovery publishes into labels.
  - Where others have brought a Node Feature Discovery, that one is used as it is, and nothing is done.
  - Before it goes, the labels that it has set are taken off the nodes.
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
      repository: registry.k8s.io/nfd/node-feature-discovery
      tag: v0.17.3
      digest: ""
    suboptions:
      repository:
        description: Registry and path.
        type: str
        default: registry.k8s.io/nfd/node-feature-discovery
      tag:
        description: Tag.
        type: str
        default: v0.17.3
      digest:
        description: Digest, as C(sha256:0123...). Where given, it decides instead of the tag.
        type: str
        default: ""
  node_selector:
    description:
      - Labels of the nodes that it runs on; C(nodeSelector) of the chart. C(worker.nodeSelector) there.
    type: dict
    default:
      kubernetes.io/os: linux
  tolerations:
    description: Taints that its pods tolerate; C(worker.tolerations) and C(master.tolerations) of the chart.
    type: list
    elements: dict
    default:
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      - key: node-role.kubernetes.io/control-plane
        operator: Exists
        effect: NoSchedule
  update_strategy:
    description: How a new version of nfd-worker comes to the nodes; C(worker.updateStrategy) of the chart.
    type: dict
    default: {}
  resources:
    description:
      - Requests and limits of each program's container, merged with the default; C(master.resources),
        C(worker.resources), C(gc.resources) and C(topologyUpdater.resources) of the chart.
    type: dict
    default:
      master:
        requests: {cpu: 10m, memory: 128Mi}
        limits: {memory: 1Gi}
      worker:
        requests: {cpu: 5m, memory: 64Mi}
        limits: {memory: 512Mi}
      gc:
        requests: {cpu: 5m, memory: 64Mi}
        limits: {memory: 512Mi}
      topology_updater:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 512Mi}
  master_affinity:
    description: Affinity of the pods of nfd-master and nfd-gc; C(master.affinity) of the chart.
    type: dict
    default: {}
  master_config:
    description:
      - Configuration of nfd-master (C(extraLabelNs), C(denyLabelNs), C(resyncPeriod), C(nfdApiParallelism) ...);
        C(master.config) of the chart.
    type: dict
    default: {}
  master_replicas:
    description:
      - How many nfd-master run; with more than one they elect a leader. C(master.replicaCount) of the chart.
    type: int
    default: 1
  worker_config:
    description:
      - Configuration of nfd-worker, merged with the default; C(worker.config) of the chart. The default labels a node
        with C(pci-10de.present), by vendor alone, as the GPU Operator and the device plugin's chart expect.
    type: dict
    default:
      core:
        sleepInterval: 60s
        labelSources: [pci, system, kernel]
        featureSources: [pci, system, kernel, cpu]
      sources:
        pci:
          deviceClassWhitelist: ["02", "0200", "0207", "0300", "0302"]
          deviceLabelFields: [vendor]
  gc:
    description: Whether nfd-gc clears up after nodes that have left; C(gc.enable) of the chart.
    type: bool
    default: true
  topology_updater:
    description:
      - Whether nfd-topology-updater publishes the NUMA topology of nodes; C(topologyUpdater.enable) of the chart.
    type: bool
    default: false
  topology_updater_config:
    description: Its configuration; C(topologyUpdater.config) of the chart.
    type: dict
    default: {}
  kubelet_root:
    description: The kubelet's root directory on the nodes, for O(topology_updater).
    type: path
    default: /var/lib/kubelet
  feature_rules:
    description:
      - NodeFeatureRules to bring, which label the nodes whose kernel has what GPUDirect RDMA (V(peermem)), GPUDirect
        Storage (V(gds)) or V(gdrcopy) needs.
    type: list
    elements: str
    choices: [peermem, gds, gdrcopy]
    default: []
  probe:
    description: How the programs tell their health. Up to v0.17 by gRPC on port 8082, later by HTTP on port 8080.
    type: str
    choices: [grpc, http]
    default: grpc
"""

EXAMPLES = r"""
- name: Label the nodes by what they have
  gpuops.nvidia.node_feature_discovery:
    master_config:
      extraLabelNs: [example.com]
    feature_rules: [gds]
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
