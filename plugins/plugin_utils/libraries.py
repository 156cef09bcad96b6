# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The archive that the controller ships to hosts: pure-Python libraries, and the collection's own code."""
from __future__ import annotations

import hashlib
import importlib.util
import io
import modulefinder
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, Iterator, Tuple

import ansible
from ansible import constants as C

from ..module_utils import shipped
from ..module_utils.core.errors import GpuOpsError

LIBRARIES: Dict[str, str] = {"pynvml": "nvidia-ml-py", "tomlkit": "tomlkit"}
# What the command `gpuops` uses of Ansible, with all that it imports
OF_ANSIBLE = "ansible.module_utils.common.arg_spec"


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
        files = {**dict(_own()), **{name: content for module in LIBRARIES for name, content in _sources(module)},
                 **dict(_of_ansible())}
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, content)
    return buffer.getvalue()


def _own() -> Iterator[Tuple[str, bytes]]:
    directory, packages = Path(shipped.__file__).parent, shipped.PACKAGE.split(".")
    for number in range(1, len(packages)):
        yield "/".join([*packages[:number], "__init__.py"]), b""
    for path in directory.rglob("*.py"):
        yield "/".join([*packages, path.relative_to(directory).as_posix()]), path.read_bytes()


def _of_ansible() -> Iterator[Tuple[str, bytes]]:
    directory = Path(ansible.__file__).parents[1]
    finder = modulefinder.ModuleFinder(path=[str(directory)])
    finder.import_hook(OF_ANSIBLE)
    for name, found in finder.modules.items():
        # Namespaces have no file
        path = Path(getattr(found, "__file__", None) or "")
        if name.split(".")[0] == "ansible" and path.name:
            yield shipped.STANDALONE + path.relative_to(directory).as_posix(), path.read_bytes()


def _sources(module: str) -> Iterator[Tuple[str, bytes]]:
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
        yield origin.name, origin.read_bytes()
        return
    for path in origin.parent.rglob("*.py"):
        yield "%s/%s" % (module, path.relative_to(origin.parent).as_posix()), path.read_bytes()
