# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Iterator

import pytest


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A scratch root in memory where the machine has that: for what waits for the disk ten thousand times."""
    folder = "/dev/shm"
    if not os.access(folder, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gpuops-test-", dir=folder) as scratch:
        yield Path(scratch)
