# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the controller ships to the host: pure Python, one archive, addressed by its hash (see ..shipped)."""
from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import marshal
import os
import struct
import sys
import zipfile
from types import ModuleType

from .. import shipped
from .errors import GpuOpsError, HostFailed
from .host import Host


def require(name: str) -> ModuleType:
    """Import a shipped library (tomlkit, pynvml). Raises GpuOpsError when it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GpuOpsError(
            found="no Python library %s for %s (%s)" % (name, sys.executable, error),
            wanted="the library that the collection's action plugin ships to the host",
            remedy="run the module through ansible-playbook with tomlkit and nvidia-ml-py installed on the controller",
        ) from error


def keep_compiled(host: Host) -> None:
    """Compile the archive in use, for the calls that follow, unless that is done or it is not kept on this host.

    To be called by one process at a time. That it cannot be written costs time and nothing else.
    """
    archive = os.environ.get(shipped.VARIABLE, "")
    if os.path.dirname(archive) != shipped.FOLDER or host.is_file(shipped.compiled(archive)):
        return
    with contextlib.suppress(HostFailed):
        content = host.read_bytes(archive)
        if content is not None:
            host.write_bytes(shipped.compiled(archive), _compiled(archive, content), 0o600)


def _compiled(archive: str, content: bytes) -> bytes:
    """An archive's modules as this Python reads them (PEP 3147: magic number, flags, time and size of the source).

    There is no source beside them, so zipimport compares neither time nor size.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as sources, zipfile.ZipFile(packed, "w") as made:
        for name in sources.namelist():
            code = compile(sources.read(name), os.path.join(archive, name), "exec", dont_inherit=True)
            entry = zipfile.ZipInfo(name + "c", date_time=(1980, 1, 1, 0, 0, 0))
            made.writestr(entry, importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, 0) + marshal.dumps(code))
    return packed.getvalue()
