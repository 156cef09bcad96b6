#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime
short_description: Give containerd a handler for NVIDIA GPUs
version_added: 0.1.0
description:
  - Adds a runtime handler, and lets containerd inject CDI devices, without losing a setting, a comment or a secret.
  - On containerd 2.x in a file of its own that the root file imports; on 1.6 and 1.7, which replace a plugin's whole
    section, in marked lines of the file that holds the section.
  - The handler is like C(runc), base specification and cgroup driver included, whatever the default handler is.
  - Before anything is written, containerd itself reads a scratch copy, before and after; the change of its effective
    configuration has to be the handler alone.
  - containerd is restarted only when its effective configuration changes. When its CRI plugin does not come up again,
    the files are put back and it is restarted with them. Running containers go on.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) brings the handler.
      - V(absent) takes our lines and files out again; everything else stays, byte for byte.
    type: str
    choices: [present, absent]
    default: present
  runtime:
    description: Which container runtime; V(auto) takes what systemd runs on this host, which has to be containerd.
    type: str
    choices: [auto, containerd]
    default: auto
  handler:
    description: Name of the handler, which a RuntimeClass refers to.
    type: str
    default: nvidia
  handler_binary:
    description: Absolute path of NVIDIA's runtime.
    type: path
    default: /usr/bin/nvidia-container-runtime
  default_handler:
    description:
      - Whether pods without a RuntimeClass use the handler too.
      - With V(false), the former default comes back where we had changed it.
    type: bool
    default: false
  cdi:
    description: Whether containerd is to inject CDI devices itself. Version 1.6 cannot; there the handler does it.
    type: bool
    default: true
  config_file:
    description: The root configuration file. Empty, it is the one that the daemon was started with.
    type: path
    default: ""
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.container_toolkit
  - module: gpuops.nvidia.cdi_spec
"""

EXAMPLES = r"""
- name: Give containerd the handler
  gpuops.nvidia.container_runtime:

- name: See the change of its configuration, and leave the restart for later
  gpuops.nvidia.container_runtime:
    allowed_disruption: none
  check_mode: true
  diff: true
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
  description: Whether a step was put off that only a reboot brings about.
  returned: success
  type: bool
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_writer
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import Runtime


def main() -> None:
    run_writer(Runtime(), host_facts)


if __name__ == "__main__":
    main()
