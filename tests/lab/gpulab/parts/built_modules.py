# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kernel modules of drivers as build services make them, NVIDIA's for EL and SUSE's: built and signed ahead.

They are those that DKMS would build on a host, for the same kernel and with its headers.
"""
from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

from ..cache import Job, Part
from . import packages
from .el9_rpms import BUILT
from .el9_rpms import KERNEL as EL_KERNEL
from .rpm_root import of_suite
from .sles15_rpms import KERNEL as SLES_KERNEL
from .sles15_rpms import SIGNED

BUILD = Path(__file__).resolve().parents[2] / "rpms" / "signed-modules"
SOURCES = packages.TEMPLATES / "dkms"
# As in SUSE's spec, which leaves out nvidia-peermem
MODULES: Tuple[str, ...] = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm")


@dataclass(frozen=True)
class Service:
    """Who builds them.

    name:     of the part.
    title:    whose they are.
    drivers:  versions.
    license:  of the modules: the open or the proprietary ones.
    kernel:   the kernel of the root of a host, as that is called there.
    issuer:   who issued the certificate, as modinfo tells a signer; serial: its serial number.
    ending:   of the files: '.ko.zst' of compressed ones.
    """

    name: str
    title: str
    drivers: Tuple[str, ...]
    license: str
    kernel: str
    issuer: str
    serial: str
    ending: str

    def build(self, job: Job) -> None:
        scratch = job.out / ".scratch"
        (scratch / "debs").mkdir(parents=True)
        for archive in of_suite(job.part("apt-debian")):
            shutil.copy(archive, scratch / "debs")
        for version in self.drivers:
            (scratch / "sources" / version).mkdir(parents=True)
            for path in SOURCES.iterdir():
                text = packages.fill(path.read_text(), VERSION=version, LICENSE=self.license)
                (scratch / "sources" / version / path.name).write_text(text)
        root = job.part(packages.ROOT_PART) / "root"
        kernel = max((path.name for path in (root / "usr/lib/modules").iterdir()), key=packages.kernel_key)
        job.run(["unshare", "--mount", "--propagation", "private", "sh", BUILD, root, scratch, kernel, self.kernel,
                 self.issuer, self.serial, self.ending])
        for version in self.drivers:
            (job.out / version).mkdir()
            for name in MODULES:
                shutil.move(str(scratch / "sources" / version / (name + self.ending)), job.out / version)
        shutil.rmtree(scratch)

    def part(self) -> Part:
        return Part(name=self.name, title="kernel modules of drivers that %s: %s" % (
            self.title, ", ".join(self.drivers)), build=lambda job: self.build(job),
                    inputs=(BUILD, SOURCES, repr(self)), needs=(packages.ROOT_PART, "apt-debian"))


PARTS: Tuple[Part, ...] = (
    Service("sles15-modules", "SUSE has signed", tuple(SIGNED), "Dual MIT/GPL", SLES_KERNEL,
            "SUSE Linux Enterprise Secure Boot CA", "0xfabed8bf409a5e64", ".ko.zst").part(),
    Service("el9-modules", "NVIDIA has built", BUILT, "NVIDIA", EL_KERNEL, "NVIDIA", "0x4e56", ".ko").part(),
)
