# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where things are: the repository, the cache, and the collection at a path that Ansible accepts.

`python tests/gates/workspace.py` prints the value for ANSIBLE_COLLECTIONS_PATH, with `--work` the scratch directory.
"""
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterable, List

REPOSITORY = Path(__file__).resolve().parents[2]
# What the gates on shipped content do not look at; `build_ignore` of galaxy.yml keeps it out of the tarball too.
NOT_CONTENT = (
    ".ci/",
    "execution-environment.yml",
    "Makefile",
    "pyproject.toml",
    "tests/benchmarks/",
    "tests/gates/",
    "tests/integration/",
    "tests/lab/",
    "tests/soak/",
    "tests/unit/",
)


def cache_root() -> Path:
    """Directory of everything downloaded and built (``GPUOPS_CACHE`` overrides it)."""
    return Path(os.environ.get("GPUOPS_CACHE") or Path.home() / ".cache" / "gpuops")


def venv() -> Path:
    return cache_root() / "venv"


def work_root() -> Path:
    """Scratch directory of this very checkout, so that two checkouts do not disturb each other."""
    return cache_root() / "work" / hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]


def apart(name: str) -> str:
    """The name of a laboratory, a file or a directory that runs side by side do not share: GPUOPS_TEST_LABS tells them
    apart."""
    return name + os.environ.get("GPUOPS_TEST_LABS", "")


def collections_root() -> Path:
    """Directory in which ``ansible_collections/gpuops/nvidia`` is the working tree, through a link if need be."""
    if REPOSITORY.parts[-3:] == ("ansible_collections", "gpuops", "nvidia"):
        return REPOSITORY.parents[2]
    root = work_root() / "tree"
    link = root / "ansible_collections" / "gpuops" / "nvidia"
    link.parent.mkdir(parents=True, exist_ok=True)
    try:
        link.symlink_to(REPOSITORY)
    except FileExistsError:
        pass
    return root


def source_files() -> List[str]:
    """Files of the working tree that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, stdout=subprocess.PIPE,
    ).stdout.decode()
    return sorted(name for name in set(listing.split("\0")) if name and os.path.lexists(REPOSITORY / name))


def copy_content(root: Path, leave_out: Iterable[str] = NOT_CONTENT) -> Path:
    """Lay a copy of the collection under ``root`` as a git tree of its own; only what changed is written again."""
    target = root / "ansible_collections" / "gpuops" / "nvidia"
    target.mkdir(parents=True, exist_ok=True)
    wanted = [name for name in source_files() if not name.startswith(tuple(leave_out))]
    for name in wanted:
        _copy_if_changed(REPOSITORY / name, target / name)
    _remove_others(target, set(wanted))
    if not (target / ".git").is_dir():
        subprocess.run(["git", "init", "--quiet", str(target)], check=True)
    subprocess.run(["git", "add", "--all", "--force", "--", *wanted], cwd=target, check=True)
    return target


def _copy_if_changed(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(os.readlink(source))
        return
    if target.is_file() and not target.is_symlink():
        same_mode = target.stat().st_mode == source.stat().st_mode
        if same_mode and target.read_bytes() == source.read_bytes():
            return
    shutil.copy2(source, target)


def _remove_others(target: Path, wanted: "set[str]") -> None:
    for path in sorted(target.rglob("*"), reverse=True):
        relative = path.relative_to(target)
        if relative.parts[0] == ".git":
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif str(relative) not in wanted:
            path.unlink()


if __name__ == "__main__":
    print(work_root() if sys.argv[1:] == ["--work"] else collections_root())
