# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a boot does to the simulated silicon of a host, before any of the host's services starts."""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Tuple, Union

from gpusim import files, modules
from gpusim.board import Board, log, opened

MODULES_LOAD_DIRECTORIES = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")


def boot() -> int:
    directory = files.silicon_directory()
    kernel = choose_kernel()
    if kernel:
        files.put(directory / "kernel", kernel + "\n#1 SMP PREEMPT_DYNAMIC Debian\n")
    elif (directory / "kernel").exists():
        (directory / "kernel").unlink()
    with opened(directory) as board:
        power_cycle(board)
        files.write_pci(directory, board)
        files.write_modules(directory, board, {})
    mount_files(directory)
    files.remove_nodes()
    log(directory, "boot kernel=%s" % (kernel or "-"), "kernel")
    if kernel:
        load_at_boot(directory, kernel)
    return 0


def power_cycle(board: Board) -> None:
    """Volatile state goes; InfoROM state (ECC mode, on Ampere MIG mode, aggregate counters) stays."""
    board.remove("module")
    board.remove("process")
    modules.driver_gone(board)
    board.set("fabric_manager.running", 0)
    board.set("imex.ready", 0)
    for gpu in range(board.gpus):
        if "gpu.%d.ecc_pending" % gpu in board.values:
            board.set("gpu.%d.ecc" % gpu, board.text("gpu.%d.ecc_pending" % gpu))
        for kind in ("corrected", "uncorrected"):
            board.remove("gpu.%d.ecc_errors.%s.volatile" % (gpu, kind))
        board.remove("gpu.%d.remapped.pending" % gpu)
        board.remove("gpu.%d.recovery_action" % gpu)
    board.set("boot.number", board.number("boot.number") + 1)
    board.set("boot.time", int(time.time()))


# ---- the kernel ----

def version_key(release: str) -> Tuple[Tuple[int, Union[int, str]], ...]:
    """Sorts releases as the boot loader's generator does: numbers by value, words by letter."""
    parts = re.findall(r"\d+|[^\d]+", release)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def choose_kernel(root: Path = Path("/")) -> str:
    """The newest installed image that has its modules, else the newest module tree, else none."""
    trees = {path.name for path in (root / "lib" / "modules").glob("*")}
    images = {path.name[len("vmlinuz-"):] for path in (root / "boot").glob("vmlinuz-*")}
    candidates = sorted(images & trees or trees, key=version_key)
    return candidates[-1] if candidates else ""


# ---- files over the real ones ----

def mount_files(directory: Path) -> None:
    _bind(directory / "sys" / "bus" / "pci", Path("/sys/bus/pci"))
    _make_module_directory()
    _keep_real_modules(directory)
    _bind(directory / "sys" / "module", Path("/sys/module"))
    for name in ("driver", "devices", "modules"):
        _bind(directory / "proc" / name, Path("/proc") / name)


def _bind(source: Path, target: Path) -> None:
    """Bind, unless there is nothing to bind over (a kernel without modules has no /proc/modules: see uname.c)."""
    if not target.exists() or _same(source, target):
        return
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)


def _same(one: Path, other: Path) -> bool:
    first, second = os.stat(str(one)), os.stat(str(other))
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _make_module_directory() -> None:
    """systemd-nspawn gives a host a /sys of its own, read-only and without /sys/module."""
    target = Path("/sys/module")
    if not target.exists():
        subprocess.run(["mount", "-o", "remount,rw", "/sys"], check=True)
        target.mkdir(mode=0o755)


def _keep_real_modules(directory: Path) -> None:
    """The modules of the kernel that really runs stay in /sys/module, as links to a second mount of it."""
    ours = directory / "sys" / "module"
    ours.mkdir(parents=True, exist_ok=True)
    if _same(ours, Path("/sys/module")):
        return
    files.REAL_MODULES.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(str(files.REAL_MODULES)):
        subprocess.run(["mount", "--bind", "/sys/module", str(files.REAL_MODULES)], check=True)
    for path in ours.iterdir():
        if path.is_symlink():
            path.unlink()
    for path in files.REAL_MODULES.iterdir():
        if not (ours / path.name).exists():
            (ours / path.name).symlink_to(str(path))


# ---- modules that a boot loads ----

def load_at_boot(directory: Path, kernel: str) -> None:
    """The initramfs first, then what devices ask for by their aliases, then the lists of modules-load.d."""
    for name in initramfs_modules(kernel):
        _try(name, [])
    for alias in device_aliases(directory):
        _try(alias, ["-b"])
    for name in listed_modules():
        _try(name, ["-b"])


def _try(name: str, options: List[str]) -> None:
    try:
        modules.load_name(name, [], options)
    except modules.Refused as refusal:
        if "not found" not in refusal.reason:
            print("gpusim-boot: %s" % refusal, file=sys.stderr)


def device_aliases(directory: Path) -> List[str]:
    found: Dict[str, None] = {}
    for path in sorted((directory / "sys" / "bus" / "pci" / "devices").iterdir()):
        alias = (path / "modalias").read_text(encoding="ascii").strip()
        if alias.startswith("pci:v000010DE"):
            found[alias] = None
    return list(found)


def listed_modules() -> List[str]:
    chosen: Dict[str, Path] = {}
    for directory in reversed(MODULES_LOAD_DIRECTORIES):
        for path in sorted(Path(directory).glob("*.conf")) if os.path.isdir(directory) else []:
            chosen[path.name] = path
    paths = [chosen[name] for name in sorted(chosen)]
    if os.path.exists("/etc/modules"):
        paths.append(Path("/etc/modules"))
    names: Dict[str, None] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            word = line.strip().split(" ")[0]
            if word and word[0] not in "#;":
                names[word] = None
    return list(names)


def initramfs_modules(kernel: str) -> List[str]:
    """nouveau, if the initramfs carries it and its own modprobe.d does not blacklist it."""
    image = "/boot/initrd.img-%s" % kernel
    if not os.path.exists(image) or shutil.which("lsinitramfs") is None:
        return []
    listing = subprocess.run(["lsinitramfs", image], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                             universal_newlines=True).stdout
    if "/nouveau.ko" not in listing:
        return []
    with tempfile.TemporaryDirectory(prefix="gpusim-initramfs.") as scratch:
        subprocess.run(["unmkinitramfs", image, scratch], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       check=False)
        for path in Path(scratch).glob("**/modprobe.d/*.conf"):
            if re.search(r"^\s*blacklist\s+nouveau\s*$", path.read_text(errors="replace"), re.MULTILINE):
                return []
    return ["nouveau"]
