#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_manifests
short_description: Write the objects of the components as files
version_added: 0.1.0
description:
  - Writes what M(gpuops.nvidia.gpu_components) would apply as YAML files on the controller, one a component beside
    C(shared.yaml) (Namespace and RuntimeClass) and a C(kustomization.yaml), for Argo CD, Flux or kubectl to apply.
  - Tells the images that the clusters pull, for a mirror.
  - No cluster is asked, and none has to be reached. Objects that a GitOps controller has made as they are wanted,
    M(gpuops.nvidia.gpu_components) leaves to it.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
  - gpuops.nvidia.cluster_component.several
  - gpuops.nvidia.cluster_component.from_variables
  - gpuops.nvidia.cluster_component.attributes
options:
  directory:
    description:
      - Directory on the controller for the files; it is made when it is missing, and a relative one is one of that
        which Ansible was started in. Files of components that are absent or left out are removed, those that somebody
        else has written stay.
      - Without it, and with O(from_variables), each cluster has the one that C(gpu_manifests_dir) of its hosts says.
        Without any, nothing is written.
    type: path
"""

EXAMPLES = r"""
- name: Write the objects of every cluster of this play's hosts, as their variables say
  gpuops.nvidia.gpu_manifests:
    from_variables: true
  run_once: true

- name: Write those of the device plugin alone
  gpuops.nvidia.gpu_manifests:
    directory: clusters/production/gpu
    components: [device_plugin]
    device_plugin:
      registry: mirror.example
  run_once: true
  register: written

- name: Name the images to be mirrored
  ansible.builtin.debug:
    var: written.images
  run_once: true
"""

RETURN = r"""
images:
  description: Every image that one of the clusters pulls for its components, as a mirror has to have them.
  returned: always, unless the options are malformed
  type: list
  elements: str
  sample: [nvcr.io/nvidia/k8s-device-plugin:v0.19.3]
# From docs/results.yml
clusters:
  description: What became of each cluster, also of one that failed.
  returned: always, unless the options are malformed
  type: list
  elements: dict
  contains:
    name: {description: How its hosts name it., type: str, returned: success}
    hosts: {description: The play's hosts that name it., type: list, elements: str, returned: success}
    changed: {description: Whether it is changed., type: bool, returned: success}
    failed: {description: Whether it failed or was refused., type: bool, returned: success}
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    status: {description: "As RV(status).", type: int, returned: failure}
    files:
      description: The files in O(directory), or in the directory that the variables name.
      type: list
      elements: str
      returned: where there is a directory
    images:
      description: The images that its nodes pull.
      type: list
      elements: str
      returned: success
text:
  description: The plans of all clusters for a person; empty where nothing is planned.
  returned: always, unless the options are malformed
  type: str
status:
  description: HTTP status of the API server's answer.
  returned: failure, where the API server answered with an error
  type: int
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
