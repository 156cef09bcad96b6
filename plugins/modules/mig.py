#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: mig
short_description: Divide GPUs by MIG, with the smallest change, and keep the layout over boots
version_added: 0.1.0
description:
  - Brings MIG mode, GPU instances and compute instances of the host's GPUs to a layout. All is worked out before
    anything is changed, from what NVML tells of each GPU; what cannot be is refused with the conflict.
  - What both layouts have stays as it is, with its UUID and whatever runs in it. Of all ways to place the others, the
    one is taken that destroys the fewest instances.
  - What is in use is never destroyed. Programs and pods that have it are named; see O(assume_pods_evicted).
  - A GPU is a step of its own. One that fails is brought back to what it was, and the others are done.
  - A change of MIG mode resets a GPU of the generation Ampere; later ones need none. Where such a GPU cannot be reset,
    as in many virtual machines, the plan ends with a reboot.
  - No GPU instance outlives a boot. C(gpuops-nvidia-mig.service) makes the layout again, before container runtimes,
    kubelet and DCGM start, and without a controller.
  - Device nodes of MIG devices are made where they are missing. M(gpuops.nvidia.cdi_spec) describes them to containers.
  - GPUs that the layout does not name are left as they are, and all of them where neither O(config) nor O(layout) is
    given.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) keeps the layout. V(absent) takes back what V(present) did, and ends with MIG mode off.
      - On a host where it did nothing, V(absent) does nothing; the O(config) V(all-disabled) switches MIG mode off
        whoever switched it on.
    type: str
    choices: [present, absent]
    default: present
  config:
    description:
      - Name of a layout for all GPUs of the host. A label of O(configs), or one that is worked out from what each GPU
        tells.
      - V(all-disabled) is MIG mode off, V(all-enabled) MIG mode without instances.
      - V(all-balanced) is two instances of one slice, one of two and one of three; on GPUs of four slices two of one
        slice and one of two.
      - V(all-1g.10gb) and the like are as many instances of this profile as there is room for.
      - GPUs without MIG are left alone.
    type: str
    default: ""
  label:
    description:
      - Name of a layout as in O(config), which the host's Node says. Not empty, it counts more than O(config) and
        O(layout).
    type: str
    default: ""
  configs:
    description:
      - A file of NVIDIA's C(mig-parted), C(version) C(v1), as it is, such as the result of
        C(lookup('ansible.builtin.file', 'config.yaml') | from_yaml).
      - Of several entries for one GPU the last one counts.
      - What C(mig-parted) takes in silence is refused, such as a GPU or a profile that does not exist.
    type: dict
    default: {}
  layout:
    description: The layout written out. Of several entries for one GPU the last one counts.
    type: list
    elements: dict
    default: []
    suboptions:
      gpus:
        description: V(all), or GPUs by index, UUID or PCI address.
        type: list
        elements: str
        default: [all]
      device_filter:
        description:
          - PCI ids of the GPUs that the entry is for, as C(mig-parted) writes them, V(0x233010DE), or with the
            subsystem, V(0x233010DE:0x16C110DE).
        type: list
        elements: str
        default: []
      enabled:
        description: Whether MIG mode is on.
        type: bool
        default: true
      instances:
        description: GPU instances. Left out, those that there are stay; an empty list takes them away.
        type: list
        elements: dict
        suboptions:
          profile:
            description:
              - Profile by name (V(1g.10gb), V(1g.10gb+me)), by shape (V(3g)), or by id (V(9)). With smaller compute
                instances, V(1c.3g.40gb).
            type: str
            required: true
          count:
            description: How many.
            type: int
            default: 1
          start:
            description: Unit of the GPU at which it has to begin. Left out, where the fewest instances have to go.
            type: int
          compute:
            description: Slices of its compute instances, such as V(1c). Left out, one that takes all of it.
            type: list
            elements: str
            default: []
  assume_pods_evicted:
    description:
      - Whether pods that have GPUs or MIG devices now will have been evicted by then. Otherwise they are refused like
        any program that uses what has to go.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.cdi_spec
  - module: gpuops.nvidia.gpu_driver_activation
"""

EXAMPLES = r"""
- name: Divide every GPU in halves, quarters and eighths
  gpuops.nvidia.mig:
    config: all-balanced

- name: Use the file that nvidia-mig-manager had
  gpuops.nvidia.mig:
    config: production
    configs: "{{ lookup('ansible.builtin.file', 'mig-parted.yaml') | from_yaml }}"

- name: Two halves on the first GPU, the others whole
  gpuops.nvidia.mig:
    layout:
      - enabled: false
      - gpus: ["0"]
        instances:
          - profile: 3g.40gb
            count: 2
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
    run("mig")


if __name__ == "__main__":
    main()
