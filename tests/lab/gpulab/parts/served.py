# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's packages as hosts fetch them: those of the mirror, packed with gzip in place of xz.

With a first driver comes a compiler, 250 MB of files. To unpack xz takes a processor four seconds, gzip one. What is in
the packages is the same byte for byte.
"""
from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Iterator, List, Tuple

from .. import aptrepo
from ..cache import Job, Part
from .packages import SUITE, update_suite

MIRROR = "apt-debian"
SERVED = "apt-debian-served"
# ar(5): a member's name, the rest of its header, its size, the end of the header
_MAGIC, _END = b"!<arch>\n", b"`\n"
_LEVEL = 1
_RELEASE = {"Origin": "Debian", "Label": "Debian"}


def members(data: bytes) -> Iterator[Tuple[bytes, bytes, bytes]]:
    """(name, rest of the header up to the size, content) of a package file's members (deb(5))."""
    at = len(_MAGIC)
    while at < len(data):
        header = data[at:at + 60]
        size = int(header[48:58])
        yield header[:16].rstrip(b" /"), header[16:48], data[at + 60:at + 60 + size]
        at += 60 + size + size % 2


def repack(source: Path, target: Path) -> None:
    """Write a package file whose members are packed with gzip where they were with xz."""
    with target.open("wb") as handle:
        handle.write(_MAGIC)
        for name, rest, content in members(source.read_bytes()):
            if name.endswith(b".xz"):
                name, content = name[:-3] + b".gz", gzip.compress(lzma.decompress(content), _LEVEL, mtime=0)
            handle.write(name.ljust(16) + rest + b"%-10d" % len(content) + _END + content + b"\n" * (len(content) % 2))


def build(job: Job) -> None:
    mirror, key = job.part(MIRROR), job.part(aptrepo.KEY_PART.name)
    (job.out / "pool").mkdir()
    for suite in (SUITE, update_suite(SUITE)):
        index = mirror / "dists" / suite / "main/binary-amd64/Packages"
        if index.exists():
            names = [line.split(" ", 1)[1] for line in index.read_text().splitlines() if line.startswith("Filename:")]
            debs: List[Path] = [job.out / name for name in names]
            for name, deb in zip(names, debs):
                repack(mirror / name, deb)
            aptrepo.index_suite(job, key, job.out, suite, debs, _RELEASE)
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


PARTS: Tuple[Part, ...] = (
    Part(name=SERVED, title="Debian packages that hosts of %s install, as they are served" % SUITE, build=build,
         inputs=(Path(aptrepo.__file__),), needs=(MIRROR, aptrepo.KEY_PART.name)),
)
