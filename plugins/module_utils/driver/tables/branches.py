# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The branches of NVIDIA's driver: what they are, how long NVIDIA mends them, which modules their packages hold.

Sources: releases.json and "Supported Drivers and CUDA Toolkit Versions" of NVIDIA's data center documentation (types,
dates, CUDA; that of 620 for 580, 595 and 620, and it names no month for new feature branches); redistrib_620.70.06.json
of 2026-11-04 (CUDA of 620); release notes of the branches (packaging of the proprietary module ends with 615, names
without a branch begin with 590, those of the fabric manager and its kin with 580) and the Driver Installation Guide of
620, which has both as they were.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

FIRST_UNSUFFIXED_BRANCH = 590
FIRST_UNSUFFIXED_COMPANIONS = 580
FIRST_OPEN_BY_DEFAULT = 560
FIRST_OPEN_ONLY = 615
# Switches of an NVLink fabric are watched through this library since then
FIRST_NVSDM = 560
# The mode in which a coherent GPU's memory is the driver's came with it
FIRST_COHERENT_MODE = 580

LONG_TERM, PRODUCTION, NEW_FEATURE = "long-term support", "production", "new feature"


@dataclass(frozen=True)
class Branch:
    """A branch of the driver.

    number: the first part of its versions.
    kind:   LONG_TERM (mended for three years), PRODUCTION (one year) or NEW_FEATURE (until the next one).
    ends:   month with which NVIDIA stops to mend it, 'YYYY-MM'.
    cuda:   the CUDA release that came with it; those of the same major release run on it too.
    told:   whether NVIDIA names that month; otherwise it follows from the kind.
    """

    number: int
    kind: str
    ends: str
    cuda: str
    told: bool = True


BRANCHES: Tuple[Branch, ...] = (
    Branch(535, LONG_TERM, "2026-06", "12.2"),
    Branch(550, PRODUCTION, "2025-04", "12.4"),
    Branch(570, PRODUCTION, "2026-02", "12.8"),
    Branch(575, NEW_FEATURE, "2026-06", "12.9"),
    Branch(580, LONG_TERM, "2028-06", "13.0"),
    Branch(590, NEW_FEATURE, "2026-12", "13.1"),
    Branch(595, PRODUCTION, "2027-03", "13.2"),
    Branch(610, NEW_FEATURE, "2027-08", "13.3", told=False),
    Branch(615, NEW_FEATURE, "2027-09", "13.4", told=False),
    Branch(620, LONG_TERM, "2029-09", "13.5"),
)
# Every GPU that a driver of today is for has a module in it: of both kinds, as those before Turing have no open one
LONG_TERM_BRANCH = max(branch.number for branch in BRANCHES
                       if branch.kind == LONG_TERM and branch.number < FIRST_OPEN_ONLY)
_BY_NUMBER: Dict[int, Branch] = {branch.number: branch for branch in BRANCHES}


def notes_on(number: int, month: str) -> Tuple[str, ...]:
    """What is to be known of a branch before it is chosen. month: 'YYYY-MM' of today, '' where nobody tells it."""
    branch = _BY_NUMBER.get(number)
    if branch is None:
        return ("Driver branch %d is none of those that this collection knows (%s): its packages are taken to be named "
                "like those of the nearest one." % (number, ", ".join(str(each.number) for each in BRANCHES)),)
    if not month or month <= branch.ends:
        return ()
    return ("Driver branch %d (%s) is mended no more since %s%s: newer branches are %s." % (
        number, branch.kind, branch.ends, "" if branch.told else ", as branches of its kind are",
        ", ".join("%d until %s" % (each.number, each.ends) for each in BRANCHES
                  if each.number > number and each.ends >= month) or "unknown to this collection"),)
