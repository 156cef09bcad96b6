#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_settings
short_description: Power limits, clocks, ECC and modes of GPUs
version_added: 0.1.0
description:
  - Sets GPUs by what stays theirs (UUID, PCI device id, name of the board) and never by index, and reads back what they
    say. What is set already stays as it is.
  - A unit of one small script sets them up again at every boot, before the container runtime starts. Whatever resets a
    GPU or loads the driver in this collection has it run once more.
  - What a GPU had before is noted before its first change. It is given back with O(state=absent), and as soon as no
    entry of O(gpus) wants the setting any more, where it is still as it was set here.
  - ECC changes with a reset of the GPU, which is disruption C(gpu_reset). Nobody may have the GPU open; what only
    watches it (persistence mode, NVIDIA's persistence daemon, DCGM, NVSM) is let go for that time. What GPUs were set
    to, and a MIG layout of M(gpuops.nvidia.mig), is there again afterwards, and after a run that failed or was killed.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) sets the GPUs.
      - V(absent) gives back what was set, and removes the unit.
    type: str
    choices: [present, absent]
    default: present
  gpus:
    description:
      - Settings, each for the GPUs that it names. Where two entries are for one GPU, the later decides, setting by
        setting. A name that no GPU of the host has is noted and fails nothing.
    type: list
    elements: dict
    default: []
    suboptions:
      match:
        description: V(all), UUIDs, PCI device ids such as V(2330), or names of boards as C(nvidia-smi -L) has them.
        type: list
        elements: str
        required: true
      power_limit:
        description: Watts, within what the board takes.
        type: int
      gpu_clocks:
        description:
          - Least and most MHz between which the GPU's clocks are locked, or one number for both. Volta and later.
          - The driver tells of no locked clocks. They count as locked as long as the driver is loaded that they were
            given to.
        type: list
        elements: int
      memory_clocks:
        description:
          - The same of the memory's clocks. Ampere and later. Hopper takes them in the deferred form alone, from the
            next load of the driver on.
        type: list
        elements: int
      compute_mode:
        description: Who may compute on it at the same time. Not of a GPU whose MIG mode is on.
        type: str
        choices: [default, exclusive_process, prohibited]
      persistence:
        description:
          - Whether the driver stays initialised while nobody has the GPU open. Power limits and locked clocks are lost
            without it, so that they bring it.
        type: bool
      ecc:
        description:
          - Whether the memory is protected by ECC. The GPU keeps it over resets and boots by itself. That of boards
            with HBM from the A100 on is always on.
          - Before Ampere, and where no fabric manager runs on Ampere, GPUs that NVLink joins are reset together.
        type: bool
  assume_pods_evicted:
    description:
      - Whether to plan as if pods that have GPUs were gone, as they are once a node is drained.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.mig
  - module: gpuops.nvidia.gpu_validation
"""

EXAMPLES = r"""
- name: Cap all GPUs, and one of them lower
  gpuops.nvidia.gpu_settings:
    gpus:
      - match: [all]
        power_limit: 600
        gpu_clocks: [1200, 1980]
      - match: [GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0]
        power_limit: 450

- name: One program at a time on every A30
  gpuops.nvidia.gpu_settings:
    gpus:
      - match: [NVIDIA A30]
        compute_mode: exclusive_process

- name: The whole memory of every L40S, without ECC
  gpuops.nvidia.gpu_settings:
    gpus:
      - match: [NVIDIA L40S]
        ecc: false
    allowed_disruption: gpu_reset

- name: Give everything back
  gpuops.nvidia.gpu_settings:
    state: absent
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
    run("gpu_settings")


if __name__ == "__main__":
    main()
