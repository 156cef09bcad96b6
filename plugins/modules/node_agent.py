#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: node_agent
short_description: The command gpuops on a host
version_added: 0.1.0
description:
  - Brings the command C(gpuops) with the code of this collection, and the host's policy beside it. It observes, plans,
    applies and validates on the host itself what the modules do from a controller, with the same words, results and
    exit codes. A plan that it makes is the plan that M(gpuops.nvidia.gpu_plan) makes.
  - The command needs nothing but the Python that runs this module; Ansible need not be there. It starts nothing and
    holds nothing, unless O(boot) or O(watch) say so.
  - Code and policy are for root alone. The policy may hold credentials, as of a repository.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) brings code, policy and command, and keeps them those of this release and these options.
      - V(absent) takes all of it away, and leaves the host otherwise as it is.
    type: str
    choices: [present, absent]
    default: present
  command:
    description: Path of the command.
    type: path
    default: /usr/local/sbin/gpuops
  boot:
    description:
      - What happens at every boot, by a unit that runs C(gpuops boot) once the container runtime has started, and
        before the kubelet. It brings back what a boot has lost, makes an installed driver the loaded one, sets a bare
        host up, and validates. What is installed is not exchanged for something newer.
      - V(report) says in the journal, on the console and in C(/run/gpuops/boot.json) what became of it, and holds
        nobody.
      - V(hold) has C(kubelet.service) require it. A node that is not validated takes no pods then, and is not ready in
        its cluster. C(systemctl start kubelet) tries it once more. A kubelet that brings its container runtime (k3s,
        RKE2, k0s, MicroK8s) is not held, and a note says so.
      - V(none) is without the unit.
      - Systemd is not reloaded, which would take GPUs from running containers; it counts from the next boot on.
    type: str
    choices: [none, report, hold]
    default: none
  boot_timeout:
    description: Seconds that the unit may take. Autoscalers give a node 15 minutes in all.
    type: int
    default: 900
  watch:
    description:
      - Whether a unit, C(gpuops-nvidia-watch.service), runs C(gpuops watch), which looks at the health of the GPUs all
        the time. It looks at once when the driver logs something, and every minute in any case; NVML is asked more
        seldom, since that wakes GPUs that nobody uses. C(docs/health.md) has what it looks at, C(docs/agent.md) what it
        costs.
      - It is started as soon as it is there, and started anew with the code of each release. Between two rounds it
        holds nothing of the driver, so neither a reset of a GPU nor an exchange of the driver has to stop it.
    type: bool
    default: false
  watch_listen:
    description:
      - Address and port at which the watch serves the host's health as metrics for Prometheus, below C(/metrics), as
        V(127.0.0.1:9836) or V([::1]:9836). Everybody who reaches the address may read them. Empty serves none.
    type: str
    default: ""
  health:
    description:
      - How C(gpuops health) and C(gpuops watch) judge what they see, as the options of C(docs/health.md), such as
        C(overrides) of what errors of the driver mean.
    type: dict
    default: {}
  health_metrics_directory:
    description:
      - Directory of node_exporter's textfile collector, where the host's health is told as metrics, in the file
        C(gpuops_health.prom). Empty is none.
    type: str
    default: ""
  problem_detector:
    description:
      - Whether the host has what a node-problem-detector needs to tell the cluster of its GPUs, wherever that runs. It
        is a plugin, C(/usr/local/lib/gpuops/health-condition), and a configuration for each condition in
        C(/etc/gpuops/node-problem-detector). C(docs/health.md) shows the detector for both.
      - Nothing is started. Take these files from the command line of a detector before they go.
    type: bool
    default: false
  node_condition:
    description:
      - Whether the host tells of its GPUs on its own Node by itself, with the kubelet's credential and without a
        node-problem-detector. C(gpuops node) does, C(gpuops boot) at its end, and whoever watches the host's health.
      - V(condition) has it tell the conditions C(GpuSick), C(GpuResetPending) and C(GpuWarning). A boot that has failed
        is C(GpuSick) with its reason.
      - V(cordon) has it cordon its node too while a GPU is sick, the driver asks for no new work on one (recovery
        actions 3 and 4) or its boot has failed, with the reason in the annotation
        C(gpuops.nvidia.com/health-cordon), and take that cordon back, and no other, when the host is known to be well.
      - V(none) takes back what was told.
    type: str
    choices: [none, condition, cordon]
    default: none
  kubeconfig:
    description:
      - Kubeconfig with the credential of the host's node, for O(node_condition). It is read anew at each use.
      - The kubelet's may do more than the host has to say. C(docs/agent.md) has a token that may not.
    type: path
    default: /etc/kubernetes/kubelet.conf
  policy:
    description:
      - What the host is to be, as the options of M(gpuops.nvidia.gpu_plan), with C(validation) for the check of it.
      - With C(from_variables) it is left out, and made from the variables of the roles.
    type: json
    default: "{}"
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.gpu_plan
  - module: gpuops.nvidia.gpu_validation
"""

EXAMPLES = r"""
- name: Bring the command, with what the variables of the roles say
  gpuops.nvidia.node_agent:
    from_variables: true
    state: present

- name: Have it keep one setting, and nothing else
  gpuops.nvidia.node_agent:
    policy:
      settings:
        gpus:
          - match: [all]
            power_limit: 300

- name: Have it watch the GPUs' health, and serve the metrics to this host's Prometheus
  gpuops.nvidia.node_agent:
    from_variables: true
    watch: true
    watch_listen: 127.0.0.1:9836

- name: Take it away
  gpuops.nvidia.node_agent:
    state: absent
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
    run("node_agent")


if __name__ == "__main__":
    main()
