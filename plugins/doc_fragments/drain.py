# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a node is drained: options of the modules that have pods leave."""
from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  scope:
    description:
      - Which pods of the node go.
      - V(gpus) are those that use GPUs, V(node) all of them, as C(kubectl drain) has it.
    type: str
    choices: [gpus, node]
    default: gpus
  pods:
    description:
      - The pods to evict, as C(namespace/name), by UID, or by the UID that the kubelet knows a static pod by. Others
        stay. What is named here uses GPUs, whatever the API says of it, as the host has seen it with one.
      - Left out, all pods of the node that O(scope) has.
    type: list
    elements: str
  holders:
    description:
      - Pods that the host has seen with GPUs, named as in O(pods). They go too, though they may ask for none, as those
        do that have GPUs by a RuntimeClass, C(NVIDIA_VISIBLE_DEVICES) or a hostPath.
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
  force:
    description: Whether to evict pods that no controller starts again, and pods whose DaemonSet is not there any more.
    type: bool
    default: false
  delete_emptydir_data:
    description: Whether to evict pods that keep data in an emptyDir, be it in memory.
    type: bool
    default: false
  ignore_daemonsets:
    description: Whether pods of DaemonSets stay. With V(false) they are a reason to refuse.
    type: bool
    default: true
  skip_selector:
    description:
      - Selector of labels. Pods that it selects stay where they are; RV(stayed) names them. Empty for none.
      - The default is the label by which the full drain of NVIDIA's own upgrade controller leaves pods alone. It takes
        pods with GPUs off all the same; here they stay too.
    type: str
    default: nvidia.com/gpu-driver-upgrade-drain.skip=true
  wait_for_completion:
    description:
      - Selector of labels. Pods that it selects, such as those of Jobs, are not evicted but waited for until they end.
        Empty for none.
    type: str
    default: ""
  wait_for_completion_timeout:
    description:
      - Seconds after which those that have not ended are evicted as others are. With V(0) they never are, and the drain
        fails when O(timeout) is over.
    type: int
    default: 0
  disable_eviction:
    description:
      - Whether to delete the pods without a question to any disruption budget. Needs the right to delete pods, which
        the roles of the playbooks do not have; C(docs/rbac/options/node-maintenance-disable-eviction.yaml) has it.
    type: bool
    default: false
  skip_wait_for_delete_timeout:
    description:
      - Seconds past its grace after which a pod that does not end is not waited for any longer; RV(left) names it.
        Meant for nodes whose kubelet is dead. With V(0) every pod is waited for.
      - M(gpuops.nvidia.gpu_node_custody) leaves pods of the components behind likewise, and names them in its C(notes).
    type: int
    default: 0
  grace_period:
    description: Seconds that the pods get to end. Their own setting by default.
    type: int
  timeout:
    description:
      - Seconds to wait until all of them are gone, disruption budgets and completions included. At least 1.
    type: int
    default: 300
  progress_interval:
    description: Seconds between two lines about the pods that are waited for, and what blocks them. V(0) for no line.
    type: int
    default: 30
"""
