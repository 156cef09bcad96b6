# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ..repair.capability import CAPABILITY
from ..writing import write


def main() -> None:
    write(CAPABILITY)
