# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`gpuops watch`: its rounds with what it reads played, and as a process with the simulated NVML."""
from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

import pytest
from reset_host import ResetHost
from simulated_board import VERSION, HostBoard, write_driver, write_log

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import telling
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.watch import LOCK, Watcher, watcher
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record, libraries
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops import watch as watching
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import Look, State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive as made

POLICY = "/etc/policy.json"
XID = "3,%d,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
MIB = 1 << 20


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def have(host: Host, **health: Any) -> None:
    """The policy of the host."""
    host.write(POLICY, json.dumps({"schema": 1, "policy": {"agent": {
        "health": health.pop("health", {}), **health}, "driver": {"version": "580"}}}))


# its rounds


class Log:
    """The kernel's log, as who waits for it sees it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.coming: Dict[float, Any] = {}
        self.closed = 0

    def wait(self, seconds: float) -> bool:
        until = self.clock.now + seconds
        first = min(self.coming, default=math.inf)
        self.clock.now = max(self.clock.now, min(first, until))
        return first <= until

    def read(self) -> Any:
        found = self.coming.pop(min(self.coming))
        if isinstance(found, OSError):
            raise found
        return found

    def skip(self) -> None:
        self.coming = {at: found for at, found in self.coming.items() if at > self.clock.now}

    def close(self) -> None:
        self.closed += 1


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Played:
    """A watch whose looks are played; each round takes a second.

    rounds: (when, whether NVML was to be asked, policy).
    told:   what went wrong.
    """

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.clock = Clock()
        self.log: Optional[Log] = Log(self.clock)
        self.rounds: List[Any] = []
        self.told: List[str] = []
        self.error: Optional[Exception] = None
        monkeypatch.setattr(watching, "since_boot", lambda: self.clock.now)
        monkeypatch.setattr(watching.time, "sleep", self.clock.sleep)
        monkeypatch.setattr(watching, "kept", lambda _host: State())
        monkeypatch.setattr(watching, "read_look", self._read_look)
        monkeypatch.setattr(watching, "keep_look", lambda _host, policy, look, directory: State(
            rounds=1, at=look.at, asked=look.taken if look.nvml is not None else 0))
        monkeypatch.setattr(watching, "take_away", lambda: None)
        monkeypatch.setattr(Host, "new_records", lambda _host: self.log)
        self.watch = watching.Watch(host, POLICY, self.told.append)

    def _read_look(self, _host: Host, _remembered: Any, policy: Any, asks: bool) -> Look:
        self.rounds.append((self.clock.now, asks, policy))
        self.clock.now += 1
        if self.error is not None:
            raise self.error
        return Look(taken=1, at=self.clock.now, boot="boot", nvml=NvmlReading() if asks else None)

    def go_on(self, seconds: float) -> List[Any]:
        """The rounds of so many seconds."""
        before, until = len(self.rounds), self.clock.now + seconds
        while self.clock.now < until:
            self.watch.await_next()
            self.watch.look()
        return self.rounds[before:]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name in ("run", "etc", "var/lib"):
        (tmp_path / "root" / name).mkdir(parents=True)
    found = Host(str(tmp_path / "root"))
    have(found)
    return found


@pytest.fixture
def played(host: Host, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(host, monkeypatch)


@pytest.mark.parametrize("mode, cordons", [("condition", False), ("cordon", True)])
def test_the_node_is_told_after_each_round_where_that_is_wanted(
    host: Host, monkeypatch: pytest.MonkeyPatch, mode: str, cordons: bool
) -> None:
    have(host, node_condition=mode, kubeconfig="/etc/own.conf", health={"stale_seconds": 400})
    played = Played(host, monkeypatch)
    told: List[Any] = []

    def tell(_host: Host, *words: Any, **more: Any) -> None:
        told.append((*words, more))
        raise GpuOpsError("agent.of_a_test", "no answer", "one", "see")

    played.watch.prepare()
    monkeypatch.setattr(telling, "tell", tell)
    played.go_on(150)
    assert told == [("/etc/own.conf", 400, cordons, {"in_passing": True})] * len(played.rounds) and len(told) > 1
    assert len(played.told) == 1 and "no answer" in played.told[0]


def test_it_begins_anew_when_the_node_is_to_be_told_by_one_that_has_not_begun_with_it(
    host: Host, played: Played
) -> None:
    played.go_on(100)
    have(host, node_condition="condition")
    with pytest.raises(SystemExit):
        played.go_on(100)


def test_it_looks_at_once_then_every_minute_and_asks_nvml_more_seldom(played: Played) -> None:
    found = played.go_on(600)
    assert found[0][:2] == (1000.0, True)
    assert 10 <= len(found) <= 13 and sum(asks for _at, asks, _policy in found) == 3


def test_a_line_of_the_driver_is_looked_at_within_seconds(played: Played) -> None:
    played.go_on(1)
    assert played.log is not None
    played.log.coming = {1020.0: ["6,1,1,-;eth0: link up"], 1030.0: [XID % 7]}
    ((at, asks, _policy),) = played.go_on(30)
    assert 1030 < at < 1036 and asks


def test_records_that_were_lost_are_looked_for(played: Played) -> None:
    played.go_on(1)
    assert played.log is not None
    played.log.coming = {1020.0: None}
    assert 1020 < played.go_on(20)[0][0] < 1026


def test_a_log_that_cannot_be_waited_for_any_more_is_told_once_and_time_goes_on(played: Played) -> None:
    played.go_on(1)
    log = played.log
    assert log is not None
    log.coming = {1020.0: OSError(19, "No such device")}
    played.log = None
    assert len(played.go_on(300)) >= 4
    assert len(played.told) == 1 and log.closed == 1


def test_without_a_log_it_goes_by_time_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(host, monkeypatch)
    played.log = None
    assert len(played.go_on(300)) >= 5 and played.told == []


def test_a_round_that_fails_is_told_once_and_the_next_one_comes(played: Played) -> None:
    played.error = GpuOpsError("health.of_a_test", "https://user:hunter2hunter2@x", "another", "mend it")
    assert len(played.go_on(600)) >= 10
    assert len(played.told) == 1 and "[health.of_a_test]" in played.told[0]
    played.error = ZeroDivisionError("what it choked on")
    assert len(played.go_on(600)) >= 10
    assert len(played.told) == 2 and "ZeroDivisionError in " in played.told[1] and "choked" not in played.told[1]
    played.error = None
    assert played.go_on(120)[0][1], "what could not be asked is asked as soon as it can be"


def test_a_policy_that_has_changed_counts_from_the_next_round_on(played: Played) -> None:
    played.go_on(1)
    have(played.host, health={"rounds": 7, "round_seconds": 10})
    assert [policy.rounds for _at, _asks, policy in played.go_on(70)][0] == 7
    assert len(played.go_on(60)) >= 5


@pytest.mark.parametrize("text", [
    "{", '{"schema": 9, "policy": {}}', '{"schema": 1, "policy": {"agent": [1]}}',
    '{"schema": 1, "policy": {"agent": {"health": "x"}}}',
    '{"schema": 1, "policy": {"agent": {"health": {"rounds": 0}}}}',
    '{"schema": 1, "policy": {"agent": {"node_condition": "Cordon"}}}',
    '{"schema": 1, "policy": {"agent": {"node_conditoin": "cordon"}}}',
    '{"schema": 1, "policy": {"agent": {"health_metrics_directory": 7}}}',
    '{"schema": 1, "policy": {"agent": {"kubeconfig": 7}}}', None])
def test_a_policy_that_cannot_be_followed_changes_nothing_and_is_told_once(
    played: Played, text: Optional[str]
) -> None:
    have(played.host, health={"rounds": 7})
    played.go_on(1)
    if text is None:
        played.host.remove(POLICY)
    else:
        played.host.write(POLICY, text)
    found = played.go_on(600)
    assert {policy.rounds for _at, _asks, policy in found} == {7} and len(found) >= 10
    assert len(played.told) == 1
    have(played.host, health={"rounds": 5})
    assert played.go_on(60)[-1][2].rounds == 5


@pytest.mark.parametrize("text, code", [
    (None, "gpuops.no_policy"), ("{", "agent.policy_unreadable"),
    ('{"schema": 1, "policy": {"agent": [1]}}', "agent.policy_unreadable"),
    ('{"schema": 1, "policy": {"agent": {"health": "x"}}}', "health.policy_not_understood"),
    ('{"schema": 1, "policy": {"agent": {"health": {"rounds": 0}}}}', "health.policy_not_understood")])
def test_without_a_policy_it_does_not_begin(host: Host, text: Optional[str], code: str) -> None:
    host.remove(POLICY)
    if text is not None:
        host.write(POLICY, text)
    with pytest.raises(GpuOpsError) as caught:
        watching.Watch(host, POLICY, print)
    assert caught.value.code == code


def test_a_slip_in_the_policy_lifts_no_cordon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who is not to cordon takes his cordon back, so what was wanted before goes on."""
    have(host, node_condition="cordon")
    played = Played(host, monkeypatch)
    cordons: List[bool] = []
    played.watch.prepare()
    monkeypatch.setattr(telling, "tell", lambda _host, _config, _stale, cordon, **_more: cordons.append(cordon))
    for slip in ({"node_condition": "cordno"}, {"node_conditions": "cordon"}):
        host.write(POLICY, json.dumps({"schema": 1, "policy": {"agent": slip}}))
        played.go_on(120)
    assert len(cordons) > 2 and all(cordons)
    have(host, node_condition="condition")
    played.go_on(70)
    assert cordons[-1] is False


