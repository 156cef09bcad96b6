# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prometheus' own programs, as the laboratory builds them."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), *(str(Path(__file__).parents[1] / name) for name in ("mig", "health"))]

from gpulab.parts.registry import workshop  # noqa: E402


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of prometheus and promtool."""
    return workshop().build("prometheus") / "bin"
