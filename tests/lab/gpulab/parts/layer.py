# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The laboratory's own units and scripts: an overlay layer above a root, so a change costs no new bootstrap."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Tuple

from ..cache import Job, Part

HOST_FILES = Path(__file__).resolve().parents[2] / "host" / "layer"


def copy_tree(tree: Path, out: Path) -> None:
    """Copy files with the modes of an installed system, whatever the checkout's umask was."""
    for source in sorted(tree.rglob("*")):
        target = out / source.relative_to(tree)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir(exist_ok=True)
            target.chmod(0o755)
        else:
            shutil.copyfile(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
    out.chmod(0o755)


def _build_layer(job: Job) -> None:
    copy_tree(HOST_FILES, job.out)


PARTS: Tuple[Part, ...] = (
    Part(name="host-layer", title="units and scripts of a laboratory host", build=_build_layer, inputs=(HOST_FILES,)),
)
