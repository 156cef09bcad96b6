# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real processes hold apt's real locks; a dpkg that takes its time is left alone."""
from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from scratch_apt import Repository, Root, build, held

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import COMMAND, HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.progress import Progress, parse
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words


@pytest.mark.parametrize("lock, words", [
    ("var/lib/apt/lists/lock", ("update",)),
    ("var/cache/apt/archives/lock", ("--download-only", "-y", "install", "driver")),
])
def test_a_held_lock_is_waited_for(root: Root, repository: Repository, lock: str, words: "tuple[str, ...]") -> None:
    build(repository.directory, "driver", "1")
    repository.publish()
    root.trust(repository)
    root.apt("update")
    with held(root.path / lock) as holder:
        assert holder.stdin is not None
        release = threading.Timer(1.5, holder.stdin.close)
        release.start()
        done = running.apt_get(root.host, *words, lock_seconds=60)
        release.join()
    assert done.rc == 0


def test_a_lock_that_stays_held_names_its_holder(root: Root) -> None:
    with held(root.path / "var/lib/apt/lists/lock") as holder, pytest.raises(GpuOpsError) as caught:
        running.apt_get(root.host, "update", lock_seconds=2)
    assert "held by process %d (python" % holder.pid in caught.value.found
    assert "waited 2 s for python" in caught.value.found
    assert "(process %d, there for " % holder.pid in caught.value.found


def test_what_apt_would_fetch_is_told_in_bytes(root: Root, repository: Repository) -> None:
    archive = build(repository.directory, "driver", "1", size=3000)
    repository.publish()
    root.trust(repository)
    root.apt("update")
    words = install_words({"driver": "1"}, False)
    assert running.to_fetch(root.host, *words) == archive.stat().st_size > 0
    running.apt_get(root.host, "--download-only", *words)
    assert running.to_fetch(root.host, *words) == 0
    assert running.to_fetch(root.host, *install_words({"none": "1"}, False)) == 0


def test_every_line_of_dpkgs_log_is_told_in_words_or_not_at_all(root: Root, repository: Repository) -> None:
    build(repository.directory, "driver", "1")
    repository.publish()
    root.trust(repository)
    root.apt("update")
    root.install("driver")
    told = set()
    for line in (root.path / "var/log/dpkg.log").read_text().splitlines():
        seen = parse("gpuops-progress step %s\ngpuops-progress now 1\ngpuops-progress dpkg %s\n" % (
            Progress("run", 1, 1, "packages.install", "driver").to_json(), line))
        assert seen is not None
        told.add(seen.dpkg)
    assert told >= {"unpacking driver", "configuring driver", "driver is installed"}


def test_another_error_is_told_at_once(root: Root) -> None:
    with pytest.raises(GpuOpsError, match="Unable to locate package none"):
        running.apt_get(root.host, "-y", "install", "none", lock_seconds=60)


class TestConfigure:
    def test_its_end_and_its_words_are_told(self, root: Root) -> None:
        done = running.configure(root.host, ["sh", "-c", "echo built; echo badly >&2; exit 3"], 60)
        assert (done.rc, done.stdout) == (3, "built\nbadly\n")
        assert root.host.list(running.CONFIGURING) == []

    def test_when_time_is_up_it_goes_on(self, root: Root) -> None:
        ended = root.path / "tmp/ended"
        with pytest.raises(GpuOpsError, match="disturbed; at work in it: sleep .* said last: 'begun'") as caught:
            running.configure(root.host, ["sh", "-c", "echo begun; sleep 2; echo done >%s" % ended], 0.5)
        assert caught.value.details["stdout"] == "begun\n"
        assert not ended.exists()
        deadline = time.monotonic() + 20
        while not ended.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ended.read_text() == "done\n"

    def test_one_that_outlives_its_killed_module_keeps_the_host_locked(self, root: Root, tmp_path: Path) -> None:
        go_on = tmp_path / "go_on"

        def work() -> None:
            host = Host(str(root.path))
            with HostLock(host, "one", "gpu_driver for ada@a").held(0):
                running.configure(host, ["sh", "-c", "while [ ! -e %s ]; do sleep 0.1; done" % go_on], 60)

        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        told = root.path / COMMAND.lstrip("/")
        deadline = time.monotonic() + 20
        while not (root.host.glob(running.CONFIGURING + "/*/pid") and told.exists()) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(20)
        with pytest.raises(GpuOpsError, match="a command of the killed gpu_driver for ada@a"), \
                HostLock(root.host, "two", "gpu_driver for eve@b").held(0):
            raise AssertionError("the lock was given twice")
        go_on.touch()
        with HostLock(root.host, "two", "gpu_driver for eve@b").held(20):
            pass

    def test_dpkgs_own_lock_is_waited_for(self, root: Root) -> None:
        argv = ["dpkg", "--root=%s" % root.path, "--force-not-root", "--configure", "-a"]
        with held(root.path / "var/lib/dpkg/lock-frontend") as holder:
            assert holder.stdin is not None
            with pytest.raises(GpuOpsError, match="lock") as caught:
                running.configure(root.host, argv, 60, lock_seconds=1)
            assert "(process %d, there for " % holder.pid in caught.value.found
            holder.stdin.close()
            assert running.configure(root.host, argv, 60, lock_seconds=60).rc == 0


def test_python3_apt_is_looked_for_where_ansible_builtin_apt_looks(root: Root) -> None:
    """This machine's own Python is asked: the answer is what an import says."""
    there = any(subprocess.run([python, "-c", "import apt, apt_pkg"], capture_output=True).returncode == 0
                for python in (sys.executable, "/usr/bin/python3"))
    assert running.has_bindings(root.host) == there
