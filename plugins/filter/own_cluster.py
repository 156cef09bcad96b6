# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: own_cluster
short_description: What was returned of the cluster that a host is a node of
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Picks from RV(gpuops.nvidia.gpu_cluster_info#module:clusters) or RV(gpuops.nvidia.gpu_components#module:clusters),
    which one task has for the clusters of a whole play, the one that a host has named.
positional: _input, host
options:
  _input:
    description: What was returned of each cluster.
    type: list
    elements: dict
    required: true
  host:
    description: Name of the host whose cluster it is, C(inventory_hostname).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read every cluster that the hosts of this play are nodes of
  gpuops.nvidia.gpu_cluster_info:
    every_cluster: true
  run_once: true
  register: told
  failed_when: told.clusters is undefined

- name: Refuse a host whose own cluster cannot be read
  ansible.builtin.fail:
    msg: "{{ own.msg }}"
  vars:
    own: "{{ told.clusters | gpuops.nvidia.own_cluster(inventory_hostname) }}"
  when: own.failed
"""

RETURN = r"""
_value:
  description: The cluster. Of a host in none it is one that has not failed, of no V(hosts) and no V(others).
  type: dict
"""

from typing import Any, Callable, Dict, Mapping, Sequence


def own_cluster(clusters: Sequence[Mapping[str, Any]], host: str) -> Dict[str, Any]:
    """What was returned of it."""
    nothing: Mapping[str, Any] = {"failed": False, "hosts": [], "others": []}
    return dict(next((cluster for cluster in clusters if host in cluster["hosts"]), nothing))


class FilterModule:
    """Filters for what is returned of the clusters of a play."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"own_cluster": own_cluster}
