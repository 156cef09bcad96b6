# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A capability that somebody adds: what they write lies in collection/, below the paths that it will have.

It is imported as if it lay there. Beside it: its host in memory, for plans as text, and a scratch root with a user's
file, for the engine.
"""
from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict

import world

from ansible_collections.gpuops.nvidia.plugins import module_utils
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_step

COLLECTION = Path(__file__).parent / "collection"
module_utils.__path__.append(str(COLLECTION / "plugins" / "module_utils"))

_package = importlib.import_module(module_utils.__name__ + ".sysctl.capability")
_observation = importlib.import_module(module_utils.__name__ + ".sysctl.observation")
CAPABILITY: Capability[Any, Any] = _package.CAPABILITY
FILE: str = _observation.FILE

THEIRS = b"# caf\xe9\nvm.swappiness = 60\n"
WISHES: Dict[str, Dict[str, Any]] = {
    "install": {"lines": ["vm.swappiness = 10"], "state": "present"},
    "upgrade": {"lines": ["vm.swappiness = 1", "vm.max_map_count = 1048576"], "state": "present"},
    "uninstall": {"lines": [], "state": "absent"},
}


@dataclass
class World(world.World):
    capability = CAPABILITY

    def observe(self, policy: Any, there: HostFacts) -> Any:
        return _observation.Observation(self.files.get(FILE), tuple(
            restore_step(CAPABILITY.name, path, self.files.get(path), text) for path, text in self.originals.items()))


def run(root: str, approved: Any = None, **parameters: Any) -> Run:
    """Of one of WISHES, on a scratch root."""
    return Run(CAPABILITY, parameters, Host(root), lambda _host: HostFacts(hostname="h"), approved=approved)


def furnish(root: Path) -> None:
    """What the user has."""
    path = root / FILE.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(THEIRS)
    path.chmod(0o640)
    for directory in ("var/lib", "run"):
        (root / directory).mkdir(parents=True)
