# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whole rounds on a scratch root: what is kept, what is told, and what becomes of it when the host fails."""
from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest
from health_world import PLACES, gpu

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import host as host_module
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError, HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import PciBus, PciDevice
from ansible_collections.gpuops.nvidia.plugins.module_utils.health import look as looking
from ansible_collections.gpuops.nvidia.plugins.module_utils.health import state as keeping
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.assess import assess
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import Look, State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import record

POLICY = HealthPolicy()
XID = "NVRM: Xid (PCI:0000:3b:00): %d, pid=7, name=secret, said by the driver"


class Bench:
    """A host with two GPUs in a scratch root. What NVML answers and what has computed is said here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host: Host = Host(str(root))
        self.reading = NvmlReading(gpus=(gpu(0), gpu(1)))
        self.computed = 0
        self.asked = 0
        self.lines: List[str] = []
        # What was said a day before anybody looked is a warning, and a machine may be up for longer
        self.first = int(1e6 * max(0.0, looking.time.monotonic() - 60))
        for place in PLACES:
            directory = root / "sys/bus/pci/devices" / place
            directory.mkdir(parents=True)
            for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
                (directory / name).write_text(text)
        for name in ("sys/module/nvidia", "dev", "run", "var/lib"):
            (root / name).mkdir(parents=True)
        self.log("Linux version 6.12")

    def log(self, *lines: str) -> None:
        self.lines += lines
        (self.root / "dev/kmsg").write_text("".join(
            "3,%d,%d,-;%s\n" % (number, self.first + number * 1000000, line)
            for number, line in enumerate(self.lines)))

    def compute(self) -> None:
        self.computed += 1
        kept = record.kept(self.host)
        kept["passed"] = {"GPU-%d" % index: {"level": "quick", "at": self.computed, "board": "", "multiprocessors": 1,
                                             "rates": {}} for index in (0, 1)}
        self.host.make_directory("/run/gpuops", 0o700)
        self.host.write(record.PATH, json.dumps(kept), 0o600)

    def round(self, times: int = 1, directory: str = "") -> State:
        for _each in range(times):
            state = keeping.look_and_keep(self.host, POLICY, directory)
        return state

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        return self.path(name).read_text()

    def summary(self) -> Dict[str, Any]:
        return json.loads(self.text(keeping.SUMMARY))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench(tmp_path)

    def fresh(*_words: Any) -> NvmlReading:
        found.asked += 1
        return found.reading

    monkeypatch.setattr(looking, "fresh_reading", fresh)
    return found


def codes(state: State) -> List[str]:
    return sorted(each.code for each in state.findings.values())


class Failing(Host):
    """A host on which what concerns some paths fails, or is the last that is done."""

    def __init__(self, root: Path, act: Callable[[str, str], None]) -> None:
        super().__init__(str(root))
        self.act = act

    def read(self, name: str) -> Optional[str]:
        self.act("read", name)
        return super().read(name)

    def write(self, name: str, *words: Any, **more: Any) -> None:
        self.act("write", name)
        super().write(name, *words, **more)
        self.act("written", name)

    def write_bytes(self, name: str, *words: Any, **more: Any) -> None:
        is_copy = "unreadable" in name
        self.act("copy" if is_copy else "", name)
        super().write_bytes(name, *words, **more)
        self.act("written" if is_copy else "", name)

    def remove(self, name: str) -> None:
        self.act("write", name)
        super().remove(name)
        self.act("written", name)


def failing_at(what: str, below: str, error: int) -> Callable[[str, str], None]:
    def act(doing: str, name: str) -> None:
        if doing == what and name.startswith(below):
            raise HostFailed.of(OSError(error, os.strerror(error)), name, what)
    return act


# what is kept and told

def test_a_round_is_kept_for_root_and_told_to_everybody_without_names_of_processes(bench: Bench) -> None:
    bench.log(XID % 79)
    os.umask(0o077)
    try:
        state = bench.round()
    finally:
        os.umask(0o022)
    assert codes(state) == ["xid 79"] and keeping.kept(bench.host) == state
    modes = {name: bench.path(name).stat().st_mode & 0o777 for name in (
        keeping.KEPT, keeping.LATEST, keeping.PUBLIC, keeping.SUMMARY, keeping.CONDITIONS)}
    assert modes == {keeping.KEPT: 0o600, keeping.LATEST: 0o600, keeping.PUBLIC: 0o755, keeping.SUMMARY: 0o644,
                     keeping.CONDITIONS: 0o644}
    assert "secret" in bench.text(keeping.KEPT)
    assert "secret" not in bench.text(keeping.SUMMARY) + bench.text(keeping.CONDITIONS)
    told = bench.summary()
    assert (told["verdict"], told["remedy"], told["boot"]) == ("sick", "reboot", bench.host.boot())
    assert [(each["code"], each["pci_address"], each["to_do"]) for each in told["findings"]] == [
        ("xid 79", "0000:3b:00.0", "reboot the node")]


def test_an_error_is_dated_by_the_clock_of_now(bench: Bench) -> None:
    bench.log(XID % 79)
    finding = next(iter(bench.round().findings.values()))
    booted = looking.time.time() - looking.time.monotonic()
    assert abs(finding.first.at - (booted + bench.first / 1e6 + 1)) < 5


def test_a_round_in_which_nothing_happens_writes_nothing_to_the_disk(bench: Bench) -> None:
    bench.log(XID % 79)
    bench.reading = NvmlReading(gpus=(gpu(0, remap_pending=True), gpu(1)))
    bench.round()
    before = bench.path(keeping.KEPT).stat()
    bench.log("something else")
    state = bench.round(5)
    assert bench.path(keeping.KEPT).stat().st_ino == before.st_ino
    assert keeping.kept(bench.host) == state and state.rounds == 6
    os.utime(bench.path(keeping.KEPT), (1, 1))
    bench.round()
    assert bench.path(keeping.KEPT).stat().st_ino != before.st_ino


def test_what_fails_on_and_on_is_written_to_the_disk_when_it_is_found(bench: Bench) -> None:
    bench.reading = NvmlReading(gpus=(gpu(0), gpu(1, clock_reasons=0x40)))
    assert codes(bench.round(3)) == ["slowdown"]
    before = bench.path(keeping.KEPT).stat()
    assert codes(bench.round(4)) == ["slowdown"]
    assert bench.path(keeping.KEPT).stat().st_ino == before.st_ino


def test_what_run_has_lost_is_read_from_the_disk_and_the_log_again(bench: Bench) -> None:
    bench.log(XID % 79)
    bench.round()
    bench.log("something", XID % 119)
    bench.round()
    shutil.rmtree(bench.path("/run"))
    bench.path("/run").mkdir()
    state = bench.round(3)
    assert {each.code: each.count for each in state.findings.values()} == {"xid 79": 1, "xid 119": 1}


def test_a_remedy_that_is_written_down_and_a_check_after_it_end_a_finding(bench: Bench) -> None:
    bench.log(XID % 119)
    bench.round()
    bench.compute()
    keeping.note_remedy(bench.host, POLICY, "reset", "gpu GPU-0", "repair 7")
    assert codes(bench.round()) == ["xid 119"]
    bench.compute()
    state = bench.round()
    assert codes(state) == [] and state.acts[-1].text == "repair 7"
    assert bench.summary()["verdict"] == "well"


@pytest.mark.parametrize("remedy", ["", "out", "pray"])
def test_only_what_can_be_done_is_written_down(bench: Bench, remedy: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        keeping.note_remedy(bench.host, POLICY, remedy)
    assert refused.value.code == "health.no_remedy" and not bench.path(keeping.KEPT).exists()


def test_another_load_of_the_driver_is_seen_by_itself(bench: Bench) -> None:
    bench.log(XID % 119)
    bench.round()
    bench.path("/sys/module/nvidia").rename(bench.path("/sys/module/before"))
    bench.path("/sys/module/nvidia").mkdir()
    assert codes(bench.round()) == ["xid 119"]
    bench.compute()
    assert codes(bench.round()) == []


def test_a_person_releases_what_is_there_and_nothing_else(bench: Bench) -> None:
    bench.log(XID % 64)
    bench.round()
    with pytest.raises(GpuOpsError) as refused:
        keeping.release(bench.host, POLICY, "gpu GPU-1", "me")
    assert refused.value.code == "health.nothing_to_release" and "gpu GPU-0: xid 64" in refused.value.wanted
    assert codes(keeping.release(bench.host, POLICY, "gpu GPU-0", "me")) == []
    assert codes(bench.round()) == [] and bench.summary()["findings"] == []


def test_metrics_are_written_where_they_are_collected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = "/var/lib/node_exporter"
    bench.round(directory=directory)
    assert not bench.path(directory).exists()
    bench.path(directory).mkdir()
    written: List[str] = []
    beside = host_module._beside
    monkeypatch.setattr(host_module, "_beside", lambda target: written.append(beside(target)) or beside(target))
    bench.round(2, directory=directory)
    assert [path.name for path in bench.path(directory).iterdir()] == [keeping.METRICS]
    assert bench.path(directory + "/" + keeping.METRICS).stat().st_mode & 0o777 == 0o644
    assert written and not any(name.endswith(".prom") for name in written), "the collector reads hidden files too"
    assert keeping.forget(bench.host, directory) and not list(bench.path(directory).iterdir())


def test_everything_that_is_kept_is_taken_back(bench: Bench) -> None:
    bench.round()
    bench.path(keeping.KEPT).write_text("{")
    bench.round()
    assert keeping.forget(bench.host) and not keeping.forget(bench.host)
    assert [path.name for path in bench.root.rglob("*health*")] == []


# a state that cannot be read

def with_nothing_in_run(bench: Bench) -> None:
    shutil.rmtree(bench.path("/run"))
    bench.path("/run").mkdir()


def damaged(text: str) -> Iterator[str]:
    yield from ("", "null", "[]", "{}", text.replace('"schema": 1', '"schema": 2'), text.replace('"sick"', '"other"'),
                text.replace('"findings"', '"others"'), text.replace('"sequence": 1', '"sequence": null'))
    yield from (text[:length] for length in range(1, len(text) - 2, 97))


def leaves(data: Any, place: Tuple[Any, ...] = ()) -> Iterator[Tuple[Any, ...]]:
    """Where each leaf is."""
    if isinstance(data, (dict, list)) and data:
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*place, key))
    else:
        yield place


def test_a_state_with_a_leaf_that_is_another_stops_no_round(bench: Bench) -> None:
    """It is understood or put aside, whichever leaf it is."""
    bench.compute()
    bench.log(XID % 64)
    bench.log(XID % 31)
    bench.reading = NvmlReading(error="Unknown Error (nvmlInit)")
    state = bench.round(2).to_dict()
    count = 0
    for place in leaves(state):
        for wrong in (None, "x", [1], {"a": 1}, -1.5):
            text = json.loads(json.dumps(state))
            inner = text
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, IndexError):
                found = State.from_dict(text)
                assess(found, Look(found.taken + 1, found.at + 1, found.boot), POLICY, found.at + 1).to_dict()
                count += 1
                continue
            with pytest.raises((ValueError, TypeError, KeyError, AttributeError, IndexError)):
                State.from_dict(text)
    assert count > 20


def test_a_state_that_cannot_be_understood_is_never_well_and_is_kept_aside(bench: Bench) -> None:
    bench.log(XID % 64)
    bench.round()
    whole = bench.text(keeping.KEPT)
    bench.lines = []
    for text in damaged(whole):
        bench.log()
        bench.lines = []
        bench.log("Linux version 6.12")
        with_nothing_in_run(bench)
        bench.path(keeping.KEPT).write_text(text)
        assert bench.round().verdict == "unknown", text
        assert bench.round(2).verdict == "unknown" and bench.summary()["verdict"] == "unknown"
        (aside,) = bench.path("/var/lib/gpuops").glob("health.json.unreadable-*")
        assert aside.read_text() == text
        aside.unlink()
        bench.path(keeping.KEPT).unlink()


def test_what_was_found_before_is_unknown_until_every_gpu_has_computed_since(bench: Bench) -> None:
    bench.compute()
    bench.path("/var/lib/gpuops").mkdir()
    bench.path(keeping.KEPT).write_text("{")
    assert bench.round(3).verdict == "unknown"
    bench.compute()
    assert bench.round().verdict == "well"


def test_a_person_may_say_that_nothing_was_lost(bench: Bench) -> None:
    bench.path("/var/lib/gpuops").mkdir()
    bench.path(keeping.KEPT).write_text("{")
    bench.round()
    assert keeping.release(bench.host, POLICY, "state", "me").verdict == "well"


def test_only_the_first_states_are_kept_aside(bench: Bench) -> None:
    bench.path("/var/lib/gpuops").mkdir()
    for number in range(6):
        bench.path(keeping.KEPT).write_text("{%d" % number)
        bench.round()
    kept = sorted(bench.path("/var/lib/gpuops").glob("health.json.unreadable-*"))
    assert [path.read_text() for path in kept] == ["{0", "{1", "{2"]


def test_a_state_that_cannot_be_put_aside_is_not_overwritten(bench: Bench) -> None:
    bench.path("/var/lib/gpuops").mkdir()
    bench.path(keeping.KEPT).write_text("{damaged")
    bench.host = Failing(bench.root, failing_at("copy", keeping.KEPT, errno.EIO))
    assert bench.round(3).verdict == "unknown" and bench.text(keeping.KEPT) == "{damaged"


@pytest.mark.parametrize("cut", ["written", "write"])
def test_a_round_that_is_killed_while_a_state_is_put_aside_forgets_nothing(bench: Bench, cut: str) -> None:
    """After it was copied, and right before its successor takes its place."""
    class Killed(BaseException):
        pass

    def act(doing: str, name: str) -> None:
        if doing == cut and name.startswith(keeping.KEPT):
            raise Killed

    bench.path("/var/lib/gpuops").mkdir()
    bench.path(keeping.KEPT).write_text("{damaged")
    bench.host = Failing(bench.root, act)
    with pytest.raises(Killed):
        bench.round()
    bench.host = Host(str(bench.root))
    with_nothing_in_run(bench)
    assert bench.round(3).verdict == "unknown"


def test_a_state_that_a_full_disk_keeps_from_being_put_aside_is_unknown_after_a_boot_too(bench: Bench) -> None:
    bench.path("/var/lib/gpuops").mkdir()
    bench.path(keeping.KEPT).write_text("{damaged")
    bench.host = Failing(bench.root, failing_at("write", keeping.KEPT, errno.ENOSPC))
    assert bench.round().verdict == "unknown"
    bench.host = Host(str(bench.root))
    with_nothing_in_run(bench)
    assert bench.round().verdict == "unknown"


def test_a_state_that_the_disk_does_not_give_is_not_touched(bench: Bench) -> None:
    bench.log(XID % 64)
    bench.round()
    whole = bench.text(keeping.KEPT)
    with_nothing_in_run(bench)
    bench.lines = []
    bench.log("Linux version 6.12")
    bench.host = Failing(bench.root, failing_at("read", keeping.KEPT, errno.EIO))
    assert bench.round(3).verdict == "unknown" and bench.text(keeping.KEPT) == whole
    bench.host = Host(str(bench.root))
    assert "xid 64" in codes(bench.round())


# a host that fails

@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_stops_no_round(bench: Bench, error: int) -> None:
    bench.round()
    whole = bench.text(keeping.KEPT)
    bench.host = Failing(bench.root, failing_at("write", "/var/lib", error))
    bench.log(XID % 119)
    bench.reading = NvmlReading(error="Unknown Error (nvmlInit)")
    assert codes(bench.round(3)) == ["no_nvml", "xid 119"] and bench.text(keeping.KEPT) == whole
    assert bench.summary()["verdict"] == "sick"
    assert [each["what"] for each in bench.summary()["unknown"]] == ["disk", "nvml"]
    bench.host = Host(str(bench.root))
    state = bench.round()
    kept = State.from_dict(json.loads(bench.text(keeping.KEPT)))
    assert codes(kept) == ["no_nvml", "xid 119"] and "disk" not in {**kept.unknown, **state.unknown}


def test_what_cannot_be_told_goes_stale_and_stops_no_round(bench: Bench) -> None:
    bench.host = Failing(bench.root, failing_at("write", keeping.PUBLIC, errno.ENOSPC))
    bench.log(XID % 119)
    assert codes(bench.round()) == ["xid 119"]


class Killed(BaseException):
    pass


def test_killed_at_any_write_the_next_round_knows_everything(bench: Bench) -> None:
    def run(dies_at: int) -> int:
        seen = 0

        def act(doing: str, _name: str) -> None:
            nonlocal seen
            if doing != "read":
                seen += 1
                if seen == dies_at:
                    raise Killed
        bench.host = Failing(bench.root, act)
        try:
            bench.round()
        except Killed:
            pass
        return seen

    dies_at = 0
    while True:
        dies_at += 1
        bench.lines = []
        for name in ("run", "var"):
            shutil.rmtree(bench.path(name))
        for name in ("run", "var/lib/gpuops"):
            bench.path(name).mkdir(parents=True)
        bench.log("Linux version 6.12")
        bench.host = Host(str(bench.root))
        bench.round()
        bench.log(XID % 64)
        if dies_at % 2:
            bench.path(keeping.KEPT).write_text("{")
        if run(dies_at) < dies_at:
            break
        bench.host = Host(str(bench.root))
        state = bench.round()
        assert {each.code: each.count for each in state.findings.values()} == {"xid 64": 1}
        assert keeping.kept(bench.host) == state and bench.summary()["verdict"] == "sick"
        assert not list(bench.root.rglob(".gpuops-health*"))
    assert dies_at > 8


def test_two_at_once_count_each_line_once(bench: Bench) -> None:
    bench.log(*[XID % 119] * 50)
    children = []
    for _each in range(4):
        child = os.fork()
        if child == 0:
            try:
                bench.round(5)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    state = keeping.kept(bench.host)
    assert [(each.code, each.count) for each in state.findings.values()] == [("xid 119", 50)]
    assert 5 <= state.rounds <= 20


def test_while_a_child_hangs_in_nvml_no_other_is_started(bench: Bench) -> None:
    with subprocess.Popen(["sleep", "60"]) as asleep:
        bench.reading = NvmlReading(error="nvmlInit had not answered after 60 s", hung="nvmlInit", left=asleep.pid)
        assert codes(bench.round(5)) == ["hang"] and bench.asked == 1
        asleep.kill()
    bench.reading = NvmlReading(gpus=(gpu(0), gpu(1)))
    bench.round()
    assert bench.asked == 2


def test_a_child_that_ended_right_after_it_was_given_up_keeps_no_other_from_nvml(bench: Bench) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    bench.reading = NvmlReading(error="nvmlInit had not answered after 60 s", hung="nvmlInit", left=ended.pid)
    assert codes(bench.round()) == ["hang"]
    bench.reading = NvmlReading(gpus=(gpu(0), gpu(1)))
    state = bench.round()
    assert bench.asked == 2 and "nvml" not in state.unknown


def test_while_a_run_works_on_the_host_no_gpu_is_looked_at(bench: Bench) -> None:
    bench.round()
    bench.log(XID % 119)
    bench.reading = NvmlReading(error="Unknown Error (nvmlInit)")
    with HostLock(bench.host, "run", "site").held(0):
        state = bench.round(5)
    assert codes(state) == ["xid 119"] and bench.asked == 1 and state.failing == {}
    assert codes(bench.round(3)) == ["no_nvml", "xid 119"]


def without_nvml(bench: Bench) -> State:
    """A round that was not to ask NVML."""
    look = looking.read_look(bench.host, lambda: keeping.kept(bench.host), POLICY, asks_nvml=False)
    return keeping.keep_look(bench.host, POLICY, look)


def test_between_two_times_that_nvml_is_asked_what_it_has_said_goes_on(bench: Bench) -> None:
    bench.reading = NvmlReading(gpus=(gpu(0), gpu(1, recovery_action=1)))
    bench.round()
    bench.reading = NvmlReading(gpus=(gpu(0), gpu(1)))
    for _each in range(4):
        state = without_nvml(bench)
        assert (codes(state), state.verdict, state.unknown, bench.asked) == (["recovery_action"], "sick", {}, 1)
    bench.compute()
    assert codes(without_nvml(bench)) == ["recovery_action"]
    assert codes(bench.round()) == []


def test_before_nvml_has_been_asked_at_all_a_host_is_unknown(bench: Bench) -> None:
    assert without_nvml(bench).verdict == "unknown" and bench.asked == 0
    bench.round()
    assert without_nvml(bench).verdict == "well"


def test_what_the_driver_has_logged_is_not_judged_without_nvml(bench: Bench) -> None:
    """By its recovery action it says what the line means."""
    bench.round()
    bench.log("eth0: link up")
    without_nvml(bench)
    assert bench.asked == 1
    bench.log(XID % 119)
    assert codes(without_nvml(bench)) == ["xid 119"] and bench.asked == 2
    without_nvml(bench)
    assert bench.asked == 2


def test_a_host_without_libraries_or_driver_is_unknown(tmp_path: Path) -> None:
    found = Bench(tmp_path)
    state = found.round()
    assert state.verdict == "unknown" and "not installed" in state.unknown["nvml"].text


@pytest.mark.parametrize("name", ["dev/kmsg", "sys/bus/pci/devices"])
def test_what_is_not_there_to_be_read_is_unknown_or_none(bench: Bench, name: str) -> None:
    path = bench.root / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    state = bench.round()
    assert (state.verdict == "unknown") == (name == "dev/kmsg") and state.findings == {}


@pytest.mark.parametrize("told, is_watched", [
    ({"LoadState": "loaded", "UnitFileState": "enabled", "ActiveState": "inactive"}, True),
    ({"LoadState": "loaded", "UnitFileState": "disabled", "ActiveState": "failed",
      "ActiveEnterTimestampMonotonic": "7"}, True),
    ({"LoadState": "masked", "UnitFileState": "masked", "ActiveState": "inactive",
      "ActiveEnterTimestampMonotonic": "0"}, False),
    ({"LoadState": "not-found", "ActiveState": "inactive"}, False),
    ({}, False),
])
def test_a_service_that_is_not_to_run_here_is_not_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, told: Dict[str, str], is_watched: bool
) -> None:
    """As IMEX, where ComputeDomains bring it, or a board stands alone."""
    monkeypatch.setattr(Host, "unit", lambda _host, _name: told)
    # GB200
    bus = PciBus((PciDevice("0000:3b:00.0", "2941", "", "nvidia", 0),), ())
    assert bus.imex
    assert bool(looking._services(bench.host, bus)) is is_watched
