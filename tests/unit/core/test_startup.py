# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host that has just booted is asked once its units have started; no other host waits."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List, Sequence

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import startup
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.startup import await_startup

PERSISTENCED = "12 nvidia-persistenced.service start running\n13 multi-user.target start waiting\n"
WAITING = "13 multi-user.target start waiting\n"
REFRESH = "14 nvidia-cdi-refresh.service start running\n"


class Started(Host):
    """A host that was started some seconds ago, and whose systemd tells one list of jobs after the other."""

    def __init__(self, root: Path, age: float, lists: Sequence[str]) -> None:
        super().__init__(str(root))
        self.age, self.lists, self.asked = age, list(lists), 0
        (root / "run/systemd/system").mkdir(parents=True)

    def process_started(self, pid: int) -> str:
        assert pid == 1
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return str(int((up - self.age) * os.sysconf("SC_CLK_TCK")))

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        assert list(argv[:2]) == ["systemctl", "list-jobs"]
        self.asked += 1
        return CommandResult(tuple(argv), 0, self.lists.pop(0) if len(self.lists) > 1 else self.lists[0], "")


def test_units_that_start_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "PAUSE_SECONDS", 0.01)
    host = Started(tmp_path, 5, [PERSISTENCED + REFRESH, REFRESH, ""])
    assert await_startup(host) == [] and host.asked == 3
    assert await_startup(host) == [] and host.asked == 3, "it is asked once a boot"


def test_one_that_hangs_is_told_when_the_time_is_over(tmp_path: Path) -> None:
    host = Started(tmp_path, 5, [PERSISTENCED])
    assert await_startup(host, limit=0) == ["nvidia-persistenced.service"] and not host.exists(startup.STARTED)


def test_a_run_that_has_waited_in_vain_waits_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks many times, and a boot has a limit for all of it."""
    monkeypatch.setattr(startup, "PAUSE_SECONDS", 0.01)
    host = Started(tmp_path, 5, [PERSISTENCED])
    assert await_startup(host, limit=0.2) and host.asked > 2
    asked = host.asked
    assert await_startup(host, limit=600) and host.asked == asked + 1


@pytest.mark.parametrize("jobs", ["", "9 systemd-udev-trigger.service stop running\n", "No jobs running.\n"])
def test_what_stops_is_not_waited_for(tmp_path: Path, jobs: str) -> None:
    host = Started(tmp_path, 5, [jobs])
    assert await_startup(host) == [] and host.asked == 1


def test_what_waits_for_this_run_is_not_waited_for(tmp_path: Path) -> None:
    host = Started(tmp_path, 5, [WAITING])
    assert await_startup(host) == [] and host.asked == 2


def test_between_two_jobs_nothing_runs_and_the_next_one_is_waited_for(tmp_path: Path) -> None:
    """systemd answers on the bus before it begins what an ended job has made ready to begin."""
    host = Started(tmp_path, 5, [PERSISTENCED, WAITING, REFRESH + WAITING, REFRESH + WAITING, ""])
    assert await_startup(host) == [] and host.asked == 5


def test_our_own_unit_is_not_waited_for(tmp_path: Path) -> None:
    names: List[str] = [part for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
                        for part in line.split("/") if part]
    host = Started(tmp_path, 5, ["".join("7 %s start running\n" % name for name in names[-1:])])
    assert await_startup(host) == []


def test_the_unit_of_the_boot_waits_for_nothing_and_is_waited_for_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else starts may wait for it, and other runs for the host's lock, which it takes."""
    host = Started(tmp_path, 5, ["7 %s start running\n" % startup.BOOT_UNIT])
    assert await_startup(host) == [] and host.exists(startup.STARTED)
    host.remove(startup.STARTED)
    monkeypatch.setattr(startup, "_own_units", lambda: {startup.BOOT_UNIT})
    host.lists = [PERSISTENCED]
    assert await_startup(host) == [] and not host.exists(startup.STARTED)


def test_a_host_that_runs_for_long_is_not_asked(tmp_path: Path) -> None:
    host = Started(tmp_path, startup.STARTUP_SECONDS + 60, [PERSISTENCED])
    assert await_startup(host) == [] and host.asked == 0


def test_a_host_without_systemd_is_started(tmp_path: Path) -> None:
    host = Started(tmp_path, 5, [PERSISTENCED])
    (tmp_path / "run/systemd/system").rmdir()
    assert await_startup(host) == [] and host.asked == 0


def test_systemd_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    class Busy(Started):
        def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
            raise CommandFailed("host.any", "systemctl has not ended", "an answer", "see what it does")

    assert await_startup(Busy(tmp_path, 5, [])) == []


def test_a_run_directory_that_is_full_keeps_nobody_from_a_host_that_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Started(tmp_path, 5, [""])
    monkeypatch.setattr(Host, "write", lambda *_words: (_ for _ in ()).throw(
        HostFailed("host.no_space", "full", "space", "free some")))
    assert await_startup(host) == [] and await_startup(host) == [] and host.asked == 2
