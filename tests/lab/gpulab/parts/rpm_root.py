# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The roots of hosts whose packages are rpm's: a layer over Debian's root with rpm, what manages its packages, and a
database of what it claims to have.

Nothing of Debian's package management stays. What is of one distribution is its Image.
"""
from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import List, Mapping, Tuple

from ..aptrepo import KEY_PART, PUBLIC_KEY
from ..cache import BuildError, Job, Part
from .layer import copy_tree
from .packages import ROOT_PART, SUITE, Mirror, kernel_key

HOST = Path(__file__).resolve().parents[2] / "host"
# Script and files of them all
COMMON = HOST / "rpm"
# Of the mirror, what only Debian's own DKMS needs
LEFT_OUT: Tuple[str, ...] = ("dkms", "fakeroot", "libfakeroot", "dpkg-dev", "libdpkg-perl", "lsb-release",
                             "linux-headers-amd64")


@dataclass(frozen=True)
class Image:
    """What one distribution's root is made of.

    name:         its topologies' `image`; its files are in host/<name>.
    title:        what people call it.
    added:        Debian's packages that the mirror has not.
    repositories: the part with the distribution's own packages.
    registered:   those of them that the database has from the first day.
    kernel:       release of its kernel, under which it has Debian's.
    initramfs:    file of that kernel's initramfs.
    key:          file of the key that rpm trusts.
    texts:        {path: text} of further files.
    links:        {path: target}.
    """

    name: str
    title: str
    added: Tuple[str, ...]
    repositories: str
    registered: Tuple[str, ...]
    kernel: str
    initramfs: str
    key: str
    texts: Mapping[str, str]
    links: Mapping[str, str]

    def part(self) -> Part:
        return Part(
            name="root-%s" % self.name, title="root of %s: a layer over Debian's" % self.title,
            build=lambda job: _build(job, self), inputs=(COMMON, HOST / self.name, *LEFT_OUT, repr(self)),
            needs=(ROOT_PART, KEY_PART.name, "apt-debian", self.repositories))


def _build(job: Job, image: Image) -> None:
    base = job.part(ROOT_PART) / "root"
    upper, scratch = job.out / "root", job.out / ".scratch"
    for directory in (upper, scratch / "debs", scratch / "rpms", scratch / "files"):
        directory.mkdir(parents=True)
    kernel = max((path.name for path in (base / "usr/lib/modules").iterdir()), key=kernel_key)
    _add_debs(job, image, scratch / "debs", kernel)
    modules = upper / "usr/lib/modules" / image.kernel
    _link_modules(base / "usr/lib/modules" / kernel, modules)
    for path in _nouveau(modules):
        _rename_kernel(job, path, kernel, image.kernel)
    _write_files(job, image, scratch / "files")
    for name in image.registered:
        (path,) = job.part(image.repositories).glob("*/%s-[0-9]*.rpm" % name)
        shutil.copy(path, scratch / "rpms")
    job.run(["unshare", "--mount", "--propagation", "private", "sh", COMMON / "convert", base, upper, scratch, kernel,
             image.kernel, image.initramfs, image.key])
    shutil.rmtree(scratch)


def _add_debs(job: Job, image: Image, target: Path, kernel: str) -> None:
    mirror = Mirror(job, "main")
    mirror.download(image.added)
    mirror.close()
    for archive in mirror.pool.iterdir():
        archive.rename(target / archive.name)
    mirror.pool.rmdir()
    there = {path.name.split("_")[0] for path in target.iterdir()}
    for archive in of_suite(job.part("apt-debian")):
        name = archive.name.split("_")[0]
        if name not in there and name not in LEFT_OUT:
            shutil.copy(archive, target)
    if not list(target.glob("linux-headers-%s_*" % kernel)):
        raise BuildError("the mirror has no headers of kernel %s, which is the root's; build root-bookworm and "
                         "apt-debian anew" % kernel)


def of_suite(mirror: Path) -> List[Path]:
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


def _rename_kernel(job: Job, path: Path, kernel: str, release: str) -> None:
    """A kernel takes modules only whose vermagic names it."""
    section = job.out / ".modinfo"
    job.run(["objcopy", "--dump-section", ".modinfo=%s" % section, path, job.out / ".module"])
    section.write_bytes(section.read_bytes().replace(
        b"vermagic=%s " % kernel.encode(), b"vermagic=%s " % release.encode()))
    job.run(["objcopy", "--update-section", ".modinfo=%s" % section, job.out / ".module"])
    section.unlink()
    (job.out / ".module").replace(path)


def _write_files(job: Job, image: Image, target: Path) -> None:
    for tree in (COMMON, HOST / image.name):
        copy_tree(tree / "files", target)
    key = (job.part(KEY_PART.name) / PUBLIC_KEY).read_text()
    for name, text in {**image.texts, image.key: key}.items():
        _place(target, name).write_text(text)
    for name, to in image.links.items():
        _place(target, name).symlink_to(to)


def _place(target: Path, name: str) -> Path:
    path = target / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
