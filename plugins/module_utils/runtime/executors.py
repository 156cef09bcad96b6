# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How each kind of step of a container runtime is carried out."""
from __future__ import annotations

from typing import Dict

from ..core.steps import Executor
from .applying import apply
from .planner import APPLY, EDIT, FORGET, REMOVE, WRITE
from .writing import edit, forget, remove, write

EXECUTORS: Dict[str, Executor] = {
    WRITE: write, EDIT: edit, REMOVE: remove, FORGET: forget,
    **dict.fromkeys(APPLY.values(), apply),
}
