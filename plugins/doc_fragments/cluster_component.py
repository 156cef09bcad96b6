# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations


class ModuleDocFragment:
    """Options of every component of a cluster."""

    DOCUMENTATION = r"""
options:
  state:
    description:
      - Whether the component is in the cluster. V(absent) removes what this collection made of it, and with the last
        component the namespace and the RuntimeClass, unless somebody else made them or something of others is in them.
    type: str
    choices: [present, absent]
    default: present
  namespace:
    description:
      - Namespace of the component, which all components share.
      - Made with the Pod Security Standards' level C(privileged), as the pods read devices and files of their nodes.
    type: str
    default: gpuops
  runtime_class:
    description: Name of the RuntimeClass whose pods get GPUs; C(runtimeClassName) of NVIDIA's charts.
    type: str
    default: nvidia
  runtime_handler:
    description: The container runtime's handler behind O(runtime_class).
    type: str
    default: nvidia
  runtime_class_scheduling:
    description:
      - What the RuntimeClass of O(runtime_class) adds to the pods that name it, C(scheduling) of a RuntimeClass. Where
        it is empty, they go wherever else they may.
      - All components of a cluster share that RuntimeClass, and say the same. One that others have made stays as it is.
    type: dict
    default:
      node_selector: {}
      tolerations: []
    suboptions:
      node_selector:
        description: Labels of the nodes that the pods go to, beside the selectors of their own.
        type: dict
        default: {}
      tolerations:
        description: Taints that the pods tolerate, beside those that they tolerate themselves.
        type: list
        elements: dict
        default: []
  registry:
    description:
      - Host, and path where there is one, that stands in place of the registry of every image that is not named by an
        option itself, as C(mirror.example.com/nvidia).
    type: str
    default: ""
  image_pull_secrets:
    description: Names of Secrets in O(namespace) with credentials of a registry; C(imagePullSecrets) of the charts.
    type: list
    elements: str
    default: []
  adopt:
    description:
      - Whether objects of others that have the names of ours become ours. They are refused otherwise, with who made
        them.
    type: bool
    default: false
  patches:
    description:
      - Changes to single objects before they are applied, for what no option says. They are in the plan.
      - One that meets no object is refused.
    type: list
    elements: dict
    default: []
    suboptions:
      kind:
        description: Kind of the object, as C(DaemonSet).
        type: str
        required: true
      name:
        description: Name of the object.
        type: str
        required: true
      patch:
        description:
          - What is merged into it, as RFC 7386 says, which is C(kubectl patch --type merge). Mappings merge, lists
            replace, null removes a key.
        type: dict
        required: true
  wait_timeout:
    description:
      - Seconds to wait for each thing that is waited for, the roll-out of the newest version among them. Nodes that are
        not ready are named and not waited for.
    type: int
    default: 180
"""

    TASK = r"""
options:
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
  approved_fleet:
    description:
      - Digest of the plan of the fleet that was approved, as M(gpuops.nvidia.gpu_fleet_plan) told it. The plan in
        O(approved_from) is approved where it is the one that was part of that.
    type: str
  for_fleet:
    description:
      - Whether to put each cluster's plan by on the controller for M(gpuops.nvidia.gpu_fleet_plan) in the same run,
        which tells them after those of the hosts.
    type: bool
    default: false
"""

    FROM_VARIABLES = r"""
options:
  from_variables:
    description:
      - Whether options that the task does not give are variables of the hosts (C(device_plugin_image) is
        O(gpuops.nvidia.device_plugin#module:image)), and every cluster that a host of the play names is served, once
        each; see C(gpu_cluster_kubeconfig) and C(gpu_cluster_host).
      - A variable that is set nowhere counts as the default of the role of the component. Hosts of one cluster that
        say different things are refused by name.
    type: bool
    default: false
"""

    SEVERAL = r"""
options:
  components:
    description:
      - Which components, in the order in which they are brought; those that go leave in the reverse order.
      - With O(from_variables) and without this option the hosts of each cluster say it by C(gpu_components).
    type: list
    elements: str
    choices: [node_feature_discovery, gpu_feature_discovery, device_plugin, dcgm_exporter, gpu_monitoring]
    default: [node_feature_discovery, gpu_feature_discovery, device_plugin, dcgm_exporter]
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
"""

    PODS = r"""
options:
  image_pull_policy:
    description: When the kubelet pulls the image; C(image.pullPolicy) of the charts.
    type: str
    choices: [Always, IfNotPresent, Never]
    default: IfNotPresent
  affinity:
    description: Affinity of its pods, as Kubernetes has it; C(affinity) of the charts.
    type: dict
    default: {}
  startup_taint:
    description:
      - Key of the taint that nodes join with and keep until they are validated, which its pods tolerate beside
        O(tolerations). Where it is empty, there is none.
    type: str
    default: ""
  priority_class:
    description: Priority class of its pods; C(priorityClassName) of the charts.
    type: str
    default: system-node-critical
  resource_quota:
    description:
      - A ResourceQuota in O(namespace) that is scoped to O(priority_class). A cluster whose administrator has limited
        C(system-node-critical), as GKE's has, takes pods of that class only where there is one.
    type: dict
    default:
      enabled: false
      pods: 150000
    suboptions:
      enabled:
        description: Whether to make it. V(false) takes it away.
        type: bool
        default: false
      pods:
        description:
          - How many pods of the class may be in the namespace, those of all components together. The default is as many
            as a cluster of Kubernetes has at most.
        type: int
        default: 150000
  pod_annotations:
    description: Further annotations of its pods; C(podAnnotations) of the charts.
    type: dict
    default: {}
  pod_labels:
    description: Further labels of its pods; C(podLabels) of the charts.
    type: dict
    default: {}
"""

    ATTRIBUTES = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode; the plan is made, and the API server tries each change without storing it.
    support: full
  diff_mode:
    description: Shows each object before and after.
    support: full
  idempotent:
    description: A second run with the same options writes nothing.
    support: full
"""
