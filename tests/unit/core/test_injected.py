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


def test_cut_or_refused_at_a_system_call_and_run_again(memory: Path, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    shim = tmp_path / "failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(shim),
                    str(HERE / "failing_calls.c"), "-ldl"], check=True)
    gates = str(Path(workspace.__file__).parent)
    done = subprocess.run(
        [sys.executable, str(HERE / "injected.py"), str(shim), str(memory), EVERY],
        env=dict(os.environ, LD_PRELOAD=str(shim), PYTHONPATH=gates, PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert not told["problems"], "\n".join(told["problems"][:10])
    # the shim sees the calls: this many at least are made by what is run
    assert min(told["calls"].values()) > 100 and len(told["calls"]) == 6, told["calls"]
    assert told["experiments"] > sum(told["calls"].values()) / int(EVERY)
