# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's cloud-init, with all that a host lacks for it: what writes the files of an autoscaler's pool."""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

from .. import aptrepo
from ..cache import Job, Part
from .packages import ROOT_PART, SUITE, Mirror

NAME = "apt-debian-cloud-init"
PACKAGE = "cloud-init"
_RELEASE = {"Origin": "Debian", "Label": "Debian"}


def build(job: Job) -> None:
    mirror, key = Mirror(job, "main"), job.part(aptrepo.KEY_PART.name)
    aptrepo.index_suite(job, key, job.out, SUITE, mirror.download([PACKAGE]), _RELEASE)
    mirror.close()
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


PARTS: Tuple[Part, ...] = (
    Part(name=NAME, title="mirror of Debian's cloud-init (for slow tests)", build=build,
         inputs=(Path(aptrepo.__file__), PACKAGE), needs=(aptrepo.KEY_PART.name, ROOT_PART)),
)
