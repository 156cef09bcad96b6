# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HostFacts: the few facts that more than one capability plans with.

A capability's planner never asks another capability. It reads these facts, and says how they will be once its own
plan is done, so that plans of several capabilities chain on a host where nothing is installed yet.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Optional, Tuple

from .refusal import Refusal

PHYSICAL = "physical"
VIRTUAL_FUNCTION = "virtual_function"
PASSED_THROUGH = "passed_through"
DISPLAY = "display"
# Why the host's driver is not for a GPU of another role
ROLES: Dict[str, str] = {
    VIRTUAL_FUNCTION: "is a virtual function of another GPU, for a virtual machine",
    PASSED_THROUGH: "is passed through to a virtual machine",
    DISPLAY: "is a display card, left to another driver",
}

# Device nodes of the driver that belong to no single GPU, and those of them without which CUDA does not start
UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
CUDA_NODES = ("/dev/nvidiactl", *UVM_NODES)
CONTROL_NODES = CUDA_NODES + ("/dev/nvidia-modeset",)

# Facts that are only foretold: no host is read for them
NEVER_READ = ("driver_by_runfile", "driver_brings_unit", "driver_changes", "driver_reloads", "fabric_starts",
              "mig_changes", "driver_is_worn")

# Programs that start containers, by the names that NVIDIA's runtime looks for when nobody names one
# (internal/config/config.go of NVIDIA/nvidia-container-toolkit)
LOW_LEVEL_RUNTIMES = ("runc", "crun")

# NVIDIA's two kernel modules of one version
OPEN, PROPRIETARY = "open", "proprietary"

