# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Builds of DKMS while others install kernels: what DKMS leaves then, as it was seen of release 3.0.10, and real locks.

The other one is the script of a kernel's package: DKMS builds for NEW, below a dpkg that holds its lock.
"""
from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import package_manager_works
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import peers
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import build_module
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_executors import build_peer
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import others

sys.path.insert(0, str(Path(__file__).parent.parent / "packages"))

from scratch_apt import held  # noqa: E402

OURS, NEW = "6.1.0-50-amd64", "6.1.0-56-amd64"
VERSION = "580.178.04"
LOCK = "/var/lib/dpkg/lock-frontend"
# What a build ends in: a module; one that both had a hand in; none, with the other one's log, with ours, with no log
GOOD, MIXED, BROKEN, FAILED, UNTOLD = "good", "mixed", "broken", "failed", "untold"


class Dkms(Host):
    """DKMS with the source of one module. ends: of each build; meanwhile: what others do while one is at work.

    said: (DKMS's word, whether a package manager worked then) of what changes something.
    """

    def __init__(self, root: Path, module: str, *ends: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(str(root))
        self.module, self.ends, self.meanwhile = module, list(ends), meanwhile
        self.name = "%s/%s" % (module, VERSION)
        self.said: List[Tuple[str, bool]] = []
        self.logs = 0
        self.state = "added"
        for release in (OURS, NEW):
            self.write("/boot/vmlinuz-" + release, "")
            self.write("/lib/modules/%s/build/Makefile" % release, "")
        self.write(LOCK, "")
        self.write("/usr/src/%s-%s/dkms.conf" % (module, VERSION), "")

    def log(self, directory: str, *releases: str) -> None:
        self.logs += 1
        self.write("/var/lib/dkms/%s/%s/make.log" % (self.name, directory), "".join(
            "DKMS make.log for %s-%s for kernel %s (x86_64)\n" % (self.module, VERSION, release)
            for release in releases) + "x.c:%d: error: gone\n" % self.logs)

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, self.read(argv[1]) or "", "")
        if argv[1] == "status":
            return CommandResult(argv, 0, self.name + (": added\n" if self.state == "added" else
                                                       ", %s, x86_64: %s\n" % (OURS, self.state)), "")
        self.said.append((argv[1], package_manager_works(self)))
        if not (argv[1] == "install" and self.state == "built") and not self.compile():
            return CommandResult(argv, 10, "", "Error! Bad return status for module build\n")
        self.state = "built"
        if argv[1] == "install":
            self.state = "installed"
            self.write("/lib/modules/%s/updates/dkms/%s.ko" % (OURS, self.module),
                       "version: %s\nlicense: MIT\nbuilt: %d\n" % (VERSION, len(self.said)))
            self.write("/lib/modules/%s/modules.dep" % OURS, "updates/dkms/%s.ko:\n" % self.module)
        return CommandResult(argv, 0, "", "")

    def compile(self) -> bool:
        self.meanwhile()
        end = self.ends.pop(0)
        if end in (GOOD, MIXED):
            self.log("%s/x86_64/log" % OURS, *([OURS, NEW] if end == MIXED else [OURS]))
        elif end != UNTOLD:
            self.log("build", NEW if end == BROKEN else OURS)
        return end in (GOOD, MIXED)

    def build(self, essential: bool = True) -> Dict[str, Any]:
        """Carry out the step that builds the module for OURS; what is remembered afterwards."""
        given = {"essential": essential, "timeout": 9, "signed": False, "certificate": "", "exactly": False}
        journal = Journal(self)
        if self.module == "nvidia":
            build_module(self, journal, Step("driver", "dkms.build", OURS, "", parameters=given,
                                             change={"before": {"nvidia": None}, "after": {"nvidia": VERSION}}))
        else:
            build_peer(self, journal, Step("driver", peers.BUILD, self.module, "", parameters={
                **given, "module": self.module, "source": self.module, "kernel": OURS, "driver": VERSION}))
        return {name: kept for name, kept in journal.recall("driver").items() if name != "peers_built"}

    def refused(self, essential: bool) -> Optional[str]:
        with pytest.raises(GpuOpsError) as told:
            self.build(essential)
        return told.value.code


MODULES = pytest.mark.parametrize("module", ("nvidia", "gdrdrv"))
NEEDED = pytest.mark.parametrize("essential", (True, False))


@MODULES
def test_a_kernel_that_is_being_installed_is_waited_for(tmp_path: Path, module: str) -> None:
    host = Dkms(tmp_path, module, GOOD)
    with held(Path(host.path(LOCK))) as dpkg:
        assert dpkg.stdin is not None
        threading.Timer(1.5, dpkg.stdin.close).start()
        assert host.build() == {}
    assert host.said == [("install", False)]


def test_one_that_takes_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "LOCK_SECONDS", 0.2)
    host = Dkms(tmp_path, "nvidia", GOOD)
    with held(Path(host.path(LOCK))) as dpkg, pytest.raises(GpuOpsError, match="process %d" % dpkg.pid) as told:
        host.build(essential=False)
    assert (told.value.code, host.said) == ("packages.manager_at_work", [])


@MODULES
@NEEDED
@pytest.mark.parametrize("end", (BROKEN, MIXED))
def test_a_build_that_another_kernels_has_disturbed_is_done_once_more(
    tmp_path: Path, module: str, essential: bool, end: str
) -> None:
    host = Dkms(tmp_path, module, end, GOOD)
    assert host.build(essential) == {}
    assert (host.ends, host.state) == ([], "installed")


@MODULES
@NEEDED
def test_one_that_is_disturbed_again_is_told_and_nothing_is_remembered(
    tmp_path: Path, module: str, essential: bool
) -> None:
    host = Dkms(tmp_path, module, BROKEN, BROKEN, BROKEN)
    assert host.refused(essential) == "driver.build_disturbed"
    assert Journal(host).recall("driver") == {}


@MODULES
def test_a_build_that_fails_while_packages_are_unpacked_is_done_once_more(tmp_path: Path, module: str) -> None:
    """Headers may be half there."""
    opened: List[Any] = []

    def install_headers() -> None:
        if not opened:
            opened.append(held(Path(host.path(LOCK))))
            dpkg = opened[0].__enter__()
            threading.Timer(2.0, dpkg.stdin.close).start()

    host = Dkms(tmp_path, module, FAILED, GOOD, meanwhile=install_headers)
    try:
        assert host.build(essential=False) == {}
    finally:
        opened[0].__exit__(None, None, None)
    assert host.state == "installed"


@MODULES
def test_a_log_that_another_kernels_failure_has_left_long_since_disturbs_nothing(tmp_path: Path, module: str) -> None:
    """DKMS ends before it has written one where it lacks headers."""
    host = Dkms(tmp_path, module, UNTOLD)
    host.log("build", NEW)
    assert host.build(essential=False) != {}
    assert [word for word, _works in host.said] == ["install"]
