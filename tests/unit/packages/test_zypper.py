# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""zypper: what is simulated is what is then carried out, as rpm's database and zypper's own history show it."""
from __future__ import annotations

import base64
import functools
import http.server
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import pytest
import scratch_rpm
from scratch_apt import keyring
from scratch_rpm import CLOSED, OLDER_580, OPEN, RELEASE, V580, V595, V610, Made
from scratch_zypper import Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import PACKAGES_INSTALL, packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import (
    Credentials,
    Package,
    Repository,
    Simulation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import (
    asking,
    configuration,
    history,
    locks,
    transaction,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper import index as indexes
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.zypper.manager import ZYPPER

OURS = "gpuops-nvidia-driver"
KEY_FILE = "/etc/pki/rpm-gpg/" + OURS
LIBRARIES = "nvidia-driver-cuda-libs"
# A package at whose script a transaction stands still for as long as a file is there
SLOW = Made("slow", "1.0", script='while posix.access("/wait-here") do posix.sleep(1) end')
FAILING = Made("failing", "1.0", script='error("this script fails")')
_KILLS = """if posix.access("/killed-whole-%s") then
posix.kill(posix.getprocessid("ppid"), 9)
posix.kill(posix.getprocessid("pid"), 9)
end"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Root:
    """Debian's rpm has its database in the home directory; here it is where SLES 15 has it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.rpmmacros").write_text("%_dbpath /var/lib/rpm\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Root(tmp_path / "root")


def nvidia(where: Optional[Path] = None, **more: Any) -> Repository:
    return Repository("file://%s" % (where or scratch_rpm.nvidia(modules=False)), keyring("one").public, KEY_FILE,
                      id=OURS, **more)


def evr(version: str, epoch: int = 3) -> str:
    return ("%d:" % epoch if epoch else "") + "%s-%s" % (version, RELEASE)


def asked(version: str, module: str = OPEN) -> Dict[str, str]:
    return {name: evr(version) for name in ("nvidia-driver-cuda", LIBRARIES, "nvidia-persistenced", module)}


def write(root: Root, files: Mapping[str, Optional[str]]) -> None:
    """What file steps do; a key lies below the root, and a repository names it whole."""
    for path, text in files.items():
        if text is None:
            root.host.remove(path)
        else:
            root.host.write(path, text.replace("file:///etc", "file://%s/etc" % root.path))


def trust(root: Root, repository: Repository) -> None:
    write(root, ZYPPER.repository_files(repository))
    for step in ZYPPER.trust_steps("driver", repository, ZYPPER.trusted(root.host)):
        ZYPPER.executors[step.action](root.host, Journal(root.host), step)


def planned(
    root: Root, repository: Repository, request: Mapping[str, str], down: bool = False
) -> Tuple[Simulation, Step, Mapping[str, Optional[str]]]:
    """(simulation, step, files) of an installation; the versions are locked before it."""
    there = {path: root.host.read(path) for path in ZYPPER.hold_paths("driver")}
    files = ZYPPER.hold_files("driver", request, there)
    with ZYPPER.open(root.host, [repository], beside_system=True) as opened:
        opened.hold(files)
        done = opened.simulate(request, down)
        before, after = done.change
        step = packages_step("driver", "driver", before, after, "a test", manager="zypper", request=dict(request),
                             allow_downgrade=down, without=list(opened.without))
    # A planner makes no step of nothing; here the executor is asked all the same
    return done, replace(step, action=PACKAGES_INSTALL), files


def opened_step(root: Root, step: Step) -> Dict[str, Any]:
    return {"known": ZYPPER.known(root.host, step), "there": root.installed()}


def carry_out(root: Root, step: Step) -> None:
    ZYPPER.executors[step.action](root.host, Journal(root.host), step)


def change(
    root: Root, request: Mapping[str, str], down: bool = False, repository: Optional[Repository] = None
) -> Simulation:
    """Simulate, carry out, and hold rpm's database and zypper's history against the simulation."""
    done, step, files = planned(root, repository or nvidia(), request, down)
    assert done.problem == ""
    trust(root, repository or nvidia())
    write(root, files)
    ZYPPER.refresh(root.host, request)
    before, opened, earlier = root.installed(), opened_step(root, step), history.lines(root.host)
    carry_out(root, step)
    lines = history.lines(root.host)[len(earlier):]
    came = {line.name: line.version for line in lines if line.kind == "install"}
    gone = {line.name for line in lines if line.kind == "remove"}.difference(came)
    assert (came, gone) == (dict(done.installs), set(done.removes))
    assert root.installed() == {
        **{name: version for name, version in before.items() if name not in done.removes}, **done.installs}
    assert done.change[0] == {name: before.get(name) for name in done.change[1]}
    evidence = ZYPPER.evidence(root.host, step, opened, root.packages())
    assert {name: each.after for name, each in evidence.items()} == done.change[1]
    assert {name: each.before for name, each in evidence.items()} == done.change[0]
    assert not ZYPPER.interrupted(root.host)
    return done


# installed as simulated


def test_an_install_is_what_database_and_history_then_show(root: Root) -> None:
    done = change(root, asked(V580))
    assert done.installs == {**asked(V580), "dkms": "3.2.2-1.el9"}
    assert root.installed() == done.installs
    assert done.download > 1000 and done.unpacked > 0


def test_what_is_there_is_left_alone(root: Root) -> None:
    change(root, asked(V580))
    before = history.lines(root.host)
    again = change(root, asked(V580))
    assert (again.installs, again.removes, again.problem) == ({}, (), "")
    assert history.lines(root.host) == before


def test_from_580_to_595_to_610_and_back(root: Root) -> None:
    for version, down in ((V580, False), (V595, False), (V610, False), (OLDER_580, True)):
        before = {name: root.installed().get(name) for name in asked(version)}
        done = change(root, asked(version), down)
        assert {name: done.change[0].get(name) for name in asked(version)} == before
        assert {name: root.installed()[name] for name in asked(version)} == asked(version)


def test_without_the_option_a_newer_package_stays_and_the_simulation_says_so(root: Root) -> None:
    change(root, asked(V595))
    done = change(root, asked(V580))
    assert (done.installs, done.removes) == ({}, ())
    assert root.installed()["nvidia-driver-cuda"] == evr(V595)


def test_the_other_kernel_module_takes_the_place_of_the_first(root: Root) -> None:
    change(root, asked(V580, OPEN))
    done = change(root, asked(V580, CLOSED))
    assert (done.installs, done.removes) == ({CLOSED: evr(V580)}, (OPEN,))
    assert OPEN not in root.installed()
