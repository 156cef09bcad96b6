# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's assembler of PTX, of the last CUDA that compiles for Volta and of one that compiles for the newest GPUs.

OUT/RELEASE/ptxas. The packages that carry it have compilers, too, which nothing here needs.
"""
from __future__ import annotations

import sys
import zipfile
from typing import Tuple

from gpulab.cache import BuildError, Job, Part

# CUDA's release: the package that carries its assembler
PACKAGES = {"12.9": "nvidia-cuda-nvcc-cu12==12.9.86", "13.5": "nvidia-cuda-nvcc==13.5.37"}


def build(job: Job) -> None:
    for release, package in PACKAGES.items():
        directory = job.out / release
        directory.mkdir()
        job.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, package])
        wheel = next(directory.glob("*.whl"), None)
        if wheel is None:
            raise BuildError("part %s: no wheel of %s" % (job.part_name, package))
        with zipfile.ZipFile(wheel) as packed:
            name = next(each for each in packed.namelist() if each.endswith("/bin/ptxas"))
            (directory / "ptxas").write_bytes(packed.read(name))
        (directory / "ptxas").chmod(0o755)
        wheel.unlink()


PARTS: Tuple[Part, ...] = (
    Part("ptxas", "NVIDIA's assembler of PTX", build, inputs=tuple(PACKAGES.values())),
)
