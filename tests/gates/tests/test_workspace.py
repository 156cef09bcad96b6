# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The copy of the collection that the gates on shipped content look at."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import workspace
import yaml


@pytest.fixture(name="checkout")
def checkout_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    checkout = tmp_path / "checkout"
    for name in ("galaxy.yml", "plugins/a.py", "tests/lab/heavy.py", "tests/config.yml"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(name)
    (checkout / ".gitignore").write_text("*.pyc\n")
    (checkout / "plugins" / "a.pyc").write_text("")
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    subprocess.run(["git", "add", "galaxy.yml"], cwd=checkout, check=True)
    monkeypatch.setattr(workspace, "REPOSITORY", checkout)
    monkeypatch.setenv("GPUOPS_CACHE", str(tmp_path / "cache"))
    return checkout


def files_of(target: Path) -> "set[str]":
    return {str(path.relative_to(target)) for path in target.rglob("*")
            if path.is_file() and ".git" not in path.relative_to(target).parts}


def test_the_copy_holds_content_that_git_tracks_or_would_track(checkout: Path, tmp_path: Path) -> None:
    target = workspace.copy_content(tmp_path / "copy")
    assert target.parts[-3:] == ("ansible_collections", "gpuops", "nvidia")
    assert files_of(target) == {".gitignore", "galaxy.yml", "plugins/a.py", "tests/config.yml"}
    tracked = subprocess.run(["git", "ls-files"], cwd=target, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert set(tracked.split()) == files_of(target)


def test_a_second_copy_follows_changes_and_leaves_the_rest_alone(checkout: Path, tmp_path: Path) -> None:
    target = workspace.copy_content(tmp_path / "copy")
    os.utime(target / "galaxy.yml", (1, 1))
    (checkout / "plugins" / "a.py").rename(checkout / "plugins" / "b.py")
    (checkout / "tests" / "config.yml").write_text("changed")
    workspace.copy_content(tmp_path / "copy")
    assert files_of(target) == {".gitignore", "galaxy.yml", "plugins/b.py", "tests/config.yml"}
    assert (target / "tests" / "config.yml").read_text() == "changed"
    assert (target / "galaxy.yml").stat().st_mtime == 1


def test_a_checkout_anywhere_is_a_collection_through_a_link(checkout: Path) -> None:
    root = workspace.collections_root()
    assert (root / "ansible_collections" / "gpuops" / "nvidia" / "galaxy.yml").read_text() == "galaxy.yml"
    assert workspace.collections_root() == root


def test_two_checkouts_have_scratch_directories_of_their_own(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = workspace.work_root()
    monkeypatch.setattr(workspace, "REPOSITORY", checkout.with_name("other"))
    assert workspace.work_root() != first


def test_the_tarball_leaves_out_what_the_gates_on_content_leave_out() -> None:
    ignored = yaml.safe_load((workspace.REPOSITORY / "galaxy.yml").read_text())["build_ignore"]
    for name in workspace.NOT_CONTENT:
        path = name.rstrip("/")
        assert any(path == entry or path.startswith(entry + "/") for entry in ignored), path
