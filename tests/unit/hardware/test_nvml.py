# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVML's reading through the simulated library, each in a process of its own, with faults in single calls."""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List

import pytest
from simulated_board import VERSION, SimulatedBoard
from workspace import collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.waiting import wait_for
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

READER = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
print(json.dumps(nvml.read_nvml(silence=float(sys.argv[1])).to_dict()))
"""
TWICE = """
import json
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
first = nvml.reading_of("%s", "%s")
print(json.dumps([first is nvml.reading_of("%s", "%s"), first is nvml.reading_of("595.91.07", "595.91.07"),
                  nvml.reading_of("", "").error]))
""" % ((VERSION,) * 4)

REGISTERED = """
import json, sys, time
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
before = nvml.reading_of("%s", "%s")
begun = time.monotonic()
after = nvml.await_fabric("%s", "%s", float(sys.argv[1]))
print(json.dumps([[gpu.fabric_state for gpu in before.gpus], [gpu.fabric_state for gpu in after.gpus],
                  nvml.reading_of("%s", "%s") is after, time.monotonic() - begun, after.error]))
""" % ((VERSION,) * 6)

CROWDED = """
import json, os, resource, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
nvml.binding()
if os.geteuid() == 0:
    os.setuid(65534)  # root is not counted
def lowest_free():
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor
before, kind = lowest_free(), getattr(resource, "RLIMIT_" + sys.argv[1])
limits = resource.getrlimit(kind)
resource.setrlimit(kind, (before + 1 if sys.argv[1] == "NOFILE" else 0, limits[1]))
error = nvml.read_nvml().error
resource.setrlimit(kind, limits)
print(json.dumps([error, before, lowest_free()]))
"""
SICK = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts_and_health
print(json.dumps(host_facts_and_health(Host(sys.argv[1]), silence=1.0).to_dict()))
"""


