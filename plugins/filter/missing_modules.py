# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: missing_modules
short_description: Which modules are not installed on the controller
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Ansible ends a whole run at a task whose module it does not find, with every host as it is by then. Who asks before
    ends a single host instead, and earlier.
options:
  _input:
    description: Names of modules, each with its collection.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse before anything is done
  ansible.builtin.fail:
    msg: "Install the collection of {{ missing | join(', ') }}."
  vars:
    missing: "{{ ['community.general.ipmi_power'] | gpuops.nvidia.missing_modules }}"
  when: missing | length > 0
"""

RETURN = r"""
_value:
  description: Those that are not there.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, Iterable, List

from ansible.plugins.loader import module_loader


def missing_modules(names: Iterable[str]) -> List[str]:
    """Those that this controller's Ansible does not find."""
    return [name for name in names if module_loader.find_plugin(name, ".py") is None]


class FilterModule:
    """Filters for what a playbook needs of others."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"missing_modules": missing_modules}
