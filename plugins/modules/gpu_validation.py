#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_validation
short_description: Decide whether a node may take GPU work
version_added: 0.1.0
description:
  - Runs a chain of checks, each with its evidence and its remedy, and fails when one of them fails.
  - On the host, GPUs on the PCI bus, driver versions that agree, every GPU answering, no recovery that the driver asks
    for, memory health, fabric, device nodes, every multiprocessor computing, a fresh CDI spec and the handler in the
    container runtime's effective configuration.
  - GPUs that the host's driver is not for (virtual functions, those passed through, display cards) are named and not
    counted, see M(gpuops.nvidia.gpu_info).
  - A call of NVML that does not come back within a minute fails the check of the GPUs by its name.
  - On the cluster, allocatable devices as expected, and a pod that gets the device it asked for and computes on it with
    what the container runtime has given it. These checks run on the controller and open no connection to the host.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) checks.
      - V(absent) checks nothing; it removes the status files that V(present) left on the host, and what V(proved) did.
      - V(proved) checks nothing; it has the host keep O(proof), or forget what it keeps where that is empty.
    type: str
    choices: [present, absent, proved]
    default: present
  scope:
    description: Where to check.
    type: list
    elements: str
    choices: [host, cluster]
    default: [host]
  compute:
    description:
      - How thoroughly the host's devices are computed on, each GPU that is not divided and each MIG device, through the
        driver's own library (C(libcuda.so.1)) and compiler. One that somebody uses, or that a pod has been given, is
        left alone and fails nothing.
      - V(quick) takes about two seconds. Every multiprocessor has to compute integers, floats and products of matrices
        as they are, and copies to the device and back have to bring what was sent.
      - V(standard) takes several seconds a device, one after the other. It does more of the same, and measures copies,
        the device's memory, and copies between GPUs over NVLink. What is far below the board's data sheet fails.
      - V(long) takes up to minutes a device. It also writes and reads all free memory.
      - The pod that gets a device computes on it as V(quick) does, through the library that the container runtime has
        given it, unless this is V(none). O(pod_image) has to have what that needs.
      - V(none) computes nothing.
    type: str
    choices: [none, quick, standard, long]
    default: quick
  expected_gpus:
    description:
      - Number of GPUs that the host must have. Left out, the host's PCI bus is believed.
      - The check of the node needs it, O(expected_resources) or O(devices).
    type: int
  expected_resources:
    description:
      - How many devices the node must offer, by extended resource such as C(nvidia.com/mig-1g.10gb), and no others of
        GPUs.
      - Counts more than O(devices) and O(expected_gpus).
    type: dict
    default: {}
  devices:
    description:
      - Devices of the host, as this module returns them for the scope V(host), M(gpuops.nvidia.gpu_plan) and
        M(gpuops.nvidia.gpu_info) too. What the node must offer follows from them and O(device_plugin_config), MIG
        devices and shared GPUs included. Counts more than O(expected_gpus).
    type: dict
    default: {}
  device_plugin_config:
    description:
      - The device plugin's configuration. Of it C(flags.migStrategy) and C(sharing) say what it makes of O(devices).
    type: dict
    default: {flags: {migStrategy: mixed}}
  device_plugin_version:
    description:
      - The device plugin's version, as tags of its image have it. From V(v0.20.0) on it offers MIG devices with
        extensions, such as C(1g.10gb+me), by names of their own. What is no version counts as an older one.
    type: str
    default: v0.19.3
  handler:
    description: Handler that GPU pods have in the container runtime.
    type: str
    default: nvidia
  runtime_class:
    description: RuntimeClass that the probe pod uses where the cluster has it. Left out, the name in O(handler).
    type: str
  status_files:
    description: Whether to keep the status files under C(/run/nvidia/validations) that NVIDIA's components wait for.
    type: bool
    default: true
  hosts:
    description:
      - Hosts of the play that are to be checked, with the scope V(cluster) alone, all of them by one task, which
        wants C(run_once). A fleet does not pay for a process a host then, and sixteen pods are waited for at a time.
        RV(of_hosts) says what was found of each, and a host that is not well does not fail the task.
      - The Node, its cluster and all options that the task does not say are what each host's variables say, as
        O(from_variables) has them. Hosts that have no cluster are left out.
    type: list
    elements: str
  node_name:
    description: Name of the Node object. Needed for the scope V(cluster), unless O(hosts) says them.
    type: str
  resource:
    description: Extended resource that O(expected_gpus) is about on the node.
    type: str
    default: nvidia.com/gpu
  pod:
    description:
      - Whether to run a pod that asks for one device, and computes on it as O(compute) says.
      - Where all are promised to pods, none is run, and one of these has to have started within O(timeout).
    type: bool
    default: true
  pod_image:
    description:
      - Image of that pod; any image with a shell. To compute it needs Python 3.9 or newer and glibc, as the driver's
        library does. With another one the check C(pod_compute) is skipped, and says so.
    type: str
    default: docker.io/library/python:3.13.5-slim-bookworm
  pod_namespace:
    description: Namespace of that pod.
    type: str
    default: default
  pod_tolerations:
    description:
      - Taints that the pod tolerates, as Kubernetes has tolerations, beside C(nvidia.com/gpu), that of a cordon and
        O(startup_taint).
    type: list
    elements: dict
    default: []
  pod_trusted_for:
    description:
      - For how many seconds a pod that got its device counts, so that none is run again while nothing changes. Where
        the check C(pod_compute) came to C(unknown), it does not. That is what O(proof) says, where the Node is in the
        same boot, with the same kernel, kubelet, container runtime and devices, and what offers these runs in the same
        containers.
      - With V(0) a pod is run every time.
    type: int
    default: 0
  proof:
    description:
      - What an earlier pod has proved, as RV(proof) of M(gpuops.nvidia.gpu_plan) or of the scope V(host) says. Where
        both scopes are checked, the host says it.
      - With O(state=proved), what the host is to keep. It forgets it by itself with the next step that a module of the
        collection begins there, when the kubelet or the container runtime is started again, and at the next boot; also
        where that was after RV(proof) was read and before it is kept.
    type: dict
    default: {}
  startup_taint:
    description:
      - Key of the taint that nodes join with and keep until they are validated, which the probe pod tolerates. Where it
        is empty, there is none.
    type: str
    default: ""
  timeout:
    description:
      - Seconds to wait for the allocatable devices, and again for the pod.
      - The devices of all O(hosts) are waited for together. A node whose turn comes after that time has a tenth of it.
    type: int
    default: 120
  from_variables:
    description:
      - Whether options that the task does not give are those that the variables C(gpu_validation_*) say, and the host's
        C(gpu_cluster_*) for the connection.
      - A variable that is set nowhere counts as the default of the role C(gpuops.nvidia.gpu_validation). Without
        O(device_plugin_config) it is that of the host's C(device_plugin_config) and C(device_plugin_config_name).
    type: bool
    default: false
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - gpuops.nvidia.writer.reader
attributes:
  check_mode:
    description: Can run in check mode; the status files are left alone and no pod is started.
    support: full
  idempotent:
    description: A second run changes no status file.
    support: full
