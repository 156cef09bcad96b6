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
  - On the host, GPUs on the PCI bus, driver versions that agree, every GPU answering, memory health, fabric, device
    nodes, a fresh CDI spec and the handler in the container runtime's effective configuration.
  - GPUs that the host's driver is not for (virtual functions, those passed through, display cards) are named and not
    counted, see M(gpuops.nvidia.gpu_info).
  - A call of NVML that does not come back within a minute fails the check of the GPUs by its name.
  - On the cluster, allocatable devices as expected, and a pod that gets the device it asked for. These checks run on
    the controller and open no connection to the host.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) checks.
      - V(absent) checks nothing; it removes the status files that V(present) left on the host.
    type: str
    choices: [present, absent]
    default: present
  scope:
    description: Where to check.
    type: list
    elements: str
    choices: [host, cluster]
    default: [host]
  expected_gpus:
    description:
      - Number of GPUs that the host must have and the node must offer.
      - Left out, the host's PCI bus is believed; the check of the node needs it.
    type: int
  handler:
    description: Runtime handler that GPU pods use, also the name of the RuntimeClass.
    type: str
    default: nvidia
  status_files:
    description: Whether to keep the status files under C(/run/nvidia/validations) that NVIDIA's components wait for.
    type: bool
    default: true
  node_name:
    description: Name of the Node object. Needed for the scope V(cluster).
    type: str
  resource:
    description: Extended resource that the node must offer.
    type: str
    default: nvidia.com/gpu
  pod:
    description: Whether to run a pod that asks for one device.
    type: bool
    default: true
  pod_image:
    description: Image of that pod; any image with a shell.
    type: str
    default: docker.io/library/busybox:1.37.0
  pod_namespace:
    description: Namespace of that pod.
    type: str
    default: default
  timeout:
    description: Seconds to wait for the allocatable devices, and again for the pod.
    type: int
    default: 120
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
checks:
  description: Every check in order, also when the module fails.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the check.
      type: str
      returned: always
    status:
      description: C(passed), C(failed), or C(skipped) where an earlier failure took the ground away.
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
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule, env_fallback

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import auth_argument_spec
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import LIBRARY_ARGUMENTS, finish
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.on_host import validate_host

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "scope": {"type": "list", "elements": "str", "choices": ["host", "cluster"], "default": ["host"]},
    "expected_gpus": {"type": "int"},
    "handler": {"type": "str", "default": "nvidia"},
    "status_files": {"type": "bool", "default": True},
    "node_name": {"type": "str"},
    "resource": {"type": "str", "default": "nvidia.com/gpu"},
    "pod": {"type": "bool", "default": True},
    "pod_image": {"type": "str", "default": "docker.io/library/busybox:1.37.0"},
    "pod_namespace": {"type": "str", "default": "default"},
    "timeout": {"type": "int", "default": 120},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(ARGUMENTS, **LIBRARY_ARGUMENTS, **auth_argument_spec(env_fallback)),
        supports_check_mode=True,
    )
    finish(module, lambda: validate_host(module.params, module.check_mode))


if __name__ == "__main__":
    main()
