# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order of dotted driver and toolkit versions."""
from __future__ import annotations

import re
from typing import Tuple


def version_key(version: str) -> Tuple[int, ...]:
    """Numbers of a dotted version, the packaging revision behind '-' left out: '580.126.09-1' gives (580, 126, 9)."""
    upstream = version.split(":", 1)[-1].split("-", 1)[0]
    return tuple(int(number) for number in re.findall(r"\d+", upstream))


def branch_of(version: str) -> int:
    """Driver branch of a version: 580 for '580.126.09'."""
    return version_key(version)[0]
