# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The programs that are computed with, assembled by NVIDIA's own assembler for every architecture from Volta on."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.kernels import NAMES, SOURCE
from gpulab.cache import Workshop
from gpulab.parts.ptxas import PARTS

# What each release assembles for: 13 has left Volta
TARGETS = [(release, target) for release, targets in {
    "12.9": (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121),
    "13.5": (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)}.items() for target in targets]


@pytest.fixture(scope="session")
def assemblers() -> Path:
    return Workshop(PARTS).build("ptxas")


@pytest.mark.parametrize("release, target", TARGETS)
def test_every_architecture_takes_the_programs(assemblers: Path, tmp_path: Path, release: str, target: int) -> None:
    source = tmp_path / "programs.ptx"
    source.write_text(SOURCE)
    done = subprocess.run([
        str(assemblers / release / "ptxas"), "--gpu-name", "sm_%d" % target, "--verbose", "--output-file",
        str(tmp_path / "programs.cubin"), str(source)],
        check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    compiled = {line.split("'")[1] for line in done.stdout.splitlines() if "Compiling entry function" in line}
    assert compiled == set(NAMES)
    assert " 0 bytes spill stores" in done.stdout and "warning" not in done.stdout.lower()
