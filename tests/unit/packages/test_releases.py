# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Backports beside a release: what is taken is what apt would take, unless something else is named."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import ARGUMENTS, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.index import Preference, parse_policy

KERNEL = "6.1.0-50-amd64"
FACTS = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel=KERNEL, boot_kernel=KERNEL,
                  gpus=(Gpu("0000:01:00.0", "20b2"),))
STABLE, BACKPORT = "535.183.01-1", "550.163.01-1~bpo12+1"
STABLE_KERNEL, BACKPORT_KERNEL = "6.1.100-1", "6.12.9-1~bpo12+1"
ANCHOR = "nvidia-kernel-dkms"


class Releases(NamedTuple):
    stable: Repository
    backports: Repository


@pytest.fixture(autouse=True)
def releases(root: Root, tmp_path: Path) -> Iterator[Releases]:
    with Repository(tmp_path / "stable") as stable, Repository(tmp_path / "backports", key="two") as backports:
        for each, version, kernel in ((stable, STABLE, STABLE_KERNEL), (backports, BACKPORT, BACKPORT_KERNEL)):
            for name in (ANCHOR, "nvidia-smi", "libcuda1"):
                build(each.directory, name, version, depends="nvidia-support-of-it (= %s)" % version)
            for name in ("nvidia-support-of-it", "nvidia-persistenced", "nvidia-modprobe"):
                build(each.directory, name, version)
            for name in ("linux-image-amd64", "linux-headers-amd64"):
                build(each.directory, name, kernel)
            each.publish(backports=each is backports)
        root.trust(stable, "stable")
        root.trust(backports, "backports")
        root.apt("update")
        yield Releases(stable, backports)


def comes(root: Root, **changes: Any) -> Dict[str, str]:
    given: Dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}
    wanted = policy_of({**given, "source": "distribution", "hold": False, **changes})
    (root.path / "lib/modules" / KERNEL / "build").mkdir(parents=True, exist_ok=True)
    (root.path / "lib/modules" / KERNEL / "build/Makefile").touch()
    (root.path / "lib/modules" / KERNEL / "kernel").mkdir(exist_ok=True)
    plan = planner.plan(observe(root.host, Journal(root.host), wanted, FACTS), wanted, FACTS)
    assert not plan.refusals
    return {name: version for step in plan.steps if step.action == "packages.install"
            for name, version in step.change["after"].items()}


@pytest.mark.parametrize("version, taken", [("", STABLE), ("535", STABLE), ("550", BACKPORT), ("550.163.01", BACKPORT)])
def test_backports_are_taken_where_they_are_named(root: Root, version: str, taken: str) -> None:
    packages = comes(root, version=version)
    assert packages[ANCHOR] == packages["nvidia-smi"] == packages["nvidia-support-of-it"] == taken
    assert packages["nvidia-persistenced"] == STABLE, "its version is not the driver's"


def test_a_driver_of_backports_stays_where_it_is_installed(root: Root, releases: Releases) -> None:
    there = comes(root, version="550")
    root.install(*("%s=%s" % item for item in there.items()))
    assert comes(root, version="") == {}
    build(releases.backports.directory, ANCHOR, "550.200.01-1~bpo12+1")
    releases.backports.publish(backports=True)
    root.apt("remove", "nvidia-smi")
    assert comes(root, version="") == {"nvidia-smi": BACKPORT}


@pytest.mark.parametrize("kernel", [STABLE_KERNEL, BACKPORT_KERNEL])
def test_headers_follow_the_kernel(root: Root, kernel: str) -> None:
    """With those of backports, the next update of the release's kernel comes without headers, and without a driver."""
    root.install("linux-image-amd64=" + kernel)
    assert comes(root)["linux-headers-amd64"] == kernel


def test_a_version_that_an_administrator_forbids_is_not_the_newest_for_us(
    root: Root, releases: Releases
) -> None:
    build(releases.stable.directory, ANCHOR, "535.247.01-1")
    releases.stable.publish()
    root.write("etc/apt/preferences.d/mine", "Package: nvidia-*\nPin: version 535.247.*\nPin-Priority: -1\n")
    assert comes(root)[ANCHOR] == STABLE


def test_what_apt_tells_of_its_choice() -> None:
    told = """\
linux-headers-amd64:
  Installed: 6.1.100-1
  Candidate: 6.1.100-1
  Version table:
     6.12.9-1~bpo12+1 100
        100 http://mirror bookworm-backports/main amd64 Packages
     6.1.110-1 1 (phased 20%)
        500 http://mirror bookworm/main amd64 Packages
 *** 6.1.100-1 500
        500 http://mirror bookworm/main amd64 Packages
        100 /var/lib/dpkg/status
libcuda1:i386:
  Installed: (none)
  Candidate: (none)
  Version table:
     550.1-1 -1
         -1 http://mirror bookworm/main i386 Packages
"""
    assert parse_policy(told) == {
        "linux-headers-amd64": Preference("6.1.100-1", {"6.12.9-1~bpo12+1": 100, "6.1.110-1": 1, "6.1.100-1": 500}),
        "libcuda1:i386": Preference("", {"550.1-1": -1}),
    }
