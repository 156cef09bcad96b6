# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where the command begins. What watches for months takes no more of this code into memory than it runs."""
from __future__ import annotations

import importlib
import os
import sys
from typing import Optional, Sequence, TextIO

from ..agent.watch import WORD
from ..core.host import Host


def main(words: Sequence[str], host: Optional[Host] = None) -> int:
    """Do what the words ask for; the exit code. host: this one, where none is given."""
    _have_streams()
    name = "watch" if list(words[:1]) == [WORD] else "command"
    code: int = importlib.import_module("." + name, __package__).main(words, host)
    return code


def _have_streams() -> None:
    """Whoever has called this may have closed some (`>&-`): the file that is opened first would have its number, and
    be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = sys.stdout or _stream(1), sys.stderr or _stream(2)


def _stream(number: int) -> TextIO:
    return os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
