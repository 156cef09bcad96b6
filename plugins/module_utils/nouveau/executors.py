# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nouveau's own actions."""
from __future__ import annotations

from typing import Dict

from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, run_argv, write_file
from ..hardware.boot import kernels
from .observation import initramfs_path, look_inside, stamp


def write_blacklist(host: Host, journal: Journal, step: Step) -> None:
    """Write the file, and note what each initramfs holds: later runs then need no look inside."""
    write_file(host, journal, step)
    tool = next((name for name in ("update-initramfs", "dracut") if host.which(name)), "")
    noted = {}
    for path in (initramfs_path(host, kernel) for kernel in kernels(host)):
        if tool and path:
            nouveau, files = look_inside(host, tool, path, {})
            if files is not None:
                noted[path] = {"stamp": stamp(host, path), "nouveau": nouveau, "files": list(files)}
    journal.remember("nouveau", {"initramfs": noted})


EXECUTORS: Dict[str, Executor] = {
    "file.write": write_blacklist,
    "initramfs.rebuild": run_argv,
    "module.unload": run_argv,
}
