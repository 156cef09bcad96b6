# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carry config.toml over the packages' post-install script, which writes it anew without its comments.

The text waits in the journal, so a run that is killed while the packages come leaves it to the next one.
"""
from __future__ import annotations

from typing import Dict

from ...core.host import Host
from ...core.journal import Journal
from ...core.plan import Step
from ...core.steps import Executor
from .observation import KEPT
from .planner import KEEP, NAME, PUT_BACK


def keep(host: Host, journal: Journal, step: Step) -> None:
    journal.remember(NAME, dict(journal.recall(NAME), **{KEPT: step.change["after"]}))


def put_back(host: Host, journal: Journal, step: Step) -> None:
    if host.read(step.subject) != step.change["after"]:
        host.write(step.subject, step.change["after"])
    journal.remember(NAME, {name: value for name, value in journal.recall(NAME).items() if name != KEPT})


EXECUTORS: Dict[str, Executor] = {KEEP: keep, PUT_BACK: put_back}
