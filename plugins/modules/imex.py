#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: imex
short_description: Share the memory of GPUs between the hosts of an NVLink clique
version_added: 0.1.0
description:
  - Tells from the PCI bus whether the board is one of a rack whose hosts share the memory of their GPUs (GB200, GB300).
    Every other host is left as it is, and so is a board of that kind that stands by itself.
  - The package is that of M(gpuops.nvidia.gpu_driver), which brings it in exactly the driver's version. An IMEX of
    another version than the loaded driver is refused, with the remedy.
  - Keeps the list of nodes and values of the configuration file, enables and starts the host's service, restarts it
    only when one of them changed, and waits until it is ready. Work that has imported memory of another host ends with
    a restart, so it counts as V(gpu_reset).
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) brings IMEX into O(mode).
      - V(absent) puts back files, and what we enabled, disabled or masked.
    type: str
    choices: [present, absent]
    default: present
  mode:
    description:
      - V(host) runs the host's service.
      - V(kubernetes) stops and masks it, since ComputeDomains (NVIDIA's DRA driver) run IMEX themselves.
      - V(off) stops and disables it.
    type: str
    choices: [host, kubernetes, "off"]
    default: host
  nodes:
    description:
      - Addresses of all hosts of the IMEX domain, this one included, the same list in the same order on each of them.
        The filter C(gpuops.nvidia.imex_nodes) makes it from an inventory whose hosts were observed.
      - Without one the service waits for it, and the plan says so.
    type: list
    elements: str
    default: []
  config:
    description:
      - Values of keys in C(/etc/nvidia-imex/config.cfg). Other keys and comments stay as they are.
      - A key that the installed version's file has not is refused, and the keys that it has are named.
    type: dict
    default: {}
  channel0:
    description:
      - Whether C(/dev/nvidia-caps-imex-channels/channel0) is made, now, and by the driver whenever it is loaded. All
        programs may share memory through it. Without any channel none can.
    type: bool
    default: true
  channel_count:
    description:
      - How many channels the driver has, V(0) for its own default. A loaded driver keeps its number, so another one
        ends the plan with a reboot.
    type: int
    default: 0
  ready_timeout:
    description:
      - How many seconds the daemon may take to be ready.
    type: int
    default: 60
  boards:
    description:
      - The boards of the nodes that an image is made for, on a host without GPUs. The service is configured and
        enabled, and not started.
      - Names of boards (V(hgx-h100), V(gb200), V(l40s) and others), or PCI device ids such as V(10de:2330). A host with
        other GPUs is refused; on one with these it says nothing.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_driver
  - plugin: gpuops.nvidia.imex_nodes
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Know the NVLink cliques of a rack
  gpuops.nvidia.gpu_info:

- name: Share the memory of each clique
  gpuops.nvidia.imex:
    nodes: "{{ ansible_play_hosts_all | gpuops.nvidia.imex_nodes(hostvars, inventory_hostname) }}"

- name: Leave IMEX to the ComputeDomains of Kubernetes
  gpuops.nvidia.imex:
    mode: kubernetes
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
    run("imex")


if __name__ == "__main__":
    main()
