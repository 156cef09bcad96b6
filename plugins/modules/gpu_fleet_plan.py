#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_fleet_plan
short_description: Say what would be done to all hosts and clusters, as one plan
version_added: 0.1.0
description:
  - Tells the plans that M(gpuops.nvidia.gpu_plan) and M(gpuops.nvidia.gpu_components) have put by in this run with
    C(for_fleet). Hosts with the same plan stand together, those that are refused by their reason, and those that cannot
    be reached by name; then the order of the change in each cluster, where it is given, and the plans of the clusters.
  - Of more than ten hosts at most 60 lines are shown, unless Ansible is asked for more with C(-v). What is not shown is
    counted, and is in the files of O(save_to).
  - Runs on the controller and asks nobody. Passwords of URLs are hidden.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  hosts:
    description:
      - The hosts to tell of. One that no task has planned is told as not asked.
      - Left out, those of the play, failed and unreachable ones included.
    type: list
    elements: str
  rollouts:
    description:
      - In which order hosts are changed, a rollout of each cluster, as RV(gpuops.nvidia.gpu_rollout#module:clusters)
        has them where they could be planned. Other keys than these are not looked at.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The cluster, empty for hosts that are in none. It is told unless this is O(rollouts[].alone).
        type: str
      alone:
        description:
          - Whether all hosts are in this rollout. Left out, it is so where no other is given.
        type: bool
      head:
        description:
          - How it stands as the plan is made, told over the order a line each. It is no part of what RV(digest) is of.
          - One with a line that begins with C(stopped) is among those that are shown where not all are.
        type: list
        elements: str
      rollout:
        description: Has the C(units) in their order. Neighbours with the same reason are told in one line.
        type: dict
        required: true
        suboptions:
          units:
            description: Those that are changed at once.
            type: list
            elements: dict
            required: true
            suboptions:
              hosts:
                description: Their hosts.
                type: list
                elements: str
                required: true
              why:
                description: Why they stand there.
                type: str
                required: true
              seconds:
                description: How long one of them is expected to take.
                type: int
              jobs:
                description: Names of the jobs that end or wait for it.
                type: list
                elements: str
  save_to:
    description:
      - Directory on the controller that O(gpuops.nvidia.gpu_plan#module:save_to) saves plans in. The plan of all of
        them is written beside them, readable for its owner only. C(fleet.md) and C(fleet.html) are for people,
        C(fleet.index) says what an approval of its digest is an approval of.
      - Nothing is saved in check mode.
    type: path
  show:
    description:
      - Whether to print the plan on the controller's screen.
      - Callbacks whose output is data (C(ansible.posix.json), C(ansible.posix.jsonl)) and tasks with C(no_log) print
        nothing.
    type: bool
    default: true
attributes:
  check_mode:
    description: Can run in check mode; it changes nothing in any mode but the files of O(save_to).
    support: full
  diff_mode:
    description: There is nothing to show.
    support: N/A
  idempotent:
    description: The module changes nothing.
    support: full
  platform:
    description: Systems that the module runs on.
    platforms: posix
    support: full
"""

EXAMPLES = r"""
- name: Plan each host
  gpuops.nvidia.gpu_plan:
    from_variables: true
    for_fleet: true
    save_to: plans

- name: Say what would be done to all of them
  gpuops.nvidia.gpu_fleet_plan:
    save_to: plans
  run_once: true
"""

RETURN = r"""
digest:
  description: Digest of all that an approval of the plan is an approval of.
  returned: success
  type: str
  sample: 0123456789abcdef
fleet:
  description: The plan as data. What several hosts have in common is in it once.
  returned: success
  type: dict
  contains:
    digest: {description: "As RV(digest).", type: str, returned: success}
    hosts:
      description:
        - The hosts, each in one of C(idle) (nothing to do), C(changing), C(refused), C(failed) (no plan could be made),
          C(unreachable), C(left_out) (no GPU), C(unshown) (C(no_log)) and C(unasked).
      type: dict
      returned: success
    plans:
      description: What is to be done, with the hosts that it is done to.
      type: list
      elements: dict
      returned: success
      contains:
        hosts: {description: Hosts with this plan., type: list, elements: str, returned: success}
        plan:
          description:
            - As RV(gpuops.nvidia.gpu_plan#module:plan), of no host; devices are numbered in place of their UUIDs.
          type: dict
          returned: success
        put_off:
          description: Ids of what disturbs more than is allowed.
          type: list
          elements: str
          returned: success
        unfinished:
          description: Ids of steps that an earlier run has begun, and that are to be closed.
          type: list
          elements: str
          returned: success
        seconds:
          description: The least and the most that a host is expected to take; nothing where nobody knows.
          type: list
          elements: int
          returned: success
    refusals:
      description: Hosts that are refused or have no plan, with the reasons of the first of them.
      type: list
      elements: dict
      returned: success
    orders:
      description: The order in each cluster.
      type: list
      elements: dict
      returned: success
      contains:
        name: {description: The cluster., type: str, returned: success}
        head: {description: How it stood as the plan was made., type: list, elements: str, returned: success}
        turns:
          description:
            - The units of O(rollouts), neighbours with the same reason together; C(units) says how many turns they are.
          type: list
          elements: dict
          returned: success
    clusters:
      description: The clusters, with the plan of each and why it is refused.
      type: list
      elements: dict
      returned: success
saved_as:
  description: Paths of the files.
  returned: with O(save_to), unless in check mode
  type: list
  elements: str
# From docs/results.yml
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
