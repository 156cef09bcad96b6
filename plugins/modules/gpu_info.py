#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read everything about the GPUs of a host in one call
version_added: 0.1.0
description:
  - Reads the system, its NVIDIA devices on the PCI bus, driver, NVML, the services around them and kernel modules.
  - Works on a host without a driver, without NVML and without a GPU; what is missing is empty, never an error.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.writer.reader
"""

EXAMPLES = r"""
- name: Read the GPUs of the host
  gpuops.nvidia.gpu_info:
  register: gpu

- name: Show what is on the bus
  ansible.builtin.debug:
    msg: "{{ gpu.observation.pci.gpus | map(attribute='address') }}"
"""

RETURN = r"""
observation:
  description: The whole reading.
  returned: success
  type: dict
  contains:
    host:
      description: System, kernels, GPUs by PCI id, installed and loaded driver, toolkit.
      type: dict
      returned: success
    kernels:
      description: Releases that can boot, oldest first.
      type: list
      elements: str
      returned: success
    pci:
      description: GPUs and NVSwitches on the PCI bus.
      type: dict
      returned: success
    nvml:
      description: What NVML says of each GPU, C(observation.nvml.error) where it says nothing.
      type: dict
      returned: success
    services:
      description: State of the services around GPUs.
      type: dict
      returned: success
    modules:
      description: Version and reference count of the loaded nvidia modules.
      type: dict
      returned: success
ansible_facts:
  description: The small stable part, for fact caches.
  returned: success
  type: dict
  contains:
    gpuops:
      description: Counts, device ids, driver and toolkit versions.
      type: dict
      returned: success
      sample: {"gpu_count": 8, "driver_loaded": "580.178.04"}
"""

from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_reader
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.report import compact, read_host


def read(host: Host, parameters: dict[str, Any]) -> dict[str, Any]:
    observation = read_host(host)
    return {"observation": observation, "ansible_facts": {"gpuops": compact(observation)}}


def main() -> None:
    run_reader({}, read)


if __name__ == "__main__":
    main()
