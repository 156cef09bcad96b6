#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu_license
short_description: License the virtual GPUs of a vGPU guest
version_added: 0.1.0
description:
  - Tells from the PCI bus whether the host is a guest whose GPUs are NVIDIA's virtual ones (vGPU). Every other host is
    left as it is.
  - Keeps the client configuration token and values of C(gridd.conf), enables and starts C(nvidia-gridd), restarts it
    only when one of them changed, and waits until every GPU says that it is licensed. The guest driver brings that
    service; it comes with the vGPU manager's software and is none of the drivers of NVIDIA's public repositories.
  - The token is shown in no plan, diff, log or result. Plans tell it from another one by a part of its SHA-256.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) licenses the GPUs.
      - V(absent) puts back files, and what we enabled.
    type: str
    choices: [present, absent]
    default: present
  token:
    description:
      - The text of the client configuration token, as the license server gave it out. It is written for root alone.
      - Without one, a token that lies on the host already is left to work. Where there is none either, the license
        waits for it, and the plan says so.
    type: str
    default: ""
  feature_type:
    description:
      - What is asked for, C(FeatureType) of C(gridd.conf). V(0) is no license, V(1) vGPU, V(2) RTX Virtual
        Workstation, V(4) Virtual Compute Server.
      - Without it, what the file names stays, and V(1) where it names none.
    type: int
    choices: [0, 1, 2, 4]
  config:
    description:
      - Values of further keys in C(/etc/nvidia/gridd.conf). Other keys and comments stay as they are.
    type: dict
    default: {}
  timeout:
    description:
      - How many seconds the license may take.
    type: int
    default: 120
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_driver
"""

EXAMPLES = r"""
- name: License the virtual GPUs of a guest
  gpuops.nvidia.vgpu_license:
    token: "{{ lookup('ansible.builtin.file', 'client_configuration_token.tok') }}"

- name: Ask for a license of the Virtual Compute Server
  gpuops.nvidia.vgpu_license:
    token: "{{ vaulted_license_token }}"
    feature_type: 4
    config:
      LicenseInterval: 1440
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
    run("vgpu_license")


if __name__ == "__main__":
    main()
