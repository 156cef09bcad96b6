#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: cdi_spec
short_description: Keep a CDI specification that describes the GPUs of the host
version_added: 0.1.0
description:
  - Compares C(/var/run/cdi/nvidia.yaml) with the loaded driver, its files and device nodes, and the GPUs and MIG
    devices by UUID, or by index where the specification names no UUID, and generates it anew with C(nvidia-ctk) when
    it is stale. M(gpuops.nvidia.gpu_validation) judges it by the same rules.
  - It is fresh only when it names every device node, file and hook that C(nvidia-ctk cdi generate) would name now. One
    that was written at a boot before C(/dev/nvidia-uvm) was there is found in this way; without that node every CUDA
    program in a container fails.
  - Device nodes that belong to no single GPU are made before it is generated.
  - Programs that the specification runs for a container are looked for too. After a change of the container toolkit it
    is made anew, as another toolkit writes other hooks.
  - Refuses while a call of NVML does not come back.
  - Enables the toolkit's units that generate it at boot, because C(/var/run) is empty then. Toolkits before 1.18 have
    no such units; C(gpuops-nvidia-cdi.service) does it for them, before the container runtime starts.
  - Keeps links under C(/dev/char) to the device nodes, see O(device_links).
  - Nothing of this reloads the manager, because a C(systemctl daemon-reload) can take the GPUs from running containers.
  - Names other files under C(/etc/cdi) and C(/var/run/cdi) that describe GPUs. One in the same folder with the same
    names costs containers their GPUs; M(gpuops.nvidia.gpu_validation) fails for it. See O(remove_others).
  - Respects C(/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env), the environment of the toolkit's units; its
    variables for C(nvidia-ctk cdi generate) count here too, and the file that it names is the one that is kept.
  - What was generated is read by C(nvidia-ctk cdi list) before it takes its place.
  - Waits, and says for what, while no driver is loaded, or while every GPU is in MIG mode and none has a MIG device.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) keeps the specification.
      - V(absent) removes it if we generated it, and the links if we made them, disables the units that we enabled, and
        puts back the files under C(/etc/cdi) that O(remove_others) removed.
    type: str
    choices: [present, absent]
    default: present
  refresh_at_boot:
    description:
      - Whether to enable C(nvidia-cdi-refresh.path) and C(nvidia-cdi-refresh.service), which the toolkit brings since
        1.18, or else C(gpuops-nvidia-cdi.service).
    type: bool
    default: true
  device_links:
    description:
      - Whether to keep links under C(/dev/char) to the device nodes of GPUs, their control nodes and those of MIG
        devices, at every boot by C(gpuops-nvidia-cdi.service), and by a rule of udev when the driver is loaded later.
      - With the systemd cgroup driver, runc 1.1.3 to 1.1.6 (1.1.5 is that of Debian 12) and systemd before 240 need
        them. Without them the next C(systemctl daemon-reload), which many packages cause, takes the GPU from running
        containers, which then say "Failed to initialize NVML". Newer ones do without.
      - Containers of the toolkit's legacy mode lose their GPUs all the same; the mode V(cdi) of
        M(gpuops.nvidia.container_toolkit) is the remedy.
    type: bool
    default: true
  remove_others:
    description:
      - Whether to remove every other file of the kind C(nvidia.com/gpu) under C(/etc/cdi) and C(/var/run/cdi), such as
        what C(nvidia-ctk cdi generate) once left under C(/etc/cdi). Otherwise they are named.
      - Their names stay in use; those that a driver or a MIG layout of the past had give containers files and devices
        that are not there.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.container_toolkit
  - module: gpuops.nvidia.gpu_driver_activation
"""

EXAMPLES = r"""
- name: Describe the GPUs for containers
  gpuops.nvidia.cdi_spec:

- name: Describe them in this one file alone
  gpuops.nvidia.cdi_spec:
    remove_others: true
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
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts_and_health
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import Cdi


def main() -> None:
    run_writer(Cdi(), host_facts_and_health)


if __name__ == "__main__":
    main()
