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
  - Modules are built by DKMS for every kernel that can be booted, or come built and signed by the distribution.
  - Loading the driver is left to M(gpuops.nvidia.gpu_driver_activation).
  - Kernel modules beside it (RDMA, GPUDirect Storage, GDRCopy) are built for it, and again with each change of it.
  - A converged host is recognised without network and without the package manager's indices.
author:
  - gpuops.nvidia contributors (@gpuops)
options:
  state:
    description:
      - V(present) installs the driver, V(staged) fetches its packages and builds its kernel module ahead, V(absent)
        takes everything back.
      - V(staged) configures the repository too, so that V(present) is short.
      - V(rolled_back) returns to the driver before the last change, packages and repository, whatever the other options
        say of them; without a network where the packages are kept on the host (RV(returns_to)). Done again, it does
        nothing. Parameters of the kernel modules return too; the next V(present) writes those of the policy again.
      - V(absent) removes the packages that came with V(present), and puts every file back as it was.
    type: str
    choices: [present, staged, rolled_back, absent]
    default: present
  source:
    description:
      - Where the driver comes from.
      - V(distribution) are the packages of the distribution's own sources.
      - V(nvidia_repository) is NVIDIA's CUDA repository or a mirror of it.
      - V(local_repository) is a directory laid out like it, by http, https or file.
      - V(preinstalled) changes nothing, and refuses a host whose driver is not the one that is wanted, whole and of one
        version. That is its kernel module for every kernel that can be booted, C(libnvidia-ml), C(libcuda), firmware,
        C(nvidia-modprobe), and the daemons that the board needs.
      - V(runfile) is NVIDIA's installer. It brings user space and firmware; DKMS, which comes with headers and a
        compiler from the sources that the host has (on EL from EPEL, on SLES from SUSE Package Hub), builds the kernel
        module for every kernel out of the same file. No module is loaded or unloaded by it. O(runfile_checksum) and an
        exact O(version) are required. Boards that need the fabric manager or IMEX are refused, as it has neither; so is
        what needs packages of the driver's repository (O(gds), O(gdrcopy), O(extra_packages)). Nothing has to be held,
        and O(hold) says nothing of it.
    type: str
    choices: [distribution, nvidia_repository, local_repository, preinstalled, runfile]
    default: nvidia_repository
  version:
    description:
      - A driver version such as V(580.178.04), or a branch such as V(580).
      - A branch means the installed driver when that is of the branch, else the newest one in the repository.
      - Of V(preinstalled) it may be a range too, such as V(>=580.95.05,<590). A bound is about as many numbers as it
        has, so that every 580 is within V(<=580).
      - Required for V(nvidia_repository) and V(local_repository), and for V(runfile), where it is always an exact one.
    type: str
    default: ""
  kernel_module:
    description:
      - Which kernel module; V(auto) takes the open one wherever every GPU and the branch allow it.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  build:
    description:
      - Who makes the kernel module.
      - V(dkms) builds it on the host, for every kernel that can be booted.
      - V(precompiled) takes the one that the distribution has built and signed. Neither DKMS nor a compiler is needed,
        nor a key under Secure Boot. A host that runs, or boots next, a kernel for which there is none of the driver's
        version is refused.
      - Ubuntu has them in a package for each kernel and one that follows kernel updates, O(source) is V(distribution).
        SUSE has them, of the open kernel module, in one package for all kernels of a service pack; user space is
        NVIDIA's, and O(source) that of its repository. The driver is the newest that both have.
        On EL they are of one kernel each. NVIDIA's, of the proprietary kernel module, come from its repository and
        are signed by a key that has to be enrolled under Secure Boot; Red Hat's, of the open one, from RHEL 10.1 on
        with O(source) V(distribution), which has no others there.
      - V(auto) leaves the kind that is installed, as long as it serves, and builds by DKMS where none is. Where the
        kernel loads signed modules alone it takes the distribution's if there are such for the kernels that run and
        boot next, unless O(signing_key) is given.
      - A change between the two is one transaction, in which the packages of the other kind leave. The package C(dkms)
        and headers stay.
    type: str
    choices: [auto, dkms, precompiled]
    default: auto
  flavour:
    description:
      - V(headless) is what computing needs, V(full) adds what displays need.
    type: str
    choices: [headless, full]
    default: headless
  repository_url:
    description:
      - Directory that holds the packages. Empty, it is NVIDIA's for this distribution.
      - Credentials in it (V(https://user:password@mirror/path/\)) are kept in a file below C(/etc/apt/auth.conf.d) that
        root alone may read, and in no other file, plan or result. With C(dnf) that is so of the password, which is a
        variable below C(/etc/dnf/vars); whoever else runs C(dnf) does without the repository. With
        C(zypper) they are refused.
    type: str
    default: ""
  repository_key:
    description:
      - The key that signed the repository, as armoured text, as an absolute path on the host, or as a URL. Empty, it is
        NVIDIA's key for this distribution.
      - C(apt) and C(rpm) get a copy of what was checked; a key on the host is copied anew when it changes.
    type: str
    default: ""
  repository_key_fingerprint:
    description:
      - Refuse a file that holds anything but the key with this fingerprint. NVIDIA's own keys are always checked.
    type: str
    default: ""
  runfile:
    description:
      - Of O(source) V(runfile) the place of the installer, as a path on the host, or as a URL (http, https or file).
        With a slash at its end it is a directory, in which the file has NVIDIA's name, as
        C(NVIDIA-Linux-x86_64-580.178.04.run). Empty, it is NVIDIA's own directory of that version.
      - A URL is fetched through the proxies of C(apt). Credentials in it (V(https://user:password@mirror/path/\)) are
        in no file, plan or result.
      - The file is kept in C(/var/cache/gpuops/runfile), with that of the driver before for V(rolled_back).
    type: str
    default: ""
  runfile_checksum:
    description:
      - The SHA-256 of that file, as V(sha256:) and 64 hexadecimal digits. Required for O(source) V(runfile), as the
        file has no signature and runs as root; a file with another one is removed before anything is installed.
    type: str
    default: ""
  fabric_manager:
    description:
      - NVIDIA's Fabric Manager in the driver's version; V(auto) installs it where the board needs it.
      - That is where there are NVSwitches on the PCI bus, and on HGX B200 and B300, whose switches are elsewhere and
        which get C(nvlsm) too.
    type: str
    choices: [auto, present, absent]
    default: auto
  imex:
    description:
      - NVIDIA's IMEX in the driver's version; V(auto) installs it on boards of racks (GB200, GB300).
    type: str
    choices: [auto, present, absent]
    default: auto
  extra_packages:
    description:
      - Further packages of the same repository; each gets the driver's version.
    type: list
    elements: str
    default: []
  module_parameters:
    description:
      - Parameters that NVIDIA's kernel modules are loaded with, as C(NVreg_RestrictProfilingToAdminUsers) of the module
        C(nvidia), or with the module before a dot, as C(nvidia-drm.modeset).
      - They are written to C(/etc/modprobe.d/gpuops-nvidia-driver.conf). Where a loaded module has another value,
        M(gpuops.nvidia.gpu_driver_activation) loads the driver anew.
      - Another file of C(modprobe.d) that sets one of them to another value is refused by name.
      - A parameter that is taken out keeps its loaded value until the driver is loaded anew.
    type: dict
    default: {}
  coherent_memory:
    description:
      - Whose the memory of GPUs is on boards with a Grace processor, since driver branch 580.
      - V(driver) keeps it for GPU work, V(numa) makes nodes of the host's memory of it.
      - V(auto) is V(driver) on such boards, as Kubernetes needs it, unless O(module_parameters) or a file of somebody
        else below C(/etc/modprobe.d) has C(NVreg_CoherentGPUMemoryMode), and nothing elsewhere. The others are refused
        where there is no such mode.
    type: str
    choices: [auto, driver, numa]
    default: auto
  rdma:
    description:
      - How RDMA devices reach the GPUs' memory (GPUDirect RDMA).
      - V(dmabuf) is by DMA-BUF, with the open kernel module and Linux 5.12 or newer; there is nothing to load for it,
        and what has neither is refused.
      - V(peermem) has C(nvidia-peermem) loaded after the driver. The RDMA stack of the host has to offer
        C(ib_register_peer_memory_client), as DOCA-OFED and MLNX_OFED do. Where that came after the driver, the driver's
        modules are built again. C(nv_peer_mem) is refused beside it.
      - V(auto) is V(dmabuf) where the host allows it, else V(peermem).
      - V(none) leaves that alone, and takes back what another value did.
    type: str
    choices: [auto, dmabuf, peermem, none]
    default: none
  gds:
    description:
      - Whether the kernel module of GPUDirect Storage (C(nvidia-fs)) is installed too, from the same source. Since
        2.17.5 it needs the open kernel module.
      - It is built for every kernel that has the driver's module, again with each change of the driver, and loaded
        after the driver. Set to V(false) again, it is unloaded and removed where it came by V(true).
    type: bool
    default: false
  gdrcopy:
    description:
      - Whether the kernel module and the library of GDRCopy (C(gdrdrv), C(libgdrapi)) are installed too; as O(gds). The
        distributions' own sources have no such packages.
    type: bool
    default: false
  kernel_arguments:
    description:
      - Arguments that kernels are started with beside what they have, such as V(iommu=pt), one an entry.
      - They are written to a file of C(/etc/default/grub.d), which C(update-grub) reads. Until the running kernel has
        them, the plan ends with a reboot. What others have set already is enough. Boot loaders but GRUB are refused.
    type: list
    elements: str
    default: []
  kernel_headers:
    description:
      - Whether to install headers of every bootable kernel, and the package that follows kernel updates.
    type: bool
    default: true
  migrate:
    description:
      - Whether a driver that is there from another source goes for this one. Without it such a host is refused.
      - Packages of the other source leave in the transaction that brings the new ones; V(rolled_back) returns to them
        where their source still has them, or they are kept. With C(dnf) and C(zypper) such a host is refused all
        the same.
      - What NVIDIA's installer (the runfile) has put there is removed by C(nvidia-uninstall) once the packages are
        fetched, as the last thing before they are installed. There is no way back to it.
      - For V(runfile) of O(source) packages of a driver leave before the installer runs, with C(apt), and
        V(rolled_back) returns to them; another version that others have installed by the installer goes too.
      - What a driver container of the GPU Operator has loaded goes once its pod is gone; until then packages are
        fetched with V(staged), and V(present) is refused. There is no way back to it. What the container has left on
        the host M(gpuops.nvidia.gpu_driver_activation) takes away. See C(docs/driver.md).
    type: bool
    default: false
  hold:
    description:
      - Whether to pin the version, and to keep unattended upgrades away from the driver; with C(dnf) by locks of its
        plugin versionlock, which C(dnf-automatic) heeds too, with C(zypper) by locks of its own.
    type: bool
    default: true
  kernel_hold:
    description:
      - Whether the kernel that runs is held too, in C(/etc/apt/preferences.d/gpuops-nvidia-kernel), its metapackages
        included. No other kernel comes meanwhile, so that none without the driver's module does; security updates of
        the kernel do not come either.
      - Off, the file goes. A host on which another kernel boots next is refused; so is one with C(dnf) or C(zypper),
        with the command that locks its kernel.
    type: bool
    default: false
  roll_back_to:
    description:
      - The only version that V(rolled_back) may return to; where it is there already, nothing is done. Empty, it is
        whatever is recorded.
    type: str
    default: ""
  secure_boot:
    description:
      - What is done where the kernel loads signed modules alone.
      - V(require_signed) refuses a driver that the kernel would not load.
      - V(enroll) prepares the enrolment of the key that DKMS signs with, where the firmware does not have it, and
        makes that key where there is none. A person confirms it at the console of the next boot; the driver is not
        loaded before, and O(enrollment_password) is what is typed there.
      - V(ignore) leaves that to you.
    type: str
    choices: [require_signed, enroll, ignore]
    default: require_signed
  signing_key:
    description:
      - Path on the host of the private key that DKMS signs modules with. Empty, it is the one that DKMS is told of or
        makes for itself. Only root may be able to read it.
      - A key in a PKCS#11 token is named in DKMS's own configuration (C(mok_signing_key), C(mok_certificate)), and
        this option stays empty.
      - DKMS is told of it in a file below C(/etc/dkms/framework.conf.d), which DKMS reads since
        3.0.4 (Ubuntu 22.04 has 2.8.7). Where the kernel loads signed modules alone, every module that is built has to
        be signed with it, and an older DKMS is refused.
    type: str
    default: ""
  signing_certificate:
    description:
      - Path on the host of the certificate of O(signing_key), in DER; required with it.
    type: str
    default: ""
  enrollment_password:
    description:
      - What is typed at the console to confirm the key; required with V(enroll) of O(secure_boot) while the firmware
        does not have the key. The firmware gets its hash, and nothing else does.
    type: str
    default: ""
  boards:
    description:
      - The boards of the nodes that an image is made for, on a host without GPUs. What depends on hardware, as the
        kernel module, the fabric manager and IMEX, is planned for them, and modules are built for the kernels of the
        image.
      - Names of boards (V(hgx-h100), V(gb200), V(l40s) and others), or PCI device ids such as V(10de:2330). A host with
        other GPUs is refused; on one with these it says nothing.
    type: list
    elements: str
    default: []
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

- name: Install a driver with GPUDirect RDMA and GPUDirect Storage
  gpuops.nvidia.gpu_driver:
    version: "595"
    rdma: auto
    gds: true
    kernel_arguments: [iommu=pt]

- name: Install a driver by NVIDIA's installer, from a mirror
  gpuops.nvidia.gpu_driver:
    source: runfile
    version: 580.178.04
    runfile: https://mirror.example.org/nvidia/
    runfile_checksum: sha256:4c9f1fd7a7a5e19c1f1e0d8e0f0f6b7a2ad0e6a4f1c1b1f4b8a7a4f3c2d1e0f9

- name: Return to the driver before the last change
  gpuops.nvidia.gpu_driver:
    state: rolled_back

- name: Check that the image brought the driver
  gpuops.nvidia.gpu_driver:
    source: preinstalled
    version: "580"
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
    run("gpu_driver")


if __name__ == "__main__":
    main()
