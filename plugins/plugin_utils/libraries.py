# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The archive of pure-Python libraries that the controller ships to hosts."""
from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Dict, Tuple

from ansible.errors import AnsibleActionFail

SHIPPED: Dict[str, str] = {"pynvml": "nvidia-ml-py", "tomlkit": "tomlkit"}
REMOTE_FOLDER = "/var/lib/gpuops/lib"


@lru_cache(maxsize=1)
def archive() -> Tuple[bytes, str]:
    """(content, path on the host) of the archive; the path carries the content's hash, so it never goes stale."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for module in sorted(SHIPPED):
            for name, source in _sources(module):
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(entry, source.read_bytes())
    content = buffer.getvalue()
    return content, "%s/%s.zip" % (REMOTE_FOLDER, hashlib.sha256(content).hexdigest()[:20])


def _sources(module: str) -> Tuple[Tuple[str, Path], ...]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise AnsibleActionFail(
            "Found: no Python library %s on the controller. Wanted: the library that hosts get from here. "
            "Do: install %s into the Python that runs Ansible." % (module, SHIPPED[module])
        )
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return ((origin.name, origin),)
    return tuple(
        ("%s/%s" % (module, path.relative_to(origin.parent).as_posix()), path)
        for path in sorted(origin.parent.rglob("*.py"))
    )
