# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tasks of a run leave to its later tasks, in the run's own directory on the controller, for its user alone.

Each task of a host is a process of its own, and what it returns Ansible holds until the run ends, once a host. Ansible
removes the directory when it ends.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping

from ansible import constants as C

from ..module_utils.core.plan import canonical, digest
from .text_files import write

_MODE = 0o600


class RunFiles:
    """A file for each name, which may be one that no file can have. kind: what they are about."""

    def __init__(self, kind: str) -> None:
        self._directory = Path(C.DEFAULT_LOCAL_TMP) / "gpuops" / kind

    def put(self, name: str, data: Mapping[str, Any]) -> None:
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        write(str(self._file(name)), canonical(data), _MODE)

    def get(self, name: str) -> Dict[str, Any]:
        """{} where there is none."""
        try:
            return dict(json.loads(self._file(name).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def remove(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def all(self) -> List[Dict[str, Any]]:
        if not self._directory.is_dir():
            return []
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._directory.glob("*.json"))]

    def clear(self) -> None:
        if self._directory.is_dir():
            for path in self._directory.glob("*.json"):
                path.unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self._directory / (digest(name) + ".json")
