# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keeps one host running: boots it with systemd-nspawn, and again whenever it reboots.

Started as ``python3 -m gpulab.supervisor HOST_DIRECTORY`` in a mount namespace of its own, so the overlay goes away
with the last process of the host. It ends when the host powers off.
"""
from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from . import cgroups, disk

REBOOT = 133
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Machine:
    """What systemd-nspawn must know about a host.

    written: the directory of the overlay's upper layer and of its work.
    """

    machine: str
    hostname: str
    bridge: str
    cgroup: str
    uuid: str
    written: str
    layers: Tuple[str, ...]
    binds: Tuple[str, ...]
    binds_readonly: Tuple[str, ...]
    disk: bool = False

    def save(self, directory: Path) -> None:
        (directory / "machine.json").write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, directory: Path) -> "Machine":
        table: Dict[str, Any] = json.loads((directory / "machine.json").read_text())
        fields: Dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value
                                  for key, value in table.items()}
        return cls(**fields)


def nspawn_command(machine: Machine, root: Path, unified: bool) -> List[str]:
    argv = ["systemd-nspawn", "--quiet", "--settings=no", "-D", str(root), "-M", machine.machine,
            "--hostname=%s" % machine.hostname, "--uuid=%s" % machine.uuid,
            "--register=no", "--keep-unit", "--boot", "--console=read-only", "--link-journal=no",
            "--resolv-conf=off", "--timezone=off", "--capability=all",
            "--system-call-filter=@keyring @mount bpf", "--network-bridge=%s" % machine.bridge]
    argv += ["--bind=%s" % each for each in machine.binds]
    argv += ["--bind-ro=%s" % each for each in machine.binds_readonly]
    if machine.disk:
        # libcni syncs nothing: after a power cut its record of a sandbox is an empty file, with which no kubelet ever
        # gets rid of the sandbox, and its pod never starts again (containernetworking/cni, libcni/api.go)
        argv.append("--tmpfs=/var/lib/cni")
    if not unified:
        # systemd 256 and later boot on cgroup v1 only when told twice; older ones ignore the second word.
        argv += ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
    return argv


def mount_root(directory: Path, machine: Machine) -> Path:
    root = directory / "root"
    written = Path(machine.written)
    files = disk.mount(directory, written / "upper") if machine.disk else written
    options = "lowerdir=%s,upperdir=%s,workdir=%s" % (":".join(machine.layers), files / "upper", files / "work")
    if not machine.disk:
        # What such a host writes outlives its power cuts, synced or not, and hosts side by side wait for one disk. The
        # mark is of a boot before, so that nobody takes the files of a machine that crashed for whole
        # (https://docs.kernel.org/filesystems/overlayfs.html#volatile-mount)
        shutil.rmtree(files / "work" / "work" / "incompat", ignore_errors=True)
        options += ",volatile"
    subprocess.run(["mount", "-t", "overlay", machine.machine, "-o", options, str(root)], check=True)
    return root


def boot(argv: Sequence[str], machine: Machine, unified: bool) -> int:
    """Run the host until it stops; return systemd-nspawn's exit status."""
    cgroups.remove(machine.cgroup)
    cgroups.create(machine.cgroup)
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        cgroups.join(machine.cgroup)

    environment = {**os.environ, "UNIFIED_CGROUP_HIERARCHY": "1" if unified else "0"}
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=environment, preexec_fn=enter).wait()


def main(directory: Path) -> int:
    machine = Machine.load(directory)
    unified = cgroups.is_unified()
    argv = nspawn_command(machine, mount_root(directory, machine), unified)
    while True:
        print("--- boot of %s at %s" % (machine.hostname, time.strftime("%H:%M:%S")), flush=True)
        status = boot(argv, machine, unified)
        print("--- %s ended with %d" % (machine.hostname, status), flush=True)
        if status != REBOOT:
            cgroups.remove(machine.cgroup)
            return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
