# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of a host's packages and sources, with the real dpkg-query on a database of this test."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Dict, Tuple

import pytest
from driver_world import policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.backends import apt
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.target import Target, target_of

pytestmark = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs dpkg")
THERE = facts(A100)
# Nothing of it needs a repository, so nothing is asked for
REMOVED = policy(state="absent")


def seen(root: Path, packages: Dict[str, Tuple[str, str]], sources: Dict[str, str]) -> Observation:
    """The observation of a host with these packages ({name: (version, state)}) and files below /etc/apt."""
    host = Host(str(root))
    host.write("/var/lib/dpkg/status", "".join(
        "Package: %s\nStatus: install ok %s\nVersion: %s\nArchitecture: amd64\nMaintainer: t <t@gpuops.invalid>\n"
        "Description: a test\n\n" % (name, state, version) for name, (version, state) in packages.items()))
    for name, text in sources.items():
        host.write("/etc/apt/" + name, text)
    return observe(host, Journal(host), REMOVED, THERE)


@pytest.mark.parametrize("states", [("unpacked", "half-configured"), ("unpacked", "unpacked")])
def test_files_of_packages_that_are_not_configured_yet_are_nobodys_leftovers(
    tmp_path: Path, states: Tuple[str, str]
) -> None:
    """A power cut between unpacking and configuring: to remove these files by hand would be the wrong advice."""
    Host(str(tmp_path)).write("/usr/bin/nvidia-smi", "")
    broken = {"nvidia-kernel-open-dkms": ("580.178.04-1", states[1]), "nvidia-driver-cuda": ("580.178.04-1", states[0])}
    there = seen(tmp_path, broken, {})
    assert there.leftovers == () and set(there.broken) == set(broken)
    (refusal,) = planner._refuse_foreign(there, policy(), THERE) + apt.BACKEND.refuse_broken(there)
    assert "dpkg --configure -a" in refusal.remedy


@pytest.mark.parametrize("state", ["half-configured", "installed"])
def test_a_kernel_that_a_module_does_not_build_for_is_refused_with_what_the_compiler_said(
    tmp_path: Path, state: str
) -> None:
    """Debian's kernel packages do not configure then. A log of a build that nobody misses any more is no news."""
    Host(str(tmp_path)).write(
        "/var/lib/dkms/nvidia-current/550.163.01/build/make.log",
        "make: Entering directory\nnvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'\n")
    there = seen(tmp_path, {"linux-image-7.3.4+deb13-amd64": ("7.3.4-1", state)}, {})
    told = [refusal.found for refusal in apt.BACKEND.refuse_broken(there)]
    assert told == ([] if state == "installed" else [
        "packages that dpkg has not finished: linux-image-7.3.4+deb13-amd64; the build that failed last: /var/lib/dkms/"
        "nvidia-current/550.163.01/build/make.log: nvidia/nv-pci.c:237:9: error: too few arguments to function "
        "'pci_resize_resource'"])


def test_files_that_no_package_brought_are_leftovers(tmp_path: Path) -> None:
    Host(str(tmp_path)).write("/usr/bin/nvidia-smi", "")
    assert seen(tmp_path, {"bash": ("5.2", "installed")}, {}).leftovers == ("/usr/bin/nvidia-smi",)


ENTRY = "deb [signed-by=/usr/share/keyrings/cuda.gpg] http://mirror/debian12/x86_64/ /\n"
STANZA = "Types: deb\nURIs: http://mirror/debian12/x86_64\nSuites: /\n"


@pytest.mark.parametrize("name, text, counts", [
    ("sources.list", ENTRY, True),
    ("sources.list.d/cuda.list", ENTRY, True),
    ("sources.list.d/cuda.list", ENTRY.replace("http://", "http://me:secret@"), True),
    ("sources.list.d/cuda.list", "# " + ENTRY, False),
    # apt reads none of these
    ("sources.list.d/cuda.list.save", ENTRY, False),
    ("sources.list.d/cuda.list.bak", ENTRY, False),
    ("sources.list.d/cuda.sources", STANZA, True),
    ("sources.list.d/cuda.sources", "Enabled: no\n" + STANZA, False),
    ("sources.list.d/cuda.sources", "Enabled: yes\n" + STANZA, True),
    ("sources.list.d/cuda.sources", "Enabled: no\nTypes: deb\nURIs: http://other\nSuites: /\n\n" + STANZA, True),
])
def test_only_what_apt_reads_names_the_repository(tmp_path: Path, name: str, text: str, counts: bool) -> None:
    there = seen(tmp_path, {}, {name: text})
    assert there.foreign_sources == (("/etc/apt/" + name,) if counts else ())


@pytest.mark.parametrize("state", ["triggers-pending\nTriggers-Pending: ldconfig",
                                   "triggers-awaited\nTriggers-Awaited: libc-bin"])
def test_a_driver_whose_trigger_waits_is_installed(tmp_path: Path, state: str) -> None:
    """A power cut before the triggers ran: by a branch, the driver would be exchanged for the newest one of it."""
    there = seen(tmp_path, {"nvidia-kernel-open-dkms": ("580.126.09-1", state)}, {})
    assert there.installed == {"nvidia-kernel-open-dkms": "580.126.09-1"} and there.broken == ()
    target = target_of(policy(version="580"), THERE, there.installed, {"nvidia-kernel-open-dkms": ["580.178.04-1"]})
    assert isinstance(target, Target) and target.version == "580.126.09"


OWN_LISTS = ("mirror_debian12_x86%5f64_InRelease", "mirror_debian12_x86%5f64_Packages.lz4")


@pytest.mark.parametrize("sources, forgotten", [({}, True), ({"sources.list.d/cuda.list": ENTRY}, False)])
def test_lists_of_others_are_not_forgotten(tmp_path: Path, sources: Dict[str, str], forgotten: bool) -> None:
    """Repositories below ours, and ours where somebody has an entry of his own: each uninstallation would take their
    lists again."""
    others = ("mirror_debian12_x86%5f64_debian_dists_bookworm_InRelease",
              "mirror_debian12_x86%5f64_debian_dists_bookworm_main_binary-amd64_Packages", "mirror_debian12_InRelease")
    for name in OWN_LISTS + others:
        Host(str(tmp_path)).write("/var/lib/apt/lists/" + name, "x")
    plan = planner.plan(seen(tmp_path, {}, sources), REMOVED, THERE)
    assert [list(step.parameters["files"]) for step in plan.steps] == (
        [["/var/lib/apt/lists/" + name for name in OWN_LISTS]] if forgotten else [])
