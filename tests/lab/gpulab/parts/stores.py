# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Image stores: what /var/lib/containerd holds once all images are imported, made once instead of on every host."""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

from ..cache import Job, Part
from ..topology import CONTAINERDS, IMAGES

SCRIPT = Path(__file__).resolve().parents[2] / "host" / "fill-store"


def store_name(image: str, containerd: str) -> str:
    """The store that fits a host: the layout of the databases is that of the containerd that wrote them."""
    return "store-%s-%s" % (image, containerd)


def _part(image: str, containerd: str) -> Part:
    root = "root-%s" % image
    programs = () if containerd == "debian" else ("containerd-%s" % containerd,)

    def build(job: Job) -> None:
        store = job.out / "containerd"
        store.mkdir()
        job.run(["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", SCRIPT,
                 job.part(root) / "root", store, job.part("images"),
                 job.part(programs[0]) / "bin" if programs else ""])

    return Part(store_name(image, containerd), "image store of %s hosts, containerd %s" % (image, containerd), build,
                inputs=(SCRIPT,), needs=(root, "images", *programs))


PARTS: Tuple[Part, ...] = tuple(_part(image, containerd) for image in IMAGES for containerd in CONTAINERDS)
