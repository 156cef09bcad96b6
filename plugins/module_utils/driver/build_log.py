# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What DKMS leaves of a build that failed, in few lines."""
from __future__ import annotations

import re
from typing import Set

from ..core.errors import GpuOpsError
from ..core.host import CommandResult, Host
from ..core.progress import BUILD

LOG_LINES = 12
# What says nothing of the module: of libc (strerror(3)), and of gcc and make where the kernel killed for memory
_HAMPERED = re.compile(r".*(?:No space left on device|Disk quota exceeded|Cannot allocate memory|Input/output error"
                       r"|Read-only file system|Killed signal terminated program|\] Killed$).*", re.MULTILINE)
# As compilers, linkers and modpost write it; not in the name of a file (error.o) or of an option (-Werror)
_ERROR = re.compile(r"(?:^|[\s:])(?:fatal )?(?:error|ERROR)(?::|$|!)|undefined!|undefined reference")


def last_log(host: Host, module: str = "nvidia*/*", tree: str = "/var/lib/dkms") -> str:
    """The end of the newest log that DKMS left of a build that failed, '' when there is none."""
    newest = _newest(host, module, tree)
    return "%s: %s" % (newest, telling_lines(host.read(newest) or "")) if newest else ""


def _newest(host: Host, module: str, tree: str) -> str:
    found = [(made.st_mtime_ns, name) for name in host.glob("%s/%s/build/make.log" % (tree, module))
             for made in [host.stat(name)] if made is not None]
    return max(found)[1] if found else ""


def kernels_of_log(host: Host, path: str) -> Set[str]:
    """The kernels that something was compiled for in the directory of a log: each build adds its own line."""
    return {of for _module, of in BUILD.findall(host.read(path) or "")}


def refuse_hampered(
    host: Host, kernel: str, done: CommandResult, module: str = "nvidia*/*", tree: str = "/var/lib/dkms"
) -> None:
    """Raises GpuOpsError where a build failed for want of room or memory, or was killed: that is of the host and of
    that moment, and says nothing of whether the module can be built for the kernel."""
    newest = _newest(host, module, tree)
    told = _HAMPERED.search("\n".join(((host.read(newest) or "") if newest else "", done.stderr, done.stdout)))
    why = told.group(0).strip() if told else "signal %d ended %s" % (-done.rc, done.argv[0]) if done.rc < 0 else ""
    if why:
        raise GpuOpsError(
            "driver.build_hampered",
            found="the build of a module for kernel %s was cut off: %s" % (kernel, why),
            wanted="free space in /var and /tmp, and memory, for a build",
            remedy="free some space, or let it have memory, and run again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)


def telling_lines(text: str) -> str:
    """The first lines that name an error: make tells hundreds after them. The last lines where none does."""
    errors = [line for line in text.splitlines() if _ERROR.search(line)]
    return " | ".join(errors[:LOG_LINES]) or last_lines(text)


def last_lines(text: str) -> str:
    return " | ".join(text.splitlines()[-LOG_LINES:])
