#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How long the search for the smallest change of a MIG layout takes, beside nvidia-mig-parted making such a change.

For each board drawn layouts, possible and impossible, each from where the last one ended; and nvidia-mig-parted's apply
of two layouts in turn, on the simulated GPU. Needs root. Writes results/mig_planner.json, and fails where a search took
longer than is promised.
"""
from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / directory) for directory in ("gates", "lab", "unit/mig", "unit")]

import measuring  # noqa: E402
from workspace import collections_root  # noqa: E402

sys.path.insert(0, str(collections_root()))

import mig_boards  # noqa: E402
from mig_host import MigHost  # noqa: E402
from test_beside_mig_parted import MigParted  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import (  # noqa: E402
    ComputeInstance,
    GpuInstance,
    Mig,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Wanted  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.placement import (  # noqa: E402
    Arrangement,
    Impossible,
    arrange,
)
from gpulab.cache import Workshop  # noqa: E402
from gpulab.parts.silicon import PARTS  # noqa: E402

RESULTS = HERE / "results" / "mig_planner.json"
# Milliseconds that a search may take on any board
PROMISED = 50
LABELS = ("all-balanced", "all-enabled")


def main() -> None:
    told = measuring.arguments(__doc__ or "", "a hundred searches, and a change by nvidia-mig-parted")
    load = os.getloadavg()[0]
    built = Workshop(PARTS).build("silicon")
    boards: Dict[str, Any] = {}
    for name in mig_boards.WITH_MIG:
        searches, changes = searched(name, 100 * told.runs), changed(built, name, told.runs)
        boards[name] = {
            "search_median_ms": round(statistics.median(searches), 3), "search_most_ms": round(max(searches), 3),
            "mig_parted_median_ms": round(statistics.median(changes), 1),
            "ratio": round(statistics.median(changes) / statistics.median(searches), 1)}
        print("%-20s %s" % (name, boards[name]))
    RESULTS.write_text(json.dumps({
        **measuring.circumstances(load), "searches": 100 * told.runs, "boards": boards}, indent=1) + "\n")
    slowest = max(each["search_most_ms"] for each in boards.values())
    sys.exit("NOT KEPT: a search took %.1f ms, %d are promised" % (slowest, PROMISED) if slowest > PROMISED else 0)


def searched(name: str, count: int) -> List[float]:
    """Milliseconds of each search."""
    chance, taken = random.Random(name), []
    mig = mig_boards.board(name).mig
    assert mig is not None
    for _number in range(count):
        drawn = chance.choices(mig.profiles, k=chance.randrange(1, 9))
        begun = time.perf_counter()
        try:
            arrangement = arrange(mig, [Wanted(profile.id, (profile.slices,)) for profile in drawn])
        except Impossible:
            arrangement = None
        taken.append((time.perf_counter() - begun) * 1000)
        if arrangement is not None:
            mig = after(mig, arrangement)
    return taken


def after(mig: Mig, arrangement: Arrangement) -> Mig:
    kept = [each.instance for each in arrangement.kept]
    made = [GpuInstance(100 + number, each.profile, each.start, each.size, (ComputeInstance(0, 0, each.compute[0]),))
            for number, each in enumerate(arrangement.created)]
    return replace(mig, instances=tuple(sorted([*kept, *made], key=lambda each: each.start)))


def changed(built: Path, name: str, count: int) -> List[float]:
    """Milliseconds of each change by nvidia-mig-parted, the first one left out."""
    with tempfile.TemporaryDirectory() as directory:
        host = MigHost(built, Path(directory), name)
        try:
            parted, file = MigParted(host), Path(directory) / "config.yaml"
            file.write_text(json.dumps(mig_boards.default_file()))
            taken = []
            for number in range(count + 1):
                begun = time.perf_counter()
                if parted.apply(file, LABELS[number % 2]) != 0:
                    sys.exit("nvidia-mig-parted failed on %s" % name)
                taken.append((time.perf_counter() - begun) * 1000)
            return taken[1:]
        finally:
            host.close()


if __name__ == "__main__":
    main()
