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
  - What a driver container of the GPU Operator has left goes before the modules of the host's own driver are loaded
    (its file system at C(/run/nvidia/driver), the kernel's path of firmware where it leads there, and the files that
    say that it is at work). As long as a pod of it is there, this is refused.
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
      - The Fabric Manager makes way for an exchange of the driver and comes back after it. With V(auto) so does one
        that does not run just now, where the board needs it and it is enabled, because its package may start it.
      - What runs it on a board that needs it is M(gpuops.nvidia.fabric_manager).
    type: str
    choices: [auto, absent]
    default: auto
  repair_only:
    description:
      - Whether nothing is done but what a repair has asked for, which is to load the driver anew. A host of which
        M(gpuops.nvidia.gpu_repair) has not asked it stays as it is.
    type: bool
    default: false
  assume_pods_evicted:
    description:
      - Whether to plan for a host whose GPU pods will have been evicted. For M(gpuops.nvidia.gpu_plan), where the
        change is preceded by a drain; pods that hold a GPU when the modules are to be unloaded are not waited for.
    type: bool
    default: false
  boards:
    description:
      - The boards of the nodes that an image is made for, on a host without GPUs. Files are written and services
        enabled, and the rest awaits a GPU.
      - Names of boards (V(hgx-h100), V(gb200), V(l40s) and others), or PCI device ids such as V(10de:2330). A host with
        other GPUs is refused; on one with these it says nothing.
    type: list
    elements: str
    default: []
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
    run("gpu_driver_activation")


if __name__ == "__main__":
    main()
