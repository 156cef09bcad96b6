# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kinds of container runtime that we can configure, by name."""
from __future__ import annotations

from typing import Dict

from .containerd.kind import Containerd
from .crio.kind import Crio
from .docker.kind import Docker
from .model import Kind

KINDS: Dict[str, Kind] = {kind.name: kind for kind in (Containerd(), Crio(), Docker())}
