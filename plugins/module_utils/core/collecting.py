# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Python's search for garbage that refers to itself, put off while much is made that does not."""
from __future__ import annotations

import contextlib
import gc
from typing import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Python goes over all that there is whenever a quarter more has been made: of a large answer in JSON, of which
    every part is kept or is gone by itself, that takes longer than its parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
