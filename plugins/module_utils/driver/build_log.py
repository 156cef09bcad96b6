# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What DKMS leaves of a build that failed, in few lines."""
from __future__ import annotations

import re

from ..core.host import Host

LOG_LINES = 12
# As compilers, linkers and modpost write it; not in the name of a file (error.o) or of an option (-Werror)
_ERROR = re.compile(r"(?:^|[\s:])(?:fatal )?(?:error|ERROR)(?::|$|!)|undefined!|undefined reference")


def last_log(host: Host, module: str = "nvidia*/*", tree: str = "/var/lib/dkms") -> str:
    """The end of the newest log that DKMS left of a build that failed, '' when there is none."""
    found = [(made.st_mtime_ns, name) for name in host.glob("%s/%s/build/make.log" % (tree, module))
             for made in [host.stat(name)] if made is not None]
    if not found:
        return ""
    newest = max(found)[1]
    return "%s: %s" % (newest, telling_lines(host.read(newest) or ""))


def telling_lines(text: str) -> str:
    """The first lines that name an error: make tells hundreds after them. The last lines where none does."""
    errors = [line for line in text.splitlines() if _ERROR.search(line)]
    return " | ".join(errors[:LOG_LINES]) or last_lines(text)


def last_lines(text: str) -> str:
    return " | ".join(text.splitlines()[-LOG_LINES:])
