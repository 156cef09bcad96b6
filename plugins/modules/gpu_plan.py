#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_plan
short_description: Say exactly what would be done to a GPU host
version_added: 0.1.0
description:
  - Takes the options of the modules that change a host and returns, as one plan, the steps that they would do.
  - The host is read once, and what was read is returned too, so that a host that needs nothing takes one call.
  - Each capability is planned on the host as the capabilities before it will leave it, so the plan of a bare host is
    complete.
  - Reads only. A version that only a repository knows is read from its index in a scratch directory.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  from_variables:
    description:
      - Whether to plan every capability, each with the options that the variables of the roles say; what the task gives
        of an option counts before that.
      - A variable that is set nowhere counts as its role's default, though no role takes part in the play.
    type: bool
    default: false
  only:
    description:
      - With O(from_variables), the capabilities that are planned, such as V(repair); all others are left out of the
        plan. Left out itself, every capability is planned.
    type: list
    elements: str
  # Made from the modules' names by tests/gates/documentation.py
  nouveau:
    description: Options of M(gpuops.nvidia.nouveau). Left out, the capability is not planned.
    type: dict
  driver:
    description: Options of M(gpuops.nvidia.gpu_driver). Left out, the capability is not planned.
    type: dict
  toolkit:
    description: Options of M(gpuops.nvidia.container_toolkit). Left out, the capability is not planned.
    type: dict
  repair:
    description: Options of M(gpuops.nvidia.gpu_repair). Left out, the capability is not planned.
    type: dict
  activation:
    description: Options of M(gpuops.nvidia.gpu_driver_activation). Left out, the capability is not planned.
    type: dict
  vgpu:
    description: Options of M(gpuops.nvidia.vgpu_license). Left out, the capability is not planned.
    type: dict
  fabric:
    description: Options of M(gpuops.nvidia.fabric_manager). Left out, the capability is not planned.
    type: dict
  imex:
    description: Options of M(gpuops.nvidia.imex). Left out, the capability is not planned.
    type: dict
  settings:
    description: Options of M(gpuops.nvidia.gpu_settings). Left out, the capability is not planned.
    type: dict
  mig:
    description: Options of M(gpuops.nvidia.mig). Left out, the capability is not planned.
    type: dict
  runtime:
    description: Options of M(gpuops.nvidia.container_runtime). Left out, the capability is not planned.
    type: dict
  cdi:
    description: Options of M(gpuops.nvidia.cdi_spec). Left out, the capability is not planned.
    type: dict
  agent:
    description: Options of M(gpuops.nvidia.node_agent). Left out, the capability is not planned.
    type: dict
  # End of what is made
  approved_plan:
    description:
      - An approved plan, whole, as this module returned it in RV(plan).
      - What is needed now and is not covered by it is a refusal that names it. Compared are host, policy of every
        capability, and of each step and requirement everything but the reason. Steps that are done already may be
        missing, and a step may disturb less.
      - It may also be the name of one that O(keep) left on this host, as in RV(kept_as).
      - A plan of another schema, or what is no plan, is an error.
    type: raw
  validation:
    description:
      - Options of M(gpuops.nvidia.gpu_validation) that concern the host (C(expected_gpus), C(handler),
        C(status_files)). Where the plan has nothing to do, the host is checked in the same call.
      - A check that fails fails nothing here; RV(checks) and RV(validated) tell.
    type: dict
  gpus_only:
    description: Whether to plan nothing on a host that has no GPU for NVIDIA's driver.
    type: bool
    default: false
  keep:
    description:
      - Whether to keep the plan on the host, for the modules that carry it out to be held to; RV(kept_as) is what their
        C(approved_plan) takes. So a controller need not hold the plans of a whole fleet.
      - Kept is what can be carried out and has something to do, below C(/var/lib/gpuops/plans), where root alone may
        read, and the newest eight of a host. Nothing is kept in check mode.
    type: bool
    default: false
  brief:
    description:
      - Whether to leave RV(plan), RV(text) and RV(observation) out of the result, which Ansible holds for every host
        until the run ends. O(save_to) and O(show) have them all the same.
    type: bool
    default: false
  lock_timeout:
    description:
      - How many seconds to wait for a run that works on the host; V(0) is not to wait. A plan of a host that changes
        meanwhile would be worth nothing.
      - When the time is over, the module fails and says who works there, and since when.
    type: int
    default: 600
  approved_from:
    description:
      - Directory on the controller with approved plans, as O(save_to) left them there. The plan of this host is read
        from it and the new plan compared with it, in the way of O(approved_plan).
      - A relative directory is one of the directory that Ansible was started in.
      - A file that is missing, or is no plan of this release of the collection, fails before the host is asked.
    type: path
  approved_fleet:
    description:
      - Digest of the plan of the fleet that was approved, as M(gpuops.nvidia.gpu_fleet_plan) told it. The plan in
        O(approved_from) is approved where it is the one that was part of that.
      - A host that the fleet's plan does not have, or had no plan for, and one whose file is another since, fail before
        the host is asked.
    type: str
  for_fleet:
    description:
      - Whether to put the plan by on the controller for M(gpuops.nvidia.gpu_fleet_plan) in the same run, which tells
        the plans of all hosts at once.
      - The result is then as with O(brief), unless the output is data for programs.
    type: bool
    default: false
  save_to:
    description:
      - Directory on the controller to save the plan in, as C(<inventory name of the host>.json), readable for its owner
        only. The directory is made when it is missing; a relative one is one of that which Ansible was started in.
      - Nothing is saved in check mode.
    type: path
  show:
    description:
      - Whether to print the plan on the controller's screen, as it reads in RV(text).
      - Callbacks whose output is data (C(ansible.posix.json), C(ansible.posix.jsonl)) and tasks with C(no_log) print
        nothing.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer.reader
