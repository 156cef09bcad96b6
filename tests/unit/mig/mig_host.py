# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host in a directory, with simulated GPUs behind the real interface of libnvidia-ml.so.1."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from workspace import collections_root

from gpulab import silicon

VERSION = "580.126.09"
# Calls of NVML that change instances
WRITES = re.compile(r"nvml(?:DeviceCreateGpuInstance|GpuInstanceCreateComputeInstance|GpuInstanceDestroy"
                    r"|ComputeInstanceDestroy)\w*")


class MigHost:
    """argv: of a program that is started with the board and the library."""

    def __init__(self, built: Path, directory: Path, profile: str, gpus: int = 1) -> None:
        self.built = built
        self.directory = directory / "silicon"
        self.libraries = directory / "lib"
        self.libraries.mkdir(parents=True)
        library = self.libraries / ("libnvidia-ml.so." + VERSION)
        shutil.copyfile(str(built / "pkg" / "libnvidia-ml.so"), str(library))
        (self.libraries / "libnvidia-ml.so.1").symlink_to(library.name)
        self.profile, self.gpus = profile, gpus
        self._process: Optional[subprocess.Popen[str]] = None
        self.new_board()

    def new_board(self) -> None:
        """The GPUs as they come out of the box."""
        for name in ("board", "calls.log"):
            if (self.directory / name).exists():
                (self.directory / name).unlink()
        silicon.write_board(self.directory, self.profile, self.gpus, seed="test")
        with silicon.board_file.opened(self.directory) as board:
            board.set("module.nvidia.version", VERSION)
        silicon.host_files.write_pci(self.directory, silicon.board_file.read(self.directory))
        installed = self.directory / "usr" / "bin" / "nvidia-modprobe"
        installed.parent.mkdir(parents=True, exist_ok=True)
        installed.touch(mode=0o755)

    def environment(self) -> Dict[str, str]:
        return dict(os.environ, GPUSIM_DIR=str(self.directory), LD_LIBRARY_PATH=str(self.libraries),
                    PYTHONPATH=str(collections_root()),
                    PATH="%s:%s" % (self.built / "pkg", os.environ["PATH"]))

    def ask(self, do: str, **more: Any) -> Dict[str, Any]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "mig_process.py"), str(self.directory), VERSION],
                env=self.environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        answer: Dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def plan(self, **parameters: Any) -> Dict[str, Any]:
        return self.ask("plan", parameters=parameters)

    def apply(self, **parameters: Any) -> Dict[str, Any]:
        return self.ask("apply", parameters=parameters)

    def migs(self) -> List[Dict[str, Any]]:
        """What NVML tells of each GPU, see hardware.mig.Mig."""
        gpus: List[Dict[str, Any]] = self.ask("read")["gpus"]
        return gpus

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def layout(self, gpu: int = 0) -> List[str]:
        """'1g.10gb@3' of each GPU instance."""
        mig = self.migs()[gpu]
        names = {profile["id"]: profile["name"] for profile in mig["profiles"]}
        return ["%s@%d" % (names[each["profile"]], each["start"]) for each in mig["instances"]]

    def uuids(self, gpu: int = 0) -> Dict[int, str]:
        """{start of a GPU instance: UUID of its first MIG device}."""
        return {each["start"]: each["compute"][0]["uuid"] for each in self.migs()[gpu]["instances"] if each["compute"]}

    def fault(self, kind: str, gpu: Optional[int] = None, **details: Any) -> None:
        silicon.inject_fault(self.directory, kind, gpu, **details)

    def lack(self, *functions: str) -> None:
        """The library of an older driver, which exports no such functions. Before anything is asked."""
        library = (self.libraries / "libnvidia-ml.so.1").resolve()
        found = library.read_bytes()
        for name in map(str.encode, functions):
            found = found.replace(b"\0" + name + b"\0", b"\0_" + name[1:] + b"\0")
        library.write_bytes(found)

    def clear_faults(self) -> None:
        silicon.clear_faults(self.directory)

    def set(self, **values: Any) -> None:
        """Keys of the board, with '__' for a dot."""
        with silicon.board_file.opened(self.directory) as board:
            for key, value in values.items():
                board.set(key.replace("__", "."), value)

    def run(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(argv, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, text=True)

    def smi(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run(str(self.built / "pkg" / "nvidia-smi"), *arguments)

    def calls(self) -> List[str]:
        log = self.directory / "calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def writes(self) -> int:
        """Calls that changed instances, or tried to."""
        return sum(bool(WRITES.search(line)) for line in self.calls())
