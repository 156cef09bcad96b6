# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A repository's public key as a user gives it: a URL, a path on the host or armoured text."""
from __future__ import annotations

import re
from typing import Callable

from ..core.errors import GpuOpsError
from ..core.host import Host
from .apt import keys


def read_given(host: Host, key: str, fetch: Callable[[str], bytes]) -> str:
    """The key, armoured from what was read of it. fetch: reads a URL."""
    if keys.is_armoured(key):
        return keys.read(key.encode()).armoured
    on_host = re.sub(r"^file:(//)?", "", key)
    data = host.read_bytes(on_host) if on_host.startswith("/") else fetch(key)
    if data is None:
        raise GpuOpsError(
            "packages.key_file_missing",
            found="no file %s on this host" % key,
            wanted="the repository's public key",
            remedy="give the key as a URL, as a path on the host, or as ASCII-armoured text",
        )
    return keys.read(data).armoured
