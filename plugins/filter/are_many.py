# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: are_many
short_description: Whether so many hosts have failed at once that one cause is likely
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Counts hosts that have failed against all that were looked at, as P(gpuops.nvidia.many_are_sick#filter) counts those
    that are sick.
positional: _input, hosts, limits
options:
  _input:
    description: Hosts that have failed.
    type: list
    elements: str
    required: true
  hosts:
    description: All that were looked at, those that have failed among them.
    type: list
    elements: str
    required: true
  limits:
    description:
      - C(nodes) is how many are let fail in any case (2), C(percent) the most of all (20). What is no dictionary counts
        as none is given.
    type: raw
"""

EXAMPLES = r"""
- name: Stop where something else is broken than single hosts
  ansible.builtin.fail:
    msg: "{{ failed | length }} of {{ ansible_play_hosts_all | length }} hosts have failed."
  vars:
    failed: "{{ ansible_play_hosts_all | difference(ansible_play_hosts) }}"
  when: >-
    failed | gpuops.nvidia.are_many(ansible_play_hosts_all, {'percent': 30})
"""

RETURN = r"""
_value:
  description: Whether they are more than either limit allows.
  type: bool
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from jinja2.filters import do_int

from ..module_utils.repair.breaker import Limits, is_many


def are_many(failed: Sequence[str], hosts: Sequence[str], limits: Any = None) -> bool:
    """Whether one cause is likely."""
    given = limits if isinstance(limits, Mapping) else {}
    # What is given by -e may be text
    nodes, percent = do_int(given.get("nodes", Limits.nodes)), do_int(given.get("percent", Limits.percent))
    return is_many(len(failed), len(hosts), nodes, percent)


class FilterModule:
    """Filters for how many hosts of a play have failed."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"are_many": are_many}
