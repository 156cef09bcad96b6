# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Simulated GPUs behind the real interface of NVML."""
from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Callable, Iterator, List

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mig_host import MigHost

from gpulab.cache import Workshop
from gpulab.parts.silicon import PARTS


@pytest.fixture(scope="session")
def built() -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return Workshop(PARTS).build("silicon")


@pytest.fixture
def gpus(built: Path, tmp_path: Path) -> Iterator[Callable[..., MigHost]]:
    """gpus(profile, number): a host with so many GPUs of a board."""
    hosts: List[MigHost] = []

    def made(profile: str, number: int = 1) -> MigHost:
        hosts.append(MigHost(built, tmp_path / str(len(hosts)), profile, number))
        return hosts[-1]

    yield made
    for host in hosts:
        host.close()
