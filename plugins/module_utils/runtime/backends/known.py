# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The container runtimes that we can configure, by name."""
from __future__ import annotations

from typing import Any, Dict

from ..backend import Backend
from .containerd.backend import Containerd
from .crio.backend import Crio
from .docker.backend import Docker

BACKENDS: Dict[str, Backend[Any]] = {backend.name: backend for backend in (Containerd(), Crio(), Docker())}
