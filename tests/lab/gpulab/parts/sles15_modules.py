# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel modules of drivers as SUSE's build service makes them: built, signed and compressed ahead.

They are those that DKMS would build on a host of SLES 15, for the same kernel and with its headers.
"""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Tuple

from ..cache import Job, Part
from . import packages
from .rpm_root import of_suite
from .sles15_rpms import KERNEL, SIGNED

BUILD = Path(__file__).resolve().parents[2] / "rpms" / "signed-modules"
SOURCES = packages.TEMPLATES / "dkms"
# As in SUSE's spec, which leaves out nvidia-peermem
MODULES: Tuple[str, ...] = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")


def _build(job: Job) -> None:
    scratch = job.out / ".scratch"
    (scratch / "debs").mkdir(parents=True)
    for archive in of_suite(job.part("apt-debian")):
        shutil.copy(archive, scratch / "debs")
    for version in SIGNED:
        (scratch / "sources" / version).mkdir(parents=True)
        for path in SOURCES.iterdir():
            text = packages.fill(path.read_text(), VERSION=version, LICENSE="Dual MIT/GPL")
            (scratch / "sources" / version / path.name).write_text(text)
    root = job.part(packages.ROOT_PART) / "root"
    kernel = max((path.name for path in (root / "usr/lib/modules").iterdir()), key=packages.kernel_key)
    job.run(["unshare", "--mount", "--propagation", "private", "sh", BUILD, root, scratch, kernel, KERNEL])
    for version in SIGNED:
        (job.out / version).mkdir()
        for name in MODULES:
            shutil.move(str(scratch / "sources" / version / (name + ".ko.zst")), job.out / version)
    shutil.rmtree(scratch)


PARTS: Tuple[Part, ...] = (
    Part(name="sles15-modules", title="kernel modules of the drivers that SUSE has signed: %s" % ", ".join(SIGNED),
         build=_build, inputs=(BUILD, SOURCES, KERNEL, *SIGNED), needs=(packages.ROOT_PART, "apt-debian")),
)
