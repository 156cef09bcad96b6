# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
name: many_are_sick
short_description: Which hosts are not to be repaired, since too many are sick at once
version_added: "0.1.0"
author:
  - gpuops.nvidia contributors
description:
  - Counts, cluster by cluster, the hosts of which M(gpuops.nvidia.gpu_health) has found something sick, and those that
    are sick of the same. Where they are so many that one cause is likely, no host of that cluster is to be repaired.
  - Hosts that have no GPU, and of which nothing was found, do not count. Neither does what is mended and waits for its
    proof, nor what is to be taken out.
positional: _input, hostvars, limits
options:
  _input:
    description: Hosts that were looked at.
    type: list
    elements: str
    required: true
  hostvars:
    description: Variables of all hosts, C(hostvars). Those that say which cluster a host is in are looked for there.
    type: dict
    required: true
  limits:
    description:
      - C(nodes) is how many sick ones are let in any case (2), C(percent) the most of all (20), and C(percent_alike)
        the most with the same code (10). V(false) is no limit.
    type: raw
  looked:
    description: Name of the variable that has what M(gpuops.nvidia.gpu_health) has returned of a host.
    type: str
    default: gpu_looked
  variable:
    description:
      - Name of the variable by which the hosts of a cluster say their limits instead, in the inventory or by C(-e).
        They have to be alike for all of them.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Stop where something else is broken than single nodes
  ansible.builtin.fail:
    msg: "{{ refused[inventory_hostname] }}"
  vars:
    refused: "{{ ansible_play_hosts | gpuops.nvidia.many_are_sick(hostvars, {'percent': 30}, looked='health') }}"
  when: inventory_hostname in refused
"""

RETURN = r"""
_value:
  description: Each host that is not to be repaired, and why.
  type: dict
"""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ansible.errors import AnsibleError, AnsibleFilterError

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal
from ..module_utils.hardware.recovery import OUT
from ..module_utils.health.catalogue import SICK
from ..module_utils.repair.breaker import differing, limits_of, stopped, without_cluster
from ..plugin_utils.clusters import NAMING, VARIABLES


def many_are_sick(
    hosts: Sequence[str], hostvars: Mapping[str, Any], limits: Any = None, looked: str = "gpu_looked",
    variable: str = ""
) -> Dict[str, str]:
    """{host: why it is not to be repaired}."""
    found: Dict[str, str] = {}
    members: Dict[str, List[str]] = {}
    own: Dict[str, Any] = {}
    for host in hosts:
        try:
            variables = hostvars[host]
            told = [str(variables.get(name) or "") for name, option in VARIABLES.items() if option in NAMING]
            own[host] = variables.get(variable) if variable else limits
        except AnsibleError as error:
            found[host] = _said(without_cluster(host, str(error)))
            continue
        if variables[looked].get("gpus") or variables[looked]["findings"]:
            members.setdefault("\0".join(told), []).append(host)
    for there in members.values():
        codes = {host: [each["code"] for each in hostvars[host][looked]["findings"]
                        if each["kind"] == SICK and not each.get("mended") and each.get("remedy") != OUT]
                 for host in there}
        asked = [own[host] for host in there]
        refusal: Optional[Refusal]
        if any(each != asked[0] for each in asked):
            refusal = differing(variable, there)
        else:
            refusal = stopped({host: of_host for host, of_host in codes.items() if of_host}, len(there),
                              _limits({} if asked[0] in (None, "") else asked[0]))
        if refusal is not None:
            found.update(dict.fromkeys(there, _said(refusal)))
    return found


def _limits(given: Any) -> Any:
    try:
        return limits_of(given)
    except GpuOpsError as error:
        raise AnsibleFilterError(str(error)) from error


def _said(refusal: Refusal) -> str:
    return str(GpuOpsError.because([refusal]))


class FilterModule:
    """Filters for what was found of the hosts of a play."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        return {"many_are_sick": many_are_sick}
