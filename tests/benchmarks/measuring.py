# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmarks have in common: their options, the circumstances of a run, and ratios between ways."""
from __future__ import annotations

import argparse
import os
import platform
import statistics
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, Sequence


def arguments(description: str, runs: str, **others: str) -> argparse.Namespace:
    """runs: what one of the --runs is; others: {an option of this benchmark alone: its help}."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="%s, at least 5, after a warm-up" % runs)
    parser.add_argument("--keep", action="store_true", help="leave the laboratory up")
    for name, told_of in others.items():
        parser.add_argument("--" + name, help=told_of)
    told = parser.parse_args()
    if told.runs < 5:
        parser.error("--runs: medians of fewer than 5 runs say nothing")
    return told


def circumstances(load_before: float) -> Dict[str, Any]:
    return {
        "taken": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0],
                    "kernel": platform.release(), "python": platform.python_version()},
    }


def ratios(own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], of: str = "seconds") -> List[float]:
    """Lowest, median and highest ratio of runs that followed each other: the machine's load changes between pairs."""
    found = sorted(other[of] / mine[of] for mine, other in zip(own, others))
    return [round(ratio, 2) for ratio in (found[0], statistics.median(found), found[-1])]
