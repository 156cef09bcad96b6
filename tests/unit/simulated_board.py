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
from typing import Any, Dict, List

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
        for name in LIBRARIES:
            library = self.libraries / ("%s.so.%s" % (name, VERSION))
            shutil.copyfile(str(built() / "pkg" / (name + ".so")), str(library))
            (self.libraries / (name + ".so.1")).symlink_to(library.name)
        silicon.write_board(self.directory, profile, gpus, seed="test")
        self.load(VERSION)

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
