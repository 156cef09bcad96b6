# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Debian packages that `make deps` asks for."""
from __future__ import annotations

from pathlib import Path
from typing import Set

import pytest
import system_packages


@pytest.fixture(name="machine")
def machine_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Set[str]:
    """Programs and packages that the machine has."""
    have: Set[str] = {"apt-get"}
    (tmp_path / "list").write_text("# why\n\nalpha\nbeta   b\ngamma\n")
    monkeypatch.setattr(system_packages, "LIST", tmp_path / "list")
    monkeypatch.setattr(system_packages.shutil, "which", lambda name: name if name in have else None)
    monkeypatch.setattr(system_packages, "_installed", lambda package: package in have)
    return have


def test_a_package_is_missing_unless_it_or_its_program_is_there(machine: Set[str]) -> None:
    assert system_packages.missing_packages() == ["alpha", "beta", "gamma"]
    machine.update({"alpha", "b"})
    assert system_packages.missing_packages() == ["gamma"]


def test_nothing_is_done_when_nothing_is_missing(machine: Set[str]) -> None:
    machine.update({"alpha", "beta", "gamma"})
    assert system_packages.main() == 0


def test_without_root_it_says_what_to_run(
        machine: Set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(system_packages.os, "geteuid", lambda: 1000)
    assert system_packages.main() == 1
    assert "apt-get install alpha beta gamma" in capsys.readouterr().err


def test_without_apt_it_names_the_packages(machine: Set[str], capsys: pytest.CaptureFixture[str]) -> None:
    machine.discard("apt-get")
    assert system_packages.main() == 1
    assert "alpha beta gamma" in capsys.readouterr().err
