# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host in a directory whose simulated GPUs are reset by nvidia-smi, with services that have them open.

A process of its own (reset_process.py) does what it is told, each time in a child that can be killed before any of its
acts: a file written, a command, a call of NVML that changes something.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest
from simulated_board import VERSION, SimulatedBoard, built

from gpulab import silicon

PERSISTENCED, DCGM = "nvidia-persistenced.service", "nvidia-dcgm.service"

# A kill before every act of a reset takes minutes: `make test` has a part of them, `make slow` the others
PARTS = 8
every_part = pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.variation] if part else []) for part in range(PARTS)])


class ResetHost(SimulatedBoard):
    def __init__(self, directory: Path, profile: str = "t4", gpus: int = 2) -> None:
        super().__init__(directory, profile, gpus)
        self.root = directory / "root"
        for name in ("sys/module/nvidia", "run", "proc", "var/lib", "etc/systemd/system/multi-user.target.wants"):
            (self.root / name).mkdir(parents=True)
        silicon.host_files.write_pci(self.root, silicon.board_file.read(self.directory))
        # Who has a GPU's handle has its node open: our own sessions too
        for name in ("nvidiactl", *("nvidia%d" % gpu for gpu in range(gpus))):
            (self.directory / "dev").mkdir(exist_ok=True)
            (self.directory / "dev" / name).touch()
        self._process: Optional["subprocess.Popen[str]"] = None

    def ask(self, do: str, **more: Any) -> Dict[str, Any]:
        """What comes back; {'killed': True} of a child that was."""
        if self._process is None:
            path = "%s:%s" % (built() / "pkg", os.environ["PATH"])
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "reset_process.py"), VERSION],
                env=self.environment(PATH=path), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "root": str(self.root), "board": str(self.directory), **more})
                                  + "\n")
        self._process.stdin.flush()
        answer: Dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def apply(self, kill: int = 0, allowed: str = "reboot", approved: Any = None, **parameters: Any) -> Dict[str, Any]:
        return self.ask("apply", kill=kill, allowed=allowed, approved=approved, parameters=parameters)

    def plan(self, **parameters: Any) -> Dict[str, Any]:
        return self.ask("plan", parameters=parameters)

    def reset(self, *gpus: int, **more: Any) -> Dict[str, Any]:
        """The act alone, as nobody's step."""
        board = silicon.board_file.read(self.directory)
        return self.ask("reset", gpus=[[board.gpu(gpu, "uuid"), board.gpu(gpu, "bus")] for gpu in gpus], **more)

    def told(self, gpu: int = 0, *changes: Sequence[Any]) -> Dict[str, Any]:
        """What NVML tells of a GPU, after changes by somebody else."""
        return self.ask("nvml", uuid=self.uuids()[gpu], changes=changes)

    def smi(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """What somebody else does."""
        return subprocess.run([str(built() / "pkg" / "nvidia-smi"), *words], env=self.environment(), check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def serve(self, unit: str, *gpus: int) -> None:
        """A service runs and has these GPUs open."""
        units = self._units()
        units[unit] = {"gpus": list(gpus), "pid": 100 + len(units)}
        (self.root / "units.json").write_text(json.dumps(units))
        self.ask("systemctl", words=["start", unit])

    def hold(self, gpu: int, pid: int = 4711, groups: str = "0::/user.slice\n") -> None:
        """A process has a GPU open."""
        process = self.root / "proc" / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "fd" / "3").symlink_to("/dev/nvidia%d" % gpu)
        (process / "comm").write_text("python3\n")
        (process / "cgroup").write_text(groups)

    def running(self) -> List[str]:
        return sorted(unit for unit, each in self._units().items() if (self.root / "proc" / str(each["pid"])).exists())

    def _units(self) -> Dict[str, Any]:
        path = self.root / "units.json"
        units: Dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return units

    def board(self, gpu: int, name: str) -> str:
        return str(silicon.board_file.read(self.directory).values.get("gpu.%d.%s" % (gpu, name), ""))

    def calls(self, words: str = "") -> List[str]:
        log = self.directory / "calls.log"
        return [line for line in (log.read_text().splitlines() if log.exists() else []) if words in line]

    def recorded(self) -> List[Dict[str, Any]]:
        path = self.root / "var/lib/gpuops/resets.json"
        found: List[Dict[str, Any]] = json.loads(path.read_text())["resets"] if path.exists() else []
        return found

    def memory(self, name: str) -> Dict[str, Any]:
        path = self.root / "var/lib/gpuops/state.json"
        found: Dict[str, Any] = json.loads(path.read_text())["memory"].get(name, {}) if path.exists() else {}
        return found

    def state(self) -> Dict[str, Any]:
        """All that a run leaves but the times of it and how often it tried."""
        board = silicon.board_file.read(self.directory).values
        files = {str(path.relative_to(self.root)): path.read_text() for part in ("etc", "var/lib/gpuops")
                 for path in sorted((self.root / part).rglob("*")) if path.is_file() and not path.is_symlink()
                 and path.name not in ("state.json", "resets.json") and not path.name.startswith("journal")}
        # MIG mode that was reset to off is as good as one that never was on
        gpus = {key: value for key, value in board.items()
                if key.startswith("gpu.") and not (key.endswith((".mig", ".mig_pending")) and value == "0")}
        return {"board": gpus,
                "running": self.running(), "files": files, "reset": self.memory("reset"),
                "settings": {name: value for name, value in self.memory("settings").items() if name != "resets"}}

    def saved(self, to: Path) -> None:
        for name in ("root", "silicon"):
            shutil.copytree(str(self.directory.parent / name), str(to / name), symlinks=True)

    def loaded(self, of: Path) -> None:
        for name in ("root", "silicon"):
            shutil.rmtree(str(self.directory.parent / name))
            shutil.copytree(str(of / name), str(self.directory.parent / name), symlinks=True)

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None
