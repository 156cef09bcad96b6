# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our change of containerd's configuration, judged by containerd itself: every generation, every file of the corpus."""
from __future__ import annotations

import json
import os
import sys
from typing import Dict, List, Tuple

import pytest
from containerd_judge import PROGRAMS, Outcome, case_names, index, programs_of, run_jobs
from workspace import REPOSITORY, collections_root

from gpulab.parts.registry import workshop

sys.path.insert(0, str(REPOSITORY / "tests" / "benchmarks"))

import containerd_rival  # noqa: E402

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts containerd: needs root")

# With these files of every generation the daemon is started too; reading suffices for the others.
STARTED = ("no-file", "default-systemd-cgroup", "v2-kubeadm", "v3-kubeadm", "v4-kubeadm", "v2-drop-in-runc",
           "v3-nested-imports", "v2-gvisor-kata")
# What the handler as the default could change beyond the handler shows in these.
AS_DEFAULT = (*STARTED, "default", "empty", "v2-crun-default", "v3-crun-default", "v2-kata-default", "v3-kata-default",
              "v2-nvidia-same", "v3-import-order", "v3-registry-auth")
# It reads files of each version of the format
NEWEST = "2.4"
Outcomes = Dict[Tuple[str, bool], List[Outcome]]


@pytest.fixture(scope="module", params=[
    pytest.param((NEWEST,), id="newest"),
    pytest.param(tuple(release for release in PROGRAMS if release != NEWEST), id="before",
                 marks=pytest.mark.variation)])
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """{(case, as default): an outcome a generation}."""
    programs = programs_of(workshop())
    found: Outcomes = {}
    for default in (False, True):
        jobs = [{"case": case, "release": release, "default": default, "start": case in STARTED}
                for case in (AS_DEFAULT if default else case_names()) for release in request.param]
        for outcome in run_jobs(jobs, programs, [str(collections_root())]):
            found.setdefault((outcome.case, default), []).append(outcome)
    return found


def test_the_index_knows_every_case() -> None:
    assert set(index()) == set(case_names())
    assert len(case_names()) >= 60


def test_the_document_tells_what_the_recorded_run_gave() -> None:
    recorded = json.loads(containerd_rival.RESULTS.read_text())
    remedy = "run tests/benchmarks/containerd_rival.py"
    assert recorded["corpus"] == containerd_rival.corpus_digest(), remedy
    generated, mark, _by_hand = containerd_rival.DOCUMENT.read_text().partition(containerd_rival.MARK)
    assert generated + mark == containerd_rival.render(recorded), remedy + " --render"


CASES = [*(pytest.param(case, False, id=case) for case in case_names()),
         *(pytest.param(case, True, id=case + ", as default") for case in AS_DEFAULT)]


@pytest.mark.parametrize(("case", "default"), CASES)
def test_only_the_handler_comes_and_only_the_handler_goes(case: str, default: bool, outcomes: Outcomes) -> None:
    expected = index()[case]
    refusals = expected.get("refused", {})
    for outcome in outcomes[case, default]:
        where = "containerd %s" % outcome.release
        assert outcome.faults == [], where
        words = [each for each, releases in refusals.items() if outcome.release in releases]
        if words:
            assert words[0] in outcome.refused, where
        elif outcome.release in expected["configured"]:
            assert (outcome.refused, outcome.handler) == ("", True), where
            assert (outcome.lost, outcome.comments, outcome.leaked) == ([], 0, []), where
            assert outcome.accepted, where
            assert outcome.cri == ("ok" if case in STARTED else ""), where
