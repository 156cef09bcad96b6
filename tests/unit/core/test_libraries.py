# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Iterator

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import libraries
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError, LibraryMissing

NAME = "gpuops_library_of_a_test"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "made.zip"
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(NAME + ".py", "VALUE = 1\n")
    path = made.rename(tmp_path / (hashlib.sha256(made.read_bytes()).hexdigest()[:20] + ".zip"))
    libraries.use_archive(str(path))
    yield path
    libraries.use_archive("")
    sys.path[:] = [each for each in sys.path if each != str(path)]
    sys.modules.pop(NAME, None)


def test_a_library_comes_from_the_archive(archive: Path) -> None:
    assert libraries.require(NAME).VALUE == 1


@pytest.mark.parametrize("left", [0, 50])
def test_an_archive_that_a_power_cut_left_is_shipped_again(archive: Path, left: int) -> None:
    whole = archive.read_bytes()
    archive.write_bytes(whole[:left])
    with pytest.raises(LibraryMissing):
        libraries.require(NAME)
    archive.write_bytes(whole)
    assert libraries.require(NAME).VALUE == 1


def test_one_that_is_not_there_is_shipped(tmp_path: Path, archive: Path) -> None:
    archive.unlink()
    with pytest.raises(LibraryMissing):
        libraries.require(NAME)
    archive.mkdir()
    with pytest.raises(LibraryMissing):
        libraries.require(NAME)


def test_a_library_that_nobody_has_is_told() -> None:
    with pytest.raises(GpuOpsError, match="no Python library"):
        libraries.require(NAME)
