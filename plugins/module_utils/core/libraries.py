# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the controller ships to the host: pure Python, one archive, addressed by its hash (see ..shipped)."""
from __future__ import annotations

import contextlib
import importlib
import io
import marshal
import os
import sys
import time
import zipfile
from types import ModuleType
from typing import Container

from .. import shipped
from .errors import GpuOpsError
from .host import Host, Ownership
from .journal import Journal

# Other releases of the collection, and other Pythons, may be at work on the host by turns.
UNUSED_SECONDS = 30 * 86400
# What saves time does not take the last bytes, which records of changes need.
ROOM = 64 << 20

_OWN = Ownership(0o600, -1, -1)


def require(name: str) -> ModuleType:
    """Import a shipped library (tomlkit, pynvml). Raises GpuOpsError when it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GpuOpsError(
            "host.library_missing",
            found="no Python library %s for %s (%s)" % (name, sys.executable, error),
            wanted="the library that the collection's action plugin ships to the host",
            remedy="run the module through `ansible-playbook` with `tomlkit` and `nvidia-ml-py` installed on the "
                   "controller",
        ) from error


def keep(host: Host) -> None:
    """Keep the archive in use for the calls that follow, and what this Python compiles of it; the long unused goes.

    Where nothing on the host is ours, all of it goes; calls that use it go on (see shipped.Archive). To be called by
    one process at a time. That it cannot be done costs time and nothing else.
    """
    archive = os.environ.get(shipped.VARIABLE, "")
    if not archive:
        return
    with contextlib.suppress(GpuOpsError):
        if Journal(host).is_bare():
            _clear(host, (), float("inf"))
            host.remove_empty_dir(shipped.DIRECTORY)
            return
        kept = os.path.join(shipped.DIRECTORY, os.path.basename(archive))
        made = shipped.compiled(kept)
        if not (is_good(host, kept) and is_good(host, made)):
            _keep(host, archive, kept)
        _clear(host, (kept, made), time.time() - UNUSED_SECONDS)


def _keep(host: Host, archive: str, kept: str) -> None:
    content = host.read_bytes(archive)
    if content is not None and shipped.is_whole(kept, content) and host.free(shipped.DIRECTORY) >= ROOM:
        put(host, kept, content)


def put(host: Host, path: str, content: bytes) -> None:
    """Put an archive where only root can write it, and beside it what this Python compiles of it."""
    host.make_directory(os.path.dirname(path), 0o700)
    host.put_back(path, content, _OWN)
    # A library may have a module for newer ones only
    with contextlib.suppress(SyntaxError):
        host.put_back(shipped.compiled(path), _compiled(path, content), _OWN)


def is_good(host: Host, path: str) -> bool:
    """Whether what is kept is whole, and nobody else can have written it."""
    found = [host.stat(each) for each in (path, os.path.dirname(path))]
    content = host.read_bytes(path)
    return content is not None and shipped.is_whole(path, content) and all(
        each is not None and shipped.is_private(each) for each in found)


def _clear(host: Host, needed: Container[str], before: float) -> None:
    """Remove what nobody has read or written since then (time in seconds of the epoch)."""
    for name in host.list(shipped.DIRECTORY):
        path = os.path.join(shipped.DIRECTORY, name)
        found = host.stat(path)
        if path not in needed and found is not None and max(found.st_atime, found.st_mtime) < before:
            host.remove(path)


def _compiled(archive: str, content: bytes) -> bytes:
    """An archive's modules as this Python has compiled them, in one that says itself whether it is whole."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as sources, zipfile.ZipFile(packed, "w") as made:
        for name in sources.namelist():
            code = compile(sources.read(name), os.path.join(archive, name), "exec", dont_inherit=True)
            made.writestr(zipfile.ZipInfo(name + "c", date_time=(1980, 1, 1, 0, 0, 0)), marshal.dumps(code))
        made.comment = shipped.SEAL
    return shipped.sealed(packed.getvalue()[:-len(shipped.SEAL)])
