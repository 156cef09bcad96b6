# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kills runs of container_runtime before each of their changes of a host, and sees what becomes of it.

Runs on the host, as root, with a job (JSON) in its input; tells what it found as JSON. A change is a rename, a removal
or a line of the journal, or a restart of containerd: Python's audit events tell each before it happens.
"""
from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import cri, policy  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import Containerd  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import CAPABILITY  # noqa: E402

ETC, STATE = "/etc/containerd", "/var/lib/gpuops"
SOCKET = "/run/containerd/containerd.sock"
READY_SECONDS = 30.0
State = Tuple[Dict[str, Any], FrozenSet[str], List[str]]


def is_change(event: str, arguments: Tuple[Any, ...]) -> bool:
    if event == "subprocess.Popen":
        return list(arguments[1][:2]) == ["systemctl", "restart"]
    if event == "open":
        path, _mode, flags = arguments
        return isinstance(flags, int) and bool(flags & os.O_APPEND) and str(path).startswith(STATE)
    if event not in ("os.rename", "os.remove", "os.rmdir"):
        return False
    path = str(arguments[1 if event == "os.rename" else 0])
    return path.startswith((ETC, STATE)) and not os.path.basename(path).startswith(".gpuops-")


def run(state: str, options: Dict[str, Any], killed_before: Optional[int] = None) -> Tuple[int, str]:
    """(exit code or minus the signal, number of changes or the error) of a run in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        changes = 0

        def watch(event: str, arguments: Tuple[Any, ...]) -> None:
            nonlocal changes
            if is_change(event, arguments):
                if changes == killed_before:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes += 1

        sys.addaudithook(watch)
        parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
        code, told = 0, ""
        try:
            Run(CAPABILITY, dict(parameters, state=state, **options), Host(), host_facts).apply()
            told = str(changes)
        except GpuOpsError as error:
            code, told = 1, str(error)
        os.write(writer, told.encode())
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told


def seen() -> State:
    """The files, what the daemon knows of handlers, and which files are on record as changed."""
    files: Dict[str, Any] = {}
    for path in sorted(Path(ETC).rglob("*")):
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        files[str(path)] = (oct(stat.st_mode), stat.st_uid, stat.st_gid, content)
    state = Path(STATE, "state.json")
    return files, handlers(), sorted(json.loads(state.read_text())["originals"]) if state.exists() else []


def handlers() -> FrozenSet[str]:
    """Handlers of the running daemon, once it serves."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            status = cri.CriClient(SOCKET).status()
            if status.ready:
                return Containerd().running_handlers(status) or frozenset()
        except GpuOpsError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit("CRI does not answer")
        time.sleep(0.05)


def reboot() -> None:
    """What a reboot is to containerd: it reads its files anew, whatever state they are in."""
    subprocess.run(["systemctl", "restart", "containerd"], check=True)
    handlers()


def main() -> None:
    job = json.load(sys.stdin)
    sys.path.insert(0, str(HERE / "libraries.zip"))
    for name, text in job["files"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    reboot()
    faults: List[str] = []
    ends: Dict[str, State] = {"absent": seen()}
    changes: Dict[str, int] = {}
    for state in ("present", "absent"):
        code, told = run(state, job["options"])
        if code != 0:
            raise SystemExit(told)
        changes[state] = int(told)
        if ends.setdefault(state, seen()) != seen():
            faults.append("undisturbed, a removal leaves something")
    for number in range(max(changes.values())):
        for state in ("present", "absent"):
            where = "%s, killed before change %d of %d" % (state, number + 1, changes[state])
            if number < changes[state]:
                code, told = run(state, job["options"], number)
                if code != -signal.SIGKILL:
                    faults.append("%s: it was not killed (%d %s)" % (where, code, told))
                reboot()
            code, told = run(state, job["options"])
            if code != 0:
                faults.append("%s: %s" % (where, told))
            if seen() != ends[state]:
                faults.append("%s: %s instead of %s" % (where, seen(), ends[state]))
    json.dump({"changes": changes, "faults": faults}, sys.stdout)


if __name__ == "__main__":
    main()
