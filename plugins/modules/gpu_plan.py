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

- name: Show it
  ansible.builtin.debug:
    msg: "{{ planned.text.splitlines() }}"
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
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_reader
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES, plan_host


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    run_reader(dict(arguments, approved_steps={"type": "list", "elements": "dict"}), plan_host)


if __name__ == "__main__":
    main()
