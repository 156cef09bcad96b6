# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install, upgrade and uninstall with one system call at a time that fails or is the last; run by test_injected.py.

    injected.py SHIM SCRATCH EVERY MODEL [WORD]

MODEL is the module with run(), furnish() and WISHES of a capability. Loaded with the shim. Each experiment is a process
of its own that runs the real engine, with its lock, on a scratch root. After it the same is run again undisturbed: it
must end as if nothing had happened, and an uninstall must leave what the user had. The answer is JSON: {'calls': {...},
'experiments': n, 'problems': [...]}. Only every EVERY-th call of a kind is tried, each kind from another one on; with a
WORD only the kinds that begin with it.
"""
from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence

import workspace

sys.path.insert(0, str(workspace.collections_root()))

from core_world import tree  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock  # noqa: E402

# As in failing_calls.c
COUNT, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_EVER = range(5)
CHANGING, READING = 1, 2

# What the record holds beside the state: times, and how often something was tried
PASSING = ("run/gpuops", "var/lib/gpuops/journal.jsonl")
ENDED_WELL, REFUSED, TRACEBACK = 0, 3, 4


@dataclass(frozen=True)
class Cut:
    """What happens at a call."""

    name: str
    classes: int
    action: int
    error: int = 0


CUTS = [
    Cut("killed before", CHANGING, KILL_BEFORE),
    Cut("killed after", CHANGING, KILL_AFTER),
    *[Cut("%s at" % errno.errorcode[error], CHANGING, FAIL_ONCE, error)
      for error in (errno.ENOSPC, errno.EIO, errno.EACCES)],
    *[Cut("%s from" % errno.errorcode[error], CHANGING, FAIL_EVER, error) for error in (errno.ENOSPC, errno.EROFS)],
    *[Cut("%s reading at" % errno.errorcode[error], READING, FAIL_ONCE, error)
      for error in (errno.EIO, errno.EACCES)],
]


class Bench:
    def __init__(self, shim: str, scratch: Path, every: int, model: Any, cuts: Sequence[Cut]) -> None:
        self.shim = ctypes.CDLL(shim)
        self.shim.gpuops_seen.restype = ctypes.c_long
        self.shim.gpuops_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self.scratch = scratch
        self.every = every
        self.model = model
        self.cuts = cuts
        self.calls: Dict[str, int] = {}
        self.experiments = 0
        self.problems: List[str] = []

    def all(self) -> None:
        before = self.scratch / "before"
        before.mkdir()
        self.model.furnish(before)
        user = tree(before)
        for name, policy in self.model.WISHES.items():
            after = self.copy(before, "after")
            self.apply(after, policy)
            undisturbed = tree(after, *PASSING)
            for number, cut in enumerate(self.cuts):
                key = "%s, %s" % (name, "changing" if cut.classes == CHANGING else "reading")
                self.calls[key] = self.count(self.copy(before, "work"), policy, cut)
                for call in range(1 + number % self.every, self.calls[key] + 1, self.every):
                    root = self.copy(before, "work")
                    told = self.disturbed(root, policy, cut, call)
                    where = "%s, %s call %d" % (name, cut.name, call)
                    if told:
                        self.problems.append("%s: %s" % (where, told))
                    self.judge(root, policy, undisturbed, user, where)
                    self.experiments += 1
            before = self.copy(after, "before %s" % name)

    def copy(self, root: Path, name: str) -> Path:
        target = self.scratch / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(root, target, symlinks=True)
        return target

    def apply(self, root: Path, policy: Dict[str, Any]) -> Run:
        run: Run = self.model.run(str(root), **policy)
        apply_alone(run, HostLock(Host(str(root)), "", "x"), 0)
        return run

    def count(self, root: Path, policy: Dict[str, Any], cut: Cut) -> int:
        self.shim.gpuops_arm(str(root).encode(), cut.classes, COUNT, 0, 0)
        self.apply(root, policy)
        seen = int(self.shim.gpuops_seen())
        self.shim.gpuops_arm(b"", 0, COUNT, 0, 0)
        return seen

    def disturbed(self, root: Path, policy: Dict[str, Any], cut: Cut, call: int) -> str:
        """'' when the process died as it should, ended well or told what is wrong; else its traceback."""
        told = self.scratch / "told"
        told.write_text("")
        pid = os.fork()
        if pid == 0:
            end = TRACEBACK
            try:
                self.shim.gpuops_arm(str(root).encode(), cut.classes, cut.action, call, cut.error)
                self.apply(root, policy)
                end = ENDED_WELL
            except GpuOpsError:
                end = REFUSED
            except BaseException:
                told.write_text(traceback.format_exc())
            finally:
                os._exit(end)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        wanted = (-signal.SIGKILL,) if cut.action in (KILL_BEFORE, KILL_AFTER) else (ENDED_WELL, REFUSED)
        return "" if status in wanted else "it ended with %d: %s" % (status, told.read_text())

    def judge(self, root: Path, policy: Dict[str, Any], undisturbed: Dict[str, Any], user: Dict[str, Any],
              where: str) -> None:
        try:
            once_more = self.copy(root, "uninstalled")
            self.apply(once_more, self.model.WISHES["uninstall"])
            self.compare(where + ", uninstalled at once", tree(once_more, "var/lib/gpuops", "run/gpuops"), user)
            again = self.apply(root, policy)
            self.compare(where + ", run again", tree(root, *PASSING), undisturbed)
            if again.journal.unfinished(again.capability.name):
                self.problems.append(where + ": a step is still open")
            self.apply(root, self.model.WISHES["uninstall"])
            self.compare(where + ", run again and uninstalled", tree(root, "var/lib/gpuops", "run/gpuops"), user)
        except Exception:
            self.problems.append("%s: %s" % (where, traceback.format_exc()))

    def compare(self, where: str, found: Dict[str, Any], wanted: Dict[str, Any]) -> None:
        differing = {name: (found.get(name), wanted.get(name)) for name in sorted({*found, *wanted})
                     if found.get(name) != wanted.get(name)}
        if differing:
            self.problems.append("%s: %r" % (where, differing))


def main() -> None:
    cuts = [cut for cut in CUTS if cut.name.startswith("".join(sys.argv[5:]))]
    bench = Bench(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), importlib.import_module(sys.argv[4]), cuts)
    bench.all()
    json.dump({"calls": bench.calls, "experiments": bench.experiments, "problems": bench.problems}, sys.stdout)


main()
