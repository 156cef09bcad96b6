# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carry config.toml over the packages' post-install script, which writes it anew without its comments.

The text waits in the journal, so a run that is killed while the packages come leaves it to the next one.
"""
from __future__ import annotations

from typing import Any, Dict

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, write_file
from .catalogue import CONFIGURATION
from .observation import KEPT, WRITES, WRITES_KEPT
from .planner import KEEP, NAME, PUT_BACK
from .rewriting import is_rewritten


def write(host: Host, journal: Journal, step: Step) -> None:
    if step.subject == CONFIGURATION and host.read(CONFIGURATION) != step.change["before"]:
        raise GpuOpsError(
            "toolkit.configuration_changed_meanwhile",
            found="%s was changed by another program after the plan was made" % CONFIGURATION,
            wanted="the file that the plan was made for",
            remedy="run again; the change is kept then",
        )
    if step.subject == CONFIGURATION:
        _note(journal, dict(step.change))
    write_file(host, journal, step)


def _note(journal: Journal, change: Dict[str, Any]) -> None:
    """Written down before it is done: a run that is killed in between repeats both."""
    memory = journal.recall(NAME)
    writes = memory.get(WRITES, [])
    if writes[-1:] != [change]:
        journal.remember(NAME, dict(memory, **{WRITES: [*writes, change][-WRITES_KEPT:]}))


def keep(host: Host, journal: Journal, step: Step) -> None:
    journal.remember(NAME, dict(journal.recall(NAME), **{KEPT: step.change["after"]}))


def put_back(host: Host, journal: Journal, step: Step) -> None:
    """Over what the packages' script left; what somebody has written meanwhile stays."""
    memory = journal.recall(NAME)
    text = host.read(CONFIGURATION)
    if text is None or is_rewritten(host, text, memory.get(KEPT, step.change["after"])):
        host.write(CONFIGURATION, step.change["after"])
    journal.remember(NAME, {name: value for name, value in memory.items() if name != KEPT})


EXECUTORS: Dict[str, Executor] = {KEEP: keep, PUT_BACK: put_back, "file.write": write}
