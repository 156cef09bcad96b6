# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether hosts that were changed are worse off than those that were not. Pure.

Before and after say little: what the whole fleet meets at the same time (a switch, a new kind of job) is no fault of
the change. So hosts that have not been changed yet are the measure, at the same instant (the SRE workbook's chapter on
canaries: a concurrent control).
"""
from __future__ import annotations

from typing import Collection, Dict, List, Mapping

# What was found of a host, in words that are the same wherever the same is found: 'Xid 63', 'validation memory'
Signs = Mapping[str, Collection[str]]


def worse_off(signs: Signs, changed: Collection[str], unchanged: Collection[str]) -> Dict[str, str]:
    """{changed host: what is wrong with it} of those with a sign that is no more common among the unchanged.

    signs: {host: what was found of it}; hosts that have none need not be in it.
    """
    found: Dict[str, List[str]] = {}
    for sign in sorted({each for name in changed for each in signs.get(name, ())}):
        ill = sorted(name for name in changed if sign in signs.get(name, ()))
        control = sum(1 for name in unchanged if sign in signs.get(name, ()))
        # As a part of each of the two: without any unchanged host, whatever is found is the change's
        if control and control * len(changed) >= len(ill) * len(unchanged):
            continue
        for name in ill:
            found.setdefault(name, []).append(sign)
    return {name: ", ".join(each) for name, each in sorted(found.items())}