"""

EXAMPLES = r"""
- name: See what an upgrade would do
  gpuops.nvidia.gpu_plan:
    driver:
      source: nvidia_repository
      version: 595.91.07
    activation: {}
  register: planned

- name: Plan what the variables of the inventory say
  gpuops.nvidia.gpu_plan:
    from_variables: true

- name: Show it, and keep it for approval
  gpuops.nvidia.gpu_plan:
    driver:
      source: nvidia_repository
      version: 595.91.07
    activation: {}
    show: true
    save_to: plans
"""

RETURN = r"""
plan:
  description: The plan as data, in the form that O(approved_plan) takes.
  returned: success, unless O(brief) or O(for_fleet)
  type: dict
  sample:
    schema: gpuops.nvidia/plan/v3
    host: a100
    policies: {"driver": "0123456789abcdef"}
    disruption: none
    steps: []
    requirements: []
    refusals: []
    kept: []
    notes: []
  contains:
    schema: {description: Name and version of this form., type: str, returned: success}
    host: {description: Name of the host., type: str, returned: success}
    policy: {description: Digest of what was asked for., type: str, returned: success}
    policies: {description: Digest of what was asked of each capability., type: dict, returned: success}
    observation: {description: Digest of what was found., type: str, returned: success}
    foretold:
      description: For each capability the facts that an earlier one will have changed, C(before) and C(after).
      type: dict
      returned: success
    disruption: {description: The highest disruption of its steps and requirements., type: str, returned: success}
    steps:
      description: What is to be done, in order.
      type: list
      elements: dict
      returned: success
      contains:
        id: {description: Capability with action and subject., type: str, returned: success}
        capability: {description: Who plans and applies it., type: str, returned: success, sample: runtime}
        action: {description: What is done., type: str, returned: success, sample: file.write}
        subject: {description: What it is done to., type: str, returned: success, sample: /etc/containerd/config.toml}
        why: {description: The reason as a sentence., type: str, returned: success}
        disruption: {description: What it disturbs while it is done., type: str, returned: success}
        change: {description: What is C(before) and what is C(after)., type: dict, returned: success}
        parameters: {description: What is needed to do it beside the change., type: dict, returned: success}
        reversible: {description: Whether the state before can be restored., type: bool, returned: success}
        depends_on: {description: Ids of the steps that come first., type: list, elements: str, returned: success}
    requirements:
      description: What must come from outside after the steps, a reboot or a driver.
      type: list
      elements: dict
      returned: success
      contains:
        id: {description: Capability with kind and subject., type: str, returned: success}
        capability: {description: Who needs it., type: str, returned: success}
        kind: {description: What is needed., type: str, returned: success, sample: reboot}
        subject: {description: What it is needed of., type: str, returned: success}
        why: {description: The reason as a sentence., type: str, returned: success}
        disruption: {description: What it disturbs., type: str, returned: success}
        change: {description: What is C(before) and what is C(after)., type: dict, returned: success}
    refusals:
      description: Why it cannot be done. Nothing is written while there is one.
      type: list
      elements: dict
      returned: success
      contains:
        code: {description: Which refusal it is., type: str, returned: success, sample: driver.version_not_offered}
        found: {description: What is there., type: str, returned: success}
        wanted: {description: What was asked for., type: str, returned: success}
        remedy: {description: What to do., type: str, returned: success}
        option: {description: The option or variable that the remedy is about., type: str, returned: success}
    complete:
      description: Whether all that is wanted is planned. It is not where something waits for what no step brings.
      type: bool
      returned: success
    may_come:
      description:
        - Disruption classes of what may be missing because a driver of this plan cannot be asked yet.
          C(runtime_restart) stands for what has pods leave and disturbs no others.
      type: list
      elements: str
      returned: success
    waiting:
      description: Capabilities of which not all is planned.
      type: list
      elements: str
      returned: success
    leaving:
      description: Pods whose devices change, as in RV(pods), by the id of the step that changes them.
      type: dict
      returned: success
    returns_to:
      description: As RV(returns_to), by the id of the step that takes one driver for another.
      type: dict
      returned: success
    kept:
      description: What was looked at and stays as it is, where one might expect otherwise.
      type: list
      elements: dict
      returned: success
      contains:
        subject: {description: What stays., type: str, returned: success, sample: package dkms}
        why: {description: The reason., type: str, returned: success}
    notes: {description: Warnings; what should be known beside it., type: list, elements: str, returned: success}