"""

EXAMPLES = r"""
- name: Check the host
  gpuops.nvidia.gpu_validation:
    expected_gpus: 8

- name: Check what the cluster offers of it
  gpuops.nvidia.gpu_validation:
    scope: [cluster]
    node_name: "{{ inventory_hostname }}"
    expected_gpus: 8
    kubeconfig: /etc/kubernetes/admin.conf
"""

RETURN = r"""
of_hosts:
  description:
    - What was found of each host of O(hosts), by the host's name in the inventory. Each has C(failed) and RV(checks),
      with RV(proof), or with C(msg) and what else a failure has.
  returned: with O(hosts)
  type: dict
  sample: {"gpu-1": {"failed": false, "changed": false, "checks": [], "proof": {}}}
proof:
  description:
    - What a pod has proved. Of the scope V(host), what the host keeps and what still counts there; of the scope
      V(cluster), that of a pod that was run now, or O(proof) where that was enough. Where there is none, it has only
      what one that comes after it has to go with, C(changes).
  returned: success, with the state V(present)
  type: dict
  sample: {"of": "8ab51fd4f3b8d4c2", "at": 1767225600, "evidence": "a pod that asked for one device got /dev/nvidia0",
           "changes": "5f1d7a84d1a0c3be"}
  contains:
    of: {description: A digest of all in the cluster that it depends on., type: str, returned: where there is one}
    at: {description: "When, in seconds since the epoch.", type: int, returned: where there is one}
    evidence: {description: What was seen., type: str, returned: where there is one}
    changes:
      description:
        - A digest of the journal of our steps, and of when the kubelet and the container runtime began, as the host was
          read, before the pod.
      type: str
      returned: where the host could read it
