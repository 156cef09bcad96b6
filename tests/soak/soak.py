# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs campaigns of seeded cases for as long as they are told, and keeps what came of each.

A case is a campaign's name and a seed: the same case again is the same cut or the same life. Results are kept after
every case, and a case that has one is not run again, so that a campaign that was ended goes on where it was.
docs/soak.md has what was found.
"""
from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

HERE = Path(__file__).resolve().parent
for room in ("gates", "lab", "integration", "unit/cluster", "unit/playbooks"):
    sys.path.insert(0, str(HERE.parent / room))

import workspace  # noqa: E402

sys.path.insert(0, str(workspace.collections_root()))

import campaigns  # noqa: E402

MOST_LINES = 60

Results = Dict[str, Dict[str, Any]]


def main() -> int:
    options = parse()
    deadline = time.monotonic() + options.minutes * 60 if options.minutes else None
    results: Results = json.loads(options.results.read_text()) if options.results.is_file() else {}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for name in options.campaigns or list(campaigns.ALL):
        for line in run(name, campaigns.ALL[name], options, results, deadline):
            print(line, flush=True)
    failed = [(name, seed) for name, cases in results.items() for seed, case in cases.items() if not case["passed"]]
    for name, seed in failed:
        print("again: %s --again %s --seed %s --count 1" % (" ".join(sys.argv[:1]), name, seed))
    print("%d passed, %d failed" % (sum(len(cases) for cases in results.values()) - len(failed), len(failed)))
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run campaigns of seeded cases: %s." % "; ".join(
        "%s (%d): %s" % (name, each.count, each.title) for name, each in campaigns.ALL.items()))
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN",
                        help="the campaigns to run; all of them when none is named")
    parser.add_argument("--seed", type=int, default=20261122, help="seed of the first case; the next one adds 1")
    parser.add_argument("--count", type=int, help="cases of each campaign; in parentheses above when not given")
    parser.add_argument("--minutes", type=float, help="begin no case after so many minutes")
    parser.add_argument("--again", action="store_true", help="run cases that have a result already, too")
    parser.add_argument("--results", type=Path, default=workspace.work_root() / (workspace.apart("soak") + ".json"),
                        help="file of the results (default: %(default)s)")
    options = parser.parse_args()
    unknown = [name for name in options.campaigns if name not in campaigns.ALL]
    if unknown:
        parser.error("there is no campaign %s; there are: %s" % (", ".join(unknown), ", ".join(campaigns.ALL)))
    return options


def run(name: str, campaign: campaigns.Campaign, options: argparse.Namespace, results: Results,
        deadline: Optional[float]) -> Iterator[str]:
    """Run the cases of a campaign that are left; tells each."""
    cases = results.setdefault(name, {})
    seeds = [options.seed + number for number in range(options.count or campaign.count)]
    left = [seed for seed in seeds if options.again or str(seed) not in cases]
    if not left:
        return
    with ExitStack() as stack:
        scratch = workspace.work_root() / workspace.apart("soak") / name
        world = None
        for seed in left:
            if deadline and time.monotonic() > deadline:
                yield "%s: the time is over; %d of %d cases have a result" % (name, len(cases), len(seeds))
                return
            started = time.monotonic()
            try:
                world = world or stack.enter_context(campaign.world(emptied(scratch)))
                told, error = campaign.case(world, seed), ""
            except AssertionError as fault:
                # One without a word is a failure all the same
                told, error = [], str(fault) or traceback.format_exc()
            except Exception:
                told, error = [], traceback.format_exc()
                stack.pop_all().close()
                world = None
            cases[str(seed)] = {"passed": not error, "told": told, "error": error[:6000],
                                "seconds": round(time.monotonic() - started), "commit": commit()}
            save(options.results, results)
            yield "%s %d: %s (%d s)%s" % (name, seed, "FAILED" if error else "passed", cases[str(seed)]["seconds"],
                                          "".join("\n  " + line for line in told or error.splitlines()[:MOST_LINES]))


def emptied(directory: Path) -> Path:
    """Nothing of an earlier world, which may have ended anyhow, is part of the next."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def save(path: Path, results: Results) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    scratch.replace(path)


def commit() -> str:
    words: List[str] = ["git", "-C", str(workspace.REPOSITORY), "describe", "--always", "--dirty"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