text:
  description: The plan as text for a person.
  returned: success, unless O(brief) or O(for_fleet)
  type: str
  sample: "a100: nothing to do"
digest:
  description:
    - Digest of all that an approval of the plan is an approval of. Two plans with the same digest are interchangeable.
  returned: success
  type: str
  sample: 0123456789abcdef
change:
  description:
    - What the plan does, in short and without the host's name. Hosts with the same C(digest) are changed alike; what a
      canary of M(gpuops.nvidia.gpu_rollout) has to stand for follows from the rest.
  returned: success
  type: dict
  contains:
    digest: {description: Digest of all steps and requirements; empty without any., type: str, returned: success}
    policy:
      description: Digest of what is asked of each capability, with a C(-) before those that have nothing to do.
      type: str
      returned: success
    board: {description: The GPUs by their PCI ids., type: str, returned: success, sample: "8 x 10de:2330"}
    system: {description: Distribution and architecture., type: str, returned: success, sample: ubuntu-24.04 x86_64}
    runtime: {description: What starts containers., type: str, returned: success, sample: containerd}
    driver_from: {description: The driver that is there., type: str, returned: success, sample: 580.178.04}
    driver_to: {description: The driver that is there afterwards., type: str, returned: success, sample: 595.91.07}
    clique: {description: "The IMEX domain, where the board is of a rack.", type: str, returned: success}
refusals:
  description:
    - Why the plan cannot be carried out, that it is not covered by O(approved_plan) included. Empty where it can be.
    - In a failure, every reason for it.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description: Which refusal it is, one of C(approval) where the approved plan does not cover what is needed.
      type: str
    found:
      description: What is there.
      type: str
    wanted:
      description: What was asked for.
      type: str
    remedy:
      description: What to do.
      type: str
    option:
      description: The option, or the role's variable, that RV(refusals[].remedy) is about.
      type: str
deferred:
  description:
    - Steps that the modules would not do, as they disturb more than C(allowed_disruption) of theirs or come after
      one that does, and requirements that disturb more.
  returned: success
  type: list
  elements: dict
  contains:
    id: {description: Id of the step or requirement., type: str, returned: success}
    capability: {description: Who plans it., type: str, returned: success}
    disruption: {description: What it disturbs., type: str, returned: success}
    why: {description: The reason as a sentence., type: str, returned: success}
disruption:
  description: The highest disruption of what is not in RV(deferred).
  returned: success
  type: str
  sample: runtime_restart
capabilities:
  description: Whose steps and requirements are not in RV(deferred), in their order.
  returned: success
  type: list
  elements: str
  sample: [driver, activation]
converged:
  description: Whether there is nothing to do on the host, nothing to refuse, and nothing of RV(unfinished).
  returned: success
  type: bool
waiting:
  description:
    - Capabilities of which not all could be planned yet, as what the GPUs are divided into before a driver answers. The
      notes of RV(plan) say what they wait for.
  returned: success
  type: list
  elements: str
may_disturb:
  description:
    - The most disturbing class that may be done, once the driver that this plan loads, or whose libraries it brings,
      can be asked, of what is RV(waiting), as far as C(allowed_disruption) lets it. C(none) where nothing waits for
      that, and with O(save_to) or an approved plan, which nothing is added to. At least C(runtime_restart) where pods
      have to leave for whatever is done of it, as for the division of GPUs.
  returned: success
  type: str
  sample: driver_reload
