# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""After months of an admin's life and our runs in between, an uninstall leaves exactly what the admin made."""
from __future__ import annotations

import os
from pathlib import Path

import host_life
from laboratory import Fleet, new_lab

SEED = int(os.environ.get("GPUOPS_LIFE_SEED", "172"))
CHAPTERS = 11


def test_an_uninstall_leaves_exactly_what_the_admin_made(tmp_path: Path) -> None:
    lab = new_lab("life")
    try:
        lab.up(host_life.topology())
        print("\n".join(host_life.Life(Fleet(lab, tmp_path), SEED, CHAPTERS).live()))
    finally:
        lab.down()
