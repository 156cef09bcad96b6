# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package steps, carried out on the host (manager.PackageManager.carry_out), by dnf's own library.

It is asked twice: by a process that may be given up, and, once its answer was judged, by one of its own session. That
one does what the first has said it would do, or nothing.
"""
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Dict, List

from ...core.errors import GpuOpsError
from ...core.host import CommandResult, Host
from ...core.plan import Step
from ...core.steps import PACKAGES_REMOVE
from ...core.waiting import wait_for
from ..apt import running
from ..refusals import refuse_unforeseen
from ..rpm import database
from .asking import Library
from .index import simulation
from .transaction import LOCK_SECONDS, question

_SECONDS = 3600
_PAUSE = 1.0


def carry_out(host: Host, step: Step) -> None:
    """See manager.PackageManager.carry_out()."""
    asked = question(step.to_dict())
    with host.scratch() as scratch, Library(host, scratch) as library:
        told = _unlocked(host, lambda: library.ask("transact", **asked, only_say=True, items=[]))
        foreseen = replace(simulation(told["items"], database.installed(host)), problem=told["problem"])
        refuse_unforeseen(step, foreseen, "dnf")
        if not told["items"]:
            return
        host.fetches(foreseen.download)
        argv = library.argv
        line = library.line("transact", **asked, only_say=False, items=told["items"]) + "\n"
    called = ["dnf", "remove" if step.action == PACKAGES_REMOVE else "install", *asked["specs"], *asked["removes"]]
    _complain(_unlocked(host, lambda: _answer(running.configure(host, argv, _SECONDS, stdin=line, called=called))))


def _unlocked(host: Host, act: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """dnf's answer, asked again for as long as another one is at work. Raises GpuOpsError that names who that is when
    he has not ended in time."""
    told, free = wait_for(act, lambda told: "locked" not in told, LOCK_SECONDS, _PAUSE)
    if not free:
        holder = host.process_told(told["locked"])
        raise GpuOpsError(
            "packages.dnf_locked",
            found="%s; waited %.0f s%s" % (told["said"], LOCK_SECONDS, " for %s" % holder if holder else ""),
            wanted="dnf's locks",
            remedy="let that process end (or stop it: dnf-automatic, PackageKit and other installations hold these "
                   "locks), and run again")
    return told


def _answer(done: CommandResult) -> Dict[str, Any]:
    """What the program has answered: a line of JSON behind all that dnf and scripts of packages have said."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    try:
        answer: Dict[str, Any] = json.loads(lines[-1]) if done.rc == 0 and lines else {}
    except ValueError:
        answer = {}
    if not answer or "error" in answer:
        raise _failed(done, answer.get("error") or " | ".join(done.stdout.splitlines()[-3:]) or "no output")
    return {**answer, "ended": done}


def _complain(told: Dict[str, Any]) -> None:
    """Raises what an end says that leaves something undone."""
    done: CommandResult = told["ended"]
    if not told["done"]:
        raise GpuOpsError(
            "packages.dnf_changed_meanwhile",
            found="what dnf would do for '%s' is another thing than a moment ago" % " ".join(done.argv),
            wanted="packages and repositories that nobody changes meanwhile", remedy="run again",
            cmd=list(done.argv), stdout=done.stdout)
    if told["failed"]:
        raise _failed(done, _last(told["failed"]))
    if told["scripts"]:
        raise GpuOpsError(
            "packages.dnf_script_failed",
            found="packages were changed, and a script of theirs failed: %s" % _last(told["scripts"]),
            wanted="packages whose scripts succeed",
            remedy="see what it said (`stdout` of this result, or `dnf history info`), mend that, and install the "
                   "package anew (`dnf reinstall NAME`)",
            cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


def _failed(done: CommandResult, why: str) -> GpuOpsError:
    return GpuOpsError(
        "packages.dnf_transaction_failed",
        found="'%s' failed: %s" % (" ".join(done.argv), why),
        wanted="a transaction that dnf brings to its end",
        remedy="run it by hand on this host; its whole output is in this result",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout)


def _last(lines: List[str]) -> str:
    return " | ".join(line for each in lines[-5:] for line in each.strip().splitlines()[-3:])
