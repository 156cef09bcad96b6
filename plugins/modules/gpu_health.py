#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health
short_description: Look at the health of a host's GPUs
version_added: 0.1.0
description:
  - Makes one look, as C(gpuops health) does on the host, and tells what was found by now and what mends it. It reads
    the kernel's log, asks NVML, and reads what devices have proved.
  - The look is kept on the host. A finding begins, goes on, or ends by what proves that; C(docs/health.md) has the
    rules.
  - In check mode nothing is looked at; what was kept is told.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  health:
    description: How it is judged, as the option C(health) of M(gpuops.nvidia.node_agent).
    type: dict
    default: {}
  metrics_directory:
    description: As the option C(health_metrics_directory) of M(gpuops.nvidia.node_agent).
    type: str
    default: ""
  remedy:
    description:
      - A remedy that was done to the whole host since the last look, and that the host cannot see by itself. It is
        written down before the look.
    type: str
    choices: [power_cycle]
  keep:
    description:
      - Whether the look is one of those that are kept on the host, with its metrics, and go on where the one before has
        ended. Where nobody looks all the time, V(false) leaves nothing behind for others to take away.
    type: bool
    default: true
  known:
    description:
      - What is known of the host by an earlier look, as C(key) of RV(findings) has it. It is not among RV(news), and
        fails nothing.
    type: list
    elements: str
    default: []
  fail_on:
    description:
      - What fails. V(sick) is any finding by which a GPU should get no work; V(unmended) one of those whose remedy has
        not been done; V(nothing) only tells.
    type: str
    choices: [nothing, unmended, sick]
    default: nothing
extends_documentation_fragment:
  - gpuops.nvidia.writer.reader
seealso:
  - module: gpuops.nvidia.gpu_repair
"""

EXAMPLES = r"""
- name: Look at the health of the GPUs
  gpuops.nvidia.gpu_health:
  register: health

- name: Say what is to be done
  ansible.builtin.debug:
    msg: "{{ health.findings | map(attribute='to_do') }}"

- name: Stop while anything is sick
  gpuops.nvidia.gpu_health:
    fail_on: sick
"""

RETURN = r"""
verdict:
  description: What the host is, the word that weighs most - C(sick), C(unknown), C(pending), C(warning) or C(well).
  returned: success
  type: str
  sample: well
rung:
  description: The highest rung that an open finding asks for; empty for none.
  returned: success
  type: str
gpus:
  description: How many GPUs the host is known to have, those among them that have gone.
  returned: success
  type: int
findings:
  description: What was found and has not ended, the worst first.
  returned: success
  type: list
  elements: dict
  contains:
    key: {description: By which it is released., type: str, returned: success}
    subject: {description: "C(gpu), C(switch) or C(host).", type: str, returned: success}
    uuid: {description: Of a GPU; empty where nobody has told it., type: str, returned: success}
    serial: {description: Of its board; empty where it has none., type: str, returned: success}
    pci_address: {description: On the PCI bus; empty of the host., type: str, returned: success}
    named: {description: The part for a person., type: str, returned: success}
    source: {description: Where it was found., type: str, returned: success}
    code: {description: What it is., type: str, returned: success, sample: xid 79}
    kind: {description: "C(warning), C(pending) or C(sick).", type: str, returned: success}
    remedy: {description: The rung that mends it., type: str, returned: success, sample: reset}
    to_do: {description: The same for a person., type: str, returned: success}
    check: {description: The level of a compute check that it asks for., type: str, returned: success}
    text: {description: What it means., type: str, returned: success}
    count: {description: How often it was seen., type: int, returned: success}
    first: {description: "When it was seen first, in seconds since 1970.", type: float, returned: success}
    last: {description: When it was seen last., type: float, returned: success}
    mended: {description: What was done that is its remedy; empty for nothing yet., type: str, returned: success}
news:
  description: What there is among them that O(known) does not name, each once by its C(code), the worst first.
  returned: success
  type: list
  elements: str
  sample: [xid 63]
unknown:
  description: What cannot be told.
  returned: success
  type: list
  elements: dict
  contains:
    what: {description: What it is., type: str, returned: success, sample: kernel_log}
    since: {description: "Since when, in seconds since 1970.", type: float, returned: success}
    text: {description: Why., type: str, returned: success}
boot:
  description: The boot of the last look; empty where nobody has looked.
  returned: success
  type: str
looked:
  description: When that was, in seconds since 1970.
  returned: success
  type: float
schema:
  description: Version of this form.
  returned: success
  type: int
catalogue:
  description: Date of the list of what errors of the driver mean.
  returned: success
  type: str
# From docs/results.yml
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

from ..module_utils.shipped import run


def main() -> None:
    run("gpu_health")


if __name__ == "__main__":
    main()
