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
  approved_steps:
    description:
      - Steps of an approved plan, as this module returned them in RV(plan).
      - A step that is needed now and is not among them, or differs, is a refusal that names it. Steps that are done
        already may be missing.
    type: list
    elements: dict
  approved_from:
    description:
      - Folder on the controller with approved plans, as O(save_to) left them there. The plan of this host is read from
        it and the new plan compared with it, in the way of O(approved_steps).
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
    - The plan as data. C(schema), C(host), C(policy) and C(observation) (digests), C(disruption) (the highest of its
      steps), C(steps), C(refusals) and C(notes).
  returned: success
  type: dict
  sample: {"schema": "gpuops.nvidia/plan/v1", "disruption": "none", "steps": [], "refusals": [], "notes": []}
text:
  description: The plan as text for a person.
  returned: success
  type: str
  sample: "a100: nothing to do"
saved_as:
  description: The file on the controller that holds the plan.
  returned: when O(save_to) was given and it was not check mode
  type: str
  sample: /home/admin/plans/a100.json
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_reader
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES, plan_host

COMPARED = {"approved_steps": {"type": "list", "elements": "dict"}}
# The action plugin's own: they never reach the host.
OF_CONTROLLER = {
    "approved_from": {"type": "path"},
    "save_to": {"type": "path"},
    "show": {"type": "bool", "default": False},
}


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    run_reader(dict(arguments, **COMPARED, **OF_CONTROLLER), plan_host, as_root=True)


if __name__ == "__main__":
    main()
