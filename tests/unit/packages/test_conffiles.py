# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real dpkg unpacks and configures a package; what a power cut does to its configuration files is done by hand."""
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from scratch_apt import Repository, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import torn
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

HOOK = "etc/kernel/header_postinst.d/hook"
CONTENT = b"#!/bin/sh\nexit 0\n"
TORN = pytest.mark.parametrize("left", [b"", b"\0" * 4096])


@pytest.fixture(autouse=True)
def package(repository: Repository, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPKG_FORCE", "not-root,script-chrootless")
    repository.add("builder", "1", files={HOOK: CONTENT, "etc/builder/empty": b""})
    root.trust(repository)
    root.apt("update")


def unpacked(root: Root, repository: Repository) -> Path:
    """The configuration file as it waits."""
    root.host.run([*running.dpkg(root.host), "--unpack", str(repository.directory / "builder_1_all.deb")])
    return root.path / (HOOK + ".dpkg-new")


def cut(path: Path, left: bytes) -> None:
    """The name, mode and time of a file are on the disk, and what was in it is not."""
    seen = path.stat()
    path.write_bytes(left)
    os.utime(path, (seen.st_atime, seen.st_mtime))


def configure(root: Root) -> None:
    """As the step does it, of the scratch root instead of this machine."""
    step = torn.configure_step("driver", ["builder"])
    argv = [*running.dpkg(root.host), "--configure", "-a"]
    torn.configure(root.host, Journal(root.host), replace(step, parameters={**step.parameters, "argv": argv}))


def open_transaction(root: Root) -> None:
    step = packages_step("driver", "driver", {}, {"builder": "1", "more": "1"}, "a test", manager="apt",
                         request={"more": "1"})
    Provenance().opened(root.host, step)


@TORN
def test_what_waits_to_be_configured_is_whole_before_it_is(root: Root, repository: Repository, left: bytes) -> None:
    cut(unpacked(root, repository), left)
    configure(root)
    assert (root.path / HOOK).read_bytes() == CONTENT
    assert root.packages()["builder"].installed


@TORN
def test_what_is_configured_is_whole_before_the_next_transaction(root: Root, left: bytes) -> None:
    root.install("builder")
    cut(root.path / HOOK, left)
    open_transaction(root)
    assert (root.path / HOOK).read_bytes() == CONTENT


def test_what_somebody_has_emptied_stays_empty(root: Root) -> None:
    root.install("builder")
    (root.path / HOOK).write_bytes(b"")
    open_transaction(root)
    assert (root.path / HOOK).read_bytes() == b""


def test_a_file_that_is_empty_in_its_package_and_one_that_is_a_link_are_none(root: Root) -> None:
    root.install("builder")
    (root.path / HOOK).unlink()
    (root.path / HOOK).symlink_to("/dev/null")
    open_transaction(root)
    assert (root.path / HOOK).is_symlink() and (root.path / "etc/builder/empty").read_bytes() == b""


def test_a_package_that_is_not_ours_is_left_to_its_admin(root: Root, repository: Repository) -> None:
    repository.add("his", "1", files={"etc/his.conf": b"x\n"})
    root.apt("update")
    root.install("his")
    cut(root.path / "etc/his.conf", b"")
    open_transaction(root)
    assert (root.path / "etc/his.conf").read_bytes() == b""


def test_where_the_package_cannot_be_had_nothing_is_configured(root: Root, repository: Repository) -> None:
    cut(unpacked(root, repository), b"")
    (repository.directory / "builder_1_all.deb").unlink()
    with pytest.raises(GpuOpsError, match="header_postinst.d/hook.dpkg-new.*builder=1"):
        configure(root)
    assert not root.packages()["builder"].installed
