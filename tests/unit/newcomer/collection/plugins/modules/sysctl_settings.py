#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: sysctl_settings
short_description: Keep settings of the kernel
version_added: 0.2.0
description:
  - Keeps one file of sysctl.d(5) with the settings that are wanted; the next boot takes them.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  lines:
    description:
      - The settings, each a line of the file. With O(state=absent) none is used.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) writes the file, V(absent) puts back what was there before.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - gpuops.nvidia.writer
"""

EXAMPLES = r"""
- name: Let the kernel map as much as a training run needs
  gpuops.nvidia.sysctl_settings:
    lines: [vm.max_map_count = 1048576]
"""

RETURN = r"""
"""

from ..module_utils.shipped import run


def main() -> None:
    run("sysctl_settings")


if __name__ == "__main__":
    main()