def test_an_agent_of_a_misspelt_name_begins_with_what_is_understood(host: Host) -> None:
    """GPUs that nobody watches fail unseen."""
    host.write(POLICY, '{"schema": 1, "policy": {"agent": {"node_conditoin": "cordon", "health": {"rounds": 7}}}}')
    assert watching.Watch(host, POLICY, print)._options.policy.rounds == 7


def test_metrics_are_served_where_the_policy_says_and_no_longer(played: Played) -> None:
    have(played.host, watch_listen="127.0.0.1:1")
    boot_record.end(played.host, 0, boot_record.FAILED, "no driver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "address_of", lambda _listen: ("127.0.0.1", 0))
        played.go_on(1)
    page = played.watch._page
    assert page is not None and "gpuops_health_last_look_seconds" in page.text
    assert 'gpuops_boot_failure{reason="no driver"} 1.0' in page.text
    have(played.host)
    played.go_on(60)
    assert played.watch._page is None


@pytest.mark.parametrize("listen, told", [
    ("192.0.2.1:9836", "[gpuops.address_not_free]"), ("nowhere", "[agent.listen_malformed]"),
    (7, "AttributeError in ")])
def test_an_address_that_cannot_be_had_keeps_no_round_away(played: Played, listen: Any, told: str) -> None:
    have(played.host, watch_listen=listen)
    assert len(played.go_on(300)) >= 4
    assert len(played.told) == 1 and told in played.told[0]


# who watches


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_that_cannot_be_understood_is_nobodys(host: Host, text: str) -> None:
    host.write(LOCK, text)
    assert watcher(host) is None


def test_who_has_ended_does_not_watch(host: Host) -> None:
    pid = os.getpid()
    mine = Watcher("code.zip", pid, host.process_started(pid), host.boot())
    host.write(LOCK, mine.text)
    assert watcher(host) == mine
    host.write(LOCK, mine.text.replace(mine.started, "7"))
    assert watcher(host) is None


# the process

# It is woken by lines of the log alone
SELDOM = {"stale_seconds": 100000, "round_seconds": 3600, "nvml_seconds": 3600, "silence": 3600, "patience": 3600}
LEFT = """
import os, time
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.children import take_away
take_away()
children = []
for _each in range(3):
    children.append(os.fork() or os._exit(0))
while any(os.path.exists("/proc/%d" % child) for child in children):
    take_away()
    time.sleep(0.01)
print("true")
"""


def test_children_that_were_left_behind_are_no_zombies_once_they_have_ended(board: HostBoard) -> None:
    assert board.say(LEFT) is True


WATCH = """
import os, sys
sys.path[:0] = sys.argv[3:]
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host, NewRecords
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops import entry, watching

class Log(NewRecords):
    skip = NewRecords.read

watching.SETTLING, watching.PAUSE = 0.1, 0.2
Host.new_records = lambda _host: Log(os.open(sys.argv[1] + "/fifo", os.O_RDWR | os.O_NONBLOCK))
raise SystemExit(entry.main(["watch", "--policy", sys.argv[2]], Host(sys.argv[1])))
"""
ARCHIVED = """
import importlib, os, sys
sys.path.insert(0, sys.argv[3])
from ansible_collections.gpuops.nvidia.plugins.module_utils import shipped
sys.path.remove(sys.argv[3])
assert shipped.hold(sys.argv[3], below=("", shipped.STANDALONE))
assert shipped.hold(shipped.compiled(sys.argv[3]), below=("", shipped.STANDALONE))
os.environ[shipped.VARIABLE] = sys.argv[3]
host = importlib.import_module(shipped.PACKAGE + ".core.host").Host(sys.argv[1])
raise SystemExit(importlib.import_module(shipped.PACKAGE + ".gpuops.entry").main(
    ["watch", "--policy", sys.argv[2]], host))
"""


class Process:
    """`gpuops watch` of a host with two simulated H100."""

    def __init__(self, board: Union[HostBoard, ResetHost], *words: str, script: str = WATCH) -> None:
        self.host = Host(str(board.root))
        self.started = subprocess.Popen(
            [sys.executable, "-c", script, str(board.root), POLICY, *words], env=board.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            # Who runs tests in the background has it ignored, which a child inherits
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.pid = self.started.pid

    def kept(self) -> Dict[str, Any]:
        text = self.host.read("/run/gpuops/health.json")
        return dict(json.loads(text)) if text else {"rounds": 0, "findings": {}}

    def children(self) -> List[int]:
        text = Path("/proc/%d/task/%d/children" % (self.pid, self.pid)).read_text()
        return list(map(int, text.split()))

    def until(self, so: Callable[[], Any]) -> None:
        for _each in range(1200):
            assert self.started.poll() is None, self.started.communicate()[1]
            if so():
                return
            time.sleep(0.05)
        raise AssertionError("it did not come to that: %s" % self.kept())

    def sleeps(self) -> None:
        """Wait until it has looked once, and nothing of the round is there any more."""
        self.until(lambda: self.kept()["rounds"] and not self.children())

    def opened(self) -> List[str]:
        """Files that it has open."""
        found = set()
        for each in Path("/proc/%d/fd" % self.pid).iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(each))
        return sorted(name for name in found if name.startswith("/"))

    def resident(self) -> int:
        """Bytes that it has in memory."""
        lines = Path("/proc/%d/status" % self.pid).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def cost_of_a_round(self, rounds: int) -> float:
        """Seconds of a processor that each of the next so many takes, with its children."""
        self.sleeps()
        first, before = self.kept()["rounds"], self._worked()
        self.until(lambda: self.kept()["rounds"] >= first + rounds and not self.children())
        return (self._worked() - before) / (self.kept()["rounds"] - first)

    def _worked(self) -> float:
        """proc_pid_stat(5), fields 14 to 17."""
        fields = Path("/proc/%d/stat" % self.pid).read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> int:
        self.started.terminate()
        self.started.communicate(timeout=60)
        return int(self.started.returncode)


@pytest.fixture
def board(tmp_path: Path, host: Host) -> HostBoard:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    found = HostBoard(tmp_path, Path(host.root))
    os.mkfifo(found.root / "fifo")
    have(host, health=SELDOM)
    return found


Start = Callable[..., Process]


@pytest.fixture
def start(board: HostBoard) -> Iterator[Start]:
    """Starts processes, of which none outlives the test."""
    begun: List[Process] = []

    def start_one(*words: str, **more: str) -> Process:
        begun.append(Process(board, *words, **more))
        return begun[-1]

    yield start_one
    for each in begun:
        each.started.kill()
        each.started.communicate()


@pytest.fixture
def process(start: Start) -> Process:
    return start()


def test_asleep_it_has_nothing_of_the_driver_and_no_child(process: Process) -> None:
    """So a GPU can be reset, and a driver exchanged, while it watches."""
    process.sleeps()
    assert process.kept()["gpus"]
    wanted = sorted(["/dev/null", *map(process.host.path, ("/fifo", LOCK))])
    process.until(lambda: process.opened() == wanted)
    assert "nvidia-ml" not in Path("/proc/%d/maps" % process.pid).read_text()
    assert process.end() == 0


HOLDER = """
import time
from pynvml import *
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
print("it has the GPU open", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def resettable(tmp_path: Path) -> Iterator[ResetHost]:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    found = ResetHost(tmp_path / "reset", "h100-sxm-hgx")
    write_driver(found.root, VERSION)
    write_log(found.root)
    os.mkfifo(found.root / "fifo")
    have(Host(str(found.root)), health=SELDOM)
    yield found
    found.close()


def test_a_gpu_is_reset_and_a_driver_exchanged_while_it_watches(resettable: ResetHost) -> None:
    """nvidia-smi resets a GPU that no process has open."""
    holder = resettable.start(HOLDER)
    assert holder.stdout is not None and holder.stdout.readline()
    assert resettable.reset(0).get("error", {}).get("code") == "reset.in_use", "as by one that does"
    holder.kill()
    holder.communicate()
    process = Process(resettable)
    try:
        process.sleeps()
        assert "error" not in resettable.reset(0)
        assert [each["end"] for each in resettable.recorded()] == ["failed", "done"]
        version = "595.91.07"
        resettable.install(version)
        resettable.load(version)
        write_driver(resettable.root, version)
        before = process.kept()
        Path(process.host.path("/fifo")).write_text(XID % 1)
        process.until(lambda: process.kept()["asked"] > before["asked"] and not process.children())
        after = process.kept()
        assert (after["gpus"], after["unknown"], after["findings"]) == (before["gpus"], {}, {}) and before["gpus"]
        assert process.end() == 0
    finally:
        process.started.kill()
        process.started.communicate()


def test_what_the_driver_logs_is_found_without_waiting(process: Process) -> None:
    process.sleeps()
    log = Path(process.host.path("/dev/kmsg"))
    log.write_text(log.read_text() + XID % 1 + "\n")
    Path(process.host.path("/fifo")).write_text("6,2,5,-;eth0: link up")
    Path(process.host.path("/fifo")).write_text(XID % 1)
    process.until(lambda: any("xid 79" in key for key in process.kept()["findings"]))
    assert process.end() == 0


def test_a_signal_ends_it_in_the_middle_of_a_call_that_hangs(board: HostBoard, start: Start, host: Host) -> None:
    board.fault("slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    process = start()
    process.until(process.children)
    (child,) = process.children()
    assert process.end() == 0
    assert host.process_started(child) == ""


def test_a_second_one_is_refused_until_the_first_has_died(process: Process, start: Start, host: Host) -> None:
    process.sleeps()
    second = start()
    told = second.started.communicate(timeout=60)[1]
    assert second.started.returncode == 1
    assert "[gpuops.watched_already]" in told and "process %d" % process.pid in told
    process.started.kill()
    process.started.wait(60)
    third = start()
    third.until(lambda: getattr(watcher(host), "pid", 0) == third.pid)
    assert third.end() == 0


def test_who_interrupts_it_by_hand_ends_it(process: Process) -> None:
    process.sleeps()
    process.started.send_signal(signal.SIGINT)
    process.started.communicate(timeout=60)
    assert process.started.returncode == 130


def test_it_takes_less_than_forty_mib_and_a_thousandth_of_a_core_as_a_host_runs_it(
    start: Start, host: Host, tmp_path: Path
) -> None:
    """From the archive, with metrics served; one round in four with NVML, as by default."""
    content = made()[0]
    archive = tmp_path / "agent" / (hashlib.sha256(content).hexdigest()[:20] + ".zip")
    libraries.put(Host(), str(archive), content)
    have(host, health={"round_seconds": 1, "nvml_seconds": 4}, watch_listen="127.0.0.1:%d" % free_port())
    process = start(str(archive), script=ARCHIVED)
    # What else a machine does makes a round dearer, and never cheaper
    assert any(process.cost_of_a_round(4) < HealthPolicy().round_seconds / 1000 for _try in range(3))
    assert process.resident() < 40 * MIB
    found = watcher(host)
    assert found is not None and (found.code, found.pid) == (archive.name, process.pid)
    assert process.end() == 0
