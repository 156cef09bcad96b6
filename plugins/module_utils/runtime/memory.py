# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run on a container runtime writes down for the next one (see Journal.remember), of each runtime for itself.

A host may have several that are configured one after the other; what is due to one of them is nothing to another.

handlers:       names of those that runs of ours wrote.
undo:           {path: {'text', 'owner' (what it was), 'served' (what the daemon serves with, where that is another
                text), 'after' (digest of what we made of it), 'boot', 'up' (when)}}: written since it last came up.
verified:       the process that has proved to serve, and the digest of what it serves with.
reload_ignored: the process that did not take its files in by a reload.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from ..core.journal import Journal

MEMORY = "runtime"
# {word of an older release: ours}
FORMER = {"deaf": "reload_ignored"}
# Words that an older release wrote down without the runtime that they are of
OF_ANY = ("handlers", "undo", "verified", "reload_ignored", *FORMER)


def recall(journal: Journal, runtime: str) -> Dict[str, Any]:
    """runtime: Service.name."""
    memory = journal.recall(MEMORY)
    told = memory.get(runtime) or {name: memory[name] for name in OF_ANY if name in memory}
    return {FORMER.get(name, name): value for name, value in told.items()}


def served_with(change: Mapping[str, Any]) -> Optional[str]:
    """The text that the daemon had taken in when we changed a file. change: its entry of 'undo'."""
    served: Optional[str] = change.get("served", change["text"])
    return served


def remember(journal: Journal, runtime: str, **changes: Any) -> None:
    """Changes of what is remembered; what is empty is forgotten."""
    mine = {name: value for name, value in dict(recall(journal, runtime), **changes).items() if value}
    memory = {name: value for name, value in journal.recall(MEMORY).items() if name not in OF_ANY}
    journal.remember(MEMORY, {name: value for name, value in {**memory, runtime: mine}.items() if value})
