# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What makes a host one with CRI-O: an overlay layer laid out like CRI-O's packages, and the store of its images."""
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Tuple

from ..cache import Job, Part
from ..topology import IMAGES
from . import gobuilds
from .families import FAMILIES
from .layer import copy_tree
from .packages import ROOT_PART, Mirror

FILES = Path(__file__).resolve().parents[2] / "host" / "crio"
PROGRAMS = "cri-o"
LAYER = "cri-o-layer"
MODULE = "github.com/cri-o/cri-o"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Where CRI-O's packages have theirs, outside PATH
MONITOR = "usr/libexec/crio/conmon"
PINNS_FLAGS = ("-std=c99", "-Os", "-Wall", "-static", "-s")


def store_part(image: str) -> str:
    return "store-%s-cri-o" % image


def _build_layer(job: Job) -> None:
    copy_tree(FILES, job.out)
    _add_monitor(job)
    # The same file system holds all parts, and a host reads it only
    (job.out / "usr/bin").mkdir()
    os.link(job.part(PROGRAMS) / "bin/crio", job.out / "usr/bin/crio")
    family = next(each for each in FAMILIES if each.name == PROGRAMS)
    module = gobuilds._module_source(family, family.targets[0], MODULE, job)
    job.run(["gcc", *PINNS_FLAGS, "-o", job.out / "usr/bin/pinns", *sorted((module / "pinns/src").glob("*.c"))])


def _add_monitor(job: Job) -> None:
    """Debian's conmon, and the libraries that the root lacks for it."""
    mirror = Mirror(job, "main")
    unpacked = job.out / ".unpacked"
    for archive in mirror.download(["conmon"]):
        job.run(["dpkg-deb", "--extract", archive, unpacked])
    (job.out / LIBRARIES).mkdir(parents=True)
    (unpacked / "usr/bin/conmon").rename(job.out / MONITOR)
    for library in sorted(unpacked.glob("**/*.so.*")):
        library.rename(job.out / LIBRARIES / library.name)
    mirror.close()
    for scratch in (unpacked, mirror.pool):
        shutil.rmtree(scratch)


def _build_store(job: Job) -> None:
    store = job.out / "containers/storage"
    store.mkdir(parents=True)
    scratch = job.out / ".run"
    images = job.part("images")
    for reference, archive in sorted(json.loads((images / "index.json").read_text()).items()):
        # The storage library leaves its directory mounted
        job.run(["unshare", "--mount", "--propagation", "private", job.part(PROGRAMS) / "bin/copyimg",
                 "--root", store, "--runroot", scratch, "--storage-driver", "overlay",
                 "--signature-policy", FILES / "etc/crio/policy.json",
                 "--image-name", reference, "--import-from", "docker-archive:%s" % (images / archive)])
    shutil.rmtree(scratch, ignore_errors=True)


PARTS: Tuple[Part, ...] = (
    Part(LAYER, "CRI-O, its helpers and its configuration on a host", _build_layer,
         inputs=(FILES, *PINNS_FLAGS), needs=(PROGRAMS, ROOT_PART)),
    *(Part(store_part(image), "image store of %s hosts, CRI-O" % image, _build_store, needs=("images", PROGRAMS))
      for image in IMAGES),
)