proof_is_new:
  description: Whether RV(proof) is another than O(proof), so that the host is to be told of it by O(state=proved).
  returned: success, with the scope V(cluster) and the state V(present)
  type: bool
compute:
  description: What came of computing on each device.
  returned: success, with the scope V(host) and the state V(present)
  type: list
  elements: dict
  contains:
    uuid: {description: "The device's, as NVML has it.", type: str, returned: success}
    name: {description: What it is., type: str, returned: success, sample: "GPU 0 (0000:1b:00.0)"}
    board: {description: The name that the driver gives it., type: str, returned: success}
    in_use: {description: "Who has it, so that it was left alone.", type: list, elements: str, returned: success}
    multiprocessors: {description: How many it has., type: int, returned: success}
    multiprocessors_seen: {description: How many were seen to compute., type: int, returned: success}
    wrong:
      description: What was computed wrongly, with C(what), C(where), C(expected), C(found) and C(count).
      type: list
      elements: dict
      returned: success
    rates:
      description: GB/s that were measured, of C(to_device), C(to_host), C(memory) and C(peer).
      type: dict
      returned: success
      sample: {"to_device": 53.4, "to_host": 52.9, "memory": 2987.1, "peer": 381.5}
    call: {description: "The call that failed or did not come back, empty where all did.", type: str, returned: success}
    code: {description: "CUDA's number for the failure, 0 for none.", type: int, returned: success}
    error: {description: Its name., type: str, returned: success}
    log: {description: What the driver's compiler says., type: str, returned: success}
    hung: {description: "Seconds for which the call had not answered, 0 where it did.", type: float, returned: success}
    seconds: {description: That all of it took., type: float, returned: success}
    started: {description: That the driver's context took of these., type: float, returned: success}
devices:
  description: What of the host can be given to containers.
  returned: success, with the scope V(host) and the state V(present)
  type: dict
  sample: {"whole": 6, "divided": 2, "empty": 0, "mig": {"1g.10gb": 14}}
  contains:
    whole: {description: GPUs that are not divided., type: int, returned: success}
    divided: {description: GPUs whose MIG mode is on., type: int, returned: success}
    empty: {description: Those of them without a MIG device., type: int, returned: success}
    mig: {description: How many MIG devices there are of each name., type: dict, returned: success}
checks:
  description: Every check in order, also when the module fails. With O(hosts) each host has its own.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the check.
      type: str
      returned: always
    status:
      description:
        - C(passed), C(failed), C(unknown) where it cannot be read, or C(skipped) where an earlier failure took its
          prerequisite away or somebody is at work. Only C(failed) fails the module.
      type: str
      returned: always
    evidence:
      description: What was seen.
      type: str
      returned: always
    remedy:
      description: What to do, empty when the check passed.
      type: str
      returned: always
began:
  description: When it was begun with, in seconds since the epoch by the controller's clock.
  returned: always
  type: float
controller_only:
  description: Whether nothing was checked on the host itself.
  returned: with the scope V(cluster)
  type: bool
# From docs/results.yml
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
    run("gpu_validation")


if __name__ == "__main__":
    main()
