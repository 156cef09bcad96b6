# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The supported releases of ansible-core, each in an environment of its own."""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import bootstrap
import workspace

# Release -> exact version, and the minor versions of Python 3 that can run it, the preferred one first.
RELEASES: Dict[str, Tuple[str, Tuple[int, ...]]] = {
    "2.16": ("2.16.19", (11, 12, 10)),
    "2.17": ("2.17.14", (11, 12, 10)),
    "2.18": ("2.18.19", (11, 12, 13)),
    "2.19": ("2.19.14", (11, 12, 13)),
    "2.20": ("2.20.10", (12, 13, 14)),
    "2.21": ("2.21.5", (12, 13, 14)),
}
# What the controller of GPU hosts needs beside ansible-core, as the README says; a cluster needs more.
CONTROLLER = ("nvidia-ml-py", "tomlkit")

Command = Callable[[Sequence[Union[str, Path]]], None]


def python_for(release: str) -> Optional[str]:
    """An interpreter of this machine that can run the release."""
    for minor in RELEASES[release][1]:
        path = bootstrap.interpreter(minor)
        if path:
            return path
    return None


def possible() -> List[str]:
    """The releases that this machine has a Python for, oldest first."""
    return [release for release in RELEASES if python_for(release)]


def oldest_and_newest() -> List[str]:
    found = possible()
    return list(dict.fromkeys([found[0], found[-1]])) if found else list(RELEASES)


def environment(directory: Path, release: str, python: str, packages: Sequence[str], run: Command) -> Path:
    """A virtual environment below directory with this release, these packages and nothing else; made once."""
    version = RELEASES[release][0]
    digest = hashlib.sha256("\n".join([*bootstrap.pins(), *packages]).encode()).hexdigest()[:8]
    target = directory / ("core-%s-%s-%s" % (version, Path(python).name, digest))
    if (target / bootstrap.READY).is_file():
        return target
    with _alone(target):
        if not (target / bootstrap.READY).is_file():
            shutil.rmtree(target, ignore_errors=True)
            run([python, "-m", "venv", target])
            constraints = target / "constraints.txt"
            # Each ansible-core has bounds of its own for the resolver of Galaxy.
            constraints.write_text("".join(pin + "\n" for pin in bootstrap.pins()
                                           if not pin.startswith(("ansible", "resolvelib"))))
            run([target / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                 constraints, "ansible-core==%s" % version, *packages])
            (target / bootstrap.READY).touch()
    return target


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Whoever makes the same at the same time waits."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open("%s.lock" % target, "w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def link_collections(root: Path, names: Sequence[str] = ("ansible/posix", "kubernetes/core")) -> None:
    """Put the collections that ours depends on below root, from the development environment."""
    site = next((workspace.venv() / "lib").glob("python3.*")) / "site-packages" / "ansible_collections"
    for name in names:
        link = root / "ansible_collections" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(site / name)
