# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write containerd's configuration, restart it, and put everything back when it does not come up again."""
from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from ...core.errors import GpuOpsError
from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor
from .configuration import load
from .observation import UNIT, Daemon, effective_digest, find_daemon
from .planner import EDIT, NAME, REMOVE, RESTART, WRITE
from .policy import RuntimePolicy
from .writer import edited

READY_SECONDS = 60


def write(host: Host, journal: Journal, step: Step) -> None:
    """Our own file, no more open than the root file is."""
    _keep(host, journal, step.subject)
    host.write(step.subject, step.change["after"], host.mode(step.parameters["root"]) or 0o644)


def edit(host: Host, journal: Journal, step: Step) -> None:
    """Our lines in somebody else's file, worked out again on the file as it is now."""
    tables = {tuple(table): values for table, values in step.parameters["tables"]}
    text = edited(step.subject, host.read(step.subject), tables)
    _keep(host, journal, step.subject)
    if text is None:
        host.remove(step.subject)
    else:
        host.write(step.subject, text)
    if not tables:
        journal.forget_original(step.subject)


def remove(host: Host, journal: Journal, step: Step) -> None:
    _keep(host, journal, step.subject)
    host.remove(step.subject)
    for original in journal.originals(NAME):
        if original.path == step.subject:
            for folder in reversed(original.folders):
                host.remove_empty_dir(folder)
    journal.forget_original(step.subject)


def restart(host: Host, journal: Journal, step: Step) -> None:
    """Restart containerd and wait until its CRI plugin answers; else the files go back and it is restarted again."""
    failure = _restart(host)
    if failure:
        undo: Dict[str, Optional[str]] = journal.recall(NAME).get("undo", {})
        for path, text in undo.items():
            _put_back(host, path, text)
        second = _restart(host) if undo else failure
        _remember(journal, undo=None)
        raise GpuOpsError(
            found="containerd does not come up with the new configuration: %s" % failure,
            wanted="a containerd whose CRI plugin answers within %d s" % READY_SECONDS,
            remedy="%s; see journalctl -u %s" % (_state_after(undo, second), UNIT),
            restored=sorted(undo),
        )
    daemon = find_daemon(host, _any_policy(step))
    if daemon is not None:
        configuration = load(host, daemon.root, daemon.release[0])
        _remember(journal, undo=None, verified={"pid": daemon.pid, "digest": effective_digest(configuration)})


def _restart(host: Host) -> str:
    """'' when containerd is back and answers, else what is wrong."""
    try:
        host.systemctl("restart", UNIT)
    except GpuOpsError as error:
        return error.found
    deadline = time.monotonic() + READY_SECONDS
    problem = "no answer"
    while time.monotonic() < deadline:
        problem = _cri_problem(host)
        if not problem:
            return ""
        time.sleep(0.5)
    return problem


def _cri_problem(host: Host) -> str:
    """What keeps the CRI plugin from serving, as containerd itself lists its plugins; '' when nothing does."""
    daemon = find_daemon(host, _any_policy(None))
    if daemon is None or not daemon.active:
        return "%s is not active" % UNIT
    try:
        done = host.run([_ctr(host, daemon), "--address", daemon.socket, "plugins", "ls"], check=False, timeout=10)
    except GpuOpsError as error:
        return error.found
    if done.rc != 0:
        return done.stderr.strip() or "ctr ended with %d" % done.rc
    rows = [line.split() for line in done.stdout.splitlines()]
    states = {(row[0], row[1]): row[-1] for row in rows if len(row) >= 4}
    plugins = (("io.containerd.grpc.v1", "cri"), ("io.containerd.cri.v1", "runtime"))
    bad = ["%s.%s is in state %s" % (*plugin, states[plugin]) for plugin in plugins
           if plugin in states and states[plugin] != "ok"]
    if not bad and not any(plugin in states for plugin in plugins):
        return "containerd lists no CRI plugin"
    return "; ".join(bad)


def _ctr(host: Host, daemon: Daemon) -> str:
    beside = os.path.join(os.path.dirname(daemon.binary), "ctr")
    return beside if host.is_executable(beside) else "ctr"


def _keep(host: Host, journal: Journal, path: str) -> None:
    """Write down what was there: before our first change for good, before this change until the daemon is back."""
    journal.keep_original(NAME, path)
    undo = journal.recall(NAME).get("undo") or {}
    undo.setdefault(path, host.read(path))
    _remember(journal, undo=undo)


def _remember(journal: Journal, **changes: Any) -> None:
    memory = dict(journal.recall(NAME), **changes)
    journal.remember(NAME, {key: value for key, value in memory.items() if value})


def _put_back(host: Host, path: str, text: Optional[str]) -> None:
    if text is None:
        host.remove(path)
    else:
        host.write(path, text)


def _state_after(undo: Dict[str, Optional[str]], second: str) -> str:
    if not undo:
        return "its configuration is not of this run, so nothing was put back"
    if second:
        return "the files were put back, and containerd still does not come up (%s)" % second
    return "the files were put back and containerd is up again with them"


def _any_policy(step: Optional[Step]) -> RuntimePolicy:
    root = step.parameters.get("root", "") if step else ""
    return RuntimePolicy(True, "nvidia", "", False, True, root)


EXECUTORS: Dict[str, Executor] = {WRITE: write, EDIT: edit, REMOVE: remove, RESTART: restart}
