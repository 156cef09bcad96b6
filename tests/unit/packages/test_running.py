# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real processes hold apt's real locks; a dpkg that takes its time is left alone."""
from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from scratch_apt import Repository, Root, build, held

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import running


@pytest.mark.parametrize("lock, words", [
    ("var/lib/apt/lists/lock", ("update",)),
    ("var/cache/apt/archives/lock", ("--download-only", "-y", "install", "driver")),
])
def test_a_held_lock_is_waited_for(root: Root, repository: Repository, lock: str, words: "tuple[str, ...]") -> None:
    build(repository.folder, "driver", "1")
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
    assert "waited 2 s" in caught.value.found


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
        with pytest.raises(GpuOpsError, match="it goes on, and was not disturbed") as caught:
            running.configure(root.host, ["sh", "-c", "echo begun; sleep 2; echo done >%s" % ended], 0.5)
        assert caught.value.details["stdout"] == "begun\n"
        assert not ended.exists()
        deadline = time.monotonic() + 20
        while not ended.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ended.read_text() == "done\n"

    def test_dpkgs_own_lock_is_waited_for(self, root: Root) -> None:
        argv = ["dpkg", "--root=%s" % root.path, "--force-not-root", "--configure", "-a"]
        with held(root.path / "var/lib/dpkg/lock-frontend") as holder:
            assert holder.stdin is not None
            with pytest.raises(GpuOpsError, match="lock"):
                running.configure(root.host, argv, 60, lock_seconds=1)
            holder.stdin.close()
            assert running.configure(root.host, argv, 60, lock_seconds=60).rc == 0


def test_python3_apt_is_looked_for_where_ansible_builtin_apt_looks(root: Root) -> None:
    """This machine's own Python is asked: the answer is what an import says."""
    there = any(subprocess.run([python, "-c", "import apt, apt_pkg"], capture_output=True).returncode == 0
                for python in (sys.executable, "/usr/bin/python3"))
    assert running.has_bindings(root.host) == there
