# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the benchmarks have in common: their options, the circumstances of a run, and ratios between ways."""
from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence

from workspace import venv

LONGEST_RECAP = 1000
RESULTS = Path(__file__).resolve().parent / "results"


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


def compared(own: Sequence[Mapping[str, Any]], each: Sequence[Mapping[str, Any]],
             measured: Iterable[str]) -> Dict[str, Any]:
    """Medians of a way's runs, and how many times what the neighbouring ones of our own took."""
    return {**medians(each, measured), **{"times_" + of: ratios(own, each, of) for of in measured}}


def medians(each: Sequence[Mapping[str, Any]], measured: Iterable[str]) -> Dict[str, float]:
    return {of: round(statistics.median(run[of] for run in each), 3) for of in measured}


def verdicts(promises: Mapping[str, bool]) -> List[str]:
    """A line for each promise: whether it is kept."""
    return ["%s: %s" % (promise, "kept" if kept else "NOT KEPT") for promise, kept in promises.items()]


def conclude(name: str, load_before: float, told: str, promises: Mapping[str, bool], **found: Any) -> None:
    """Keep what was found in results/, tell it, and end with a failure where a promise is not kept."""
    (RESULTS / (name + ".json")).write_text(json.dumps({
        **circumstances(load_before), "promises": dict(promises), **found}, indent=2) + "\n")
    print(told)
    if not all(promises.values()):
        raise SystemExit(1)


def circumstances(load_before: float) -> Dict[str, Any]:
    return {
        "taken": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0],
                    "kernel": platform.release(), "python": platform.python_version()},
    }


def environment(directory: Path, collections: str) -> Dict[str, str]:
    """That of Ansible's programs. directory: where it keeps its own; collections: where it finds ours."""
    return dict(os.environ, ANSIBLE_COLLECTIONS_PATH=collections, ANSIBLE_HOME=str(directory / "ansible"),
                ANSIBLE_NOCOLOR="true", ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_DEPRECATION_WARNINGS="false",
                PATH="%s:%s" % (venv() / "bin", os.environ["PATH"]))


def spent(command: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path) -> Dict[str, Any]:
    """Run a command to its end: wall time, processor time and the most memory that one of its processes had.

    Of this child and those that it has waited for. output: takes what it says. Ends the benchmark where it fails.
    """
    with output.open("w") as handle:
        started = time.monotonic()
        process = subprocess.Popen(list(command), env=dict(environment), cwd=directory, stdout=handle, stderr=handle,
                                   stdin=subprocess.DEVNULL)
        _pid, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit("%s failed:\n%s" % (" ".join(command[:3]), output.read_text()[-4000:]))
    return {"seconds": round(seconds, 3), "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
            "peak_mib": round(used.ru_maxrss / 1024, 1)}


def changes(output: Path) -> int:
    """What ansible-playbook says in its recap.

    Line by line: a process that the kernel has just made counts the most memory that its maker ever had as its own.
    """
    with output.open() as lines:
        return sum(int(number) for line in lines if len(line) < LONGEST_RECAP
                   for number in re.findall(r"\bchanged=(\d+)", line))


def ratios(own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], of: str = "seconds") -> List[float]:
    """Lowest, median and highest ratio of runs that followed each other: the machine's load changes between pairs."""
    found = sorted(other[of] / mine[of] for mine, other in zip(own, others))
    return [round(ratio, 2) for ratio in (found[0], statistics.median(found), found[-1])]
