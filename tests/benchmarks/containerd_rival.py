#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `nvidia-ctk runtime configure` makes of the corpus of containerd configurations, beside this collection.

Writes results/containerd_rival.json and docs/container-runtime.md; --render writes the document of the recorded run.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / directory) for directory in ("gates", "lab", "integration")]

from containerd_judge import (  # noqa: E402
    CORPUS,
    INDEX,
    PROGRAMS,
    Outcome,
    case_names,
    index,
    programs_of,
    run_jobs,
    situation,
)
from workspace import collections_root  # noqa: E402

from gpulab.parts.registry import workshop  # noqa: E402

RESULTS = HERE / "results" / "containerd_rival.json"
DOCUMENT = REPOSITORY / "docs" / "container-runtime.md"
# Below it the document is written by hand
MARK = "<!-- end of the generated part -->\n"
KEPT = "handler added, all else kept"
HEAD = """\
# containerd's configuration: what is kept, what is lost

The module `container_runtime` and NVIDIA's `nvidia-ctk runtime configure` have one job: containerd gets a handler for
GPUs. This page tells what becomes of everything else. %(cases)d configurations (`tests/integration/corpus/containerd`,
written for this project) went through both on seven generations of containerd:
%(releases)s.

The judge is containerd: its effective configuration (`containerd config dump`) before and after, compared as data, and
the daemon, started with the new files and asked for the state of its CRI plugin.

nvidia-ctk is %(rival)s, called as `nvidia-ctk runtime configure --runtime=containerd --cdi.enabled`, with its default
paths. Its column is the recorded run of %(taken)s.
The collection's column is what the tests demand (`tests/integration/test_containerd_judges.py`), of containerd 1.6, 2.0
and 2.4 on every run and of those between with `make slow`: where it configures, every comment stays, a second run
changes nothing, and removal gives back every byte.

Reproduce, as root: `tests/benchmarks/containerd_rival.py`, three minutes on two cores once the programs are built.

## In numbers

Pairs of a configuration and a containerd that starts with it and that the collection configures:

"""
COLUMNS = (
    ("handler added, settings and comments kept", lambda each: verdict(each) == KEPT),
    ("comments lost", lambda each: each.comments > 0),
    ("CRI plugin down after the next start, exit status 0", lambda each: each.cri != "ok" and not each.refused),
    ("no usable handler, exit status 0", lambda each: not each.handler and not each.refused),
    ("credentials copied into a file that all may read", lambda each: bool(each.leaked)),
)
TAIL = """
## Not better, or worse

- An inline table of the whole CRI section is refused by the collection on 1.x; nvidia-ctk configures it.
- A switched-off CRI plugin and an existing handler with another binary are refused by the collection, with the file and
  the remedy. On 2.x nvidia-ctk adds its handler to the first all the same; it redirects the second without a word.
  Where that is wanted, the option `adopt` does it.
- The comment that begins each file of the corpus is not counted as lost, and most files have no other: a file of
  somebody's has more.
- These are files of one corpus, not a sample of the world's: the numbers say nothing of how frequent a situation is.

## By situation

Those in which the two differ, or in which something happens that a person should know. Everywhere else, %(same)d
configurations on every containerd that starts with them, both add the handler and keep the rest.

| Situation | containerd | nvidia-ctk | gpuops.nvidia |
|---|---|---|---|
"""


