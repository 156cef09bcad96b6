# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Loading and removing kernel modules as a kernel would, by the files that are installed.

Names, aliases, dependencies, blacklists and install rules are the real kmod's affair (`modprobe.kmod`, `modinfo`); what
is simulated is only the kernel that takes the module or refuses it.
"""
from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gpusim import files
from gpusim.board import Board, log, opened

# Built into the kernel that really runs, or needed by nobody: a host without a kernel image has no file for them.
BUILT_IN = frozenset("""overlay br_netfilter bridge veth nf_conntrack ip_tables ip6_tables iptable_nat iptable_filter
ip_vs ip_vs_rr ip_vs_wrr ip_vs_sh nf_tables nf_nat xt_conntrack xt_comment xt_mark xt_nat xt_MASQUERADE xt_addrtype
vxlan tun loop fuse autofs4 configfs dm_mod drm efi_pstore dummy ib_uverbs mlx5_core""".split())
# Of the kernel's own, without a file on a host without a kernel image; who asks sees whether they are loaded
INFINIBAND = frozenset(("ib_umad", "mlx5_ib"))
NVIDIA = frozenset(("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"))
ARCH_VOLTA = 5
ARCH_BLACKWELL = 10


class Refused(RuntimeError):
    """The kernel refuses; `reason` is the text of the error number that modprobe and rmmod would print."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__("%s: %s" % (name, reason))
        self.name = name
        self.reason = reason


def kmod_program(name: str) -> str:
    """The real kmod's program; the host's root keeps it beside the stand-in under the name NAME.kmod."""
    for candidate in ("/usr/sbin/%s.kmod" % name, "/sbin/%s.kmod" % name):
        if os.path.exists(candidate):
            return candidate
    return shutil.which("%s.kmod" % name) or "/usr/sbin/%s.kmod" % name


def resolve(name: str, parameters: List[str], options: List[str]) -> Tuple[int, List[str], str]:
    """What real modprobe would do for a name: exit code, lines (insmod PATH ..., builtin X, install ...), errors."""
    done = subprocess.run([kmod_program("modprobe"), "--show-depends"] + options + ["--", name] + parameters,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False,
                          universal_newlines=True)
    return done.returncode, [line.strip() for line in done.stdout.splitlines() if line.strip()], done.stderr


def module_name(path_or_name: str) -> str:
    return re.sub(r"\.ko(\.\w+)?$", "", os.path.basename(path_or_name)).replace("-", "_")


def in_kernel_name(path: str) -> str:
    """The name under which a file's module appears: the file says so itself, else it is the file's name."""
    return module_info(path, "name") or module_name(path)


def module_info(path: str, field: str) -> str:
    """One field of a module file; the first, where there are several."""
    return _all_module_info(path).get(field, "")


