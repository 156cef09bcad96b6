# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A mirror that is not complete, with the real apt and dpkg on a host below a directory."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Dict, Iterator

import pytest
from apt_machine import NAMES, Machine, trusting
from gpu_hosts import A100, facts
from scratch_apt import Repository, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import observing
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")), reason="needs apt and gpg")
OLD, NEW = "580.178.04", "595.91.07"
THERE = facts(A100).but(driver_installed=OLD, driver_userspace=OLD, module_installed="open")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """With the older driver; what builds the module of the newer one is another package's."""
    monkeypatch.setattr(running, "has_bindings", lambda host: True)
    monkeypatch.setattr(observing, "read_kernels", lambda *_words: (Kernel(THERE.kernel, headers=True),))
    with Repository(tmp_path / "repository") as repository:
        for name in NAMES:
            build(repository.directory, name, OLD + "-1")
            build(repository.directory, name, NEW + "-1", depends="dkms" if name == NAMES[0] else "")
        repository.add("dkms", "3.2.2")
        made = Machine(trusting(tmp_path / "host", repository), repository)
        made.apply(made.plan(facts(A100), version=OLD))
        yield made


def system(machine: Machine) -> Dict[str, bytes]:
    """Every file and its bytes, without what is this collection's own, packages that were fetched, and lists."""
    return {path: content for path, content in machine.root.tree().items()
            if not path.startswith(("run/", "tmp/", "var/lib/gpuops/", "var/cache/", "var/log/", "var/lib/apt/lists"))}


@pytest.mark.parametrize("lacking, code", [
    ("nvidia-persistenced", "driver.version_incomplete"), ("dkms", "packages.unsolvable")])
def test_a_package_that_no_mirror_has_is_named_before_anything_changes(
    machine: Machine, lacking: str, code: str
) -> None:
    for path in machine.repository.directory.glob(lacking + "_*"):
        if OLD not in path.name:
            path.unlink()
    machine.repository.publish()
    before = system(machine)
    for state in ("staged", "present"):
        (refusal,) = machine.plan(THERE, version=NEW, state=state).refusals
        assert refusal.code == code and lacking in refusal.found
    assert system(machine) == before


@pytest.mark.parametrize("state", ["staged", "present"])
def test_a_file_that_the_mirror_has_lost_is_named_before_anything_changes(machine: Machine, state: str) -> None:
    before = system(machine)
    (lost,) = machine.repository.directory.glob("nvidia-persistenced_595*")
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(GpuOpsError) as told:
        machine.apply(machine.plan(THERE, version=NEW, state=state))
    assert told.value.code == "driver.packages_not_fetched" and lost.name in told.value.found
    assert system(machine) == before
    lost.write_bytes(content)
    machine.apply(machine.plan(THERE, version=NEW))
    assert machine.driver() == dict.fromkeys(NAMES, NEW + "-1")
