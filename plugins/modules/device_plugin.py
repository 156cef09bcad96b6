#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: device_plugin
short_description: Run NVIDIA's device plugin in the clusters of a play
version_added: 0.1.0
description:
  - Offers the GPUs of validated nodes to their kubelets. What is there is compared with what is wanted, object by
    object; in check mode that is all.
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
      nvidia.com/gpu.deploy.device-plugin: "true"
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
        maxUnavailable: 1
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
      - The plugin's configuration file, C(version v1), merged with the default at every depth; C(config.map) of the
        chart, whose values such as C(migStrategy), C(deviceListStrategy) or C(failOnInitError) are keys of C(flags)
        here.
      - It is checked before anything is applied, as the plugin accepts misspelt keys, and time-slicing and MPS at once,
        in silence. MPS needs a C(migStrategy) of V(none) or V(single).
    type: dict
    default:
      version: v1
      flags:
        migStrategy: mixed
        failOnInitError: false
        nvidiaDriverRoot: /
        plugin:
          deviceListStrategy: [cdi-annotations, cdi-cri]
          containerDriverRoot: /driver-root
          nvidiaCTKPath: /usr/bin/nvidia-cdi-hook
  configs:
    description:
      - Configurations by name, each merged over O(config), for the nodes whose label C(nvidia.com/device-plugin.config)
        names one. The role node_maintenance sets it to the host's C(device_plugin_config_name).
      - Each has a DaemonSet of its own, unless O(config_manager) is set.
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
        the node offers what O(config) makes of its GPUs, and pods may be given that.
        A label with a name that is not in O(configs) makes config-manager end again and again, where
        O(config) would serve the node otherwise. A change of one configuration brings new pods to all nodes. The pods
        may list and watch Nodes.
      - Configurations that share by MPS, or whose C(flags.nvidiaDriverRoot) or C(flags.plugin.containerDriverRoot)
        differ, cannot be served so and are refused.
    type: bool
    default: false
  env:
    description:
      - Environment variables for what has no key in O(config), such as C(DP_DISABLE_HEALTHCHECKS). Variables that would
        silently override the configuration file are refused.
    type: dict
    default: {}
  kubelet_root:
    description: The kubelet's root directory on the nodes.
    type: path
    default: /var/lib/kubelet
  mps_root:
    description:
      - Directory on the nodes that NVIDIA's MPS daemon and the plugin share, used with MPS alone; C(mps.root) of the
        chart.
    type: path
    default: /run/nvidia/mps
  runtime_classes:
    description: Further RuntimeClasses to make, as the GPU Operator has them.
    type: list
    elements: str
    choices: [nvidia-cdi, nvidia-legacy]
    default: []
  namespace_quotas:
    description:
      - For each namespace of users how many of NVIDIA's resources its pods may ask for together, for example
        C(nvidia.com/gpu=8) for C(team-a), as a dictionary of dictionaries. Each has a ResourceQuota C(nvidia-gpu) in
        that namespace, with C(requests.nvidia.com/gpu).
      - Names are those that the plugin offers, as C(nvidia.com/gpu.shared) or C(nvidia.com/mig-1g.10gb), each counted
        for itself. 0 keeps GPUs from a namespace; one that is not named here asks for as many as there are.
      - The namespaces are their users', and none is made. Where one is not there, or is being deleted, its quota waits;
        a warning names it, the rest is brought, and the quota comes with a run after the namespace is there.
    type: dict
    default: {}
  expected_allocatable:
    description:
      - For each node the allocatable resources that it must offer, for example C(nvidia.com/gpu=8) for C(gpu-node-1),
        as a dictionary of dictionaries. The module waits for them and fails when they do not come.
      - The plugin has no probes and waits for ever with no device, so that a running pod proves nothing.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Offer the GPUs, each to four pods at a time
  gpuops.nvidia.device_plugin:
    config:
      sharing:
        timeSlicing:
          resources:
            - name: nvidia.com/gpu
              replicas: 4

- name: Divide the GPUs between two teams
  gpuops.nvidia.device_plugin:
    namespace_quotas:
      team-a:
        nvidia.com/gpu: 8
      team-b:
        nvidia.com/gpu: 2
        nvidia.com/mig-1g.10gb: 7

- name: Say what would change in every cluster of this play's hosts, by their variables
  gpuops.nvidia.device_plugin:
    from_variables: true
    show: true
  run_once: true
  check_mode: true

- name: Take the plugin away
  gpuops.nvidia.device_plugin:
    state: absent
    kubeconfig: /etc/kubernetes/admin.conf
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
