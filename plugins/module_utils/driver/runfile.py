# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that NVIDIA's installer (the runfile) has put on a host, and how it goes.

The installer knows no packages. It lists below /var/lib/nvidia what it has made and what it has overwritten;
nvidia-uninstall, which is the installer itself, removes the ones, puts the others back, and takes its module from DKMS.
The list goes last. It unloads the driver too, unless it is told not to: that is not its business, as nobody has been
asked to let go of the GPUs. Its exit code is 0 whatever comes of it, and it is among the files that it removes
(nvidia-installer 590.48.01, backup.c and nvidia-installer.c).
"""
from __future__ import annotations

import re
from typing import List, Sequence

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Disruption, Step

NAME = "driver"
REMOVE = "runfile.remove"
UNINSTALLER = "/usr/bin/nvidia-uninstall"
LIST = "/var/lib/nvidia/log"
# By its name it knows what it is to do
COPY = "/var/cache/gpuops/nvidia-uninstall"
_VERSION = re.compile(r"\((\d[\d.]*)\)\s*$|^(\d[\d.]*)\s*$")
_SECONDS = 900


def version(host: Host) -> str:
    """The version of the driver that can be taken away, 'unknown' where a removal was stopped after its list; '' where
    there is none, or nothing that could remove it."""
    listed = host.read(LIST)
    if listed is None:
        return "unknown" if host.exists(COPY) else ""
    if not any(map(host.is_executable, (UNINSTALLER, COPY))):
        return ""
    found = _VERSION.search(listed.split("\n", 1)[0])
    return found.group(1) or found.group(2) if found else "unknown"


def removal(there: str, files: Sequence[str], is_loaded: bool, requires: Sequence[str]) -> List[Step]:
    """there: its version, '' for none. files: those that no package owns."""
    if not there:
        return []
    return [Step(
        NAME, REMOVE, "driver %s of NVIDIA's installer" % there,
        "Packages take its place: nvidia-uninstall removes what it put there. A module that is loaded stays loaded.",
        Disruption.driver_reload if is_loaded else Disruption.none,
        change={"before": {"driver": there}, "after": {"driver": None}}, parameters={"files": list(files)},
        depends_on=tuple(requires), reversible=False)]


def remove(host: Host, journal: Journal, step: Step) -> None:
    """By a copy, which a removal that is stopped leaves; what counts is that the files are gone."""
    program = host.read_bytes(UNINSTALLER) if host.is_executable(UNINSTALLER) else None
    if program is not None:
        host.write_bytes(COPY, program, mode=0o700)
    done = host.run([host.path(COPY), "--silent", "--skip-module-unload"], check=False, timeout=_SECONDS)
    left = [path for path in (LIST, *step.parameters["files"]) if host.exists(path)]
    if left:
        raise GpuOpsError(
            "driver.runfile_not_removed",
            found="nvidia-uninstall has left %s: %s" % (
                ", ".join(left), " | ".join((done.stderr or done.stdout).splitlines()[-3:]) or "it says nothing"),
            wanted="none of the files that NVIDIA's installer brought",
            remedy="see /var/log/nvidia-uninstall.log; remove these files by hand, and run this again",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr)
    host.remove(COPY)


EXECUTORS = {REMOVE: remove}
