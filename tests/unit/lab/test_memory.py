# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where what hosts write lies."""
from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulab import memory


def test_where_memory_is_scarce_it_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_gb", lambda: memory.LEAST_GB - 1)
    memory.bring_up(tmp_path / "written")
    assert (tmp_path / "written").is_dir() and not os.path.ismount(tmp_path / "written")
    memory.take_down(tmp_path / "written")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: needs root")
def test_it_is_forgotten_when_it_is_taken_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_gb", lambda: memory.LEAST_GB)
    written = tmp_path / "written"
    memory.bring_up(written)
    in_memory = os.path.ismount(written)
    (written / "file").write_text("of a host")
    memory.bring_up(written)
    assert (written / "file").exists(), "what is up stays up"
    memory.take_down(written)
    assert not os.path.ismount(written) and (written / "file").exists() is not in_memory
