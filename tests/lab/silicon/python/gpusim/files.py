# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the board looks like in sysfs, procfs and /dev.

The files lie below the silicon directory (sys/, proc/) and are bound over the real ones at boot, so that a module
stand-in changes what everybody sees by rewriting a file. Files are rewritten in place: a bind mount of a file would
keep showing the old one after a rename.
"""
from __future__ import annotations

import os
import re
import shutil
import stat
import struct
from pathlib import Path
from typing import Dict, List, Optional

from gpusim.board import Board

VENDOR_NVIDIA = "0x10de"
MAJOR_FRONTEND = 195
MAJOR_CAPABILITIES = 237
MAJOR_UVM = 511
MAJOR_NVSWITCH = 510
MAJOR_IMEX_CHANNELS = 236
MINOR_MODESET = 254
MINOR_CONTROL = 255
GPU_INSTANCES = 15
COMPUTE_INSTANCES = 8
FIRST_INSTANCE_MINOR = 3
REAL_MODULES = Path("/run/gpusim/sys-module")


def silicon_directory() -> Path:
    return Path(os.environ.get("GPUSIM_DIR") or "/var/lib/gpusim")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8"):
        pass
    with path.open("r+", encoding="utf-8") as handle:
        handle.write(text)
        handle.truncate()


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.symlink_to(target)


# ---- PCI ----

def write_pci(directory: Path, board: Board) -> None:
    """Make the tree of /sys/bus/pci anew: a host bridge, a display controller of the BMC, switches and GPUs."""
    root = directory / "sys" / "bus" / "pci"
    devices = root / "devices"
    shutil.rmtree(str(devices), ignore_errors=True)
    for name in ("drivers/nvidia", "drivers/nouveau", "slots"):
        (root / name).mkdir(parents=True, exist_ok=True)
    put(root / "rescan", "")
    _device(devices, "0000:00:00.0", "0x8086", "0x09a2", "0x060000", "0x00008086", [])
    _device(devices, "0000:02:00.0", "0x1a03", "0x2000", "0x030000", "0x20001a03", [16])
    for group, device_class, vendor in (("nvswitch", "0x068000", VENDOR_NVIDIA),
                                        ("nvlink_bridge", "0x020700", "0x15b3")):
        for index in range(board.number(group + ".count")):
            slot = board.text("%s.%d.bus" % (group, index))
            device = board.text(group + ".pci_device").lower()
            _device(devices, slot, vendor, device, device_class, "0x0000" + vendor[2:], [32])
            if group == "nvlink_bridge":
                (devices / slot / "vpd").write_bytes(b"\x82\x08\x00ConnectX\x90\x0d\x00V3\x06SW_MNGRV\x00\x78")
    for index in range(board.gpus):
        if board.has_fault("absent", index):
            continue
        sizes = [int(size) for size in board.gpu(index, "pci_bars_mib").split("+") if size]
        slot = board.gpu(index, "bus")
        _device(devices, slot, VENDOR_NVIDIA, board.gpu(index, "pci_device").lower(), board.gpu(index, "pci_class"),
                board.gpu(index, "pci_subsystem"), sizes, board.gpu(index, "numa", "0"))
        put(devices / slot / "reset", "")
        put(devices / slot / "max_link_width", board.gpu(index, "pcie_width", "16") + "\n")
        put(devices / slot / "current_link_width", board.gpu(index, "pcie_width", "16") + "\n")
    write_configuration_spaces(directory, board)


def write_configuration_spaces(directory: Path, board: Board) -> None:
    """What a GPU answers on the bus; one that fell off it answers every read with ones."""
    for index in range(board.gpus):
        path = directory / "sys" / "bus" / "pci" / "devices" / board.gpu(index, "bus") / "config"
        if path.exists() and board.has_fault("lost", index):
            path.write_bytes(b"\xff" * 256)
        elif path.exists():
            space = _configuration_space(VENDOR_NVIDIA, board.gpu(index, "pci_device"), board.gpu(index, "pci_class"),
                                         board.gpu(index, "pci_subsystem"))
            manager = board.text("vgpu.manager")
            path.write_bytes(_virtual(space, manager) if manager else space)


def _virtual(space: bytes, manager: str) -> bytes:
    """The space with what NVIDIA's vGPU manager puts there: behind 'VF' a record of its version and branch."""
    record = b"\0\x16" + manager.encode().ljust(10, b"\0") + b"r" + manager.encode()[:3].ljust(9, b"\0")
    capability = b"\x09\0" + bytes([5 + len(record)]) + b"VF" + record
    return space[:0x34] + b"\xd0" + space[0x35:0xd0] + capability + space[0xd0 + len(capability):]