def corpus_digest() -> str:
    """Of everything that the outcome of a run depends on, as far as it is written down here."""
    total = hashlib.sha256(INDEX.read_bytes())
    for path in sorted(path for path in CORPUS.rglob("*") if path.is_file()):
        total.update(str(path.relative_to(CORPUS)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]


def measure() -> Dict[str, Any]:
    """Every configuration on every generation, in the hands of nvidia-ctk."""
    shop = workshop()
    programs = programs_of(shop)
    rival = str(shop.build("nvidia-toolkit") / "bin" / "nvidia-ctk")
    told = subprocess.run([rival, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[0]
    jobs = [{"case": case, "release": release, "default": False, "start": True, "rival": rival}
            for case in case_names() for release in PROGRAMS]
    outcomes = run_jobs(jobs, programs, [str(collections_root())])
    versions = {release: subprocess.run([programs[release], "--version"], stdout=subprocess.PIPE, text=True,
                                        check=True).stdout.split()[2].lstrip("v").split("~")[0] for release in PROGRAMS}
    return {"taken": datetime.now(timezone.utc).isoformat(timespec="seconds"), "rival": told, "containerd": versions,
            "corpus": corpus_digest(),
            "outcomes": [asdict(each) for each in sorted(outcomes, key=lambda each: (each.case, each.release))]}


def verdict(outcome: Outcome) -> str:
    """What became of a configuration in the hands of nvidia-ctk, in words."""
    if outcome.refused:
        return "refused"
    told = []
    if outcome.cri != "ok":
        told.append("**%s**" % outcome.cri)
    if not outcome.handler:
        told.append("**no usable handler, exit status 0**")
    if outcome.leaked:
        told.append("**credentials readable for all**")
    if outcome.lost:
        told.append("settings lost")
    if outcome.comments:
        told.append("comments lost")
    return ", ".join(told) or KEPT


def ours(case: str, release: str) -> str:
    expected = index()[case]
    if release in expected["configured"]:
        return KEPT
    words = [each for each, releases in expected.get("refused", {}).items() if release in releases]
    return "refused: %s" % words[0] if words else "-"


def rows(outcomes: Sequence[Outcome]) -> Dict[str, List[Tuple[str, str, str]]]:
    """{case: its rows: generations, nvidia-ctk, the collection}; none where a containerd starts with the files."""
    found: Dict[str, List[Tuple[str, str, str]]] = {}
    for case in case_names():
        groups: Dict[Tuple[str, str], List[str]] = {}
        for each in outcomes:
            # 1.6 takes a file of a version that it does not know for an empty one
            if each.case == case and each.accepted and "version = " not in ours(case, each.release):
                groups.setdefault((verdict(each), ours(case, each.release)), []).append(each.release)
        found[case] = [(span(releases), *told) for told, releases in groups.items()]
    return found


def span(releases: Sequence[str]) -> str:
    """Generations in few words: a gap is a containerd that does not start with the files."""
    known = list(PROGRAMS)
    first, last = known.index(releases[0]), known.index(releases[-1])
    whole = len(releases) > 2 and list(releases) == known[first:last + 1]
    return "%s to %s" % (releases[0], releases[-1]) if whole else ", ".join(releases)


def title(case: str) -> str:
    told = situation(case).rstrip(".")
    return "%s (version %s)" % (told, case[1]) if case[:3] in ("v2-", "v3-", "v4-") else told


def render(result: Mapping[str, Any]) -> str:
    outcomes = [Outcome(**each) for each in result["outcomes"]]
    both = [each for each in outcomes if each.accepted and ours(each.case, each.release) == KEPT]
    releases = list(result["containerd"])
    lines = ["| | %s | all |" % " | ".join(releases), "|---|%s" % ("---|" * (len(releases) + 1))]

    def line(what: str, of: Any) -> str:
        counts = [sum(1 for each in both if each.release == release and of(each)) for release in releases]
        return "| %s | %s | %d |" % (what, " | ".join(map(str, counts)), sum(counts))

    lines.append(line("pairs", lambda _each: True))
    lines.append(line("gpuops.nvidia: handler added, settings and comments kept", lambda _each: True))
    lines.extend(line("nvidia-ctk: " + what, of) for what, of in COLUMNS)
    head = HEAD % {"cases": len(case_names()), "releases": ", ".join(result["containerd"].values()),
                   "rival": result["rival"].rpartition(" ")[2], "taken": result["taken"][:10]}
    by_case = rows(outcomes)
    same = [case for case, told in by_case.items() if told and all(row[1:] == (KEPT, KEPT) for row in told)]
    table = ["| %s | %s | %s | %s |" % (title(case), *row)
             for case, told in by_case.items() if case not in same for row in told]
    return head + "\n".join(lines) + "\n" + TAIL % {"same": len(same)} + "\n".join(table) + "\n\n" + MARK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--render", action="store_true", help="write the document of the recorded run")
    if not parser.parse_args().render:
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    by_hand = DOCUMENT.read_text().partition(MARK)[2]
    DOCUMENT.write_text(render(json.loads(RESULTS.read_text())) + by_hand)


if __name__ == "__main__":
    main()
