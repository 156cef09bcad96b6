#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_fleet_progress
short_description: Say that the change of a host begins or ends, and how far the run is
version_added: 0.1.0
description:
  - Prints one line on the controller's terminal, on the standard error, where warnings go.
  - Where the change of a host begins, it says until when that is expected; where one ends, how long it took, how many
    hosts are done and failed, and until when the rest is expected at this pace.
  - Runs on the controller and asks nobody. What was said before is in the directory of the run, which Ansible removes
    when it ends.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description: What has become of the host's change.
    type: str
    choices: [begun, done, failed]
    required: true
  hosts:
    description: How many hosts are to be changed by this run; V(0) where that is not known.
    type: int
    default: 0
  seconds:
    description:
      - How long the host's change is expected to take, as RV(gpuops.nvidia.gpu_plan#module:expected_seconds) says it.
    type: int
  progress_interval:
    description:
      - V(0) is to say nothing; any other number of seconds is to say it.
      - Nothing is said in check mode, of a task with C(no_log), and where the output is data for programs.
    type: int
    default: 30
attributes:
  check_mode:
    description: Can run in check mode; it changes nothing in any mode.
    support: full
  diff_mode:
    description: The module changes nothing, so there is nothing to show.
    support: N/A
  idempotent:
    description: The module changes nothing.
    support: full
  platform:
    description: Systems that the module runs on.
    platforms: posix
    support: full
"""

EXAMPLES = r"""
- name: Say that the change of this host begins
  gpuops.nvidia.gpu_fleet_progress:
    state: begun
    hosts: "{{ ansible_play_hosts_all | length }}"
"""

RETURN = r"""
# From docs/results.yml
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
