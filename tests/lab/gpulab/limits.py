# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernel limits that several hosts share because they share a kernel, raised where they are too low for a lab."""
from __future__ import annotations

from pathlib import Path
from typing import Dict

from .processes import LabError

# Each joined host takes some 25 inotify instances: systemd, containerd, kubelet, device plugin, CDI caches.
WANTED: Dict[str, int] = {
    "fs/inotify/max_user_instances": 1024,
    "fs/inotify/max_user_watches": 262144,
}
SYSCTL = Path("/proc/sys")


def raise_limits(wanted: Dict[str, int] = WANTED, sysctl: Path = SYSCTL) -> None:
    for name, least in wanted.items():
        path = sysctl / name
        if int(path.read_text()) >= least:
            continue
        try:
            path.write_text(str(least))
        except OSError as error:
            raise LabError("found %s = %s, wanted at least %d and may not set it (%s): sysctl -w %s=%d"
                           % (name, path.read_text().strip(), least, error, name.replace("/", "."), least)) from error
