# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run that is killed between any two writes leaves files that containerd starts with, and the next run completes."""
from __future__ import annotations

import os
from typing import Dict, List

import pytest
from containerd_judge import ROOT, Outcome, programs_of, run_jobs
from workspace import collections_root

from gpulab.parts.registry import workshop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts containerd: needs root")

RELEASES = ("1.6", "1.7", "2.0", "2.4")
CRI2 = 'plugins."io.containerd.grpc.v1.cri"'
RUNC = "[%s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n" % CRI2
LAYOUTS: Dict[str, Dict[str, str]] = {
    "no file": {},
    "a root file": {str(ROOT): "version = 2\n[%s]\nenable_selinux = false\n%s" % (CRI2, RUNC)},
    "a foreign handler in another file": {
        str(ROOT): "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n" + RUNC,
        "/etc/containerd/conf.d/50-site.toml": (
            "version = 2\n%s[%s.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
            "[%s.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/old' # theirs\n" % (RUNC, CRI2, CRI2)),
    },
}


@pytest.fixture(scope="module")
def outcomes() -> List[Outcome]:
    jobs = [{"case": layout, "release": release, "files": files, "kill": True}
            for layout, files in LAYOUTS.items() for release in RELEASES]
    return run_jobs(jobs, programs_of(workshop()), [str(collections_root())])


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_every_beginning_of_a_run_starts_and_its_repetition_completes(
    layout: str, release: str, outcomes: List[Outcome]
) -> None:
    (outcome,) = [each for each in outcomes if (each.case, each.release) == (layout, release)]
    assert outcome.faults == []
    assert outcome.handler
    # before, between and after the writes, on the way there and back
    assert outcome.kills >= (4 if release < "2" else 6)
