# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes this directory's small capability importable."""
from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A scratch root in memory where the machine has that: for what waits for the disk ten thousand times."""
    directory = "/dev/shm"
    if not os.access(directory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="gpuops-test-", dir=directory) as scratch:
        yield Path(scratch)
