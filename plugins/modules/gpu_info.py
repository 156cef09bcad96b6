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
  - A call of NVML that does not come back within a minute is given up; the reading names it and holds what was read
    before.
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
      contains:
        gpus:
          description: GPUs that the host's driver is for; these are counted, everywhere.
          type: list
          elements: dict
          returned: success
        other_gpus:
          description: The other GPUs of the PCI bus, each with its C(role).
          type: list
          elements: dict
          returned: success
        fabric:
          description:
            - What has to run on this host for the NVLink fabric of its board.
            - C(fabric_manager), C(fabric_manager_nvlsm) with the subnet manager of HGX B200 and B300, or empty.
          type: str
          returned: success
        hung:
          description: The call of NVML that did not come back, empty when all did.
          type: str
          returned: success
    kernels:
      description: Releases that can boot, oldest first.
      type: list
      elements: str
      returned: success
    pci:
      description: NVIDIA's devices on the PCI bus.
      type: dict
      returned: success
      contains:
        gpus:
          description: GPUs that the host's driver is for.
          type: list
          elements: dict
          returned: success
        other_gpus:
          description:
            - GPUs that it is not for, by their C(role). C(virtual_function) belongs to a virtual machine,
              C(passed_through) is bound to or reserved for C(vfio-pci) or another such driver, and C(display) is a card
              that no supported driver is for or that stays with its own.
          type: list
          elements: dict
          returned: success
        nvswitches:
          description: NVSwitches, without those that are passed through.
          type: list
          elements: dict
          returned: success
        nvlink_bridges:
          description: Functions of ConnectX-7 adapters through which the switches of HGX B200 and B300 are managed.
          type: list
          elements: dict
          returned: success
    nvml:
      description:
        - What NVML says of each GPU.
        - C(error) says why where it says nothing, C(hung) names a call that did not come back.
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
      description: Counts, device ids, fabric, driver and toolkit versions.
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
