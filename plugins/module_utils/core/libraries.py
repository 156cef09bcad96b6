# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Libraries that the controller ships to the host: pure Python, one archive, addressed by its hash."""
from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from types import ModuleType
from typing import List

from .errors import GpuOpsError, HostFailed, LibraryMissing
from .host import Host

_archive: List[str] = []


def use_archive(path: str) -> None:
    """Name the archive that require() imports from; '' means the libraries of the host's own Python."""
    _archive[:] = [path] if path else []


def require(name: str) -> ModuleType:
    """Import a shipped library (tomlkit, pynvml).

    Raises LibraryMissing when the archive is not on the host yet, or not whole; GpuOpsError when no archive was named
    and the host's own Python has no such library.
    """
    if _archive and _archive[0] not in sys.path:
        if not _is_whole(_archive[0]):
            raise LibraryMissing(_archive[0])
        sys.path.insert(0, _archive[0])
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GpuOpsError(
            found="no Python library %s for %s (%s)" % (name, sys.executable, error),
            wanted="the library that the collection's action plugin ships to the host",
            remedy="run the module through ansible-playbook with tomlkit and nvidia-ml-py installed on the controller",
        ) from error


def _is_whole(path: str) -> bool:
    """Whether an archive is there. One whose name is a hash has that content, unless a power cut has left less."""
    try:
        content = Host().read_bytes(path)
    except HostFailed:
        return False
    named = re.fullmatch(r"([0-9a-f]{20})\.zip", os.path.basename(path))
    return content is not None and (named is None or hashlib.sha256(content).hexdigest().startswith(named.group(1)))
