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
  - Each capability is planned on the host as the capabilities before it will leave it, so the plan of a bare host is
    complete.
  - Reads only. A version that only a repository knows is read from its index in a scratch directory.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  nouveau:
    description: Options of M(gpuops.nvidia.nouveau). Left out, the capability is not planned.
    type: dict
  driver:
    description: Options of M(gpuops.nvidia.gpu_driver). Left out, the capability is not planned.
    type: dict
  toolkit:
    description: Options of M(gpuops.nvidia.container_toolkit). Left out, the capability is not planned.
    type: dict
  activation:
    description: Options of M(gpuops.nvidia.gpu_driver_activation). Left out, the capability is not planned.
    type: dict
  runtime:
    description: Options of M(gpuops.nvidia.container_runtime). Left out, the capability is not planned.
    type: dict
  cdi:
    description: Options of M(gpuops.nvidia.cdi_spec). Left out, the capability is not planned.
    type: dict
  approved_plan:
    description:
      - An approved plan, whole, as this module returned it in RV(plan).
      - What is needed now and is not covered by it is a refusal that names it. Compared are host, policy of every
        capability, and of each step and requirement everything but the reason. Steps that are done already may be
        missing, and a step may disturb less.
      - A plan of another schema, or what is no plan, is an error.
    type: dict
  approved_from:
    description:
      - Folder on the controller with approved plans, as O(save_to) left them there. The plan of this host is read from
        it and the new plan compared with it, in the way of O(approved_plan).
      - A relative folder is one of the directory that Ansible was started in.
      - A file that is missing, or is no plan of this release of the collection, fails before the host is asked.
    type: path
  save_to:
    description:
      - Folder on the controller to save the plan in, as C(<inventory name of the host>.json), readable for its owner
        only. The folder is made when it is missing; a relative one is one of the directory that Ansible was started in.
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
  description:
    - The plan as data, in the form that O(approved_plan) takes.
    - C(schema) is the version of this form, C(host) the host's own name.
    - C(policy) and C(observation) are digests of what the plan was made from, C(policies) has that of the policy for
      each capability, C(foretold) the facts that an earlier capability of the plan will have changed for a later one.
    - C(disruption) is the highest of its steps and requirements.
    - C(steps) are what is done, in order. C(requirements) are what must come from outside after them, a reboot or a
      driver, each with C(kind), C(subject), C(why), C(disruption) and C(change).
    - C(refusals) say why nothing is done, C(notes) what else is to be known. C(complete) is false where something that
      is wanted waits for what no step brings, as a note says.
  returned: success
  type: dict
  sample:
    schema: gpuops.nvidia/plan/v2
    host: a100
    policies: {"driver": "0123456789abcdef"}
    disruption: none
    steps: []
    requirements: []
    refusals: []
    notes: []
text:
  description: The plan as text for a person.
  returned: success
  type: str
  sample: "a100: nothing to do"
digest:
  description:
    - Digest of all that an approval of the plan is an approval of. Two plans with the same digest are interchangeable.
  returned: success
  type: str
  sample: 0123456789abcdef
refusals:
  description:
    - Why the plan cannot be carried out, that it is not covered by O(approved_plan) included. Empty where it can be.
  returned: success
  type: list
  elements: dict
  contains:
    capability:
      description: Whose refusal it is, C(approval) where the approved plan as a whole does not fit.
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
saved_as:
  description: The file on the controller that holds the plan.
  returned: when O(save_to) was given and it was not check mode
  type: str
  sample: /home/admin/plans/a100.json
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_reader
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES, plan_host

# The action plugin's own: they never reach the host.
OF_CONTROLLER = {
    "approved_from": {"type": "path"},
    "save_to": {"type": "path"},
    "show": {"type": "bool", "default": False},
}


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    run_reader(dict(arguments, approved_plan={"type": "dict"}, **OF_CONTROLLER), plan_host, as_root=True)


if __name__ == "__main__":
    main()
