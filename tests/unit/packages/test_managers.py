# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What apt answers as a package manager among others."""
from __future__ import annotations

from scratch_apt import Repository, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository as Source


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


def test_a_hold_of_nothing_is_no_file() -> None:
    assert list(APT.hold_files("driver", {}, {}).values()) == [None]