class Board(SimulatedBoard):
    """Two H100 that NVML is asked about."""

    def read(self, silence: float = 20.0) -> Dict[str, Any]:
        reading: Dict[str, Any] = self.say(READER, str(silence))
        return reading


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_every_gpu_is_read(board: Board) -> None:
    reading = board.read()
    assert (reading["driver_version"], reading["error"], reading["hung"]) == (VERSION, "", "")
    assert reading["cuda_version"] == "13.0"
    assert [gpu["name"] for gpu in reading["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    assert [gpu["minor"] for gpu in reading["gpus"]] == [0, 1]
    assert reading["gpus"][0]["fabric_state"] == "not_started"
    assert all(gpu["serial"].isdigit() for gpu in reading["gpus"])
    assert [gpu["error_code"] for gpu in reading["gpus"]] == [0, 0] and reading["left"] == 0


def test_a_gpu_that_the_driver_was_told_to_leave_out_is_named(board: Board) -> None:
    whole = board.read()
    board.fault("excluded", 0)
    reading = board.read()
    assert reading["excluded"] == [whole["gpus"][0]["pci_address"]] and whole["excluded"] == []
    assert [gpu["uuid"] for gpu in reading["gpus"]] == [whole["gpus"][1]["uuid"]]


@pytest.mark.parametrize("licensed, told", [    (0, {"state": "unlicensed", "product": "", "expires": ""}),
    (1, {"state": "licensed", "product": "NVIDIA Virtual Compute Server", "expires": "2027-01-02 03:04:05"})])
def test_virtual_gpus_tell_of_their_license(board: Board, licensed: int, told: Dict[str, str]) -> None:
    with silicon.board_file.opened(board.directory) as opened:
        opened.set("vgpu.manager", "580.126")
        opened.set("vgpu.licensed", licensed)
    assert [gpu["license"] for gpu in board.read()["gpus"]] == [told] * 2


def test_whole_gpus_need_no_license_and_old_drivers_tell_of_none(board: Board) -> None:
    assert [gpu["license"] for gpu in board.read()["gpus"]] == [{}] * 2
    board.fault("call", None, call="nvmlDeviceGetGridLicensableFeatures_v4", code=13, times=0)
    reading = board.read()
    assert [gpu["license"] for gpu in reading["gpus"]] == [{}] * 2 and not reading["error"]


def put_fabric(board: Board, gpu: int, **values: Any) -> None:
    with silicon.board_file.opened(board.directory) as opened:
        for name, value in values.items():
            opened.set("gpu.%d.fabric.%s" % (gpu, name), value)


def test_the_fabric_is_told_with_its_clique_and_health(board: Board) -> None:
    put_fabric(board, 0, state=3, clique=2, cluster="a1b2c3d4-0000-4000-8000-72727272000a", health=0x1A9)
    first, second = board.read()["gpus"]
    assert (first["fabric_state"], first["fabric_clique"], first["fabric_cluster"]) == (
        "completed", 2, "a1b2c3d4-0000-4000-8000-72727272000a")
    assert first["fabric_health"]["degraded_bandwidth"] == "true" and first["fabric_summary"] == "limited_capacity"
    assert (second["fabric_cluster"], second["fabric_summary"]) == ("", "not_supported")


def test_a_driver_without_the_newer_call_is_asked_by_the_older_one(board: Board) -> None:
    put_fabric(board, 0, state=3, clique=2, health=0x1A9)
    board.fault("call", None, call="nvmlDeviceGetGpuFabricInfoV", code=13, times=0)
    gpu = board.read()["gpus"][0]
    assert (gpu["fabric_state"], gpu["fabric_clique"], gpu["fabric_health"]) == ("completed", 2, {})


def test_gpus_that_register_are_waited_for(board: Board) -> None:
    put_fabric(board, 0, state=3)
    waiting = board.start(REGISTERED, "30")
    time.sleep(2)
    put_fabric(board, 1, state=3)
    out, errors = waiting.communicate(timeout=60)
    assert out, errors
    before, after, is_kept, _passed, error = json.loads(out)
    assert before[0] == "completed" and after == ["completed", "completed"] and is_kept and not error


def test_gpus_that_do_not_register_are_waited_for_no_longer_than_said(board: Board) -> None:
    put_fabric(board, 0, state=2)
    _before, after, _is_kept, passed, error = board.say(REGISTERED, "1.5")
    assert after == ["in_progress", "not_started"] and 1.5 <= passed < 20 and not error


@pytest.mark.parametrize("call, gpu, named", [
    ("nvmlInit_v2", None, "nvmlInit"),
    ("nvmlDeviceGetCount_v2", None, "nvmlDeviceGetCount"),
    ("nvmlDeviceGetMemoryInfo", 1, "nvmlDeviceGetMemoryInfo of GPU 1"),
])
def test_a_call_that_does_not_come_back_is_named_and_left(board: Board, call: str, gpu: Any, named: str) -> None:
    board.fault("slow", gpu, call=call, ms=3600 * 1000)
    reading = board.read(silence=1.0)
    assert reading["hung"] == named
    assert reading["error"] == "%s had not answered after 1 s" % named
    assert [each["index"] for each in reading["gpus"]] == ([0] if gpu else [])


@pytest.mark.parametrize("call, named", [
    ("nvmlInit_v2", "nvmlInit"),
    ("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"),
    ("nvmlSystemGetDriverVersion", "nvmlSystemGetDriverVersion"),
])
def test_a_call_that_fails_is_part_of_the_reading(board: Board, call: str, named: str) -> None:
    board.fault("call", None, call=call, code=999, times=0)
    reading = board.read()
    assert reading["error"] == "Unknown Error (%s)" % named
    assert (reading["hung"], reading["gpus"]) == ("", [])


@pytest.mark.parametrize("call, key, value", [
    # A GPU that shares the host's memory (GB10) has none of its own to tell of
    ("nvmlDeviceGetMemoryInfo", "memory_mib", 0),
    ("nvmlDeviceGetMinorNumber", "minor", -1),
    ("nvmlDeviceGetCudaComputeCapability", "compute_capability", ""),
])
def test_what_a_gpu_does_not_have_is_no_fault_of_it(board: Board, call: str, key: str, value: Any) -> None:
    board.fault("call", None, call=call, code=3, times=0)
    reading = board.read()
    assert [gpu["error"] for gpu in reading["gpus"]] == ["", ""]
    assert [gpu[key] for gpu in reading["gpus"]] == [value, value]


@pytest.mark.parametrize("code", [2, 25, 26])
def test_a_call_that_a_release_takes_otherwise_is_no_fault_of_the_gpu(board: Board, code: int) -> None:
    """Arguments and versions of structures that it does not know, and calls that it has left."""
    for call in ("nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetSerial"):
        board.fault("call", 0, call=call, code=code, times=0)
    first, second = board.read()["gpus"]
    assert (first["error"], first["serial"], first["remap_pending"], first["sram_exceeded"]) == ("", "", None, None)
    assert (second["error"], second["remap_pending"], second["sram_exceeded"]) == ("", False, False)


@pytest.mark.parametrize("pending", [0, 1])
def test_before_ampere_a_page_of_memory_may_wait_for_a_reset(tmp_path: Path, pending: int) -> None:
    board = Board(tmp_path, "v100", 2)
    board.set("gpu.1.retired_pending", pending)
    first, second = board.read()["gpus"]
    assert (first["remap_pending"], second["remap_pending"], second["remap_failed"]) == (None, bool(pending), None)


def test_links_that_are_down_are_told_and_those_that_a_board_has_not_are_none_of_them(board: Board) -> None:
    board.set("gpu.0.nvlinks", 12)
    board.fault("nvlink-down", 0, code=1 << 3 | 1 << 15)
    first, second = board.read()["gpus"]
    assert first["links_down"] == [3] and first["links_up"] == [*range(3), *range(4, 12)]
    assert second["links_down"] == [] and second["links_up"] == list(range(18))


def test_an_a100_with_mig_tells_of_links_that_are_down(tmp_path: Path) -> None:
    board = Board(tmp_path, "a100-80gb-sxm")
    board.set("gpu.1.mig", "1")
    assert [(len(gpu["links_up"]), len(gpu["links_down"])) for gpu in board.read()["gpus"]] == [(12, 0), (0, 12)]


@pytest.mark.parametrize("code", [2, 3, 13, 999])
def test_a_call_about_a_link_that_fails_says_nothing_of_the_gpu(board: Board, code: int) -> None:
    board.fault("call", None, call="nvmlDeviceGetNvLinkState", code=code, times=0)
    first = board.read()["gpus"][0]
    assert (first["error"], first["links_up"], first["links_down"]) == ("", [], [])


def test_a_board_without_nvlink_is_asked_for_none(tmp_path: Path) -> None:
    """The call would be left in the driver, were it made."""
    board = Board(tmp_path, "l40s")
    board.fault("slow", None, call="nvmlDeviceGetNvLinkState", ms=3600 * 1000)
    reading = board.read(silence=5.0)
    assert (reading["error"], reading["gpus"][0]["links_up"]) == ("", [])


@pytest.mark.parametrize("missing, told", [
    ([], 0x40), (["EventReasons"], 0x40), (["EventReasons", "ThrottleReasons"], None)])
def test_what_slows_a_gpu_down_is_told_by_old_drivers_too(board: Board, missing: List[str], told: Any) -> None:
    board.fault("slowdown", 0)
    for name in missing:
        board.fault("call", None, call="nvmlDeviceGetCurrentClocks" + name, code=13, times=0)
    first, second = board.read()["gpus"]
    assert (first["error"], first["clock_reasons"]) == ("", told)
    assert second["clock_reasons"] == (None if told is None else 1)


@pytest.mark.parametrize("code, error", [(2, ""), (6, ""), (999, "Unknown Error")])
def test_an_index_without_mig_device_is_no_fault(board: Board, code: int, error: str) -> None:
    with silicon.board_file.opened(board.directory) as state:
        state.set("gpu.0.mig", "1")
    assert [gpu["mig"]["current"] for gpu in board.read()["gpus"]] == [True, False]
    board.fault("call", 0, call="nvmlDeviceGetMigDeviceHandleByIndex", code=code, times=0)
    first = board.read()["gpus"][0]
    assert (first["error"], (first["mig"] or {}).get("devices", [])) == (error, [])


def test_who_may_not_read_mig_has_the_rest_of_a_gpu(board: Board) -> None:
    with silicon.board_file.opened(board.directory) as state:
        state.set("gpu.0.mig", "1")
    board.fault("call", 0, call="nvmlDeviceGetGpuInstances", code=4, times=0)
    first, second = board.read()["gpus"]
    assert (first["error"], first["mig"], first["memory_mib"]) == ("", None, second["memory_mib"])
    assert first["mig_error"] == "Insufficient Permissions (nvmlDeviceGetGpuInstances of GPU 0)"
    assert (second["mig"]["current"], second["mig_error"]) == (False, "")


@pytest.mark.parametrize("told, address", [
    ("00000000:17:00.0", "0000:17:00.0"), (b"00000019:01:00.0", "0019:01:00.0"),
    # Behind a controller that opens a domain of its own, sysfs writes five digits
    ("00010000:E1:00.0", "10000:e1:00.0"),
])
def test_the_address_is_that_of_sysfs(told: Any, address: str) -> None:
    assert nvml.address_of(told) == address


@pytest.mark.parametrize("limit", ["NOFILE", "NPROC"])
def test_a_host_without_room_for_a_process_says_so(limit: str) -> None:
    environment = dict(os.environ, PYTHONPATH=str(collections_root()))
    done = subprocess.run([sys.executable, "-c", CROWDED, limit], env=environment, capture_output=True, text=True,
                          check=False)
    assert done.stdout, done.stderr
    error, open_before, open_after = json.loads(done.stdout)
    assert error.startswith("no process can be started to call NVML: ")
    assert open_before == open_after


def test_facts_for_a_plan_tell_a_sick_host(board: Board, tmp_path: Path) -> None:
    root = tmp_path / "root"
    library = root / "usr/lib64" / ("libnvidia-ml.so." + VERSION)
    for path, text in ((library, ""), (root / "sys/module/nvidia/version", VERSION + "\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (root / "usr/lib64/libnvidia-ml.so.1").symlink_to(library.name)
    assert board.say(SICK, str(root))["hung"] == ""
    board.fault("slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    assert board.say(SICK, str(root))["hung"] == "nvmlDeviceGetMemoryInfo of GPU 1"


def test_a_driver_that_is_not_loaded_is_told(board: Board) -> None:
    board.load("")
    assert "Driver Not Loaded" in board.read()["error"]


def test_a_lost_gpu_does_not_hide_the_others(board: Board) -> None:
    board.fault("lost", 1)
    first, second = board.read()["gpus"]
    assert (first["error"], second["error"], second["error_code"]) == ("", "GPU is lost", 15)


def test_a_library_that_dies_takes_nobody_along(board: Board) -> None:
    """A crash in NVML used to be a crash of the module."""
    board.fault("slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    with board.start(READER, "20") as reader:
        child = child_of(reader.pid)
        time.sleep(0.5)
        os.kill(child, signal.SIGSEGV)
        reading = json.loads(reader.communicate(timeout=60)[0])
    assert reading["error"] == "the process that called NVML died in nvmlDeviceGetMemoryInfo of GPU 1"
    assert (reading["hung"], [gpu["index"] for gpu in reading["gpus"]]) == ("", [0])


def test_a_process_reads_once(board: Board) -> None:
    assert board.say(TWICE) == [True, False, "libnvidia-ml.so.1 is not installed"]


@pytest.fixture
def hanging(board: Board) -> Iterator["subprocess.Popen[str]"]:
    board.fault("slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    with board.start(READER, "2") as reader:
        yield reader


def child_of(pid: int) -> int:
    for _attempt in range(500):
        children = Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError("the reader started no child")


def test_a_child_that_cannot_be_ended_is_left_behind(hanging: "subprocess.Popen[str]") -> None:
    """A process that is traced stays until its tracer has seen its end: so does one that sleeps in the driver."""
    library = ctypes.CDLL(None, use_errno=True)
    child = child_of(hanging.pid)
    seize = 0x4206
    if library.ptrace(seize, child, None, None) != 0:
        pytest.skip("this machine does not let us trace a process")
    out, _errors = hanging.communicate(timeout=60)
    reading = json.loads(out)
    assert reading["hung"] == "nvmlDeviceGetMemoryInfo of GPU 1"
    assert reading["error"].endswith("the process that called it cannot be killed") and reading["left"] == child
    os.waitpid(child, 0x40000000)


@pytest.mark.parametrize("asks", ["read", "session"])
def test_a_child_whose_parent_was_killed_ends_by_itself(monkeypatch: pytest.MonkeyPatch, asks: str) -> None:
    """A call may wait for ever for another program; what has a GPU open keeps it from being reset."""
    def waits(*_words: Any) -> None:
        while True:
            time.sleep(1)

    monkeypatch.setattr(nvml, "binding", lambda: SimpleNamespace(nvmlInit=waits, NVMLError=OSError))
    monkeypatch.setattr(nvml, "PATIENCE", 0.2)
    monkeypatch.setattr(nvml, "_PARTING", 0.0)
    receiver, sender = os.pipe()
    parent = os.fork()
    if parent == 0:
        # It does not come to end it
        monkeypatch.setattr(nvml, "end", lambda child: os.write(sender, b"%d" % child) and signal.pause())
        if asks == "read":
            nvml.read_nvml(0.1, 0.2)
        session = nvml.Session({}, 0.1)
        with contextlib.suppress(nvml.NvmlFailed):
            session.ask("get", "GPU-1")
        session.close()
    child = int(os.read(receiver, 16))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for descriptor in (receiver, sender):
        os.close(descriptor)
    assert wait_for(lambda: Host().process_started(child), lambda started: not started, 3, 0.05)[1]


def test_a_child_that_is_left_behind_keeps_nothing_open(hanging: "subprocess.Popen[str]") -> None:
    child = child_of(hanging.pid)
    time.sleep(0.5)
    names = sorted(os.readlink(str(link)) for link in Path("/proc/%d/fd" % child).iterdir())
    assert [name for name in names if name != "/dev/null" and "silicon" not in name][0].startswith("pipe:")
    assert names.count("/dev/null") == 3 and len([name for name in names if name.startswith("pipe:")]) == 1
    assert os.getsid(child) == child


class Coherent:
    """A binding to a coherent board: its handle is invalid once persistence mode has gone off."""

    class NVMLError(Exception):
        value = 2

    def __init__(self) -> None:
        self.handle = 0

    def nvmlInit(self) -> None:
        self.handle = 1

    def nvmlDeviceGetHandleByUUID(self, _uuid: str) -> int:
        return self.handle

    def nvmlDeviceSetPersistenceMode(self, handle: int, mode: int) -> int:
        if handle != self.handle:
            raise self.NVMLError("Invalid Argument")
        self.handle += 1 - mode
        return mode


def test_a_session_goes_on_where_persistence_mode_that_goes_off_has_made_a_handle_invalid(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "binding", Coherent)
    session = nvml.Session({"set": lambda binding, handle, mode: binding.nvmlDeviceSetPersistenceMode(handle, mode)})
    try:
        assert [session.ask("set", "GPU-0", mode) for mode in (0, 0, 1)] == [0, 0, 1]
    finally:
        session.close()
