# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a running lab keeps its files."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List

from .cache import cache_root


def runs_root() -> Path:
    return cache_root() / "lab" / "run"


@dataclass(frozen=True)
class RunPaths:
    lab: str

    @property
    def top(self) -> Path:
        return runs_root() / self.lab

    @property
    def lock(self) -> Path:
        return runs_root() / (".%s.lock" % self.lab)

    @property
    def record(self) -> Path:
        """Topology and network of the lab; written first by `up`, so that `down` always knows what to clean."""
        return self.top / "topology.json"

    @property
    def ssh(self) -> Path:
        return self.top / "ssh"

    @property
    def ssh_key(self) -> Path:
        return self.ssh / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.ssh / "known_hosts"

    @property
    def inventory(self) -> Path:
        return self.top / "inventory.yml"

    @property
    def kubeconfig(self) -> Path:
        return self.top / "kubeconfig"

    @property
    def control_plane(self) -> Path:
        return self.top / "control-plane"

    @property
    def packages(self) -> Path:
        return self.top / "packages"

    @property
    def written(self) -> Path:
        """What its hosts write, see memory.py."""
        return self.top / "written"

    def host(self, name: str) -> Path:
        return self.top / "hosts" / name


def running_labs() -> List[str]:
    return sorted(path.parent.name for path in runs_root().glob("*/topology.json"))