driver_loaded:
  description: The version of the driver that is loaded now, so that the GPUs may be at work; empty without one.
  returned: success
  type: str
  sample: 580.178.04
expected_seconds:
  description:
    - How long the steps that are not in RV(deferred) are expected to take, one after another, by those of the same kind
      that this host has seen to their end; nine of ten took no longer.
    - Nothing where this host has not done the like yet, where something has to come from outside, as a reboot, and
      where nothing is to be done.
  returned: success
  type: int
  sample: 840
unfinished:
  description:
    - Ids of steps that a run has begun and that none has closed, as after a power cut. The next run of their module
      closes them, whether they are in the plan or need not be done again.
  returned: success
  type: list
  elements: str
waited_for:
  description: The run on this host that was waited for, empty when there was none.
  returned: success
  type: str
held_by:
  description: The run that works on the host.
  returned: failure, where another run did not end within O(lock_timeout)
  type: dict
observation:
  description: What was read of the host, as M(gpuops.nvidia.gpu_info) returns it.
  returned: success, unless O(brief) or O(for_fleet)
  type: dict
gpus:
  description: How many GPUs for NVIDIA's driver the PCI bus has.
  returned: success
  type: int
devices:
  description: What of the host can be given to containers now, as M(gpuops.nvidia.gpu_validation) returns it.
  returned: success
  type: dict
  sample: {"whole": 6, "divided": 2, "empty": 0, "mig": {"1g.10gb": 14}}
drain:
  description:
    - Which pods with devices have to leave the node for what is not in RV(deferred). C(none), C(pods) for those in
      RV(pods), or C(node) for all.
    - With C(pods) the cluster components have to stop too, as they offer and watch the devices that change.
  returned: success
  type: str
  sample: none
pods:
  description: Pods whose devices change, as C(namespace/name), or by UID where the host does not tell the name.
  returned: success
  type: list
  elements: str
holders:
  description:
    - With RV(drain=node), or where RV(may_disturb) asks for that, the pods that have a GPU, open or given to them by
      the kubelet, named as in RV(pods).
      O(gpuops.nvidia.gpu_pod_eviction#module:holders) takes them, as not all of them ask the API for one.
  returned: success
  type: list
  elements: str
returns_to:
  description: The way back from the exchange of the driver that the plan has, checked before it begins. Empty without
    one.
  returned: success
  type: dict
  contains:
    version: {description: The driver that V(rolled_back) returns to., type: str, returned: success}
    kernel_module: {description: Its kernel module (V(open) or V(proprietary\))., type: str, returned: success}
    source: {description: The repository that it came from; V(distribution) for the host's own., type: str,
             returned: success}
    how:
      description: Where its packages are. V(archive) is on the host, V(repository) in part a source that is configured
        still, V(none) nowhere.
      returned: success
      type: str
      choices: [archive, repository, none]
    why: {description: Why there is no way back., type: str, returned: success}
checks:
  description: Every check of O(validation), as M(gpuops.nvidia.gpu_validation) returns it; empty where there is work.
  returned: success
  type: list
  elements: dict
validated:
  description: Whether all of RV(checks) passed, and the status files, if they are wanted, say so.
  returned: success
  type: bool
proof:
  description: What a pod has proved of the node and the host keeps, as RV(gpuops.nvidia.gpu_validation#module:proof).
  returned: success
  type: dict
kept_as:
  description: The file on the host that holds the plan; its name is RV(digest).
  returned: when O(keep) was given, the plan has something to do and no refusal, and it was not check mode
  type: str
  sample: /var/lib/gpuops/plans/0123456789abcdef.json
saved_as:
  description: The file on the controller that holds the plan.
  returned: when O(save_to) was given and it was not check mode
  type: str
  sample: /home/admin/plans/a100.json
# From docs/results.yml
file:
  description: File that cannot be used as it is.
  returned: failure, where it is a file's content
  type: str
line:
  description: Line of RV(file) that cannot be used, counted from 1.
  returned: failure, where it is a line
  type: int
path:
  description: What on the host could not be read or changed.
  returned: failure, where the system refused it
  type: str
errno:
  description: Name of the system's error, as in errno(3).
  returned: failure, where the system refused it
  type: str
  sample: ENOSPC
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
"""

from ..module_utils.shipped import run


def main() -> None:
    run("gpu_plan")


if __name__ == "__main__":
    main()
