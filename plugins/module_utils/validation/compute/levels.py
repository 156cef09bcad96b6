# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How thoroughly devices are computed on. Pure."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

NONE, QUICK, STANDARD, LONG = "none", "quick", "standard", "long"
# From the slightest to the most thorough
NAMES = (NONE, QUICK, STANDARD, LONG)
MIB = 1 << 20


@dataclass(frozen=True)
class Level:
    """What is done with each device.

    rounds, launches: of the programs that compute, and how often each is run.
    copied:           bytes that are copied to the device and back.
    streamed:         bytes whose copy within the device's memory is timed; 0 where it is not.
    rates:            whether copies are timed, each device's while no other is at work, and peers copy to each other.
    patterns:         whether all free memory is written and read.
    limit:            seconds that one device may take.
    """

    rounds: int
    launches: int
    copied: int
    streamed: int
    rates: bool
    patterns: bool
    limit: float


# A rate is the middle one of so many (nvbandwidth of NVIDIA has as many samples)
SAMPLES = 3
LEVELS: Dict[str, Level] = {
    QUICK: Level(rounds=32, launches=2, copied=4 * MIB, streamed=0, rates=False, patterns=False, limit=300),
    STANDARD: Level(rounds=256, launches=50, copied=128 * MIB, streamed=512 * MIB, rates=True, patterns=False,
                    limit=600),
    LONG: Level(rounds=256, launches=2000, copied=128 * MIB, streamed=512 * MIB, rates=True, patterns=True,
                limit=1800),
}


def at_least(done: str, asked: str) -> bool:
    """Whether what was done is enough for what is asked."""
    return NAMES.index(done) >= NAMES.index(asked)
