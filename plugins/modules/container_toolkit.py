#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: container_toolkit
short_description: Install and configure the NVIDIA container toolkit
version_added: 0.1.0
description:
  - Installs the toolkit's packages in one exact version from NVIDIA's repository or a mirror, and pins them.
  - Sets the few values of C(/etc/nvidia-container-runtime/config.toml) that decide who may use GPUs; comments and other
    values stay.
  - The configuration is written before the packages come, because their post-install script completes the file that is
    there; so the toolkit never runs with values that are not wanted.
  - That script also drops the file's comments. Where somebody else's file is there, and at every upgrade, its text is
    kept in C(/var/lib/gpuops) and put back once the packages are installed, also by the run that follows a killed one.
    What somebody has edited in between stays as he left it.
  - A value of C(nvidia-container-cli.ldconfig) that is not on the host is refused, as NVIDIA's runtime would start no
    container with it.
  - A value of another type than the toolkit reads is refused likewise; keys that it does not know, and ignores, are
    named. Where the wanted version is installed already, its C(nvidia-container-runtime) reads a scratch copy of the
    new file before it is written.
  - The scripts of the packages call C(systemctl daemon-reload), which nobody can prevent; see the option
    O(gpuops.nvidia.cdi_spec#module:device_links). Nothing else here reloads the manager.
  - A converged host is recognised without network.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) installs and configures the toolkit, V(absent) takes that back.
      - The packages that came with V(present) are removed, and the files put back as they were.
    type: str
    choices: [present, absent]
    default: present
  source:
    description:
      - Where the packages come from; V(repository) is an apt repository.
      - V(preinstalled) installs nothing; the system's image brings the toolkit.
    type: str
    choices: [repository, preinstalled]
    default: repository
  version:
    description:
      - Version of all packages, such as V(1.20.1), or with the packaging revision, V(1.20.1-1).
      - Versions before 1.19.1 are refused, see O(allow_vulnerable). They have CVE-2026-24260, before 1.17.8
        also CVE-2025-23266 and CVE-2025-23267, before 1.17.4 CVE-2025-23359, before 1.17.0 CVE-2024-0134, and before
        1.16.2 CVE-2024-0132 and CVE-2024-0133.
    type: str
    default: 1.20.1
  repository_url:
    description:
      - Flat apt repository; V($(ARCH\)) stands for Debian's name of the architecture.
      - Where another sources file names the same repository, that file is used and left as it is.
      - Credentials in it (V(https://user:password@mirror/path/\)) are kept in a file below C(/etc/apt/auth.conf.d) that
        root alone may read, and in no other file, plan or result.
    type: str
    default: https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)
  repository_key:
    description: Key of the repository, as URL, as path on the host, or as ASCII-armoured text.
    type: str
    default: https://nvidia.github.io/libnvidia-container/gpgkey
  mode:
    description:
      - How containers get their GPUs from C(nvidia-container-runtime).
      - V(cdi) by CDI specifications, which only the names in the container's request select.
    type: str
    choices: [cdi, auto, legacy]
    default: cdi
  accept_envvar_when_unprivileged:
    description:
      - Whether an unprivileged container may take GPUs by the variable E(NVIDIA_VISIBLE_DEVICES), past the scheduler.
    type: bool
    default: false
  low_level_runtimes:
    description:
      - Absolute paths of the runtimes that start the containers; the first one that exists is used, and one of them has
        to exist.
      - Empty, those are taken that the container runtime behind the kubelet's socket uses, such as
        C(/usr/libexec/crio/crun), which is in no directory of its C(PATH); where none runs, C(runc) and C(crun) are
        looked for. A list that somebody else chose stays.
    type: list
    elements: str
    default: []
  settings:
    description:
      - Further values of C(config.toml), by dotted keys or as tables.
      - A key that the toolkit does not know is refused. A value that is not asked for any more stays in the file.
    type: dict
    default: {}
  allow_vulnerable:
    description: Accept a version that is known to let a container out.
    type: bool
    default: false
  allow_downgrade:
    description: Accept a version older than the installed one.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuops.nvidia.writer
seealso:
  - module: gpuops.nvidia.container_runtime
  - module: gpuops.nvidia.cdi_spec
"""

EXAMPLES = r"""
- name: Install the toolkit
  gpuops.nvidia.container_toolkit:

- name: Install it from a mirror
  gpuops.nvidia.container_toolkit:
    version: 1.20.1
    repository_url: https://mirror.example.org/libnvidia-container/stable/deb/$(ARCH)
    repository_key: https://mirror.example.org/libnvidia-container/gpgkey

- name: Install it and keep a log of the containers that it starts
  gpuops.nvidia.container_toolkit:
    settings:
      nvidia-container-runtime.debug: /var/log/nvidia-container-runtime.log
      nvidia-container-runtime.log-level: debug
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
    run("container_toolkit")


if __name__ == "__main__":
    main()
