# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The part "silicon": the simulated NVML library, its companions, and the stand-ins for what talks to a module.

OUT/gpusim is bound read-only at /usr/lib/gpusim in every host; OUT/pkg holds the files that driver packages carry.
"""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

from gpulab.cache import Job, Part

SOURCES = Path(__file__).resolve().parent.parent.parent / "silicon"


def build(job: Job) -> None:
    job.run([SOURCES / "build.sh", job.out])


PARTS: Tuple[Part, ...] = (
    Part(
        name="silicon",
        title="simulated GPU library and stand-ins (C)",
        build=build,
        inputs=tuple(SOURCES / name for name in ("build.sh", "nvml-names.txt", "src", "python", "programs")),
    ),
)
