# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files in which others have their lines beside ours: the locks of dnf and zypper.

A plan shows such a file whole, as it is once it was written. Administrators write in it too, and between the plan and
the step lies a download. So what is written is ours in the midst of what is there by then.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Dict

from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor, restore_file, write_file
from .files import Places, is_shared


def write(host: Host, journal: Journal, step: Step) -> None:
    """Executor of 'file.write'."""
    path = step.subject
    if not is_shared(path):
        write_file(host, journal, step)
        return
    text = Places.with_ours(path, Places.ours(path, step.change["after"]), host.read(path))
    if text is not None:
        write_file(host, journal, replace(step, change={**step.change, "after": text}))


def restore(host: Host, journal: Journal, step: Step) -> None:
    """Executor of 'file.restore': what others have written since the plan was made stays, as before that."""
    path, there = step.subject, host.read(step.subject)
    text = Places.with_ours(path, None, there)
    if not is_shared(path) or (text or "") == (step.change["after"] or ""):
        restore_file(host, journal, step)
    elif text is not None and text != there:
        host.write(path, text, host.mode(path) or 0o644)


EXECUTORS: Dict[str, Executor] = {"file.write": write, "file.restore": restore}
