#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver_activation
short_description: Make the installed driver the loaded one
version_added: 0.1.0
description:
  - Loads the kernel modules of the installed driver, makes the device nodes, and runs the daemons that belong to it.
  - When another version is loaded, it stops the driver's own services, unloads, loads and starts them again.
  - What was unloaded beside them (GDRCopy, GPUDirect Storage) is loaded last, and judged before the exchange by whether
    it was built after the new driver.
  - When anything else holds a GPU or the modules, it names every holder, and a reboot is required; so it is when the
    running kernel has no module of the driver and the one that boots next has.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) loads the driver.
      - V(absent) unloads it, and takes back what V(present) set up for the next boot.
    type: str
    choices: [present, absent]
    default: present
  persistence:
    description:
      - Whether the persistence daemon runs.
    type: bool
    default: true
  fabric_manager:
    description:
      - V(auto) runs the Fabric Manager where the board needs it, V(absent) leaves it alone.
    type: str
    choices: [auto, absent]
    default: auto
  pods_leave:
    description:
      - Whether to plan for a host whose GPU pods will have been evicted. For M(gpuops.nvidia.gpu_plan), where the
        change is preceded by a drain; pods that hold a GPU when the modules are to be unloaded are not waited for.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_driver
"""

EXAMPLES = r"""
- name: Load the installed driver, reload it when nothing holds it
  gpuops.nvidia.gpu_driver_activation:
  register: activation

- name: Reboot where something holds the GPUs
  ansible.builtin.reboot:
  when: activation.reboot_required
"""

RETURN = r"""
plan:
  description: What is changed on this host and why, the same in check mode.
  returned: success
  type: dict
text:
  description: The plan for a person.
  returned: success
  type: str
applied:
  description: Ids of the steps that were done, in check mode of those that would be.
  returned: success
  type: list
  elements: str
put_off:
  description: Steps that disturb more than was allowed, or come after one that does.
  returned: success
  type: list
  elements: dict
reboot_required:
  description: Whether the plan ends with a reboot of the host; its C(requirements) say why.
  returned: success
  type: bool
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_writer
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import Activation
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts_and_health


def main() -> None:
    run_writer(Activation(), host_facts_and_health)


if __name__ == "__main__":
    main()
