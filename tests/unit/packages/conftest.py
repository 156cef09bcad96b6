# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes this directory's scratch hosts importable, and hands them out."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scratch_apt import Repository, Root  # noqa: E402


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """A scratch host whose apt reads no configuration of the machine that the tests run on."""
    made = Root(tmp_path / "root")
    (tmp_path / "apt.conf").write_text('Dir "%s";\n' % made.path)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with Repository(tmp_path / "repository") as running:
        yield running