def _device(devices: Path, slot: str, vendor: str, device: str, device_class: str, subsystem: str, bars: List[int],
            numa: str = "0") -> None:
    path = devices / slot
    subsystem_device, subsystem_vendor = "0x%04x" % (int(subsystem, 16) >> 16), "0x%04x" % (int(subsystem, 16) & 0xffff)
    texts = {
        "vendor": vendor, "device": device, "class": device_class, "subsystem_vendor": subsystem_vendor,
        "subsystem_device": subsystem_device, "revision": "0xa1", "numa_node": numa, "irq": "16", "enable": "1",
        "local_cpulist": "0-%d" % max(0, (os.cpu_count() or 1) - 1), "driver_override": "(null)",
        "modalias": modalias(vendor, device, subsystem_vendor, subsystem_device, device_class),
        "power/runtime_status": "active", "power/control": "on", "remove": "", "msi_bus": "1",
    }
    for name, text in texts.items():
        put(path / name, text + "\n" if text else "")
    put(path / "uevent", "PCI_CLASS=%X\nPCI_ID=%s:%s\nPCI_SUBSYS_ID=%s:%s\nPCI_SLOT_NAME=%s\nMODALIAS=%s\n" % (
        int(device_class, 16), vendor[2:].upper(), device[2:].upper(), subsystem_vendor[2:].upper(),
        subsystem_device[2:].upper(), slot, texts["modalias"]))
    put(path / "resource", _resource(slot, bars))
    (path / "config").write_bytes(_configuration_space(vendor, device, device_class, subsystem))


def modalias(vendor: str, device: str, subsystem_vendor: str, subsystem_device: str, device_class: str) -> str:
    """The alias that the kernel publishes for a PCI device and that module tables are matched against."""
    number = int(device_class, 16)
    return "pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X" % (
        int(vendor, 16), int(device, 16), int(subsystem_vendor, 16), int(subsystem_device, 16), number >> 16,
        number >> 8 & 0xff, number & 0xff)


