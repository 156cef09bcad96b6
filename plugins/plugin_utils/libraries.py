# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The archive that the controller ships to hosts: pure-Python libraries, and the collection's own code."""
from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, Iterator, Tuple

from ansible import constants as C

from ..module_utils import shipped
from ..module_utils.core.errors import GpuOpsError

LIBRARIES: Dict[str, str] = {"pynvml": "nvidia-ml-py", "tomlkit": "tomlkit"}


def archive() -> Tuple[bytes, str]:
    """(content, path on the host) of the archive; the path carries the content's hash, so it never goes stale.

    Each task is a process of its own: the first one of a run leaves it to the others in the run's own directory.
    """
    kept = Path(C.DEFAULT_LOCAL_TMP) / "gpuops-libraries.zip"
    try:
        content = kept.read_bytes()
    except FileNotFoundError:
        content = _made()
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as new:
            new.write(content)
        os.replace(new.name, kept)
    return content, "%s/%s.zip" % (shipped.DIRECTORY, hashlib.sha256(content).hexdigest()[:20])


def _made() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, source in sorted([*_own(), *(each for module in LIBRARIES for each in _sources(module))]):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, source.read_bytes())
    return buffer.getvalue()


def _own() -> Iterator[Tuple[str, Path]]:
    directory = Path(shipped.__file__).parent
    for path in directory.rglob("*.py"):
        yield "/".join([*shipped.PACKAGE.split("."), path.relative_to(directory).as_posix()]), path


def _sources(module: str) -> Iterator[Tuple[str, Path]]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise GpuOpsError(
            "host.library_not_on_controller",
            found="no Python library %s on the controller" % module,
            wanted="the library that hosts get from here",
            remedy="install %s into the Python that runs Ansible" % LIBRARIES[module],
        )
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        yield origin.name, origin
        return
    for path in origin.parent.rglob("*.py"):
        yield "%s/%s" % (module, path.relative_to(origin.parent).as_posix()), path
