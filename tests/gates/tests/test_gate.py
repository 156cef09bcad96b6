# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The runner of the gates: what it counts, what it stops, what it says."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List

import gate
import pytest
from gate import Bench, Gate, GateFailed, GateLeftOut, Runner, counts_of

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><error/></testcase>
<testcase name="d"><skipped/></testcase><testcase name="e"/>
</testsuite></testsuites>"""


def run(tmp_path: Path, *gates: Gate) -> Runner:
    runner = Runner(gates, tmp_path / "logs", dict(os.environ))
    runner.run()
    return runner


def fail(_bench: Bench) -> None:
    raise GateFailed("wrong")


def leave_out(_bench: Bench) -> None:
    raise GateLeftOut("no such Python")


def command(code: str) -> Callable[[Bench], None]:
    return lambda bench: bench.run([sys.executable, "-c", code])


def test_counts_of_a_junit_report(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert counts_of(tmp_path / "report.xml") == (2, 2, 1)


def test_each_gate_counts_once(tmp_path: Path) -> None:
    runner = Runner([Gate("good", "good", command("pass"), 60), Gate("bad", "bad", fail, 60),
                     Gate("out", "out", leave_out, 60)], tmp_path, dict(os.environ))
    assert runner.run() == (1, 1, 1)


def test_a_command_that_fails_fails_its_gate_and_its_output_is_shown(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = run(tmp_path, Gate("bad", "bad", command("print('the reason'); raise SystemExit(3)"), 60))
    assert "status 3" in (runner.results["bad"].error or "")
    assert "the reason" in capsys.readouterr().out


def test_a_gate_over_its_time_is_stopped_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    child = "import time; time.sleep(3); open(%r, 'w')" % str(marker)
    code = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', %r]); time.sleep(60)" % child
    started = time.monotonic()
    runner = run(tmp_path, Gate("slow", "slow", command(code), 1))
    assert time.monotonic() - started < 20
    assert "longer than it may" in (runner.results["slow"].error or "")
    time.sleep(3)
    assert not marker.exists()


def test_a_defect_of_a_gate_does_not_end_the_others(tmp_path: Path) -> None:
    def broken(_bench: Bench) -> None:
        raise KeyError("x")

    runner = run(tmp_path, Gate("broken", "broken", broken, 60), Gate("good", "good", command("pass"), 60))
    assert runner.results["broken"].error == "KeyError: 'x'"
    assert runner.results["good"].error is None


def test_a_gate_waits_for_the_gate_it_needs_and_does_not_run_after_its_failure(tmp_path: Path) -> None:
    order: Dict[str, float] = {}

    def slow(_bench: Bench) -> None:
        time.sleep(0.3)
        order["slow"] = time.monotonic()

    def after(_bench: Bench) -> None:
        order["after"] = time.monotonic()

    runner = run(
        tmp_path, Gate("slow", "slow", slow, 60, background=True), Gate("bad", "bad", fail, 60, background=True),
        Gate("after", "after", after, 60, needs=("slow",)), Gate("never", "never", after, 60, needs=("bad",)),
    )
    assert order["slow"] < order["after"]
    assert runner.results["never"].error == "not run, since this failed before: bad"


def test_gates_in_the_background_take_turns_beside_the_others(tmp_path: Path) -> None:
    first_may_end = threading.Event()
    both_run: List[bool] = []

    def first(bench: Bench) -> None:
        assert bench.nice > 0
        both_run.append(first_may_end.wait(30))

    def in_front(bench: Bench) -> None:
        assert bench.nice == 0
        first_may_end.set()

    runner = run(tmp_path, Gate("first", "first", first, 60, background=True),
                 Gate("second", "second", lambda _bench: both_run.append(len(both_run) == 1), 60, background=True),
                 Gate("front", "front", in_front, 60))
    assert both_run == [True, True]
    assert [result.error for result in runner.results.values()] == [None, None, None]


def test_a_pytest_gate_counts_its_tests_and_no_test_at_all_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    (tmp_path / "test_none.py").write_text("")
    runner = run(tmp_path, Gate("two", "two", _pytest(tmp_path / "test_two.py"), 60),
                 Gate("none", "none", _pytest(tmp_path / "test_none.py"), 60))
    assert runner.results["two"].counts == (1, 1, 0)
    assert runner.results["none"].counts == (0, 1, 0)
    assert "no test" in (runner.results["none"].error or "")


def test_the_summary_names_the_tests_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_many.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(12))\n"
        "def test_a(n): assert n is None, 'number %d\\nand more' % n\n")
    run(tmp_path, Gate("many", "many", _pytest(tmp_path / "test_many.py"), 60))
    summary = capsys.readouterr().out.rsplit("FAILED", 1)[1]
    assert "test_many::test_a[9]: AssertionError: number 9\n" in summary
    assert "and 2 more" in summary
    assert "test_a[10]" not in summary


def test_a_pytest_that_fails_beside_its_tests_is_not_counted_as_clean(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_sessionfinish(session): session.exitstatus = 3\n")
    (tmp_path / "test_one.py").write_text("def test_a(): pass\n")
    runner = run(tmp_path, Gate("one", "one", _pytest(tmp_path / "test_one.py"), 60))
    assert runner.results["one"].counts == (1, 1, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_ends_what_its_gates_have_started(tmp_path: Path, number: int) -> None:
    """A child that outlives its parent's end, as pytest's workers do."""
    told = tmp_path / "child"
    child = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, " \
        "signal.SIG_IGN); open(%r, 'w').write('%%d\\n' %% os.getpid()); time.sleep(300)" % str(told)
    parent = "import subprocess, sys; subprocess.call([sys.executable, '-c', %r])" % child
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, signal, sys\nsys.path.insert(0, %r)\nimport run\nfrom gate import Gate, Runner\n"
        "signal.signal(signal.SIGTERM, run._interrupt)\n"
        # Whoever runs these tests in the background has it ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "work = lambda bench: bench.run([sys.executable, '-c', %r])\n"
        "Runner([Gate('long', 'long', work, 200)], pathlib.Path(%r), dict(os.environ)).run()\n" % (
            str(Path(gate.__file__).parent), parent, str(tmp_path / "logs")))
    with subprocess.Popen([sys.executable, str(program)], stderr=subprocess.DEVNULL) as process:
        ends = time.monotonic() + 30
        while not (told.is_file() and told.read_text().endswith("\n")) and time.monotonic() < ends:
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(timeout=60)
    assert not Path("/proc/%s/cmdline" % told.read_text().strip()).exists()


def _pytest(path: Path) -> Callable[[Bench], None]:
    return lambda bench: bench.pytest([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", path])
