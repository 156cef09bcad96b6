#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: cdi_spec
short_description: Keep a CDI specification that describes the GPUs of the host
version_added: 0.1.0
description:
  - Compares C(/var/run/cdi/nvidia.yaml) with the loaded driver, its files and device nodes, and the UUIDs of GPUs and
    MIG devices, and generates it anew with C(nvidia-ctk) when it is stale.
  - Programs that the specification runs for a container are looked for too.
  - Enables the toolkit's units that generate it at boot, because C(/var/run) is empty then. The manager is not reloaded
    for it, because a C(systemctl daemon-reload) can take the GPUs from running containers of the toolkit's legacy mode.
  - Names other files under C(/etc/cdi) and C(/var/run/cdi) that describe GPUs. One in the same folder with the same
    names costs containers their GPUs; M(gpuops.nvidia.gpu_validation) fails for it. It is not removed.
  - Respects C(/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env), the environment of those units; its variables for
    C(nvidia-ctk cdi generate) count here too, and the file that it names is the one that is kept.
  - What was generated is read by C(nvidia-ctk cdi list) before it takes its place.
  - Waits, and says for what, while no driver is loaded.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) keeps the specification.
      - V(absent) removes it if we generated it, and disables the units that we enabled.
    type: str
    choices: [present, absent]
    default: present
  refresh_at_boot:
    description:
      - Whether to enable C(nvidia-cdi-refresh.path) and C(nvidia-cdi-refresh.service).
      - The toolkit brings them since 1.18.
    type: bool
    default: true
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.container_toolkit
  - module: gpuops.nvidia.gpu_driver_activation
"""

EXAMPLES = r"""
- name: Describe the GPUs for containers
  gpuops.nvidia.cdi_spec:
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
  description: Whether a step was put off that only a reboot brings about.
  returned: success
  type: bool
"""

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.module import run_writer
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import Cdi


def main() -> None:
    run_writer(Cdi(), host_facts)


if __name__ == "__main__":
    main()
