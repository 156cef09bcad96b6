# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Background processes are found again, never confused with strangers, and ended for certain."""
from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from gpulab.limits import raise_limits
from gpulab.processes import Daemon, LabError, run, start_time, wait_for


def test_a_daemon_outlives_its_starter_object_and_ends_when_told(tmp_path: Path) -> None:
    Daemon("sleeper", tmp_path).start(["sleep", "60"])
    again = Daemon("sleeper", tmp_path)
    pid = again.pid
    assert pid is not None
    again.start(["false"])
    assert again.pid == pid, "a running daemon is not started twice"
    again.stop()
    assert again.pid is None
    assert start_time(pid) is None


def test_a_daemon_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    daemon = Daemon("stubborn", tmp_path)
    daemon.start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
    wait_for("trap", lambda: "ready" in daemon.log_tail(), 5)
    started = time.monotonic()
    daemon.stop(seconds=0.2)
    assert daemon.pid is None
    assert time.monotonic() - started < 3


def test_a_reused_process_number_is_a_stranger(tmp_path: Path) -> None:
    daemon = Daemon("gone", tmp_path)
    started = start_time(os.getpid())
    assert started is not None
    daemon.identity_file.write_text(json.dumps({"pid": os.getpid(), "started": started - 1}))
    assert daemon.pid is None
    daemon.stop()
    os.kill(os.getpid(), 0)


def test_half_a_record_is_no_record(tmp_path: Path) -> None:
    daemon = Daemon("half", tmp_path)
    daemon.identity_file.write_text("{")
    assert daemon.pid is None


def test_a_dead_daemon_is_started_again(tmp_path: Path) -> None:
    daemon = Daemon("mortal", tmp_path)
    daemon.start(["sleep", "60"])
    first = daemon.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    daemon.start(["sleep", "60"])
    assert daemon.pid not in (None, first)
    daemon.stop()


def test_a_failing_command_says_why() -> None:
    with pytest.raises(LabError, match="ended with 2: .*no-such-file"):
        run(["ls", "/no-such-file"])


def test_waiting_names_what_is_missing_and_where_to_look() -> None:
    with pytest.raises(LabError, match="the moon: not there after 0 s; see the sky"):
        wait_for("the moon", lambda: False, 0.0, "the sky")


def test_limits_are_raised_but_never_lowered(tmp_path: Path) -> None:
    (tmp_path / "low").write_text("128\n")
    (tmp_path / "high").write_text("9999\n")
    raise_limits({"low": 1024, "high": 1024}, tmp_path)
    assert (tmp_path / "low").read_text() == "1024"
    assert (tmp_path / "high").read_text() == "9999\n"
