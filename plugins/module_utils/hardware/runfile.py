# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the driver came by NVIDIA's installer (the runfile), and by us: written by who installs it, and read by who
loads it, as no package tells it."""
from __future__ import annotations

from ..core.journal import Journal

MEMORY = "driver_runfile"


def is_ours(journal: Journal) -> bool:
    return bool(journal.recall(MEMORY))
