# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How far a run is: what its module writes, what the real command reads of it, and the line that people get."""
from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List
from unittest import mock

import pytest
from core_world import WISHES, furnish, run

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import progress as progress_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import telling
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import JOURNAL, Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.progress import (
    COMMAND,
    PATH,
    Progress,
    Seen,
    duration,
    parse,
    render,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.telling import Telling

RUN = "ada@controller 5f0c"
AT = Progress(RUN, 7, 37, "packages.install", "driver 580.178.04", 1000.0)
STEP = Step("driver", "dkms.build", "6.1.0-56-amd64", "It has none.")
DIRECTORIES = ("run/gpuops", "var/log", "var/lib/dkms", "var/cache/apt/archives/partial", "var/cache/zypp/packages/a")


@pytest.mark.parametrize("seen, line", [
    (Seen(AT, 1130), "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s"),
    (Seen(replace(AT, fetches=480_400_000), 1130, 310_900_000),
     "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s: downloading 310 of 480 MB"),
    (Seen(replace(AT, fetches=9_000_000), 1001, 1_240_000),
     "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 1 s: downloading 1.2 of 9.0 MB"),
    (Seen(AT, 1130, 310_900_000),
     "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s: downloading, 310 MB so far"),
    (Seen(replace(AT, fetches=480_400_000), 1130, 480_500_000, "unpacking libnvidia-ml1"),
     "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s: unpacking libnvidia-ml1"),
    (Seen(AT, 1130, 5, "configuring nvidia-kernel-dkms", "nvidia/580.178.04 for kernel 6.1"),
     "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s: "
     "building nvidia/580.178.04 for kernel 6.1"),
    (Seen(Progress(RUN, since=1000.0), 1045), "gpu-1: reading the host, for 45 s"),
    (Seen(replace(AT, run="eve@b 1"), 1130),
     "gpu-1: waits for another run, which is at: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s"),
])
def test_a_line_says_the_step_its_time_and_what_works_in_it(seen: Seen, line: str) -> None:
    assert render("gpu-1", RUN, seen, 9e9) == line


@pytest.mark.parametrize("until, says", [
    (0.0, ""), (1130.0, ", expected until 09:00"), (1730.0, ", expected until 09:10"),
    (1129.0, ", was expected until 08:59"), (1130.0 + 15 * 3600, ", expected until 2027-01-16 00:00")])
def test_a_line_says_until_when_it_is_expected_by_the_clock_of_its_reader(
    monkeypatch: pytest.MonkeyPatch, until: float, says: str
) -> None:
    """The host's clock may be another."""
    monkeypatch.setenv("TZ", "Etc/GMT-1")
    time.tzset()
    try:
        nine = 1800000000.0
        told = render("gpu-1", RUN, Seen(replace(AT, until=until), 1130, 0, "unpacking x"), nine)
        waiting = render("gpu-1", "another", Seen(replace(AT, until=until), 1130), nine)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert told == (
        "gpu-1: step 7 of 37, packages.install driver 580.178.04, for 2 min 10 s" + says + ": unpacking x")
    assert waiting.endswith("for 2 min 10 s" + says)


@pytest.mark.parametrize("seconds, words", [
    (-3, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (3600, "1 h 0 min"),
    (93784, "26 h 3 min")])
def test_a_duration_is_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_what_is_written_is_read_again() -> None:
    assert Progress.from_json(AT.to_json()) == AT


@pytest.mark.parametrize("text", [
    None, "", "{", "[]", "1", "{}", '{"schema": 1}', AT.to_json()[:-5],
    *(json.dumps(dict(json.loads(AT.to_json()), **change))
      for change in ({"schema": 2}, {"number": "7"}, {"since": None}, {"action": ["a"]}, {"total": True})),
])
def test_what_nobody_understands_tells_nothing(text: Any) -> None:
    assert Progress.from_json(text) is None


def test_a_terminal_is_moved_by_nothing_that_a_host_says() -> None:
    evil = "\x1b[2J\u202e\r\n" + "x" * 500
    told = "\n".join("gpuops-progress " + line for line in (
        "now 1130", "step " + replace(AT, action=evil, subject=evil).to_json(),
        "dpkg 2026-11-24 02:10:11 status \x1b[2J p v"))
    seen = parse(told)
    assert seen is not None
    line = render("gpu-1", RUN, seen, 9e9)
    assert line.isascii() and line.isprintable() and len(line) < 500


@contextlib.contextmanager
def host_clock(at: float) -> Iterator[None]:
    with mock.patch("time.time", lambda: at):
        yield


class Machine:
    """Directories that the command reads in place of the host's."""

    def __init__(self, root: Path) -> None:
        self.root, self.host = root, Host(str(root))
        for name in DIRECTORIES:
            (root / name).mkdir(parents=True)

    def file(self, name: str, content: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def begin(self, fetches: int = 0) -> None:
        """The step begins, and the file system's clock has gone on since what was there."""
        before = self.file("before", "").stat().st_ctime_ns
        while self.file("after", "").stat().st_ctime_ns <= before:
            time.sleep(0.001)
        telling = Telling(self.host, RUN, False)
        telling.step(STEP, 1, 2)
        telling.fetches(fetches)
        written = (self.root / PATH.lstrip("/")).stat().st_mtime_ns
        while self.file("after", "").stat().st_ctime_ns <= written:
            time.sleep(0.001)

    def told(self) -> str:
        command = COMMAND.replace(" /var/", " %s/var/" % self.root).replace("p=", "p=%s" % self.root)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    def seen(self) -> Seen:
        found = parse(self.told())
        assert found is not None
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestCommand:
    def test_without_a_run_it_says_nothing(self, machine: Machine) -> None:
        assert machine.told() == ""

    def test_the_step_and_the_clock_of_the_host(self, machine: Machine) -> None:
        machine.begin(17)
        seen = machine.seen()
        assert seen.progress == Progress(RUN, 1, 2, STEP.action, STEP.subject, seen.progress.since, 17)
        assert abs(seen.now - time.time()) < 600 and (seen.fetched, seen.dpkg, seen.builds) == (0, "", "")

    def test_a_greeting_of_the_login_and_the_line_ends_of_a_terminal_are_no_part_of_it(self, machine: Machine) -> None:
        machine.begin()
        told = machine.told()
        assert parse("Welcome to gpu-1 {}\r\n" + told.replace("\n", "\r\n") + "bye\r\n") == parse(told) is not None

    def test_packages_count_that_were_fetched_since_unfinished_ones_too(self, machine: Machine) -> None:
        machine.file("var/cache/apt/archives/old_1_all.deb", "x" * 1000)
        machine.begin()
        complete = machine.file("var/cache/apt/archives/driver_1_all.deb", "x" * 20)
        os.utime(complete, (1, 1))
        machine.file("var/cache/apt/archives/partial/libdriver_1_all.deb", "x" * 5)
        machine.file("var/cache/zypp/packages/a/kmp.rpm", "x" * 300)
        machine.file("var/cache/apt/archives/lock", "x" * 7)
        assert machine.seen().fetched == 325

    def test_dpkg_counts_once_it_has_done_something(self, machine: Machine) -> None:
        old = "2026-11-24 02:10:11 status installed old:amd64 1\n"
        machine.file("var/log/dpkg.log", old)
        machine.begin()
        assert machine.seen().dpkg == ""
        machine.file("var/log/dpkg.log", old + "2026-11-24 02:12:11 status half-configured nvidia-dkms:amd64 580-1\n")
        assert machine.seen().dpkg == "configuring nvidia-dkms"

    @pytest.mark.parametrize("header", [
        "DKMS make.log for nvidia-580.178.04 for kernel 6.1.0-56-amd64 (x86_64)",
        "DKMS (dkms-3.2.2) make.log for nvidia/580.178.04 for kernel 6.1.0-56-amd64 (x86_64)"])
    def test_a_build_of_dkms_is_told_while_it_goes_on(self, machine: Machine, header: str) -> None:
        build = "var/lib/dkms/nvidia/580.178.04/build/make.log"
        machine.file(build, header + "\nolder, of a build that failed\n")
        machine.begin()
        assert machine.seen().builds == ""
        machine.file(build, header + "\nTue Nov 24 02:10:11 UTC 2026\nBuilding module(s)\n")
        assert machine.seen().builds.replace("/", "-") == "nvidia-580.178.04 for kernel 6.1.0-56-amd64"
        (machine.root / build).rename(machine.root / "var/lib/dkms/nvidia/580.178.04/make.log")
        assert machine.seen().builds == ""

    def test_what_is_no_record_of_a_run_harms_nothing(self, machine: Machine) -> None:
        for content in ("", "{", '{"schema": 1}', "\x00\xff\n" * 9):
            machine.file(PATH.lstrip("/"), content)
            assert parse(machine.told()) is None


@pytest.mark.parametrize("line, words", [
    ("2026-11-24 02:10:11 install nvidia-smi:amd64 <none> 580-1", "unpacking nvidia-smi"),
    ("2026-11-24 02:10:11 upgrade nvidia-smi:amd64 570-1 580-1", "unpacking nvidia-smi"),
    ("2026-11-24 02:10:11 configure nvidia-dkms:all 580-1 <none>", "configuring nvidia-dkms"),
    ("2026-11-24 02:10:11 trigproc initramfs-tools:all 0.142 <none>", "triggers of initramfs-tools"),
    ("2026-11-24 02:10:11 remove nvidia-smi:amd64 570-1 <none>", "removing nvidia-smi"),
    ("2026-11-24 02:10:11 status installed libc-bin:amd64 2.36-9", "libc-bin is installed"),
    ("2026-11-24 02:10:11 startup archives unpack", ""),
    ("", ""), ("x", ""),
])
def test_dpkg_is_told_in_words(line: str, words: str) -> None:
    told = "gpuops-progress step %s\ngpuops-progress now 1130\ngpuops-progress dpkg %s\n" % (AT.to_json(), line)
    seen = parse(told)
    assert seen is not None and seen.dpkg == words


class TestTelling:
    @staticmethod
    def told(root: Path) -> Progress:
        found = telling.read(Host(str(root)))
        assert found is not None
        return found

    def test_every_step_of_a_run_is_told_before_it_is_carried_out(self, memory: Path) -> None:
        furnish(memory)
        begun: List[str] = []
        work = run(str(memory), **WISHES["install"])
        write = work.host.write

        def watched(name: str, *more: Any, **options: Any) -> None:
            if name.startswith("/etc/"):
                begun.append(str(self.told(memory)))
            write(name, *more, **options)

        work.host.write = watched  # type: ignore[method-assign]
        apply_alone(work, HostLock(work.host, RUN, "texts"), 0)
        assert begun == ["step 1 of 4, file.write /etc/theirs", "step 2 of 4, file.write /etc/link",
                         "step 3 of 4, file.write /etc/deep/er/ours"]
        assert telling.read(work.host) is None

    def test_the_host_is_read_first(self, memory: Path) -> None:
        Telling(Host(str(memory)), RUN, False).reading()
        assert str(self.told(memory)) == "reading the host" and self.told(memory).run == RUN

    def test_after_a_step_of_the_controller_the_numbers_go_on(self, memory: Path) -> None:
        host = Host(str(memory))
        Telling(host, RUN, False).step(STEP, 3, 9)
        resumed = Telling(host, RUN, True)
        resumed.reading()
        resumed.step(STEP, 1, 6)
        assert str(self.told(memory)).startswith("step 4 of 9, ")

    @pytest.mark.parametrize("run, is_resumed", [(RUN, False), ("eve@b 1", True)])
    def test_what_another_call_told_is_not_gone_on_with(self, memory: Path, run: str, is_resumed: bool) -> None:
        host = Host(str(memory))
        Telling(host, RUN, False).step(STEP, 3, 9)
        Telling(host, run, is_resumed).step(STEP, 1, 6)
        assert str(self.told(memory)).startswith("step 1 of 6, ")

    def test_until_when_it_is_expected_follows_from_steps_of_the_kind_on_this_host(self, memory: Path) -> None:
        host, other = Host(str(memory)), replace(STEP, action="module.load")
        for step, seconds in ((STEP, 100), (other, 20)):
            for event, at in (("started", 1000.0), ("done", 1000.0 + seconds)):
                with host_clock(at):
                    Journal(host).note(event, step, "p", policy="p")
        telling = Telling(host, RUN, False)
        for step, after, expected in ((STEP, [other], 120), (other, [], 20), (STEP, [replace(STEP, action="new")], 0)):
            telling.step(step, 1, 2, after)
            told = self.told(memory)
            assert told.until == (pytest.approx(told.since + expected) if expected else 0.0)

    def test_a_journal_that_cannot_be_read_tells_no_end(self, memory: Path) -> None:
        (memory / JOURNAL.lstrip("/")).mkdir(parents=True)
        Telling(Host(str(memory)), RUN, False).step(STEP, 1, 1)
        assert self.told(memory).until == 0.0 and self.told(memory).number == 1

    def test_where_it_cannot_be_written_the_run_goes_on(self, memory: Path) -> None:
        furnish(memory)
        (memory / PATH.lstrip("/")).mkdir(parents=True)
        work = run(str(memory), **WISHES["install"])
        assert len(apply_alone(work, HostLock(work.host, RUN, "texts"), 0)[0].applied) == 4

    def test_it_is_for_root_and_has_names_and_numbers_alone(self, memory: Path) -> None:
        Telling(Host(str(memory)), RUN, False).step(
            replace(STEP, why="a secret", change={"before": None, "after": "a secret"},
                    parameters={"token": "a secret"}), 1, 1)
        path = memory / PATH.lstrip("/")
        told: Dict[str, Any] = json.loads(path.read_text())
        assert "secret" not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
        assert set(told) == {"schema", *progress_of.Progress.__dataclass_fields__}
