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
  - Generates it at every boot, because C(/var/run) is empty then, by C(gpuops-nvidia-cdi.service), after the device
    nodes are made and before container runtimes and kubelet start. They do not wait for it longer than two minutes, and
    start without a specification when it fails. The toolkit's own unit comes too late for containers of a boot, and
    does not run at all with the open kernel module that Debian packages.
  - Keeps links under C(/dev/char) to the device nodes, see O(device_links).
  - Nothing of this reloads the manager, because a C(systemctl daemon-reload) can take the GPUs from running containers.
  - Names other files under C(/etc/cdi) and C(/var/run/cdi) that describe GPUs. One in the same directory with the same
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
      - V(present) keeps the specification, V(absent) takes back what V(present) did.
      - It is removed if we generated it, and the links if we made them; the units that we enabled are disabled, and the
        files under C(/etc/cdi) put back that O(remove_others) removed.
    type: str
    choices: [present, absent]
    default: present
  refresh_at_boot:
    description:
      - Whether C(gpuops-nvidia-cdi.service) generates the specification at boot, before containers start.
      - It writes the same file in the same environment as the toolkit's unit, and before it.
      - With it, C(nvidia-cdi-refresh.path) and C(nvidia-cdi-refresh.service) are enabled where the toolkit brings them
        (since 1.18). They stay as they are otherwise, and renew the specification when another driver is installed.
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
# From docs/results.yml
plan:
  description: What is changed on this host and why, the same in check mode, in the form of
    RV(gpuops.nvidia.gpu_plan#module:plan).
  returned: success
  type: dict
text:
  description: The plan for a person.
  returned: success
  type: str
applied:
  description: Ids of the steps that were done, in check mode of those that would be.
  returned: success, and failure of a step
  type: list
  elements: str
deferred:
  description: Steps that disturb more than was allowed, or come after one that does.
  returned: success
  type: list
  elements: dict
reboot_required:
  description: Whether the plan ends with a reboot of the host; its C(requirements) say why.
  returned: success
  type: bool
returns_to:
  description: The way back from an exchange of the driver, as RV(gpuops.nvidia.gpu_plan#module:returns_to). Empty
    without one.
  returned: success
  type: dict
requirement:
  description: What has to come from outside first, as in RV(plan).
  returned: failure, where it is still needed
  type: dict
journal:
  description: The failure that kept the failed step from being noted on the host.
  returned: failure of a step that could not be noted
  type: str
held_by:
  description: The run that works on the host.
  returned: failure, where another run did not end within O(lock_timeout)
  type: dict
traceback:
  description: Where in the collection's code an error that nobody foresaw came up.
  returned: failure that nobody foresaw
  type: list
  elements: str
failed_step:
  description: The step that failed. The next run repeats it.
  returned: failure of a step
  type: dict
restored:
  description: Files that were put back as they were, because the change of another one failed.
  returned: failure of a step that changes the container runtime
  type: list
  elements: str
file:
  description: File that cannot be used as it is.
  returned: failure, where it is a file's content
  type: str
line:
  description: Line of RV(file) that cannot be used, counted from 1.
  returned: failure, where it is a line
  type: int
path:
  description: What on the host could not be read or changed.
  returned: failure, where the system refused it
  type: str
errno:
  description: Name of the system's error, as in errno(3).
  returned: failure, where the system refused it
  type: str
  sample: ENOSPC
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

from ..module_utils.shipped import run


def main() -> None:
    run("cdi_spec")


if __name__ == "__main__":
    main()
