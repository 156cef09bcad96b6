#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver
short_description: Install one exact version of NVIDIA's driver
version_added: 0.1.0
description:
  - Installs kernel module, user space and daemons of one version in one transaction, from one source, and holds them.
  - The kernel module is chosen by the PCI ids of all GPUs of the host; what cannot work is refused before any change.
  - Modules are built by DKMS for every kernel that can be booted.
  - Loading the driver is left to M(gpuops.nvidia.gpu_driver_activation).
  - A converged host is recognised without network and without the package manager's indices.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) installs the driver.
      - V(staged) configures the repository and fetches the packages, so that V(present) is short.
      - V(absent) removes the packages that came with V(present), and puts every file back as it was.
    type: str
    choices: [present, staged, absent]
    default: present
  source:
    description:
      - V(distribution) are the packages of the distribution's own sources.
      - V(nvidia_repository) is NVIDIA's CUDA repository or a mirror of it.
      - V(local_repository) is a directory laid out like it, by http, https or file.
      - V(preinstalled) installs nothing and refuses a host without a fitting driver.
      - V(runfile) is refused, it is not offered yet.
    type: str
    choices: [distribution, nvidia_repository, local_repository, preinstalled, runfile]
    default: nvidia_repository
  version:
    description:
      - A driver version such as V(580.178.04), or a branch such as V(580).
      - A branch means the installed driver when that is of the branch, else the newest one in the repository.
      - Required for V(nvidia_repository) and V(local_repository).
    type: str
    default: ""
  kernel_module:
    description:
      - V(auto) takes the open kernel module wherever every GPU and the branch allow it.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  flavour:
    description:
      - V(headless) is what computing needs.
      - V(full) adds what displays need.
    type: str
    choices: [headless, full]
    default: headless
  repository_url:
    description:
      - Directory that holds the packages. Empty, it is NVIDIA's for this distribution.
    type: str
    default: ""
  repository_key:
    description:
      - The key that signed the repository, as armoured text, as an absolute path on the host, or as a URL.
      - Empty, it is NVIDIA's key for this distribution.
    type: str
    default: ""
  repository_key_fingerprint:
    description:
      - Refuse a key with another fingerprint. NVIDIA's own keys are always checked.
    type: str
    default: ""
  fabric_manager:
    description:
      - V(auto) installs NVIDIA's Fabric Manager in the driver's version where the board needs it.
      - That is where there are NVSwitches on the PCI bus, and on HGX B200 and B300, whose switches are elsewhere and
        which get C(nvlsm) too.
    type: str
    choices: [auto, present, absent]
    default: auto
  extra_packages:
    description:
      - Further packages of the same repository; each gets the driver's version.
    type: list
    elements: str
    default: []
  kernel_headers:
    description:
      - Whether to install headers of every bootable kernel, and the metapackage that follows kernel updates.
    type: bool
    default: true
  lock:
    description:
      - Whether to pin the version, and to keep unattended upgrades away from the driver.
    type: bool
    default: true
  secure_boot:
    description:
      - V(require_signed) refuses modules that Secure Boot would not load.
      - V(ignore) leaves that to you.
    type: str
    choices: [require_signed, ignore]
    default: require_signed
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.nouveau
  - module: gpuops.nvidia.gpu_driver_activation
"""

EXAMPLES = r"""
- name: Install the newest driver of the long-term branch 580
  gpuops.nvidia.gpu_driver:
    version: "580"

- name: Install an exact version from a mirror
  gpuops.nvidia.gpu_driver:
    version: 580.178.04
    repository_url: https://mirror.example.org/cuda/repos/debian12/x86_64/

- name: Check that the image brought the driver
  gpuops.nvidia.gpu_driver:
    source: preinstalled
    version: "580"
"""

RETURN = r"""
plan:
  description: What is changed on this host and why, the same in check mode.
  returned: success
  type: dict
text:
  description: The plan for a person.
  returned: success
  type: str
applied:
  description: Ids of the steps that were done, in check mode of those that would be.
  returned: success
  type: list
  elements: str
put_off:
  description: Steps that disturb more than was allowed, or come after one that does.
  returned: success
  type: list
  elements: dict
reboot_required:
  description: Whether the plan ends with a reboot of the host; its C(requirements) say why.
  returned: success
  type: bool
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_writer
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.capability import Driver
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance


def main() -> None:
    run_writer(Driver(), host_facts, Provenance())


if __name__ == "__main__":
    main()
