# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernels that come and go on a laboratory host, where the real DKMS builds."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest
from laboratory import new_lab
from test_driver import Play

from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("kernels")
    lab.up(parse({"name": "kernels", "control_plane": False,
                  "hosts": [{"name": "gpu", "board": "a100-80gb-sxm", "gpus": 1}]}, "test_kernels.py"))
    yield lab
    lab.down()


@pytest.fixture
def play(lab: Lab, tmp_path: Path) -> Play:
    return Play(lab, tmp_path)


def test_an_old_kernel_that_cannot_be_built_for_holds_up_nothing(play: Play) -> None:
    play.writers()
    play.say("sh", "-c", "touch /boot/vmlinuz-6.1.0-1-amd64; mkdir -p /lib/modules/6.1.0-1-amd64/build; "
                         "touch /lib/modules/6.1.0-1-amd64/build/Makefile")
    first, second = (play.writers()[1] for _run in "12")
    assert (first["changed"], second["changed"]) == (True, False)
    assert any("6.1.0-1-amd64, which neither runs nor boots next" in note for note in second["plan"]["notes"])
    play.say("rm", "-rf", "/boot/vmlinuz-6.1.0-1-amd64", "/lib/modules/6.1.0-1-amd64")