def _resource(slot: str, bars: List[int]) -> str:
    lines = []
    base = 0x200000000000 + (int(slot.split(":")[1], 16) << 40)
    for index in range(13):
        size = bars[index // 2] << 20 if index % 2 == 0 and index // 2 < len(bars) else 0
        lines.append("0x%016x 0x%016x 0x%016x" % ((base, base + size - 1, 0x14220c) if size else (0, 0, 0)))
        base += size
    return "\n".join(lines) + "\n"


def _configuration_space(vendor: str, device: str, device_class: str, subsystem: str) -> bytes:
    number = int(device_class, 16)
    head = struct.pack("<HHHHBBBBBBBB", int(vendor, 16), int(device, 16), 0x0406, 0x0010, 0xa1, number & 0xff,
                       number >> 8 & 0xff, number >> 16, 0, 0, 0, 0)
    head = head.ljust(0x2c, b"\0") + struct.pack("<HH", int(subsystem, 16) & 0xffff, int(subsystem, 16) >> 16)
    return head.ljust(256, b"\0")


def bind_driver(directory: Path, board: Board, driver: Optional[str]) -> None:
    """Bind every GPU of the tree to a driver, or to none."""
    root = directory / "sys" / "bus" / "pci"
    for index in range(board.gpus):
        slot = board.gpu(index, "bus")
        for name in ("nvidia", "nouveau"):
            bound = root / "drivers" / name / slot
            if bound.is_symlink():
                bound.unlink()
        path = root / "devices" / slot / "driver"
        if path.is_symlink():
            path.unlink()
        if driver is not None and path.parent.is_dir():
            link(path, "../../drivers/%s" % driver)
            link(root / "drivers" / driver / slot, "../../devices/%s" % slot)


def bound_driver(directory: Path, board: Board) -> str:
    """The driver of the first GPU, or an empty string."""
    for index in range(board.gpus):
        path = directory / "sys" / "bus" / "pci" / "devices" / board.gpu(index, "bus") / "driver"
        if path.is_symlink():
            return os.path.basename(os.readlink(str(path)))
    return ""


# ---- modules ----

def loaded_modules(board: Board) -> List[str]:
    return [key.split(".")[1] for key in board.below("module") if key.endswith(".version")]


def depends_of(board: Board, name: str) -> List[str]:
    return [word for word in board.text("module.%s.depends" % name).split("+") if word]


def dependants(board: Board, name: str) -> List[str]:
    return [other for other in loaded_modules(board) if name in depends_of(board, other)]


def write_modules(directory: Path, board: Board, users: Dict[str, int]) -> None:
    """/proc/modules and /sys/module of the loaded modules; `users` counts open files and kernel users of each."""
    lines = []
    root = directory / "sys" / "module"
    kept = set(loaded_modules(board))
    for name in reversed(loaded_modules(board)):
        others = dependants(board, name)
        count = len(others) + users.get(name, 0)
        lines.append("%s %s %d %s Live 0x0000000000000000%s\n" % (
            name, board.text("module.%s.size" % name, "16384"), count, "".join(other + "," for other in others) or "-",
            board.text("module.%s.taint" % name, "")))
        _write_module(root / name, board, name, count, others)
    for path in root.iterdir() if root.is_dir() else []:
        if path.is_dir() and not path.is_symlink() and path.name not in kept:
            shutil.rmtree(str(path))
    put(directory / "proc" / "modules", "".join(lines))
    _write_driver_files(directory, board)


def _write_module(path: Path, board: Board, name: str, count: int, others: List[str]) -> None:
    version = board.text("module.%s.version" % name)
    prefix = "module.%s." % name
    texts = {"refcnt": str(count), "initstate": "live", "taint": board.text(prefix + "taint").strip(" ()"),
             "coresize": board.text(prefix + "size", "16384"), "srcversion": board.text(prefix + "srcversion")}
    if version != "-":
        texts["version"] = version
    for key, text in texts.items():
        put(path / key, text + "\n")
    shutil.rmtree(str(path / "holders"), ignore_errors=True)
    (path / "holders").mkdir()
    for other in others:
        link(path / "holders" / other, "../../%s" % other)
    for word in board.text("module.%s.parameters" % name).split():
        key, _equals, value = word.partition("=")
        put(path / "parameters" / key, value + "\n")


def _write_driver_files(directory: Path, board: Board) -> None:
    """/proc/driver/nvidia*, and the driver's majors in /proc/devices."""
    root = directory / "proc" / "driver"
    loaded = loaded_modules(board)
    for name in ("nvidia", "nvidia-caps", "nvidia-nvswitch", "nvidia-uvm"):
        shutil.rmtree(str(root / name), ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    if "nvidia" in loaded:
        _write_proc_nvidia(root, board)
    if "nvidia_uvm" in loaded:
        (root / "nvidia-uvm").mkdir()
    put(directory / "proc" / "devices", _devices(loaded))


def is_open(board: Board) -> bool:
    return board.text("module.nvidia.license") != "NVIDIA"


def _write_proc_nvidia(root: Path, board: Board) -> None:
    version = board.text("module.nvidia.version")
    title = "NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build" if is_open(board) \
        else "NVIDIA UNIX x86_64 Kernel Module  %s"
    put(root / "nvidia" / "version", "NVRM version: %s  (gpusim)\nGCC version:  gcc\n" % (title % version))
    # With 1, nvidia-cdi-hook mounts its own version over a container's /proc/driver/nvidia/params, which is not there:
    # a container's /proc is the real kernel's.
    parameters = {"ModifyDeviceFiles": "0", "DeviceFileUID": "0", "DeviceFileGID": "0", "DeviceFileMode": "438",
                  "EnableMSI": "1", "EnableGpuFirmware": "18", "RestrictProfilingToAdminUsers": "1",
                  "PreserveVideoMemoryAllocations": "0", "ImexChannelCount": "2048", "CreateImexChannel0": "0"}
    for word in board.text("module.nvidia.parameters").split():
        key, _equals, value = word.partition("=")
        if key.startswith("NVreg_"):
            parameters[key[len("NVreg_"):]] = value
    put(root / "nvidia" / "params", "".join("%s: %s\n" % item for item in sorted(parameters.items())))
    put(root / "nvidia" / "registry", 'Binary: ""\n')
    for index in range(board.gpus):
        if not board.has_fault("absent", index):
            put(root / "nvidia" / "gpus" / board.gpu(index, "bus") / "information", _information(board, index))
    for name, minor, mode in (("config", 1, 0o400), ("monitor", 2, 0o444)):
        put(root / "nvidia" / "capabilities" / "mig" / name, _capability(minor, mode))
    _write_instance_capabilities(root / "nvidia" / "capabilities", board)
    put(root / "nvidia-caps" / "mig-minors", _mig_minors(board.gpus))
    for index in range(board.number("nvswitch.count")):
        put(root / "nvidia-nvswitch" / "devices" / board.text("nvswitch.%d.bus" % index), "")


def _capability(minor: int, mode: int) -> str:
    return "DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n" % (minor, mode)


def _information(board: Board, index: int) -> str:
    minor = board.gpu(index, "minor")
    rows = (("Model", board.gpu(index, "name")), ("IRQ", "16"), ("GPU UUID", board.gpu(index, "uuid")),
            ("Video BIOS", board.gpu(index, "vbios")), ("Bus Type", "PCIe"), ("DMA Size", "52 bits"),
            ("DMA Mask", "0xfffffffffffff"), ("Bus Location", board.gpu(index, "bus")), ("Device Minor", minor),
            ("GPU Firmware", board.text("module.nvidia.version")), ("GPU Excluded", "No"))
    return "".join("%-15s %s\n" % (name + ":", value) for name, value in rows)


def _write_instance_capabilities(root: Path, board: Board) -> None:
    """One file per GPU instance and compute instance; the C library keeps them while instances come and go."""
    for key in board.below("gpu"):
        found = re.match(r"gpu\.(\d+)\.gi\.(\d+)(?:\.ci\.(\d+))?\.profile$", key)
        if found is None:
            continue
        gpu, instance = int(board.gpu(int(found.group(1)), "minor")), int(found.group(2))
        path = root / ("gpu%d" % gpu) / "mig" / ("gi%d" % instance)
        minor = FIRST_INSTANCE_MINOR + (gpu * GPU_INSTANCES + instance) * (1 + COMPUTE_INSTANCES)
        if found.group(3) is not None:
            path, minor = path / ("ci%s" % found.group(3)), minor + 1 + int(found.group(3))
        put(path / "access", _capability(minor, 0o444))


def _mig_minors(gpus: int) -> str:
    """Names of MIG capabilities and the minors of their nodes, in the driver's fixed order."""
    lines = ["config 1", "monitor 2"]
    minor = FIRST_INSTANCE_MINOR
    for gpu in range(max(gpus, 8)):
        for instance in range(GPU_INSTANCES):
            lines.append("gpu%d/gi%d/access %d" % (gpu, instance, minor))
            lines += ["gpu%d/gi%d/ci%d/access %d" % (gpu, instance, compute, minor + 1 + compute)
                      for compute in range(COMPUTE_INSTANCES)]
            minor += 1 + COMPUTE_INSTANCES
    return "\n".join(lines) + "\n"


def _devices(loaded: List[str]) -> str:
    ours = []
    if "nvidia" in loaded:
        ours += ["%3d %s" % pair for pair in ((MAJOR_FRONTEND, "nvidia"), (MAJOR_FRONTEND, "nvidiactl"),
                                              (MAJOR_IMEX_CHANNELS, "nvidia-caps-imex-channels"),
                                              (MAJOR_CAPABILITIES, "nvidia-caps"), (MAJOR_NVSWITCH, "nvidia-nvswitch"))]
    if "nvidia_modeset" in loaded:
        ours.append("%3d nvidia-modeset" % MAJOR_FRONTEND)
    if "nvidia_uvm" in loaded:
        ours.append("%3d nvidia-uvm" % MAJOR_UVM)
    lines = [line for line in _real_devices().splitlines() if " nvidia" not in line]
    if "Block devices:" not in lines:
        lines = ["Character devices:", "", "Block devices:"]
    end = lines.index("Block devices:")
    characters = [line for line in lines[:end] if line] + ours
    return "\n".join(characters + [""] + lines[end:]) + "\n"


def _real_devices() -> str:
    try:
        return Path("/proc/devices").read_text(encoding="ascii")
    except OSError:
        return ""


# ---- device nodes ----

def make_nodes(board: Board) -> None:
    """The nodes that nvidia-modprobe and udev rules make when a module is loaded."""
    loaded = loaded_modules(board)
    if "nvidia" in loaded:
        _node("nvidiactl", MAJOR_FRONTEND, MINOR_CONTROL)
        for index in range(board.gpus):
            if not board.has_fault("absent", index):
                minor = int(board.gpu(index, "minor", str(index)))
                _node("nvidia%d" % minor, MAJOR_FRONTEND, minor)
        for index in range(board.number("nvswitch.count")):
            _node("nvidia-nvswitch%d" % index, MAJOR_NVSWITCH, index)
        if board.number("nvswitch.count"):
            _node("nvidia-nvswitchctl", MAJOR_NVSWITCH, 255)
        if "NVreg_CreateImexChannel0=1" in board.text("module.nvidia.parameters").split():
            _node("nvidia-caps-imex-channels/channel0", MAJOR_IMEX_CHANNELS, 0)
    if "nvidia_uvm" in loaded:
        _node("nvidia-uvm", MAJOR_UVM, 0)
        _node("nvidia-uvm-tools", MAJOR_UVM, 1)
    if "nvidia_modeset" in loaded:
        _node("nvidia-modeset", MAJOR_FRONTEND, MINOR_MODESET)


def _node(name: str, major: int, minor: int) -> None:
    path = "/dev/" + name
    try:
        status = os.stat(path)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(major, minor):
            return
        os.unlink(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    os.chmod(path, 0o666)


def remove_nodes() -> None:
    for entry in list(os.scandir("/dev")):
        if entry.name.startswith("nvidia"):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
