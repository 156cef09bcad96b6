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
  description: The plan as data.
  returned: success
  type: dict
  sample: {"schema": "gpuops.nvidia/plan/v1", "disruption": "none", "steps": [], "refusals": [], "notes": []}
  contains:
    schema: {description: Name and version of this form., type: str, returned: success}
    host: {description: Name of the host., type: str, returned: success}
    policy: {description: Digest of what was asked for., type: str, returned: success}
    observation: {description: Digest of what was found., type: str, returned: success}
    disruption: {description: The highest disruption of its steps., type: str, returned: success}
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
        after: {description: Ids of the steps that come first., type: list, elements: str, returned: success}
    refusals:
      description: Why it cannot be done. Nothing is written while there is one.
      type: list
      elements: dict
      returned: success
      contains:
        capability: {description: Who refuses., type: str, returned: success}
        found: {description: What is there., type: str, returned: success}
        wanted: {description: What was asked for., type: str, returned: success}
        remedy: {description: What to do., type: str, returned: success}
    notes: {description: What should be known beside it., type: list, elements: str, returned: success}
text:
  description: The plan as text for a person.
  returned: success
  type: str
  sample: "a100: nothing to do"
# From docs/results.yml
file:
  description: File that cannot be used as it is.
  returned: failure, where it is a file's content
  type: str
line:
  description: Line of RV(file) that cannot be used, counted from 1.
  returned: failure, where it is a line
  type: int
refusals:
  description: Every reason not to begin, where there are several; each with C(capability), C(found), C(wanted) and
    C(remedy).
  returned: failure, before anything was changed
  type: list
  elements: dict
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
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_reader
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES, plan_host


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    run_reader(dict(arguments, approved_steps={"type": "list", "elements": "dict"}), plan_host)


if __name__ == "__main__":
    main()
