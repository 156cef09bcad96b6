# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: device_plugin_config
short_description: Check a configuration of NVIDIA's device plugin
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Gives the configuration back unchanged when the device plugin will read it as it is meant, and fails otherwise,
    naming every fault.
  - The device plugin itself accepts unknown keys in silence, and time-slicing and MPS at once.
positional: _input
options:
  _input:
    description: The configuration, C(version v1) of the device plugin's configuration file.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Four pods share a GPU
  ansible.builtin.set_fact:
    device_plugin_config: "{{ wanted | gpuops.nvidia.device_plugin_config }}"
  vars:
    wanted:
      version: v1
      sharing:
        timeSlicing:
          resources:
            - name: nvidia.com/gpu
              replicas: 4
"""

RETURN = r"""
_value:
  description: The configuration.
  type: dict
"""

from typing import Any, Callable, Dict

from ansible.errors import AnsibleFilterError

from ..module_utils.cluster.device_plugin import checked_config
from ..module_utils.core.errors import GpuOpsError


def device_plugin_config(config: Any) -> Dict[str, Any]:
    """The configuration unchanged, or an error that names every fault."""
    try:
        return checked_config(config)
    except GpuOpsError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters for the device plugin's configuration."""

    def filters(self) -> Dict[str, Callable[[Any], Any]]:
        """The filters by name."""
        return {"device_plugin_config": device_plugin_config}
