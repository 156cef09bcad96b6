# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every package manager owes, and what apt answers as one among others."""
from __future__ import annotations

import pytest
from scratch_apt import Repository, Root, keyring

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.manager import PackageManager
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.managers import manager_of_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Credentials
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository as Source
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper.manager import ZYPPER

ALL = pytest.mark.parametrize("manager", [APT, DNF, ZYPPER], ids=lambda manager: manager.name)
VERSIONS = {"nvidia-driver-cuda": "3:580.178.04-1", "nvidia-fabricmanager": "580.178.04-1"}


def source(repository: Repository) -> Source:
    return Source(repository.url, repository.key.public, "/etc/apt/keyrings/ours.asc", id="ours")


def test_apt_simulates_under_a_hold_that_is_not_written_yet(root: Root, repository: Repository) -> None:
    repository.add("library", "1")
    repository.add("library", "2")
    repository.add("program", "1", depends="library")
    with APT.open(root.host, [source(repository)]) as opened:
        assert opened.simulate({"program": "1"}).installs["library"] == "2"
        opened.hold(APT.hold_files("driver", {"library": "1"}, {}))
        assert opened.simulate({"program": "1"}).installs["library"] == "1"
        assert opened.without == ()


def test_apt_says_what_else_goes_with_what_is_removed(root: Root, repository: Repository) -> None:
    repository.add("library", "1")
    repository.add("program", "1", depends="library")
    root.trust(repository)
    root.apt("update")
    root.install("program")
    with APT.open(root.host, [], beside_system=True) as opened:
        done = opened.simulate_removal(["library", "no-such"])
    assert done.removes == ("library", "program")
    assert done.request == {"library": "1"}


@ALL
def test_a_hold_of_nothing_is_no_file(manager: PackageManager) -> None:
    assert list(manager.hold_files("driver", {}, {}).values()) == [None]


@ALL
def test_a_hold_is_written_where_it_says_and_is_the_same_a_second_time(manager: PackageManager) -> None:
    files = manager.hold_files("driver", VERSIONS, {})
    assert tuple(files) == manager.hold_paths("driver")
    for text in files.values():
        assert text is not None
        assert all(name in text and version.split(":")[-1] in text for name, version in VERSIONS.items())
    assert manager.hold_files("driver", VERSIONS, files) == files


@ALL
def test_a_hold_leaves_those_of_another_capability_alone(manager: PackageManager) -> None:
    """In a file of their own, or in one that both write."""
    first = dict(manager.hold_files("toolkit", {"nvidia-container-toolkit": "1.17.8-1"}, {}))
    both = {**first, **manager.hold_files("driver", VERSIONS, first)}
    back = {**both, **manager.hold_files("driver", {}, both)}
    assert {path: text for path, text in back.items() if text is not None} == first


@ALL
def test_who_has_no_module_of_ansible_or_no_controller_carries_packages_out_himself(manager: PackageManager) -> None:
    for after in ("1-1", None):
        step = packages_step("driver", "driver", {"tool": None}, {"tool": after}, "a test", manager=manager.name)
        module = manager.builtin_module(step.to_dict())
        assert (manager.builtin_options(step.to_dict()) is None) is (module == "")
        assert (Provenance().executor(step, alone=False) is None) is bool(module)
        assert Provenance().executor(step, alone=True) == manager.carry_out


@ALL
def test_a_step_names_a_manager_that_is_found_by_that_name(manager: PackageManager) -> None:
    step = packages_step("driver", "driver", {"tool": None}, {"tool": "1-1"}, "a test", manager=manager.name)
    assert manager_of_step(step) is manager


@ALL
def test_a_package_file_is_known_by_its_beginning(manager: PackageManager) -> None:
    """Of another version, and of another package, it is none."""
    begins = manager.archive_begins("nvidia-driver-cuda", "3:580.178.04-1")
    assert begins.startswith("nvidia-driver-cuda") and "580.178.04-1" in begins
    assert not "nvidia-driver-cuda-libs-580.178.04-1.x86_64.rpm".startswith(begins)
    assert not "nvidia-driver-cuda-580.178.04-11.x86_64.rpm".startswith(begins)


@ALL
def test_a_repository_names_its_key_and_holds_no_password(manager: PackageManager) -> None:
    closed = Source("https://example.com/packages", keyring("one").public, "/etc/keys/ours.asc", id="ours",
                    credentials=Credentials("me", "s3cret"))
    files = manager.repository_files(closed)
    assert files[closed.keyring] == closed.key
    assert [closed.uri in text and "s3cret" not in text for path, text in files.items() if path != closed.keyring] == [
        True]


@ALL
def test_versions_have_the_order_of_the_manager(manager: PackageManager) -> None:
    assert manager.compare("3:580.178.04-1", "595.91.07-1") == 1
    assert manager.compare("580.9-1", "580.10-1") == -1
    assert manager.compare("2.0~rc1-1", "2.0-1") == -1

