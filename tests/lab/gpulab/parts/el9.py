# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The root of an EL 9 host: a layer over Debian's root with dnf, rpm and a database of what it claims to have.

Debian's dnf has the version of EL 9's. Nothing of Debian's package management stays.
"""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import List, Tuple

from ..aptrepo import KEY_PART, PUBLIC_KEY
from ..cache import BuildError, Job, Part
from .layer import copy_tree
from .packages import ROOT_PART, SUITE, Mirror, kernel_key
from .rpms import KERNEL, REGISTERED

NAME = "root-el9"
HOST = Path(__file__).resolve().parents[2] / "host" / "el9"
# What the mirror of Debian packages has not
ADDED: Tuple[str, ...] = ("dnf", "python3-dnf", "dnf-plugins-core", "rpm", "dracut-core", "curl")
# Of the mirror, what only Debian's own DKMS needs
LEFT_OUT: Tuple[str, ...] = ("dkms", "fakeroot", "libfakeroot", "dpkg-dev", "libdpkg-perl", "lsb-release",
                             "linux-headers-amd64")
# A real one is the machine's; the boot loader takes whatever precedes the release for one
ENTRY = "5f0c1d3a9b8e4f6f8a7b6c5d4e3f2a1b-%s" % KERNEL
_LOADER_ENTRY = """\
title Rocky Linux ({0}) 9.7 (Blue Onyx)
version {0}
linux /vmlinuz-{0}
initrd /initramfs-{0}.img
options root=/dev/vda1 ro crashkernel=1G-4G:192M
grub_class rocky
"""


def _build(job: Job) -> None:
    base = job.part(ROOT_PART) / "root"
    upper, scratch = job.out / "root", job.out / ".scratch"
    for directory in (upper, scratch / "debs", scratch / "rpms", scratch / "files"):
        directory.mkdir(parents=True)
    kernel = max((path.name for path in (base / "usr/lib/modules").iterdir()), key=kernel_key)
    _add_debs(job, scratch / "debs", kernel)
    modules = upper / "usr/lib/modules" / KERNEL
    _link_modules(base / "usr/lib/modules" / kernel, modules)
    for path in _nouveau(modules):
        _rename_kernel(job, path, kernel)
    _write_files(job, scratch / "files")
    for name in REGISTERED:
        (path,) = job.part("rpm-el9").glob("*/%s-[0-9]*.rpm" % name)
        shutil.copy(path, scratch / "rpms")
    job.run(["unshare", "--mount", "--propagation", "private", "sh", HOST / "convert", base, upper, scratch, kernel,
             KERNEL])
    shutil.rmtree(scratch)


def _add_debs(job: Job, target: Path, kernel: str) -> None:
    mirror = Mirror(job, "main")
    mirror.download(ADDED)
    mirror.close()
    for archive in mirror.pool.iterdir():
        archive.rename(target / archive.name)
    mirror.pool.rmdir()
    there = {path.name.split("_")[0] for path in target.iterdir()}
    for archive in _of_suite(job.part("apt-debian")):
        name = archive.name.split("_")[0]
        if name not in there and name not in LEFT_OUT:
            shutil.copy(archive, target)
    if not list(target.glob("linux-headers-%s_*" % kernel)):
        raise BuildError("the mirror has no headers of kernel %s, which is the root's; build root-bookworm and "
                         "apt-debian anew" % kernel)


def _of_suite(mirror: Path) -> List[Path]:
    """Packages of the suite that every host has, without those of the kernel that tests add."""
    index = mirror / "dists" / SUITE / "main/binary-amd64/Packages"
    return [mirror / line.split(" ", 1)[1] for line in index.read_text().splitlines() if line.startswith("Filename:")]


def _link_modules(source: Path, target: Path) -> None:
    """The kernel's modules again, under another directory: hard links, but for what depmod writes anew."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_symlink():
            continue
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif path.parent == source:
            shutil.copy(path, copy)
        else:
            os.link(path, copy)


def _nouveau(modules: Path) -> List[Path]:
    """Files of nouveau and of what it depends on: what a host of the laboratory may load of its kernel."""
    lines = (modules / "modules.dep").read_text().splitlines()
    (line,) = (line for line in lines if line.split(":")[0].endswith("/nouveau.ko"))
    return [modules / name for name in line.replace(":", "").split()]


def _rename_kernel(job: Job, path: Path, kernel: str) -> None:
    """A kernel takes modules only whose vermagic names it."""
    section = job.out / ".modinfo"
    job.run(["objcopy", "--dump-section", ".modinfo=%s" % section, path, job.out / ".module"])
    section.write_bytes(section.read_bytes().replace(
        b"vermagic=%s " % kernel.encode(), b"vermagic=%s " % KERNEL.encode()))
    job.run(["objcopy", "--update-section", ".modinfo=%s" % section, job.out / ".module"])
    section.unlink()
    (job.out / ".module").replace(path)


def _write_files(job: Job, target: Path) -> None:
    copy_tree(HOST / "files", target)
    for name, text in (
            ("boot/loader/entries/%s.conf" % ENTRY, _LOADER_ENTRY.format(KERNEL)),
            ("boot/grub2/grubenv", ("# GRUB Environment Block\nsaved_entry=%s\n" % ENTRY).ljust(1024, "#")),
            ("etc/pki/rpm-gpg/RPM-GPG-KEY-gpulab", (job.part(KEY_PART.name) / PUBLIC_KEY).read_text())):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


PARTS: Tuple[Part, ...] = (
    Part(name=NAME, title="root of EL 9: a layer over Debian's", build=_build, inputs=(HOST, *ADDED, *LEFT_OUT, KERNEL),
         needs=(ROOT_PART, KEY_PART.name, "apt-debian", "rpm-el9")),
)
