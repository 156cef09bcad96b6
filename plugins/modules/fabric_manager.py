#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_manager
short_description: Run the Fabric Manager where the board needs it, and wait for its GPUs
version_added: 0.1.0
description:
  - Tells from the PCI bus whether the board's NVLink fabric is configured on this host, without a driver. That is where
    there are NVSwitches on the bus, and on HGX B200 and B300, whose switches are told by the vital product data of
    network adapters. Every other host is left as it is.
  - The packages are those of M(gpuops.nvidia.gpu_driver), which brings them in exactly the driver's version. A fabric
    manager of another version than the loaded driver is refused, with the remedy.
  - Keeps values of its configuration file, enables and starts its service, and restarts it only when a value changed.
    Before Hopper, GPU work ends with that, so it counts as V(gpu_reset) there.
  - For NVLink 5, loads the InfiniBand modules that lead to the switches before the service starts, now and at every
    boot.
  - Waits until every GPU that reports a registration with its fabric is completed with success; also in racks, whose
    switches are configured from outside. A failure names each GPU with its state, status and health.
  - What the health of a registered GPU's fabric has to complain of is a note of the plan, and fails
    M(gpuops.nvidia.gpu_validation).
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) runs the fabric manager where the board needs it.
      - V(absent) puts back the values of its configuration that are still ours, and disables it if we enabled it. What
        runs goes on as it was started, until the driver is unloaded.
    type: str
    choices: [present, absent]
    default: present
  mode:
    description:
      - V(auto) runs the fabric manager where the board needs it.
      - V(unmanaged) leaves it, its configuration and its kernel modules to others, and waits for no GPU.
    type: str
    choices: [auto, unmanaged]
    default: auto
  config:
    description:
      - Values of keys in C(/usr/share/nvidia/nvswitch/fabricmanager.cfg). Other keys and comments stay as they are.
      - A key that neither the file of the installed version nor NVIDIA's guide has is refused, and the keys that they
        have are named.
      - Read when the service starts.
      - With C(FABRIC_MODE) V(1) on a board of NVLink 5, its GPUs are to be reset once the service has started. A note
        of the plan says when.
    type: dict
    default: {}
  registration_timeout:
    description:
      - How many seconds GPUs may take to register with their fabric.
    type: int
    default: 300
  boards:
    description:
      - The boards of the nodes that an image is made for, on a host without GPUs. The service is configured and
        enabled, and not started.
      - Names of boards (V(hgx-h100), V(gb200), V(l40s) and others), or PCI device ids such as V(10de:2330). A host with
        other GPUs is refused; on one with these it says nothing.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_driver
  - module: gpuops.nvidia.gpu_driver_activation
"""

EXAMPLES = r"""
- name: Have every GPU registered with its fabric
  gpuops.nvidia.fabric_manager:

- name: Run the board in shared NVSwitch mode, with a log of errors alone
  gpuops.nvidia.fabric_manager:
    config:
      FABRIC_MODE: 1
      LOG_LEVEL: 3
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
    run("fabric_manager")


if __name__ == "__main__":
    main()
