#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_node_custody
short_description: Take a node out of service and give it back, as one act that unwinds
version_added: 0.1.0
description:
  - V(taken) waits until no other manager and no other run is at work on the node, has a Lease of it, cordons it, has
    its GPU pods leave and takes the cluster components off it. What fails on the way puts back what was done.
  - V(admitted) lets the components back to a node that stays cordoned, so that it is looked at with them before pods of
    others come.
  - V(held) has the Lease of a node and leaves it as it is, so that who looks anew at what another run has left finds no
    run at work there, before one of the others; V(released) lets it go.
  - V(returned) gives it its labels again, takes the start-up taint and our cordon away and lets the Lease go. A node
    that others have cordoned, or that has the annotation C(gpuops.nvidia.com/hold), stays cordoned.
  - Runs that meet on a node do not disturb each other. One has it, and the other names it. What a run leaves behind
    that has died is taken over and completed by the next one, as C(docs/custody.md) tells.
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.kubernetes_auth.changes
  - gpuops.nvidia.drain
options:
  name:
    description: Name of the node. This or O(hosts) is needed.
    type: str
  hosts:
    description:
      - Hosts of the play whose Nodes it is about, all of them by one task, which wants C(run_once). RV(of_hosts) says
        what became of each, and a host that failed does not fail the task.
      - The Node, its cluster, O(labels), O(choices), O(purge_labels), O(keep_labels), O(take_over) and O(startup_taint)
        are, where the task does not say them, what each host's variables C(node_maintenance_*) and C(gpu_cluster_*)
        say, or the defaults of the role C(gpuops.nvidia.node_maintenance). Hosts that have no cluster are left out.
    type: list
    elements: str
  state:
    description:
      - V(taken) takes the node out of service. Taken by this run already, it stays so, and its Lease is renewed.
      - V(renewed) renews the Lease, and fails where the run has lost the node or somebody has uncordoned it. For before
        each task that may take long or disturbs the host.
      - V(held) waits until no other run and no other manager is at work on the node, has its Lease and changes nothing
        else. What V(renewed) is to a node that this run has taken, V(held) is to one that another run has left.
      - V(admitted) gives a node that this run has taken its O(labels) again and waits O(offer_timeout) seconds until it
        is Ready and has O(offers) on offer. It stays cordoned and this run's, for M(gpuops.nvidia.gpu_validation) with
        the scope V(cluster). It fails where the run has lost the node or somebody has uncordoned it. The start-up taint
        stays. Where the node is not to be opened then, V(taken) takes the components off it again.
      - V(returned) puts it into service again or, with O(failures), keeps it out of it.
      - V(released) lets the Lease of V(held) go where this run has it, and changes nothing else.
    type: str
    required: true
    choices:
      - taken
      - renewed
      - held
      - admitted
      - returned
      - released
  uid:
    description:
      - UID of the Node that is meant, as RV(node) has it when it was taken. Another one that has come under its name is
        refused. Left out, it is the one that has the name.
    type: str
    default: ""
  reason:
    description:
      - Why the node is taken, for people who find it cordoned. In annotation C(gpuops.nvidia.com/cordon-reason).
    type: str
    default: ""
  failures:
    description:
      - Checks that have failed, in words. With any, V(returned) leaves the node cordoned with them as the reason,
        without O(labels) and with O(startup_taint). The run lets it go all the same.
    type: list
    elements: str
    default: []
  offers:
    description:
      - What the node is to offer before V(returned) opens it, such as 8 of C(nvidia.com/gpu). RV(offers) of V(taken) is
        what it offered before. What it offers under other names, where GPUs were divided in another way, counts.
      - It is waited for O(offer_timeout) seconds once the labels are there, and until the node is Ready. The task fails
        then, and the node stays cordoned. Without any, V(returned) waits for nothing, and V(admitted) for a node that
        is Ready.
    type: dict
    default: {}
  offer_timeout:
    description: Seconds in which the node is to be Ready and to offer O(offers).
    type: int
    default: 300
  was_taken:
    description:
      - Whether this run has taken the node, and V(returned) is to give it back, or V(admitted) to let the components
        back to it. It fails then, and changes nothing, where the run has it no more, as one finds that stood still for
        longer than O(lease_seconds). Where it fails for another reason without O(failures), the run has the node still,
        to say them.
      - With V(taken) it says the same of a node that this run takes once more. One that somebody has uncordoned since
        is not cordoned again then.
      - Without it, whoever has the node is waited for, and a node that nobody has is given back, or taken. V(admitted)
        takes one over that another run has left, and it is to offer what it did when it was taken, where O(offers) does
        not say otherwise.
    type: bool
    default: false
  opens:
    description:
      - Whether V(returned) gives back a node that another run has out of service, or has left so. With V(false) such a
        node stays as it is, without O(labels), for who knows nothing of what that run has made of it; nobody is waited
        for.
    type: bool
    default: true
  run:
    description:
      - What this run is called. Two tasks are of one run if it is the same, and no other run may have it.
      - Left out, the run names itself, with the number of its job on AWX.
    type: str
    default: ""
  namespace:
    description: Where the Leases are, the namespace of the components. It is made where it is not there.
    type: str
    default: gpuops
  lease_seconds:
    description:
      - How long the Lease counts after it was renewed, which each of these tasks does. Nobody renews it while other
        tasks run, so it is to be longer than the longest of them.
      - A node of a run that has died is free after so many seconds in which another run has watched it.
    type: int
    default: 600
  wait_timeout:
    description:
      - Seconds to wait until no other run has the node, or has shown for the whole length of its Lease that it lives,
        and until no other manager is at work on it. In check mode nothing is waited for.
      - A Lease that does not change in this time is waited for until it has run out, however long it counts. With V(0)
        it is not.
    type: int
    default: 900
  labels:
    description:
      - Labels that admit the components. V(taken) takes away those that we have set, V(admitted) and V(returned) set
        them.
    type: dict
    default: {}
  choices:
    description: As O(labels), but that one without a value is not set.
    type: dict
    default: {}
  unset_labels:
    description: Keys of further labels that V(taken) takes away if we set them.
    type: list
    elements: str
    default: []
  purge_labels:
    description:
      - Whether V(taken) takes away every label that we set, and V(admitted) and V(returned) those that O(labels) does
        not name.
    type: bool
    default: false
  keep_labels:
    description: Keys of labels of ours that O(purge_labels) leaves.
    type: list
    elements: str
    default: []
  take_over:
    description: Whether labels of O(labels) that somebody else has set get our value and are ours from then on.
    type: bool
    default: false
  startup_taint:
    description:
      - Key of the taint that nodes join with. V(returned) takes it away, or sets it where there are O(failures).
    type: str
    default: ""
  drain:
    description:
      - Whether V(taken) has pods leave. How, the options say that M(gpuops.nvidia.gpu_pod_eviction) has too. O(timeout)
        is as well what the components get to leave the node.
      - Pods that tolerate the cordon and have got GPUs meanwhile leave too, once the components have.
    type: bool
    default: true
  together:
    description:
      - Other hosts of the play that are taken in the same breath, as RV(gpuops.nvidia.gpu_rollout#module:together) of a
        clique has them. Their Nodes are of the same cluster.
      - V(taken) previews the drains of all of them before it cordons, evictions added up for each disruption budget,
        and refuses where anything stands against one. Those that this run has cordoned by then are left out. It is each
        run of the task, with its own node, that drains.
      - How each is drained its variables C(node_maintenance_*) say, as for this host the options.
    type: list
    elements: str
    default: []
  place:
    description:
      - The budget in which this run has a place for the node, such as RV(gpuops.nvidia.gpu_rollout#module:place).
        V(taken) asks there before the cordon and after it whether the run has it still, as one that waited for the
        node for longer than O(lease_seconds) may have lost it, and puts the node back otherwise.
      - V(returned) asks there, with O(place.since), before it opens or keeps a node that this run has not taken, once
        it has its Lease.
    type: dict
    suboptions:
      pool:
        description: The pool.
        type: str
        default: gpus
      namespace:
        description: Where the record is that all controllers share.
        type: str
        default: gpuops
      since:
        description:
          - When that was read by which the node is to be opened, by the clock of the API server. It is not opened where
            a run has failed with it, in any pool of the record, or has begun with it since and not ended it.
          - With O(failures), when that was read by which it is to be kept. It is not kept where another run has given
            it back since, as what failed may have been in the middle of that.
        type: str
        default: ""
  known:
    description:
      - For V(returned) with O(hosts), their O(place), as RV(gpuops.nvidia.gpu_rollout#module:clusters) of V(settled)
        has it where it was told its O(gpuops.nvidia.gpu_rollout#module:read_at).
    type: list
    elements: dict
    default: []
seealso:
  - module: gpuops.nvidia.gpu_node
  - module: gpuops.nvidia.gpu_pod_eviction
"""

EXAMPLES = r"""
- name: Take the node out of service
  gpuops.nvidia.gpu_node_custody:
    name: "{{ inventory_hostname }}"
    state: taken
    reason: driver upgrade
    labels:
      nvidia.com/gpu.deploy.device-plugin: "true"
  register: taken

- name: Have it for an hour, as this host boots slowly
  gpuops.nvidia.gpu_node_custody:
    name: "{{ inventory_hostname }}"
    state: renewed
    lease_seconds: 3600

- name: Have its components back, and its GPUs on offer
  gpuops.nvidia.gpu_node_custody:
    name: "{{ inventory_hostname }}"
    state: admitted
    labels:
      nvidia.com/gpu.deploy.device-plugin: "true"
    offers: "{{ taken.offers }}"

- name: Have a pod compute on one of them, while no other pod comes
  gpuops.nvidia.gpu_validation:
    scope: [cluster]
    node_name: "{{ inventory_hostname }}"
    expected_resources: "{{ taken.offers }}"

- name: Give it back, or keep it out of service where a check has failed
  gpuops.nvidia.gpu_node_custody:
    name: "{{ inventory_hostname }}"
    state: returned
    was_taken: true
    uid: "{{ taken.node.uid }}"
    failures: "{{ failed_checks }}"
    offers: "{{ taken.offers }}"
    labels:
      nvidia.com/gpu.deploy.device-plugin: "true"

- name: Give all nodes back that earlier runs have left cordoned
  gpuops.nvidia.gpu_node_custody:
    hosts: "{{ ansible_play_hosts }}"
    state: returned
  run_once: true
"""

RETURN = r"""
of_hosts:
  description:
    - What became of the Node of each host of O(hosts), by the host's name in the inventory. Each has C(failed) and
      C(changed), with what a single node has here, or C(msg) and what else a failure has.
  returned: with O(hosts)
  type: dict
  sample: {"gpu-1": {"failed": false, "changed": true, "custody": "returned"}}
custody:
  description:
    - What became of the node, as O(state) asks for; C(kept) where it stays out of service with O(failures); C(left)
      where another run has it out of service, or has left it so, and O(opens) is V(false); C(uncordoned) where it has
      failures and somebody has uncordoned it, which we leave so.
  returned: success, with O(name)
  type: str
  sample: taken
run:
  description: This run as others see it, C(NAME@CONTROLLER).
  returned: success, with O(name)
  type: str
  sample: 3fa9c2d1a0@controller-1
lease:
  description: Name of the Lease of the node, in O(namespace).
  returned: success, with O(name), but in check mode of V(renewed), V(held) and V(released)
  type: str
  sample: custody-gpu-1
node:
  description: Cordon, labels, our annotations and taints of the node after the change, with its name.
  returned: success, with O(name), but in check mode of V(renewed), V(held) and V(released)
  type: dict
  contains:
    name:
      description: As O(name).
      type: str
      returned: success
    uid:
      description: Of the Node object, for O(uid) of the tasks that follow.
      type: str
      returned: success
    unschedulable:
      description: Whether the node is cordoned.
      type: bool
      returned: success
    labels:
      description: All labels.
      type: dict
      returned: success
    annotations:
      description: Our annotations.
      type: dict
      returned: success
    taints:
      description: All taints, with C(key), C(effect) and, where it has one, C(value).
      type: list
      elements: dict
      returned: success
cordoned_by_others:
  description: The programs beside this collection's runs that have cordoned the node. It stays cordoned for them.
  returned: success, with O(name), but in check mode of V(renewed), V(held) and V(released)
  type: list
  elements: str
  sample: ["kubectl-cordon"]
held:
  description: Whether the annotation C(gpuops.nvidia.com/hold) keeps it cordoned.
  returned: success, with O(name), but in check mode of V(renewed), V(held) and V(released)
  type: bool
notes:
  description:
    - What was left alone because others set it, pods of the components that were left behind, and what is left to the
      next run as the API server did not answer any more.
  returned: success, with O(name)
  type: list
  elements: str
evicted:
  description: The pods that were evicted, or would be, as M(gpuops.nvidia.gpu_pods) describes them.
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
stayed:
  description: The pods that are never evicted, each with its C(reason).
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
waiting:
  description: As RV(gpuops.nvidia.gpu_pod_eviction#module:waiting).
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
blocked:
  description: In check mode, the pods that could not go now. They are waited for; what would never go is refused.
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
budgets:
  description: As RV(gpuops.nvidia.gpu_pod_eviction#module:budgets).
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
left:
  description: As RV(gpuops.nvidia.gpu_pod_eviction#module:left).
  returned: success of V(taken), with O(drain)
  type: list
  elements: dict
offers:
  description:
    - The GPUs that the node offered when it was taken, by resource; where a run had taken it before that has died,
      when that run took it. Of V(admitted), those that it offers now.
  returned: success of V(taken) and V(admitted)
  type: dict
  sample: {"nvidia.com/gpu": 8}
put_back:
  description: What was undone when V(taken) failed on its way, in words, the last first.
  returned: failure of V(taken)
  type: list
  elements: str
  sample: ["cordon of node gpu-1 withdrawn", "Lease of node gpu-1 released"]
remains:
  description: What could not be undone, with the reason. The next run completes it.
  returned: failure of V(taken)
  type: list
  elements: str
holder:
  description: The run that has the node, where it is not this one; empty where nobody has it.
  returned: failure, where another run has the node or this one has lost it
  type: str
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
