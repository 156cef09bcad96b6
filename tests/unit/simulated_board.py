# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A simulated board in a directory, with the driver's libraries beside it, for scripts in processes of their own."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from workspace import collections_root

from gpulab import silicon
from gpulab.cache import Workshop
from gpulab.parts.silicon import PARTS

VERSION = "580.126.09"
LIBRARIES = ("libnvidia-ml", "libcuda", "libnvidia-ptxjitcompiler")


def built() -> Path:
    """The silicon, compiled once."""
    return Workshop(PARTS).build("silicon")


class SimulatedBoard:
    """GPUs of a profile; the libraries answer for them to every process that starts with environment()."""

    def __init__(self, directory: Path, profile: str = "h100-sxm-hgx", gpus: int = 2) -> None:
        self.directory = directory / "silicon"
        self.libraries = directory / "lib"
        self.libraries.mkdir(parents=True)
        self.install(VERSION)
        silicon.write_board(self.directory, profile, gpus, seed="test")
        self.load(VERSION)

    def install(self, version: str) -> None:
        """The driver's libraries, in the place of those of another version."""
        for name in LIBRARIES:
            library, link = self.libraries / ("%s.so.%s" % (name, version)), self.libraries / (name + ".so.1")
            shutil.copyfile(str(built() / "pkg" / (name + ".so")), str(library))
            link.unlink(missing_ok=True)
            link.symlink_to(library.name)

    def load(self, version: str) -> None:
        with silicon.board_file.opened(self.directory) as board:
            board.remove("module")
            if version:
                board.set("module.nvidia.version", version)

    def set(self, key: str, value: Any) -> None:
        with silicon.board_file.opened(self.directory) as board:
            board.set(key, value)

    def uuids(self) -> List[str]:
        board = silicon.board_file.read(self.directory)
        return [board.gpu(gpu, "uuid") for gpu in range(board.gpus)]

    def fault(self, kind: str, gpu: Any = None, **details: Any) -> None:
        silicon.inject_fault(self.directory, kind, gpu, **details)

    def environment(self, **others: str) -> Dict[str, str]:
        return dict(os.environ, GPUSIM_DIR=str(self.directory), LD_LIBRARY_PATH=str(self.libraries),
                    PYTHONPATH=str(collections_root()), **others)

    def start(self, script: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", script, *arguments], env=self.environment(**environment),
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def say(self, script: str, *arguments: str, **environment: str) -> Any:
        """What a script prints, as JSON."""
        out, errors = self.start(script, *arguments, **environment).communicate(timeout=120)
        assert out, errors
        return json.loads(out)


def write_driver(root: Path, version: str) -> None:
    """What a host tells of a driver that is installed and loaded."""
    library = root / "usr/lib64" / ("libnvidia-ml.so." + version)
    for path, text in ((library, ""), (root / "sys/module/nvidia/version", version + "\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    link = library.with_name("libnvidia-ml.so.1")
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)


def write_log(root: Path) -> None:
    """What the kernel has logged: nothing of the driver."""
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("6,0,1,-;Linux version 6.12\n")


class HostBoard(SimulatedBoard):
    """Two H100, and the root of their host: 'root' in the directory, where none is given."""

    def __init__(self, directory: Path, root: Optional[Path] = None) -> None:
        super().__init__(directory)
        self.root = root or directory / "root"
        for name in ("run", "var/lib"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        write_driver(self.root, VERSION)
        write_log(self.root)
        board = silicon.board_file.read(self.directory)
        for index in range(board.gpus):
            place = self.root / "sys/bus/pci/devices" / board.gpu(index, "bus")
            place.mkdir(parents=True)
            for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
                (place / name).write_text(text)
