# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""HostFacts read from the host: the system, its GPUs, and which driver and toolkit are there."""
from __future__ import annotations

import os
import re
import stat
from typing import Dict, Tuple

from ..core.facts import CONTROL_NODES, UVM_NODES, Gpu, HostFacts
from ..core.host import Host
from ..core.startup import BOOTED
from .boot import Module, boot_state, installed_module, loaded_kind
from .images import image_of
from .nvml import SILENCE, reading_of
from .parameters import stale_parameters
from .pci import PciBus, read_bus
from .peer_modules import loaded_at_boot
from .secure_boot import firmware_keys, modules_must_be_signed

# Drivers of the kernel's own that bind NVIDIA GPUs; nova since Linux 6.15 (drivers/gpu/nova-core)
KERNELS_OWN = ("nouveau", "nova_core")
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def host_facts(host: Host) -> HostFacts:
    """Read the facts; works without a driver, without NVML and in a virtual machine."""
    return facts_of(host, read_bus(host))


def host_facts_and_health(host: Host, silence: float = SILENCE) -> HostFacts:
    """The facts, and whether a call of NVML hangs: for plans that need GPUs that answer."""
    facts = host_facts(host)
    if not facts.driver_loaded:
        return facts
    return facts.but(hung=reading_of(facts.driver_userspace, facts.driver_loaded, silence).hung)


def facts_of(host: Host, bus: PciBus) -> HostFacts:
    """The facts of a host whose PCI bus has been read."""
    system = os.uname()
    release = os_release(host)
    boot = boot_state(host)
    immutable, image = image_of(host, release)
    installed = installed_module(host, system.release)
    boots = installed if boot.default == system.release else installed_module(host, boot.default)
    signed = modules_must_be_signed(host)
    return HostFacts(
        hostname=system.nodename,
        os_id=release.get("ID", ""),
        os_version=release.get("VERSION_ID", ""),
        arch=system.machine,
        kernel=system.release,
        boot_kernel=boot.default,
        gpus=tuple(Gpu(device.address, device.device_id) for device in bus.gpus),
        other_gpus=tuple(Gpu(device.address, device.device_id, device.role) for device in bus.other_gpus),
        nvswitches=len(bus.nvswitches),
        fabric=bus.fabric,
        imex=bus.imex,
        vgpu_manager=bus.vgpu_manager,
        immutable=immutable,
        image=image.name,
        image_remedy=image.remedy,
        keeps_etc=image.keeps_etc,
        boots_by_systemd=host.is_dir(BOOTED),
        secure_boot=signed,
        key_pending=pending_signer(host, installed if installed.version else boots) if signed else "",
        driver_installed=installed.version,
        driver_boots=boots.version,
        driver_userspace=library_version(host),
        driver_loaded=(host.read("/sys/module/nvidia/version") or "").strip(),
        module_installed=installed.kind or boots.kind,
        module_loaded=loaded_kind(host),
        nouveau_loaded=_nouveau_in_the_way(host, bus),
        toolkit=toolkit_version(host),
        control_nodes=control_nodes(host),
        parameters_differ=stale_parameters(host),
        peer_modules=loaded_at_boot(host),
    )


def pending_signer(host: Host, module: Module) -> str:
    """Name of the key that signed a module, where that waits to be confirmed at the console; else ''."""
    pending = firmware_keys(host).pending if module.key else ()
    return next((each.subject or each.sha1 for each in pending if each.serial == module.key), "")


def control_nodes(host: Host) -> Tuple[str, ...]:
    """Those of CONTROL_NODES that lead to the loaded driver.

    nvidia-uvm is given a major at every load (proc(5), /proc/devices), and its nodes outlive it.
    """
    current = {words[1]: words[0] for words in map(str.split, (host.read("/proc/devices") or "").splitlines())
               if len(words) == 2}

    def leads_there(node: str) -> bool:
        found = host.stat(node)
        major = current.get("nvidia-uvm") if node in UVM_NODES else None
        return found is not None and (major is None or not stat.S_ISCHR(found.st_mode)
                                      or os.major(found.st_rdev) == int(major))

    return tuple(node for node in CONTROL_NODES if leads_there(node))


def _nouveau_in_the_way(host: Host, bus: PciBus) -> bool:
    """nouveau (or nova, whose driver is called NovaCore) may keep a display card, as long as it holds no GPU that the
    driver is for."""
    if bus.other_gpus and bus.gpus and not any(gpu.driver.lower().startswith(("nouveau", "nova")) for gpu in bus.gpus):
        return False
    return any(host.exists("/sys/module/" + name) for name in KERNELS_OWN)


def os_release(host: Host) -> Dict[str, str]:
    """os-release(5) as a dictionary."""
    text = host.read("/etc/os-release") or host.read("/usr/lib/os-release") or ""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, separator, value in pairs if separator}


def library_version(host: Host, name: str = "libnvidia-ml.so.1") -> str:
    """Version of an installed library of the driver, read from what its link names; '' if none."""
    for directory in LIBRARY_DIRECTORIES:
        link = "%s/%s" % (directory, name)
        if host.exists(link):
            match = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", host.resolve(link))
            return match.group(1) if match else ""
    return ""


def toolkit_version(host: Host) -> str:
    """Version of the installed NVIDIA container toolkit; '' if none."""
    program = host.which("nvidia-ctk")
    if program is None:
        return ""
    match = re.search(r"version v?(\d[\w.~-]*)", host.run([program, "--version"], check=False).stdout)
    return match.group(1) if match else ""
