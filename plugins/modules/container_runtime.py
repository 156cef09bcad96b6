#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime
short_description: Give the container runtime handlers for NVIDIA GPUs
version_added: 0.1.0
description:
  - Adds runtime handlers, and lets the runtime inject CDI devices, without losing a setting, a comment or a secret.
  - The runtime is the one behind the kubelet's socket, asked of its process.
  - On containerd 2.x in a file of its own that the root file imports; on 1.6 and 1.7, which replace a plugin's whole
    section, in marked lines of the file that holds the section.
  - On k3s and RKE2 nothing is written when the distribution finds the handler itself; else a drop-in, or a template
    where the rendered file imports none. Which handler is the default is an option of their service, set in a file
    of its own beside C(config.yaml).
  - k0s applies the file itself. The task waits until it has restarted containerd.
  - On MicroK8s in marked lines of the template that it renders containerd's configuration from.
  - For Docker in C(daemon.json), in the order and layout that it has; dockerd reads a copy, together with its own
    flags, and a reload brings the handler into effect. Switching CDI on, which Docker has on by itself since 28.2,
    and giving a former default back take a restart. Where that would end containers, because C(live-restore) is off,
    it is refused.
  - A handler is like C(runc), base specification and cgroup driver included, whatever the default handler is.
  - Before anything is written, the runtime's own program reads a scratch copy, before and after; the change of its
    effective configuration has to be the handlers alone. A file that another program changes meanwhile stops the run,
    and what it had written is put back.
  - The daemon is restarted only when its effective configuration changes. When its CRI does not answer again, lacks
    the handlers, still knows those that were taken out, or containers that ran before are lost, the files are put back
    with their owner and mode, and it is restarted with them.
  - CRI-O is restarted too, since pods do not get what it takes in by a reload; its containers go on.
  - Docker takes its file in by a reload. One that was not enough is undone and never followed by a restart in the same
    run; the next plan asks for the restart under its own name, so that O(allowed_disruption) decides.
  - Line ends are kept as they are, CRLF too. A new file gets the mode, owner and SELinux label of the most closed of
    the files that it was made from.
  - A symbolic link in the place of a file is followed; its target is replaced and the link stays.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) brings the handlers, V(absent) takes our lines and files out again.
      - Everything else stays, byte for byte.
    type: str
    choices: [present, absent]
    default: present
  runtime:
    description:
      - Which container runtime, by its kind or by the distribution that brings it; V(auto) takes the one that the
        kubelet uses.
      - Where no kubelet says so and several run, they are named and nothing is done.
    type: str
    choices: [auto, containerd, crio, docker, k3s, rke2, k0s, microk8s]
    default: auto
  handler:
    description: Name of the handler, which a RuntimeClass refers to.
    type: str
    default: nvidia
  handler_binary:
    description: Absolute path of NVIDIA's runtime.
    type: path
    default: /usr/bin/nvidia-container-runtime
  handlers:
    description:
      - Further handlers, each a name with the absolute path of its program.
      - The path may be left empty for V(nvidia-cdi) and V(nvidia-legacy), whose programs lie beside O(handler_binary).
    type: dict
    default: {}
  default_handler:
    description:
      - Whether pods without a RuntimeClass use the handler too.
      - With V(false), the former default comes back where we had changed it.
    type: bool
    default: false
  cdi:
    description: Whether the runtime is to inject CDI devices itself. containerd 1.6 cannot; there the handler does it.
    type: bool
    default: true
  adopt:
    description:
      - Whether handlers of these names that somebody else has defined otherwise are taken over. With V(false) they are
        refused.
      - The lines that were there stay beside ours as comments, and come back with O(state=absent).
      - On k3s, RKE2 and k0s a file of ours overrides theirs, so theirs stays as it is. A handler of a k3s or RKE2
        template cannot be taken over where the rendered file imports no drop-ins.
    type: bool
    default: false
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
- name: Give the runtime the handler
  gpuops.nvidia.container_runtime:

- name: The three handlers that the GPU Operator has, in place of what it left behind
  gpuops.nvidia.container_runtime:
    handlers:
      nvidia-cdi:
      nvidia-legacy:
    adopt: true

- name: See the change of its configuration, and leave the restart for later
  gpuops.nvidia.container_runtime:
    allowed_disruption: none
  check_mode: true
  diff: true
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
    run("container_runtime")


if __name__ == "__main__":
    main()
