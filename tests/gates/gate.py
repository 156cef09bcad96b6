# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A gate, and how gates are run: one after another with progress, and beside them those in the background, in turn too.

A gate counts as one check, except that a gate that runs pytest counts as its tests.
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

Word = Union[str, Path]
HEARTBEAT_SECONDS = 20
LOG_LINES_SHOWN = 60
# Of the tests that failed, told of in the summary: of a long output often nothing but its end is at hand
FAILURES_NAMED = 10
REASON_CHARACTERS = 300


class GateFailed(Exception):
    """A gate found something wrong; its log has the details."""


class GateLeftOut(Exception):
    """A gate cannot run on this machine; the message says what it lacks."""


@dataclass(frozen=True)
class Gate:
    """One check of the whole.

    work:       does the check through the `Bench` it is given; raises `GateFailed` if something is wrong.
    seconds:    the time after which it is stopped and counted as failed.
    background: it runs at low priority beside the other gates, once those in the background before it have ended.
    needs:      names of gates that must have passed before this one starts.
    """

    name: str
    title: str
    work: Callable[["Bench"], None]
    seconds: int
    background: bool = False
    needs: Tuple[str, ...] = ()


@dataclass
class Bench:
    """What a gate works with: commands, a log, and the counts of tests."""

    log_file: Path
    deadline: float
    environment: Mapping[str, str]
    nice: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: List[str] = field(default_factory=list)
    _process: Optional["subprocess.Popen[bytes]"] = None
    _stopped: bool = False

    def run(self, argv: Sequence[Word], cwd: Optional[Path] = None, env: Optional[Mapping[str, str]] = None) -> None:
        """Run a command into the log; an exit status other than 0 fails the gate."""
        status = self.status_of(argv, cwd, env)
        if status != 0:
            raise GateFailed("%s ended with status %d" % (" ".join(str(word) for word in argv[:4]), status))

    def status_of(self, argv: Sequence[Word], cwd: Optional[Path] = None,
                  env: Optional[Mapping[str, str]] = None) -> int:
        if self._stopped:
            raise GateFailed("it was stopped")
        words = [str(word) for word in argv]
        self.write("$ %s" % " ".join(words))
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", str(self.nice), *words] if self.nice else words,
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
                env=dict(self.environment, **(env or {})), start_new_session=True,
            )
        try:
            return self._process.wait(timeout=max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise GateFailed("it took longer than it may and was stopped") from None
        finally:
            self._end_process()

    def pytest(self, argv: Sequence[Word], cwd: Optional[Path] = None, env: Optional[Mapping[str, str]] = None) -> None:
        """Run a pytest command and count its tests instead of the gate."""
        report = self.log_file.with_suffix(".xml")
        report.unlink(missing_ok=True)
        status = self.status_of([*argv, "--junit-xml", report], cwd, env)
        if report.is_file():
            self.passed, self.failed, self.skipped = counts_of(report)
        if self.passed + self.failed == 0:
            raise GateFailed("pytest ran no test (status %d)" % status)
        if status != 0:
            raise GateFailed("\n    ".join(["pytest ended with status %d" % status, *failures_of(report)]))

    def write(self, text: str) -> None:
        with self.log_file.open("a") as log:
            log.write(text + "\n")

    def note(self, text: str) -> None:
        """A remark shown beside the gate's result."""
        self.notes.append(text)

    def stop(self) -> None:
        self._stopped = True
        self._end_process()

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is not None:
            return
        # The whole group: its first process may end long before its children, as pytest's workers
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            ends = time.monotonic() + patience
            try:
                os.killpg(process.pid, number)
                while time.monotonic() < ends:
                    process.poll()
                    os.killpg(process.pid, 0)
                    time.sleep(0.05)
            except ProcessLookupError:
                process.wait()
                return


def counts_of(report: Path) -> Tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit report."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def failures_of(report: Path) -> List[str]:
    """Failed tests of a JUnit report, each with the first line of what it says; the first few, and how many more."""
    found: List[str] = []
    if report.is_file():
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            for kind in ("failure", "error"):
                for told in case.findall(kind):
                    reason = (told.get("message") or "").split("\n")[0][:REASON_CHARACTERS]
                    found.append("%s::%s: %s" % (case.get("classname"), case.get("name"), reason))
    more = len(found) - FAILURES_NAMED
    return found[:FAILURES_NAMED] + (["and %d more" % more] if more > 0 else [])


@dataclass
class Result:
    gate: Gate
    bench: Bench
    seconds: float = 0.0
    error: Optional[str] = None
    left_out: Optional[str] = None

    @property
    def counts(self) -> Tuple[int, int, int]:
        """Passed, failed and skipped checks."""
        if self.left_out:
            return 0, 0, 1
        if self.bench.passed + self.bench.failed:
            # A run that was stopped, or failed beside its tests, must not count as clean.
            unexplained = 1 if self.error and not self.bench.failed else 0
            return self.bench.passed, self.bench.failed + unexplained, self.bench.skipped
        return (0, 1, 0) if self.error else (1, 0, 0)


class Runner:
    """Runs gates and tells what happens."""

    def __init__(self, gates: Sequence[Gate], logs: Path, environment: Mapping[str, str]) -> None:
        self.gates = list(gates)
        self.logs = logs
        self.environment = dict(environment)
        self.results: Dict[str, Result] = {}
        self._ended = {gate.name: threading.Event() for gate in self.gates}
        self._over = False
        logs.mkdir(parents=True, exist_ok=True)

    def run(self) -> Tuple[int, int, int]:
        """Run all gates; return the sums of passed, failed and skipped checks."""
        behind = [gate for gate in self.gates if gate.background]
        try:
            if behind:
                say("in the background: %s" % "; ".join(gate.title for gate in behind))
                threading.Thread(target=self._run_behind, args=(behind,), daemon=True).start()
            for gate in [gate for gate in self.gates if not gate.background]:
                for need in gate.needs:
                    self._wait_for(need)
                threading.Thread(target=self._work, args=(gate,), daemon=True).start()
                self._wait_for(gate.name)
            for gate in behind:
                self._wait_for(gate.name)
        finally:
            self._over = True
            for result in list(self.results.values()):
                result.bench.stop()
        return self._summary()

    def _run_behind(self, gates: Sequence[Gate]) -> None:
        for gate in gates:
            if not self._over:
                self._work(gate)

    def _work(self, gate: Gate) -> None:
        log = self.logs / ("%s.log" % gate.name)
        log.write_text("")
        started = time.monotonic()
        bench = Bench(log, started + gate.seconds, self.environment, nice=10 if gate.background else 0)
        result = self.results[gate.name] = Result(gate, bench)
        blocked = [need for need in gate.needs if self.results[need].error]
        try:
            if blocked:
                raise GateFailed("not run, since this failed before: %s" % ", ".join(blocked))
            gate.work(bench)
        except GateFailed as error:
            result.error = str(error)
        except GateLeftOut as error:
            result.left_out = str(error)
        except Exception as error:  # A defect of a gate is a failure of that gate, not the end of the others.
            result.error = "%s: %s" % (type(error).__name__, error)
        result.seconds = time.monotonic() - started
        self._tell(result)
        self._ended[gate.name].set()

    def _wait_for(self, name: str) -> None:
        started = time.monotonic()
        while not self._ended[name].wait(HEARTBEAT_SECONDS):
            result = self.results.get(name)
            say("    %s: %.0f s, %s" % (
                result.gate.title if result else name, time.monotonic() - started,
                last_line(self.logs, name) if result else "waits for its turn"))

    def _tell(self, result: Result) -> None:
        bench = result.bench
        tests = "" if not bench.passed + bench.failed else ", %d tests passed, %d failed" % (bench.passed, bench.failed)
        if bench.skipped:
            tests += ", %d skipped" % bench.skipped
        if result.left_out:
            say("LEFT OUT  %s: %s" % (result.gate.title, result.left_out))
            return
        word = "FAILED" if result.error else "passed"
        notes = "".join("; " + note for note in bench.notes)
        say("%s  %s (%.0f s%s)%s" % (word, result.gate.title, result.seconds, tests, notes))
        if result.error:
            lines = bench.log_file.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            say("\n".join("    | " + line for line in lines))
            say("    %s: %s\n    whole log: %s" % (result.gate.name, result.error, bench.log_file))

    def _summary(self) -> Tuple[int, int, int]:
        for result in self.results.values():
            if result.error:
                say("FAILED  %s: %s" % (result.gate.name, result.error))
            if result.left_out:
                say("LEFT OUT  %s: %s" % (result.gate.name, result.left_out))
        passed, failed, skipped = (sum(column) for column in zip(*(result.counts for result in self.results.values())))
        return passed, failed, skipped


def last_line(logs: Path, name: str) -> str:
    lines = (logs / ("%s.log" % name)).read_text(errors="replace").split("\n")
    told = [line.strip() for line in lines if line.strip()]
    return told[-1][:100] if told else "nothing said yet"


def say(text: str) -> None:
    print(text, flush=True)
    sys.stderr.flush()
