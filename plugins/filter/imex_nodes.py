# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: imex_nodes
short_description: Addresses of the hosts that share an NVLink clique
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Gives the addresses of those hosts whose GPUs are in the same cluster and clique of NVLink hosts as those of one
    host, in an order that is the same for all of them. It is the list of nodes of M(gpuops.nvidia.imex).
  - Needs what M(gpuops.nvidia.gpu_info) or M(gpuops.nvidia.gpu_plan) returned in C(ansible_facts.gpuops) of every host
    that may be in the clique, once their drivers are loaded. A list that lacks a host is worse than none, because IMEX
    needs the same one everywhere, so a host that was not observed is an error.
  - The list is empty while the host itself is in no clique, and while the driver of one of them is not loaded, which is
    what tells the clique.
positional: _input, hostvars, host
options:
  _input:
    description: Names of the hosts that may be in the clique, such as those of a group.
    type: list
    elements: str
    required: true
  hostvars:
    description: Variables of all hosts, C(hostvars).
    type: dict
    required: true
  host:
    description: Name of the host whose clique it is, C(inventory_hostname).
    type: str
    required: true
  address:
    description:
      - Name of the variable with a host's address on the network that IMEX uses. A host that has none is taken by its
        name in the inventory.
    type: str
    default: ansible_host
"""

EXAMPLES = r"""
- name: Observe every host of the racks
  gpuops.nvidia.gpu_info:

- name: Share the memory of each clique
  gpuops.nvidia.imex:
    nodes: "{{ groups['gb200'] | gpuops.nvidia.imex_nodes(hostvars, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The addresses, sorted by the hosts' names.
  type: list
  elements: str
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible.errors import AnsibleFilterError

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.imex.cliques import nodes_of_clique


def imex_nodes(
    hosts: Sequence[str], hostvars: Mapping[str, Any], host: str, address: str = "ansible_host"
) -> List[str]:
    """The addresses, or an error that names the hosts that were not observed."""
    variables = {name: hostvars[name] for name in [*hosts, host]}
    try:
        return nodes_of_clique(list(hosts), variables, host, address)
    except GpuOpsError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters for the NVLink cliques of an inventory."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"imex_nodes": imex_nodes}