FABRIC_MANAGER = "fabric_manager"
FABRIC_MANAGER_NVLSM = "fabric_manager_nvlsm"


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus, known without a driver.

    address:   'domain:bus:device.function' in lower case, e.g. '0000:17:00.0'.
    device_id: PCI device id, four lower-case hexadecimal digits.
    role:      PHYSICAL, or a key of ROLES.
    """

    address: str
    device_id: str
    role: str = PHYSICAL

    def named(self) -> str:
        """'0000:17:00.0 (10de:20b2) is passed through ...', for a GPU that the driver is not for."""
        return "%s (10de:%s) %s" % (self.address, self.device_id, ROLES[self.role])


@dataclass(frozen=True)
class HostFacts:
    """What planners share about a host, read or foretold. '' is absent; where it means unknown, the field says so.

    hostname:           name of the host.
    os_id, os_version:  ID and VERSION_ID of os-release.
    arch:               machine as uname prints it.
    kernel:             release of the running kernel.
    boot_kernel:        release that the next boot will choose, '' when it cannot be told.
    gpus:               GPUs on the PCI bus that the host's driver is for.
    other_gpus:         the others, with the role that takes them away from it.
    nvswitches:         NVSwitches on the PCI bus that are the host's own.
    fabric:             what configures the board's NVLink fabric on this host: FABRIC_MANAGER, FABRIC_MANAGER_NVLSM
                        (with NVIDIA's subnet manager), '' where nothing has to run here.
    imex:               whether the board is of a rack whose hosts share the memory of their GPUs (GB200, GB300): IMEX
                        runs here then.
    vgpu_manager:       version of the vGPU manager whose guest this is, 'unknown' where it does not tell; '' where
                        GPUs are whole ones.
    immutable:          what tells that packages cannot be installed on the system ('/run/ostree-booted' ...), '' where
                        they can.
    image:              what people call that system, '' where packages can be installed.
    image_remedy:       what brings a driver there, to be read after "Do:"; '' where packages can be installed.
    keeps_etc:          whether what is written below /etc outlives a boot, and the system's own configuration.
    boots_by_systemd:   whether systemd is at work; it is not in a chroot, nor in most containers.
    secure_boot:        whether the kernel loads signed modules alone, by the firmware's will or its own.
    key_pending:        name of the key that signed the module on disk, where that key waits to be confirmed at the
                        console of the next boot: the kernel does not load the module before; '' otherwise.
    driver_installed:   version of the driver's kernel module on disk for the running kernel, '' if none.
    driver_boots:       version of the driver's kernel module on disk for boot_kernel, '' if none.
    driver_userspace:   version of the installed libnvidia-ml, '' if none.
    driver_loaded:      version of the loaded module, '' if none.
    module_installed:   OPEN or PROPRIETARY, what the module on disk is, for boot_kernel where the running kernel has
                        none; '' if none.
    module_loaded:      the same of the loaded module, '' if none, and where it does not tell.
    nouveau_loaded:     whether a driver of the kernel's own is loaded (nouveau, or nova since Linux 6.15), and not for
                        a display card alone.
    toolkit:            version of the installed NVIDIA container toolkit, '' if none.
    control_nodes:      those of CONTROL_NODES that lead to the loaded driver.
    awaits_gpu:         whether 'gpus', 'fabric' and 'imex' are those of a board that the policy names and the host does
                        not have yet: an image is made for it, and 'kernel' is the one that the image boots.
    low_level_runtimes: absolute paths of the programs that the container runtime starts containers with, the one that
                        NVIDIA's handler stands in for first; () where no runtime can be told, and where the reader of
                        the facts has not asked.
    parameters_differ:  parameters that the loaded modules have in another value than our file of modprobe.d says, as
                        'nvidia.NVreg_ModifyDeviceFiles=0', with the value of the file.
    peer_modules:       kernel modules that our file of modules-load.d has a boot load beside the driver's: through them
                        RDMA devices, storage and GDRCopy reach the GPUs' memory.
    driver_changes:     whether packages of the driver change before what is planned with these facts; never read.
    driver_by_runfile:  whether NVIDIA's installer brings the driver, without any unit, before what is planned with
                        these facts; never read.
    driver_brings_unit: whether packages bring nvidia-persistenced and its unit to a host that has something of a
                        driver without it, as NVIDIA's installer leaves one, before what is planned with these facts;
                        never read.
    driver_reloads:     whether the driver is loaded anew before what is planned with these facts; never read.
    fabric_starts:      whether the fabric manager is started before what is planned with these facts; never read.
    mig_changes:        whether what the GPUs are divided into changes before what is planned with these facts; never
                        read.
    driver_is_worn:     whether the loaded driver is to be loaded anew, though it is the installed one, by what is
                        planned with these facts; never read.
    hung:               the call of NVML that did not answer in time, with its GPU; '' while all answer, and where the
                        reader of the facts has not asked.
    """

    hostname: str = ""
    os_id: str = ""
    os_version: str = ""
    arch: str = ""
    kernel: str = ""
    boot_kernel: str = ""
    gpus: Tuple[Gpu, ...] = ()
    other_gpus: Tuple[Gpu, ...] = ()
    nvswitches: int = 0
    fabric: str = ""
    imex: bool = False
    vgpu_manager: str = ""
    immutable: str = ""
    image: str = ""
    image_remedy: str = ""
    keeps_etc: bool = True
    boots_by_systemd: bool = True
    secure_boot: bool = False
    key_pending: str = ""
    driver_installed: str = ""
    driver_boots: str = ""
    driver_userspace: str = ""
    driver_loaded: str = ""
    module_installed: str = ""
    module_loaded: str = ""
    nouveau_loaded: bool = False
    toolkit: str = ""
    control_nodes: Tuple[str, ...] = ()
    awaits_gpu: bool = False
    low_level_runtimes: Tuple[str, ...] = ()
    parameters_differ: Tuple[str, ...] = ()
    peer_modules: Tuple[str, ...] = ()
    driver_changes: bool = False
    driver_by_runfile: bool = False
    driver_brings_unit: bool = False
    driver_reloads: bool = False
    fabric_starts: bool = False
    mig_changes: bool = False
    driver_is_worn: bool = False
    hung: str = ""

    def but(self, **changes: Any) -> HostFacts:
        """These facts with some replaced."""
        return replace(self, **changes)

    def lacks(self, node: str) -> bool:
        """Whether a device node of the driver's is one of CONTROL_NODES and leads to no driver, there or not."""
        return node in CONTROL_NODES and node not in self.control_nodes

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @property
    def loaded_is_installed(self) -> Optional[bool]:
        """Whether loaded module, module on disk and user space agree; None while nothing is loaded."""
        if not self.driver_loaded:
            return None
        return self.driver_loaded == self.driver_installed == self.driver_userspace and not self.other_module

    @property
    def other_module(self) -> bool:
        """Whether the other one of NVIDIA's two kernel modules is loaded than the one on disk, as far as they tell."""
        return "" not in (self.module_loaded, self.module_installed) and self.module_loaded != self.module_installed

    @property
    def image_found(self) -> str:
        """The system that packages cannot be installed on, and what tells it; only of use where 'immutable' says so."""
        return "%s, whose image carries everything (%s)" % (self.image or "a system", self.immutable)

    @property
    def lack_of_gpus(self) -> str:
        """What is found in place of a GPU for the driver; only of use while there is none."""
        if not self.other_gpus:
            return "no NVIDIA GPU on the PCI bus (vendor 10de, class 0300 or 0302)"
        return "no GPU for the host's driver on the PCI bus: %s" % "; ".join(gpu.named() for gpu in self.other_gpus)

    @property
    def awaited(self) -> str:
        """What a host waits for whose GPUs are only named."""
        return "awaits a GPU (%s)" % ", ".join(dict.fromkeys(gpu.address for gpu in self.gpus))

    def refusals_without_gpus(self) -> Tuple[Refusal, ...]:
        """Why nothing is planned for GPUs where the driver would have none."""
        if self.gpus:
            return ()
        return (Refusal(
            "host.no_gpu", self.lack_of_gpus, "a GPU for the driver",
            "check `lspci -d 10de:` and the host's passthrough, or take the host out of this play"),)

    def refusals_of_the_sick(self) -> Tuple[Refusal, ...]:
        """Why nothing that needs the driver's answer is planned while a call to it hangs."""
        if not self.hung:
            return ()
        return (Refusal(
            "host.driver_hangs", "%s does not come back: a GPU or its driver is stuck" % self.hung,
            "GPUs that answer, before their driver is exchanged or described to containers",
            "read the kernel log for NVRM messages, drain the node and reboot it: a driver that is stuck cannot be "
            "unloaded"),)
