# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run on a container runtime writes down for the next one (see Journal.remember).

handlers:       names of those that runs of ours wrote.
undo:           {path: what it was, and when we changed it}: written since the daemon last came up.
verified:       the process that has proved to serve, and the digest of what it serves with.
reload_ignored: the process that did not take its files in by a reload.
"""
from __future__ import annotations

from typing import Any, Dict

from ..core.journal import Journal

MEMORY = "runtime"
# {word of an older release: ours}
FORMER = {"deaf": "reload_ignored"}


def recall(journal: Journal) -> Dict[str, Any]:
    return {FORMER.get(name, name): value for name, value in journal.recall(MEMORY).items()}


def remember(journal: Journal, **changes: Any) -> None:
    """Changes of what is remembered; what is empty is forgotten."""
    memory = dict(recall(journal), **changes)
    journal.remember(MEMORY, {name: value for name, value in memory.items() if value})
