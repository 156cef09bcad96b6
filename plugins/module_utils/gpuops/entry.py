# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the command begins. What watches for months takes no more of this code into memory than it runs."""
from __future__ import annotations

import importlib
from typing import Optional, Sequence

from ..agent.watch import WORD
from ..core.host import Host


def main(words: Sequence[str], host: Optional[Host] = None) -> int:
    """Do what the words ask for; the exit code. host: this one, where none is given."""
    name = "watch" if list(words[:1]) == [WORD] else "command"
    code: int = importlib.import_module("." + name, __package__).main(words, host)
    return code
