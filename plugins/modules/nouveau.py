#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: nouveau
short_description: Keep nouveau away from NVIDIA GPUs
version_added: 0.1.0
description:
  - Writes a blacklist for nouveau and nova (the kernel's own drivers for NVIDIA GPUs, nova since Linux 6.15), unless
    the host has one already.
  - Makes the initramfs of a bootable kernel anew when, and only when, that initramfs holds one of them without a
    blacklist.
  - Unloads them when nothing uses them; otherwise a reboot is required, and the result says why.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) keeps nouveau away.
      - V(absent) takes back what V(present) did. It does not load nouveau.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_driver
"""

EXAMPLES = r"""
- name: Keep nouveau away from the GPUs
  gpuops.nvidia.nouveau:
  register: nouveau

- name: Reboot where nouveau is in use
  ansible.builtin.reboot:
  when: nouveau.reboot_required
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
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import Nouveau
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts


def main() -> None:
    run_writer(Nouveau(), host_facts)


if __name__ == "__main__":
    main()
