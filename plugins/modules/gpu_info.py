#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read everything about the GPUs of a host in one call
version_added: 0.1.0
description:
  - Reads the system, its NVIDIA devices on the PCI bus, driver, NVML, the services around them and kernel modules.
  - Works on a host without a driver, without NVML and without a GPU; what is missing is empty, never an error.
  - A call of NVML that does not come back within a minute is given up; the reading names it and holds what was read
    before.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.writer.reader
"""

EXAMPLES = r"""
- name: Read the GPUs of the host
  gpuops.nvidia.gpu_info:
  register: gpu

- name: Show what is on the bus
  ansible.builtin.debug:
    msg: "{{ gpu.observation.pci.gpus | map(attribute='address') }}"
"""

RETURN = r"""
observation:
  description: The whole reading.
  returned: success
  type: dict
  contains:
    host:
      description: What is planned with.
      type: dict
      returned: success
      contains:
        hostname: {description: Name of the host., type: str, returned: success}
        os_id: {description: C(ID) of os-release., type: str, returned: success, sample: debian}
        os_version: {description: C(VERSION_ID) of os-release., type: str, returned: success, sample: "12"}
        arch: {description: Machine as uname prints it., type: str, returned: success, sample: x86_64}
        kernel: {description: Release of the running kernel., type: str, returned: success}
        boot_kernel:
          description: Release that the next boot will choose. Empty when it cannot be told.
          type: str
          returned: success
        gpus:
          description: GPUs on the PCI bus that the host's driver is for.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success, sample: "0000:17:00.0"}
            device_id: {description: PCI device id., type: str, returned: success, sample: 20b2}
            role: {description: C(physical) for a GPU that the host's driver is for., type: str, returned: success}
        other_gpus:
          description: The other GPUs on the PCI bus.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success}
            device_id: {description: PCI device id., type: str, returned: success}
            role: {description: What takes it away from the driver., type: str, returned: success, sample: display}
        nvswitches: {description: Number of NVSwitches on the PCI bus., type: int, returned: success}
        fabric:
          description:
            - What has to run on this host for the NVLink fabric of its board.
            - C(fabric_manager), C(fabric_manager_nvlsm) with the subnet manager of HGX B200 and B300, or empty.
          type: str
          returned: success
        imex:
          description: Whether the board is of a rack whose hosts share the memory of their GPUs by IMEX.
          type: bool
          returned: success
        vgpu_manager:
          description:
            - Version of the vGPU manager whose guest this host is, C(unknown) where it does not tell. Empty where GPUs
              are whole ones.
          type: str
          returned: success
        immutable:
          description: What tells that packages cannot be installed on this system. Empty where they can.
          type: str
          returned: success
        image:
          description: What that system is called. Empty where packages can be installed.
          type: str
          returned: success
          sample: Flatcar Container Linux
        image_remedy:
          description: What brings a driver to that system. Empty where packages can be installed.
          type: str
          returned: success
        keeps_etc:
          description: Whether what is written below C(/etc) is there after the next boot.
          type: bool
          returned: success
        boots_by_systemd:
          description: Whether systemd is at work. It is not in a chroot, nor in most containers.
          type: bool
          returned: success
        secure_boot: {description: Whether the kernel loads signed modules alone., type: bool, returned: success}
        key_pending:
          description: Name of the key that signed the module on disk, where it waits to be confirmed at the console.
          type: str
          returned: success
        driver_installed:
          description: Version of the driver's kernel module on disk for the running kernel.
          type: str
          returned: success
        driver_boots:
          description: Version of the driver's kernel module on disk for the kernel of the next boot.
          type: str
          returned: success
        driver_userspace: {description: Version of the installed libnvidia-ml., type: str, returned: success}
        driver_loaded: {description: Version of the loaded module., type: str, returned: success}
        module_installed:
          description:
            - Which of NVIDIA's two kernel modules is on disk, C(open) or C(proprietary). Empty without one.
          type: str
          returned: success
        module_loaded:
          description: Which of the two is loaded. Empty without one, and where it does not tell.
          type: str
          returned: success
        parameters_differ:
          description:
            - Parameters that the loaded modules have in another value than the one in
              C(/etc/modprobe.d/gpuops-nvidia-driver.conf).
          type: list
          elements: str
          returned: success
        peer_modules:
          description:
            - Kernel modules that C(/etc/modules-load.d/gpuops-peer-modules.conf) has a boot load beside the driver's,
              so that RDMA devices, storage or GDRCopy reach the GPUs' memory.
          type: list
          elements: str
          returned: success
        nouveau_loaded:
          description: Whether nouveau or nova is loaded, and not for a display card alone.
          type: bool
          returned: success
        toolkit: {description: Version of the installed container toolkit., type: str, returned: success}
        awaits_gpu:
          description: Whether the GPUs are only named by a policy. Never of what is read here.
          type: bool
          returned: success
        control_nodes:
          description: Device nodes of the driver that belong to no single GPU and are there.
          type: list
          elements: str
          returned: success
        driver_changes: {description: Of planners. Always false here., type: bool, returned: success}
        driver_by_runfile: {description: Of planners. Always false here., type: bool, returned: success}
        driver_brings_unit: {description: Of planners. Always false here., type: bool, returned: success}
        driver_reloads: {description: Of planners. Always false here., type: bool, returned: success}
        fabric_starts: {description: Of planners. Always false here., type: bool, returned: success}
        mig_changes: {description: Of planners. Always false here., type: bool, returned: success}
        driver_is_worn: {description: Of planners. Always false here., type: bool, returned: success}
        low_level_runtimes: {description: Of planners. Always empty here., type: list, elements: str, returned: success}
        hung:
          description: The call of NVML that did not come back. Empty when all did.
          type: str
          returned: success
    kernels:
      description: Releases that can boot, oldest first.
      type: list
      elements: str
      returned: success
    pci:
      description: NVIDIA's devices on the PCI bus.
      type: dict
      returned: success
      contains:
        gpus:
          description: GPUs that the host's driver is for.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success}
            device_id: {description: PCI device id., type: str, returned: success}
            subsystem:
              description: Vendor and device of the subsystem. Empty when there is none.
              type: str
              returned: success
            driver:
              description: Kernel driver that is bound. Empty when none is.
              type: str
              returned: success
              sample: nvidia
            numa_node: {description: NUMA node. -1 when the firmware names none., type: int, returned: success}
            role: {description: C(physical)., type: str, returned: success}
            manager:
              description: Version of the vGPU manager below a virtual GPU of a guest. Empty of all others.
              type: str
              returned: success
        other_gpus:
          description:
            - GPUs that it is not for, by their C(role). C(virtual_function) belongs to a virtual machine,
              C(passed_through) is bound to or reserved for C(vfio-pci) or another such driver, and C(display) is a card
              that no supported driver is for or that stays with its own.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success}
            device_id: {description: PCI device id., type: str, returned: success}
            subsystem:
              description: Vendor and device of the subsystem. Empty when there is none.
              type: str
              returned: success
            driver:
              description: Kernel driver that is bound. Empty when none is.
              type: str
              returned: success
              sample: nvidia
            numa_node: {description: NUMA node. -1 when the firmware names none., type: int, returned: success}
            role: {description: What takes it away from the driver., type: str, returned: success}
            manager:
              description: Version of the vGPU manager below a virtual GPU of a guest. Empty of all others.
              type: str
              returned: success
        nvswitches:
          description: NVSwitches, without those that are passed through.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success}
            device_id: {description: PCI device id., type: str, returned: success}
            subsystem:
              description: Vendor and device of the subsystem. Empty when there is none.
              type: str
              returned: success
            driver:
              description: Kernel driver that is bound. Empty when none is.
              type: str
              returned: success
              sample: nvidia
            numa_node: {description: NUMA node. -1 when the firmware names none., type: int, returned: success}
            role: {description: C(physical)., type: str, returned: success}
            manager:
              description: Version of the vGPU manager below a virtual GPU of a guest. Empty of all others.
              type: str
              returned: success
        nvlink_bridges:
          description: Functions of ConnectX-7 adapters through which the switches of HGX B200 and B300 are managed.
          type: list
          elements: dict
          returned: success
          contains:
            address: {description: Address on the PCI bus., type: str, returned: success}
            device_id: {description: PCI device id., type: str, returned: success}
            subsystem:
              description: Vendor and device of the subsystem. Empty when there is none.
              type: str
              returned: success
            driver:
              description: Kernel driver that is bound. Empty when none is.
              type: str
              returned: success
              sample: nvidia
            numa_node: {description: NUMA node. -1 when the firmware names none., type: int, returned: success}
            role: {description: C(physical)., type: str, returned: success}
            manager:
              description: Version of the vGPU manager below a virtual GPU of a guest. Empty of all others.
              type: str
              returned: success
    nvml:
      description: What NVML says.
      type: dict
      returned: success
      contains:
        driver_version: {description: Version of the loaded driver., type: str, returned: success}
        library_version: {description: Version of libnvidia-ml., type: str, returned: success}
        cuda_version: {description: Highest version of CUDA that the driver runs., type: str, returned: success}
        error: {description: Why NVML says nothing. Empty when it answers., type: str, returned: success}
        hung: {description: The call that did not come back. Empty when all did., type: str, returned: success}
        left:
          description: The process that waits for that call and cannot be ended. 0 where there is none.
          type: int
          returned: success
        excluded:
          description: Addresses of GPUs that the driver was told to leave out, as by C(NVreg_ExcludedGpus).
          type: list
          elements: str
          returned: success
        gpus:
          description: The GPUs in NVML's order.
          type: list
          elements: dict
          returned: success
          contains:
            index: {description: NVML's index., type: int, returned: success}
            uuid: {description: UUID., type: str, returned: success}
            serial: {description: Serial number of its board. Empty where it has none., type: str, returned: success}
            name: {description: Product., type: str, returned: success, sample: NVIDIA A30}
            pci_address: {description: Address on the PCI bus., type: str, returned: success}
            minor: {description: "Minor number of the device node, -1 where it has none.", type: int, returned: success}
            memory_mib: {description: "Memory in MiB, 0 where it is that of the host.", type: int, returned: success}
            compute_capability: {description: CUDA compute capability., type: str, returned: success, sample: "8.0"}
            mig:
              description:
                - What the GPU can be divided into, and what it is divided into. Null on a GPU without MIG, and where
                  C(mig_error) says why it cannot be read.
              type: dict
              returned: success
              contains:
                current: {description: Whether MIG mode is on., type: bool, returned: success}
                pending: {description: Whether it will be on after a reset., type: bool, returned: success}
                profiles:
                  description: GPU instance profiles, the greatest first.
                  type: list
                  elements: dict
                  returned: success
                  contains:
                    id: {description: What NVML creates an instance by., type: int, returned: success}
                    name: {description: "The driver's name.", type: str, returned: success, sample: 1g.10gb}
                    attributes: {description: What is special about it., type: str, returned: success, sample: +me}
                    slices: {description: Compute slices., type: int, returned: success}
                    memory_mib: {description: Memory in MiB., type: int, returned: success}
                    most: {description: How many there may be at once., type: int, returned: success}
                    size: {description: Units of the board that it takes., type: int, returned: success}
                    starts: {description: Where it may begin., type: list, elements: int, returned: success}
                    engines:
                      description: Copy engines, decoders, encoders, JPEG engines and OFA that are its own.
                      type: list
                      elements: int
                      returned: success
                instances:
                  description: GPU instances, by their places.
                  type: list
                  elements: dict
                  returned: success
                  contains:
                    id: {description: NVML's number., type: int, returned: success}
                    profile: {description: Number of the profile., type: int, returned: success}
                    start: {description: Unit at which it begins., type: int, returned: success}
                    size: {description: Units that it takes., type: int, returned: success}
                    compute:
                      description: Compute instances.
                      type: list
                      elements: dict
                      returned: success
                      contains:
                        id: {description: NVML's number., type: int, returned: success}
                        start: {description: Slice at which it begins., type: int, returned: success}
                        slices: {description: Slices that it takes., type: int, returned: success}
                        uuid: {description: UUID of the MIG device., type: str, returned: success}
                        processes: {description: Processes on it., type: list, elements: int, returned: success}
                        holders:
                          description: Of planners. Always empty here.
                          type: list
                          elements: str
                          returned: success
                devices:
                  description: UUIDs of MIG devices, in NVML's order.
                  type: list
                  elements: str
                  returned: success
            mig_error:
              description: Why its MIG cannot be read. Empty where it can, and on a GPU without MIG.
              type: str
              returned: success
            fabric_state:
              description: State of the registration with the NVLink fabric.
              type: str
              returned: success
              sample: completed
            fabric_status:
              description: NVML's return code of that registration. 0 is success.
              type: int
              returned: success
            fabric_cluster:
              description: UUID of the cluster of NVLink hosts. Empty where the fabric ends at the host.
              type: str
              returned: success
            fabric_clique:
              description: Number of the GPU's clique in that cluster, whose GPUs reach each other by NVLink.
              type: int
              returned: success
            license:
              description:
                - Of a virtual GPU its license, with C(state) (C(licensed) or C(unlicensed)), C(product) and C(expires).
                  Empty of a GPU that needs none.
              type: dict
              returned: success
            fabric_health:
              description: Health of the GPU's fabric, field by field. Empty where the driver tells none.
              type: dict
              returned: success
              sample: {"degraded_bandwidth": "false", "incorrect_configuration": none}
            fabric_summary:
              description: The same in one word.
              type: str
              returned: success
              sample: healthy
            ecc_uncorrected:
              description: Uncorrected ECC errors since the driver was loaded. Null without ECC.
              type: int
              returned: success
            remap_pending:
              description:
                - Whether a row of memory waits for a reset to be remapped, or before Ampere a page to be retired. Null
                  where the GPU does not tell.
              type: bool
              returned: success
            remap_failed: {description: Whether a row of memory could not be remapped., type: bool, returned: success}
            sram_exceeded:
              description:
                - Whether the uncorrectable errors of a cache are more than NVIDIA lets a board have. Null where the GPU
                  does not tell.
              type: bool
              returned: success
            recovery_action:
              description:
                - What the driver asks for, as nvml.h numbers it. C(0) is nothing, C(1) a reset of the GPU, C(2) a
                  reboot, C(3) an end of peer work, C(4) no new work and then a reset, C(5) a recovery of the IMEX
                  domain, C(6) a reset of the bus, C(7) a reboot of the system. Null with drivers before 565.
              type: int
              returned: success
            links_up:
              description: Numbers of its NVLinks that are active.
              type: list
              elements: int
              returned: success
            links_down:
              description: Numbers of those that are not, which need not be a fault. MIG on an A100 switches them off.
              type: list
              elements: int
              returned: success
            clock_reasons:
              description: What holds its clocks, as nvml.h has a bit for each reason. Null where it does not tell.
              type: int
              returned: success
            processes: {description: Ids of the processes that compute., type: list, elements: int, returned: success}
            error: {description: NVML's word for a GPU that does not answer., type: str, returned: success}
            error_code: {description: "NVML's number of that, 0 of one that answers.", type: int, returned: success}
    kernel_log:
      description: Errors that GPUs and NVSwitches have had since the boot, from the kernel's log.
      type: dict
      returned: success
      contains:
        complete:
          description:
            - Whether the log goes back to the boot. False where it has been overwritten, so that errors may be missing;
              null where it cannot be read.
          type: bool
          returned: success
        errors:
          description: The latest 200, by when they were last seen. The same error of the same GPU is one.
          type: list
          elements: dict
          returned: success
          contains:
            pci_address: {description: Of the GPU or NVSwitch., type: str, returned: success}
            uuid: {description: "Of the GPU, where the log tells it.", type: str, returned: success}
            xid: {description: The GPU's error number. Null of an NVSwitch., type: int, returned: success}
            sxid: {description: The NVSwitch's error number. Null of a GPU., type: int, returned: success}
            meaning: {description: What it is., type: str, returned: success, sample: the GPU has fallen off the bus}
            kind:
              description:
                - What it means for the node. C(event) is an application's, C(suspicion) wants a closer look when it
                  comes again, C(warning) is told, C(pending) waits for the next reset, C(sick) is one that work should
                  not be given to before it is mended.
              type: str
              returned: success
            remedy: {description: "What mends it, empty where nothing has to be.", type: str, returned: success}
            count: {description: How often it was seen., type: int, returned: success}
            first_seconds: {description: "When first, in seconds since the boot.", type: int, returned: success}
            last_seconds: {description: "When last, in seconds since the boot.", type: int, returned: success}
            process: {description: "The process that it is about, where one is told.", type: str, returned: success}
            caused_by:
              description: The Xid that it followed from by its last line. Null where that names none.
              type: int
              returned: success
            text: {description: The rest of its last line., type: str, returned: success}
    devices:
      description: What of the host can be given to containers, as M(gpuops.nvidia.gpu_validation) returns it.
      type: dict
      returned: success
      sample: {"whole": 6, "divided": 2, "empty": 0, "mig": {"1g.10gb": 14}}
    layouts:
      description: The instances of each divided GPU, drawn in their places, by PCI address.
      type: dict
      returned: success
      sample: {"0000:1b:00.0": "|1g.10gb|1g.10gb|2g.20gb        |3g.40gb                        |"}
    features:
      description:
        - Labels that GPU feature discovery has written to its file on the host, as it does where
          O(gpuops.nvidia.gpu_feature_discovery#module:use_node_feature_api=false). Empty without the file.
      type: dict
      returned: success
      sample: {nvidia.com/gpu.count: "8"}
    services:
      description: State of the services around GPUs, as systemd calls it, or C(not-found).
      type: dict
      returned: success
      sample: {"containerd.service": active, "nvidia-imex.service": not-found}
    modules:
      description: Version and reference count of the loaded nvidia modules.
      type: dict
      returned: success
      sample: {"nvidia": {"version": 580.178.04, "refcnt": "12"}}
ansible_facts:
  description: The small stable part, for fact caches.
  returned: success
  type: dict
  contains:
    gpuops:
      description: What can be told in a few words.
      type: dict
      returned: success
      sample: {"gpu_count": 8, "driver_loaded": "580.178.04"}
      contains:
        gpu_count: {description: Number of GPUs on the PCI bus., type: int, returned: success}
        gpu_device_ids: {description: Their PCI device ids., type: list, elements: str, returned: success}
        gpu_names: {description: Their names as NVML has them., type: list, elements: str, returned: success}
        nvswitch_count: {description: Number of NVSwitches on the PCI bus., type: int, returned: success}
        fabric: {description: What has to run here for the board's NVLink fabric., type: str, returned: success}
        fabric_cliques:
          description: Cluster and clique of the GPUs, as in the label C(nvidia.com/gpu.clique).
          type: list
          elements: str
          returned: success
        driver_loaded: {description: Version of the loaded driver., type: str, returned: success}
        driver_installed: {description: Version of the driver on disk., type: str, returned: success}
        toolkit: {description: Version of the container toolkit., type: str, returned: success}
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
    run("gpu_info")


if __name__ == "__main__":
    main()
