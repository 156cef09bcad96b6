# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cut at any system call, and run again: injected.py tells how, failing_calls.c is how."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import workspace

HERE = Path(__file__).parent
# 1 is every call, where a machine has the time: seven thousand experiments
EVERY = os.environ.get("GPUOPS_CUT_EVERY", "37")
SEARCHED = (Path(workspace.__file__).parent, HERE.parent, HERE.parent / "newcomer")


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    shim = tmp_path / "failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(shim),
                    str(HERE / "failing_calls.c"), "-ldl"], check=True)
    return shim


def preloaded(shim: Path, *words: str) -> str:
    """What a Python program prints that runs with the shim."""
    done = subprocess.run(
        [sys.executable, *words],
        env=dict(os.environ, LD_PRELOAD=str(shim), PYTHONPATH=os.pathsep.join(map(str, SEARCHED)),
                 PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


LINK_WRITTEN = """
import ctypes, errno, json, os, sys
import workspace
sys.path.insert(0, str(workspace.collections_root()))
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
shim, root = ctypes.CDLL(sys.argv[1]), sys.argv[2]
READING, COUNT, FAIL_ONCE = 2, 0, 3
os.makedirs(root + "/etc")
open(root + "/etc/target", "w").close()
os.symlink("target", root + "/etc/link")
host, lost, refused = Host(root), [], 0
acts = {"written": lambda: host.write("/etc/link", "ours"), "resolved": lambda: host.resolve("/etc/link")}
for error in (errno.EIO, errno.EACCES):
    for name, act in acts.items():
        for call in range(1, 40):
            shim.gpuops_arm(root.encode(), READING, FAIL_ONCE, ctypes.c_long(call), error)
            try:
                told = act()
            except GpuOpsError:
                told, refused = None, refused + 1
            shim.gpuops_arm(b"", 0, COUNT, ctypes.c_long(0), 0)
            if not os.path.islink(root + "/etc/link") or told not in (None, "/etc/target"):
                lost.append((name, errno.errorcode[error], call, told))
json.dump({"lost": lost, "refused": refused}, sys.stdout)
"""


def test_a_link_that_cannot_be_read_for_once_stays_a_link(shim: Path, memory: Path) -> None:
    told = json.loads(preloaded(shim, "-c", LINK_WRITTEN, str(shim), str(memory)))
    assert told["lost"] == []
    assert told["refused"] > 4


def test_cut_or_refused_at_a_system_call_and_run_again(shim: Path, memory: Path) -> None:
    told = json.loads(preloaded(shim, str(HERE / "injected.py"), str(shim), str(memory), EVERY, "core_world"))
    assert not told["problems"], "\n".join(told["problems"][:10])
    # the shim sees the calls: this many at least are made by what is run
    assert min(told["calls"].values()) > 100 and len(told["calls"]) == 6, told["calls"]
    assert told["experiments"] > sum(told["calls"].values()) / int(EVERY)


def test_a_capability_that_does_nothing_for_it_is_killed_at_every_system_call_and_run_again(
    shim: Path, memory: Path
) -> None:
    told = json.loads(preloaded(
        shim, str(HERE / "injected.py"), str(shim), str(memory), "1", "newcomer_world", "killed"))
    assert not told["problems"], "\n".join(told["problems"][:10])
    assert min(told["calls"].values()) > 20 and list(told["calls"]) == [
        "install, changing", "upgrade, changing", "uninstall, changing"], told["calls"]
    assert told["experiments"] == 2 * sum(told["calls"].values())


SAID_LATE = """
import ctypes, sys
import workspace
sys.path.insert(0, str(workspace.collections_root()))
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
shim = ctypes.CDLL(sys.argv[1])
shim.gpuops_sleepy(ctypes.c_long(500))
print(Host("/").run(["sh", "-c", "sleep 0.2; echo said"]).stdout)
"""


def test_what_a_command_says_right_before_its_end_is_read_on_a_slow_machine(shim: Path) -> None:
    """It writes and ends between our waiting, in which nothing came, and our question whether it has ended."""
    assert preloaded(shim, "-c", SAID_LATE, str(shim)).strip() == "said"


SAID_IN_TIME = """
import ctypes, sys
import workspace
sys.path.insert(0, str(workspace.collections_root()))
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
shim = ctypes.CDLL(sys.argv[1])
shim.gpuops_sleepy(ctypes.c_long(2000))
done = Host("/").run(["sh", "-c", "sleep 0.2; echo said; exit 7"], timeout=1, check=False)
print(done.rc, done.stdout)
"""


def test_what_a_command_says_in_its_time_is_read_when_that_is_over(shim: Path) -> None:
    """This process gets the processor again after the deadline of a command that has ended long before."""
    assert preloaded(shim, "-c", SAID_IN_TIME, str(shim)).split() == ["7", "said"]
