# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judge before a change: dockerd itself reads a scratch copy of daemon.json. Root alone may read it."""
from __future__ import annotations

import os
from typing import Optional

from ....core.errors import GpuOpsError
from ....core.host import Host
from ...model import Edit, Service
from . import configuration

# dockerd --validate came with 23.0
VALIDATE_SINCE = (23, 0)


def judge(host: Host, service: Service, edit: Edit) -> None:
    """dockerd itself reads a copy of the new file, with its own flags: what both say contradicts.

    Raises GpuOpsError when it does not take the file.
    """
    complaint = _complaint(host, service, edit.after)
    if not complaint:
        return
    before = _complaint(host, service, edit.before)
    raise GpuOpsError(
        "runtime.docker_refuses",
        found="dockerd refuses %s %s: %s" % (
            edit.path, "as it is" if before else "with our change", before or complaint),
        wanted="a configuration that dockerd reads",
        remedy="correct the file by hand until `dockerd --validate --config-file %s` succeeds; nothing was changed"
               % edit.path,
        file=edit.path,
    )


def _complaint(host: Host, service: Service, text: Optional[str]) -> str:
    """What dockerd says against a file, '' if nothing."""
    if service.release < VALIDATE_SINCE or text is None:
        return ""
    with host.scratch() as scratch:
        copy = os.path.join(scratch, "daemon.json")
        with open(copy, "w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
            handle.write(text)
        flags = configuration.without_flag(service.arguments[1:], "--config-file")
        done = host.run([service.binary, *flags, "--validate", "--config-file", copy], check=False)
    return (done.stderr or done.stdout).strip().replace(copy, service.root) if done.rc else ""
