# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The oldest ansible-core of those supported brings a host all the way and back, not as root; so does the newest, by an
upgrade."""
from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

import core_matrix
import cores
import pytest
from laboratory import new_lab

from gpulab.lab import Lab

HOST = "gpu"
OLDEST, NEWEST = cores.oldest_and_newest()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("cores")
    lab.up(core_matrix.topology(HOST))
    yield lab
    lab.down()


@pytest.mark.parametrize(("release", "pipelining", "versions"), [
    (OLDEST, False, [core_matrix.OLD]),
    pytest.param(NEWEST, True, [core_matrix.OLD, core_matrix.NEW], marks=pytest.mark.variation)])
def test_a_release_installs_upgrades_validates_and_uninstalls(
    lab: Lab, tmp_path: Path, release: str, pipelining: bool, versions: List[str]
) -> None:
    try:
        core_matrix.whole_way(lab, tmp_path, HOST, release, pipelining, versions)
    except BaseException:
        lab.reset(HOST)
        raise