@functools.lru_cache(maxsize=None)
def _all_module_info(path: str) -> Dict[str, str]:
    done = subprocess.run(["modinfo", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL, check=False, universal_newlines=True)
    fields: Dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, _colon, value = line.partition(":")
        fields.setdefault(name, value.strip())
    return fields


# ---- who uses a module ----

def file_users() -> Dict[str, List[int]]:
    """Processes that have a device node open, by the module that serves the node."""
    users: Dict[str, List[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for target in _open_files(entry.path):
            name = _module_of_node(target)
            if name is not None:
                users.setdefault(name, []).append(int(entry.name))
    return users


def _open_files(process: str) -> List[str]:
    found = []
    try:
        for name in os.listdir(process + "/fd"):
            target = os.readlink("%s/fd/%s" % (process, name))
            if target.startswith("/dev/nvidia"):
                found.append(target)
    except OSError:
        pass  # the process ended while it was read
    return found


def _module_of_node(path: str) -> Optional[str]:
    if path.startswith("/dev/nvidia-uvm"):
        return "nvidia_uvm"
    if path.startswith("/dev/nvidia-modeset"):
        return "nvidia_modeset"
    return "nvidia" if re.match(r"/dev/nvidia(ctl|\d+|-nvswitch|-caps)", path) else None


def user_counts(board: Board) -> Dict[str, int]:
    counts = {name: len(processes) for name, processes in file_users().items()}
    for name, users in lasting_users(board).items():
        counts[name] = counts.get(name, 0) + users
    return counts


def lasting_users(board: Board) -> Dict[str, int]:
    """What /proc/modules counts here. It is written when modules come and go; a device that is open then may be closed
    the next moment, and a kernel's own file would know."""
    declared = len([key for key in board.below("process") if key.endswith(".pid")])
    return {"nvidia": declared + len(board.faults("module-in-use"))}


# ---- loading ----

def load_name(name: str, parameters: List[str], options: List[str]) -> None:
    """Load a module by name or alias, with all that it needs, as modprobe does."""
    code, lines, errors = resolve(name, parameters, options)
    if code != 0 and module_name(name) in INFINIBAND:
        load_without_file(module_name(name))
        return
    if code != 0:
        if module_name(name) in BUILT_IN or _has_real_module(name):
            return
        raise Refused(name, errors.strip() or "not found")
    for line in lines:
        action, _space, rest = line.partition(" ")
        if action == "insmod":
            path, _space, words = rest.partition(" ")
            load_file(path, words.split())
        elif action == "install":
            done = subprocess.run(["/bin/sh", "-c", rest], stdin=subprocess.DEVNULL, check=False)
            if done.returncode != 0:
                raise Refused(name, "Error running install command '%s' for module %s: retcode %d"
                              % (rest, name, done.returncode))


def _has_real_module(name: str) -> bool:
    return (files.REAL_MODULES / module_name(name)).exists()


def load_without_file(name: str) -> None:
    directory = files.silicon_directory()
    with opened(directory) as board:
        if name in files.loaded_modules(board):
            return
        board.set("module.%s.version" % name, "-")
        files.write_modules(directory, board, lasting_users(board))
    log(directory, "load %s" % name, "kernel")


def load_file(path: str, parameters: List[str]) -> None:
    """Hand one module file to the kernel."""
    directory = files.silicon_directory()
    name = in_kernel_name(path)
    if _has_real_module(name):
        return
    with opened(directory) as board:
        if name in files.loaded_modules(board):
            return
        _check(directory, board, name, path)
        _take(board, name, path, parameters)
        if name in ("nvidia", "nouveau") and not files.bound_driver(directory, board):
            files.bind_driver(directory, board, name)
        if name == "nvidia":
            driver_came(board)
        if name in NVIDIA:
            files.make_nodes(board)
        files.write_modules(directory, board, lasting_users(board))
    version = module_info(path, "version") or "-"
    log(directory, "load %s version=%s parameters=%s" % (name, version, " ".join(parameters)), "kernel")


def _check(directory: Path, board: Board, name: str, path: str) -> None:
    vermagic = module_info(path, "vermagic").split(" ")[0]
    if vermagic != os.uname().release:
        raise Refused(name, "Exec format error")
    if board.text("secure_boot") == "1" and not module_info(path, "signer"):
        raise Refused(name, "Key was rejected by service")
    loaded = files.loaded_modules(board)
    for needed in _dependencies(path):
        if needed not in loaded and needed not in BUILT_IN and needed in NVIDIA:
            raise Refused(name, "Unknown symbol in module, or unknown parameter (see dmesg)")
    if name in NVIDIA and name != "nvidia":
        if "nvidia" in loaded and module_info(path, "version") != board.text("module.nvidia.version"):
            raise Refused(name, "Invalid argument")
    if name == "nvidia":
        _check_hardware(directory, board, module_info(path, "license"))


def _check_hardware(directory: Path, board: Board, license_text: str) -> None:
    """The driver finds no GPU that it can drive: none there, another driver has them, or the wrong kind of module."""
    present = [index for index in range(board.gpus) if not board.has_fault("absent", index)]
    fitting = [index for index in present if _drives(license_text, int(board.gpu(index, "arch", "0")))]
    if not fitting or files.bound_driver(directory, board) not in ("", "nvidia"):
        raise Refused("nvidia", "No such device")


def _drives(license_text: str, arch: int) -> bool:
    if license_text == "NVIDIA":
        return arch < ARCH_BLACKWELL
    return arch > ARCH_VOLTA


def _dependencies(path: str) -> List[str]:
    return [word.replace("-", "_") for word in module_info(path, "depends").split(",") if word]


def _take(board: Board, name: str, path: str, parameters: List[str]) -> None:
    prefix = "module.%s." % name
    license_text = module_info(path, "license")
    taint = " (%sOE)" % ("P" if license_text in ("NVIDIA", "Proprietary") else "") if "/kernel/" not in path else ""
    board.set(prefix + "version", module_info(path, "version") or "-")
    board.set(prefix + "license", license_text)
    board.set(prefix + "srcversion", module_info(path, "srcversion"))
    board.set(prefix + "depends", "+".join(word for word in _dependencies(path) if word in files.loaded_modules(board)))
    board.set(prefix + "parameters", " ".join(parameters))
    board.set(prefix + "taint", taint)
    board.set(prefix + "size", os.path.getsize(path))


# ---- removing ----

def remove(name: str) -> None:
    """Take one module out of the kernel."""
    directory = files.silicon_directory()
    with opened(directory) as board:
        if name not in files.loaded_modules(board):
            raise Refused(name, "is not currently loaded")
        others = files.dependants(board, name)
        if others:
            raise Refused(name, "is in use by: %s" % " ".join(others))
        if user_counts(board).get(name, 0) > 0:
            files.write_modules(directory, board, lasting_users(board))
            raise Refused(name, "is in use")
        board.remove("module.%s" % name)
        if name in ("nvidia", "nouveau") and files.bound_driver(directory, board) == name:
            files.bind_driver(directory, board, None)
        if name == "nvidia":
            driver_gone(board)
        files.write_modules(directory, board, lasting_users(board))
    log(directory, "remove %s" % name, "kernel")


def driver_came(board: Board) -> None:
    """What was put off to this is done. In a rack the switches are managed elsewhere: GPUs register with the fabric as
    soon as they have a driver."""
    for gpu in range(board.gpus):
        clock = board.text("gpu.%d.deferred_memory_clock" % gpu)
        if clock:
            board.set("gpu.%d.locked_memory_clocks" % gpu, "%s,%s" % (clock, clock))
    if board.text("board.fabric") != "nvl72" or board.faults("fabric"):
        return
    for gpu in range(board.gpus):
        board.set("gpu.%d.fabric.state" % gpu, 3)
        board.set("gpu.%d.fabric.health" % gpu, board.text("board.fabric.healthy"))


def driver_gone(board: Board) -> None:
    """What GPUs forget when their driver goes: instances, and from Hopper on the MIG mode; the fabric registration."""
    for gpu in range(board.gpus):
        board.remove("gpu.%d.gi" % gpu)
        if board.gpu(gpu, "mig_units"):
            survives = int(board.gpu(gpu, "arch")) < 9
            mode = board.gpu(gpu, "mig_pending", "0") if survives else "0"
            board.set("gpu.%d.mig" % gpu, mode)
            board.set("gpu.%d.mig_pending" % gpu, mode)
        for name in ("persistence", "compute_mode", "power_limit_w", "fabric", "locked_gpu_clocks",
                     "locked_memory_clocks"):
            board.remove("gpu.%d.%s" % (gpu, name))


def remove_with_unused(name: str) -> None:
    """modprobe -r: the module, then what it needed and nobody needs any more."""
    needed = []
    with opened(files.silicon_directory()) as board:
        needed = files.depends_of(board, name)
    remove(name)
    for other in needed:
        try:
            remove_with_unused(other)
        except Refused:
            pass  # still used: modprobe -r leaves it, without a word
