#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_repair
short_description: Mend what was found of a host's health
version_added: 0.1.0
description:
  - Takes the open findings of the host's health, as M(gpuops.nvidia.gpu_health) or C(gpuops health) has left them, and
    does what mends each. A service that GPUs wait for is restarted (disruption C(service_restart)); a GPU, or all of
    its NVLink board, is reset (C(gpu_reset)). That the host has to boot or lose its power is told (C(reboot)), and a
    part that nothing here mends is named with serial number and PCI address.
  - Each attempt is written down on the host before it is made. What was tried on the same part O(tries) times within
    O(tries_within) seconds, in whatever way that ended, is followed by the next rung that there is on this host, and in
    the end by the part being named as one to be taken out. Where that record cannot be understood, nothing is done.
  - A remedy does not end a finding. A compute check that passes after it does, see M(gpuops.nvidia.gpu_validation), at
    the next look at the host's health.
  - Nobody may have a GPU open that is reset; what only watches it is let go for that time. What GPUs were set to, and a
    MIG layout of M(gpuops.nvidia.mig), is there again afterwards.
  - The playbook C(gpuops.nvidia.repair) has it done to one node after another, each taken out of service.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(repaired) mends what is sick.
      - V(ignored) leaves everything as it is.
      - V(absent) forgets what was tried.
    type: str
    choices: [repaired, ignored, absent]
    default: repaired
  pending:
    description:
      - Whether what is pending is mended too, which hurts no running work and waits for its remedy. It is in any case
        where its part is sick beside that, and where the whole host is disturbed.
    type: bool
    default: false
  tries:
    description: How often the same remedy is tried on the same part within O(tries_within), before the next rung.
    type: int
    default: 2
  tries_within:
    description: Seconds in which tries count.
    type: int
    default: 86400
  power_cycle:
    description:
      - Whether there is somebody who switches the host's power off and on where a reboot has not helped. The module
        tells that it is to be done, and does not do it.
    type: bool
    default: false
  health:
    description: How the host is watched, as the option C(health) of M(gpuops.nvidia.node_agent).
    type: dict
    default: {}
  assume_pods_evicted:
    description:
      - Whether to plan as if pods that have GPUs were gone, as they are once a node is drained.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_health
  - module: gpuops.nvidia.gpu_validation
"""

EXAMPLES = r"""
- name: See what would be done
  gpuops.nvidia.gpu_repair:
  check_mode: true
  register: repair

- name: Mend what a reset mends, on a host of no cluster
  gpuops.nvidia.gpu_repair:
    allowed_disruption: gpu_reset

- name: Use a night without work for what is pending
  gpuops.nvidia.gpu_repair:
    pending: true
    allowed_disruption: gpu_reset

- name: Forget what was tried
  gpuops.nvidia.gpu_repair:
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
    run("gpu_repair")


if __name__ == "__main__":
    main()
