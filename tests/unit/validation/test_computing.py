# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Computing on simulated GPUs: the real programs in PTX, the real interface of libcuda, and faults of the silicon."""
from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import pytest
from simulated_board import SimulatedBoard

from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import parent
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.levels import LEVELS
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof, Wrong
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.parent import prove_all
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.verdict import judged
from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

PROVER = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import levels, parent, verdict
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device
asked = json.loads(sys.argv[1])
devices = [Device(uuid, "GPU %d" % index, not uuid.startswith("MIG-"), switched=True)
           for index, uuid in enumerate(asked["uuids"])]
level = levels.LEVELS[asked["level"]]
level = level.__class__(**{**vars(level), **asked["but"]})
proofs = parent.prove_all(devices, level, asked["silence"])
print(json.dumps([[proof.to_dict(), list(verdict.judged(proof))] for proof in proofs]))
"""
# The programs with another head
WRITTEN_OTHERWISE = """
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import child
child.SOURCE = child.SOURCE.replace(".version 6.0", ".version %s").replace(".target sm_70", ".target %s")
"""
# What a simulated board is spared of a thorough level: the launches that find what comes and goes
FEWER = {"launches": 1, "rounds": 16, "copied": 16 << 20, "streamed": 64 << 20}
Proved = Tuple[Any, List[str]]


class Computer(SimulatedBoard):
    """Two V100: the fewest multiprocessors among the boards with NVLink."""

    def __init__(self, directory: Path, profile: str = "v100", gpus: int = 2) -> None:
        super().__init__(directory, profile, gpus)
        for gpu in range(gpus):
            self.set("gpu.%d.fabric.state" % gpu, 3)
        self.set("fabric_manager.running", 1)

    def asked(self, level: str, silence: float, uuids: Any) -> str:
        return json.dumps({"uuids": self.uuids() if uuids is None else uuids, "level": level, "silence": silence,
                           "but": {} if level == "quick" else FEWER})

    def proved(
        self, level: str = "quick", silence: float = 60.0, uuids: Any = None, **environment: str
    ) -> List[Proved]:
        found: List[Proved] = self.say(PROVER, self.asked(level, silence, uuids), **environment)
        return found

    def verdicts(self, *arguments: Any, **others: Any) -> List[List[str]]:
        return [verdict for _proof, verdict in self.proved(*arguments, **others)]

    def verdict(self, *arguments: Any, **others: Any) -> List[str]:
        return self.verdicts(*arguments, **{"uuids": self.uuids()[:1], **others})[0]


@pytest.fixture
def board(tmp_path: Path) -> Computer:
    return Computer(tmp_path)


def test_gpus_that_are_well_compute(board: Computer) -> None:
    (first, verdict), (second, _verdict) = board.proved()
    assert verdict == ["passed", "80 multiprocessors compute", ""]
    assert (first["board"], first["multiprocessors_seen"]) == ("Tesla V100-SXM2-16GB", 80)
    assert [each["uuid"] for each in (first, second)] == board.uuids()


@pytest.mark.parametrize("profile", [each for each in silicon.PROFILES if each not in ("v100", "t4-vgpu")])
def test_every_board_compiles_and_computes(tmp_path: Path, profile: str) -> None:
    assert Computer(tmp_path, profile, 1).verdict()[0] == "passed"


def test_rates_are_measured_and_held_against_the_data_sheet(board: Computer) -> None:
    for proof, verdict in board.proved("standard"):
        assert verdict[0] == "passed", verdict
        rates = proof["rates"]
        assert 12 < rates["to_device"] < 15.75 and 12 < rates["to_host"] < 15.75
        assert 700 < rates["memory"] < 900 and 90 < rates["peer"] < 150


@pytest.mark.parametrize("fault, told", [
    ("slow-copy", "slow: copies to it 1."),
    pytest.param("slow-memory", "slow: its memory ", marks=pytest.mark.variation),
    pytest.param("slow-peer", "slow: copies to a peer ", marks=pytest.mark.variation)])
def test_a_rate_that_is_far_too_low_is_found(board: Computer, fault: str, told: str) -> None:
    board.fault(fault, 1, percent=10)
    first, second = board.verdicts("standard")
    assert second[0] == "failed" and second[1].startswith(told), second
    # A copy between two is as slow as the slower
    assert first[0] == ("failed" if fault == "slow-peer" else "passed")


def test_a_wrong_multiprocessor_is_named(board: Computer) -> None:
    board.fault("wrong-result", 1, sm=17)
    first, second = board.verdicts()
    assert first[0] == "passed"
    assert second[0] == "failed" and "prove at multiprocessor 17, " in second[1], second
    assert "; multiply at block 17, " in second[1]


def test_a_multiprocessor_that_gets_no_work_is_no_proof(board: Computer) -> None:
    board.fault("idle-sm", 0, sm=3)
    assert board.verdict()[:2] == ["unknown", "79 of 80 multiprocessors were seen to compute"]


def test_a_copy_that_spoils_a_byte_is_found(board: Computer) -> None:
    board.fault("bad-copy", 0, at=1234567)
    status, evidence, _remedy = board.verdict()
    assert (status, "copy at byte 1234567, " in evidence) == ("failed", True), evidence


def test_a_copy_to_a_peer_that_spoils_a_byte_is_found(board: Computer) -> None:
    board.fault("bad-peer-copy", 1, at=77)
    first, second = board.verdicts("standard")
    assert first[0] == "passed"
    assert second[:2] == ["failed", "computes wrongly: peer at byte 77 of a copy to GPU 0, 7c instead of 6c"]


def test_memory_that_keeps_nothing_right_is_found(tmp_path: Path) -> None:
    board = Computer(tmp_path, gpus=1)
    board.set("board.memory_mib", 800)
    board.fault("bad-memory", 0, at=200 << 20)
    status, evidence, _remedy = board.verdict("long")
    assert (status, "memory at byte %d of " % (200 << 20) in evidence) == ("failed", True), evidence


@pytest.mark.parametrize("call, code, status, told", [
    ("cuInit", 999, "failed", "/dev/nvidia-uvm"),
    ("cuInit", 802, "failed", "fabricmanager"),
    ("cuInit", 803, "failed", "reload the driver"),
    ("cuInit", 804, "failed", "compatibility"),
    ("cuInit", 100, "failed", "device nodes"),
    ("cuInit", 101, "failed", "device nodes"),
    ("cuInit", 34, "failed", "stub"),
    ("cuDevicePrimaryCtxRetain", 102, "failed", "licensed"),
    ("cuDevicePrimaryCtxRetain", 46, "failed", "reset the GPU"),
    ("cuDevicePrimaryCtxRetain", 805, "unknown", ""),
    ("cuMemAlloc_v2", 2, "skipped", ""),
    ("cuModuleLoadDataEx", 221, "failed", "ptxjitcompiler"),
    ("cuModuleLoadDataEx", 223, "unknown", ""),
    ("cuModuleLoadDataEx", 200, "unknown", ""),
    ("cuModuleLoadDataEx", 209, "unknown", ""),
    ("cuModuleLoadDataEx", 218, "unknown", ""),
    ("cuModuleLoadDataEx", 222, "unknown", ""),
    ("cuCtxSynchronize", 214, "failed", "reset the GPU"),
    ("cuCtxSynchronize", 220, "failed", "NVLink board"),
    ("cuCtxSynchronize", 226, "failed", "reset the GPU"),
    ("cuMemcpyDtoHAsync_v2", 888, "failed", "kernel log"),
])
def test_each_error_has_its_verdict_and_its_remedy(
    board: Computer, call: str, code: int, status: str, told: str
) -> None:
    """cuda.h's numbers, each by the call that answers it."""
    board.fault("call", None if call == "cuInit" else 0, call=call, code=code, times=0)
    verdict = board.verdict()
    assert (verdict[0], call in verdict[1], str(code) in verdict[1]) == (status, True, True), verdict
    assert told in verdict[2] and bool(told) == bool(verdict[2]), verdict


@pytest.mark.parametrize("code", [700, 702, 714, 715, 716, 717, 718, 719])
def test_a_fault_of_a_bounded_program_is_believed_the_second_time(board: Computer, code: int) -> None:
    board.fault("call", 0, call="cuCtxSynchronize", code=code, times=1)
    board.fault("call", 1, call="cuCtxSynchronize", code=code, times=2)
    first, second = board.verdicts()
    assert first[0] == "passed", first
    assert second[0] == "failed" and "(%d)" % code in second[1] and "kernel log" in second[2], second


def test_wrong_numbers_are_not_tried_again(board: Computer) -> None:
    """Who computes wrongly once in two is as bad as one that always does."""
    board.fault("wrong-result", 0, sm=2)
    board.fault("call", 0, call="cuMemAllocHost_v2", code=719, times=1)
    proof, verdict = board.proved(uuids=board.uuids()[:1])[0]
    assert verdict[0] == "failed" and "computes wrongly" in verdict[1]
    assert proof["code"] == 719, "it is what the first child met"


def test_a_byte_that_a_peer_got_wrong_is_not_tried_away_for_the_fault_of_another_pair(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Device("GPU-1", "GPU 1"), Device("GPU-2", "GPU 2")
    wrong = Wrong("peer", "byte 7 of a copy to GPU 2", "6c", "7c")
    tries = [{"GPU-1": Proof(one, wrong=(wrong,)), "GPU-2": Proof(other, call="cuCtxSynchronize", code=719)},
             {"GPU-1": Proof(one), "GPU-2": Proof(other)}]
    monkeypatch.setattr(parent, "_together", lambda devices, *_words: [Proof(each) for each in devices])
    monkeypatch.setattr(parent, "_peers", lambda *_words: tries.pop(0))
    first, second = prove_all([one, other], LEVELS["standard"])
    assert first.wrong == (wrong,) and second == Proof(other) and tries == []


@pytest.mark.parametrize("version, target, code, told", [
    ("99.0", "sm_70", 222, "Unsupported .version 99.0"), ("6.0", "sm_75", 209, "is higher than default SM version"),
    ("6.0", "volta", 218, "no target 'volta'")])
def test_what_the_compiler_says_of_a_program_of_ours_is_told(
    board: Computer, version: str, target: str, code: int, told: str
) -> None:
    script = WRITTEN_OTHERWISE % (version, target) + PROVER
    ((proof, verdict),) = board.say(script, board.asked("quick", 60.0, board.uuids()[:1]))
    assert proof["code"] == code and told in proof["log"], proof
    assert verdict[0] == "unknown" and verdict[1].endswith("; " + proof["log"]), verdict


def test_a_device_that_its_mode_keeps_from_us_is_in_use(board: Computer) -> None:
    board.set("board.compute_mode", 2)
    assert board.verdict()[:2] == ["skipped", "in use: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)"]


@pytest.mark.parametrize("key, value, code", [("board.compute_mode", 2, 46), ("gpu.0.fabric.state", 2, 802)])
def test_states_of_the_board_are_told_as_the_driver_tells_them(
    tmp_path: Path, key: str, value: int, code: int
) -> None:
    board = Computer(tmp_path, "h100-sxm-hgx", 1)
    board.set(key, value)
    assert board.proved()[0][0]["code"] == code


def test_a_driver_that_is_not_the_loaded_one_is_told(board: Computer) -> None:
    board.load("595.91.07")
    assert board.proved()[0][0]["code"] == 803


def test_without_its_compiler_nothing_is_computed(board: Computer) -> None:
    (board.libraries / "libnvidia-ptxjitcompiler.so.1").unlink()
    assert board.proved()[0][0]["error"] == "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"


def test_without_the_library_nothing_is_computed(board: Computer) -> None:
    (board.libraries / "libcuda.so.1").unlink()
    status, evidence, remedy = board.verdict()
    assert (status, "libcuda.so.1" in evidence, "libcuda.so.1" in remedy) == ("failed", True, True)


def test_the_tasks_environment_chooses_no_device(board: Computer) -> None:
    verdicts = board.verdicts(CUDA_VISIBLE_DEVICES="GPU-none", CUDA_DISABLE_JIT="1")
    assert [verdict[0] for verdict in verdicts] == ["passed", "passed"]


def test_a_device_that_is_gone_is_not_taken_for_another(board: Computer) -> None:
    gone = "GPU-00000000-0000-0000-0000-000000000000"
    verdict = board.verdict(uuids=[gone])
    assert verdict[0] == "failed" and "CUDA_ERROR_NO_DEVICE" in verdict[1]


def test_mig_devices_compute_each_by_itself(tmp_path: Path) -> None:
    """A compute mode is of the one device too."""
    board = Computer(tmp_path, "h100-sxm-hgx", 1)
    made = board.say("""
import json
from pynvml import *
nvmlInit()
gpu = nvmlDeviceGetHandleByIndex(0)
nvmlDeviceSetMigMode(gpu, 1)
for profile in (19, 19, 14):
    instance = nvmlDeviceCreateGpuInstance(gpu, profile)
    compute = NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE if profile == 19 else NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE
    nvmlGpuInstanceCreateComputeInstance(instance, compute)
devices = sorted((nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in range(3)),
                 key=lambda each: nvmlDeviceGetAttributes(each).multiprocessorCount)
nvmlDeviceSetComputeMode(devices[0], NVML_COMPUTEMODE_PROHIBITED)
print(json.dumps(list(map(nvmlDeviceGetUUID, devices))))
""")
    proofs = board.proved(uuids=made)
    assert [proof["uuid"] for proof, _verdict in proofs] == made
    assert [verdict[0] for _proof, verdict in proofs] == ["skipped", "passed", "passed"], proofs
    assert proofs[0][1][1].startswith("in use: cuDevicePrimaryCtxRetain: "), proofs[0]
    assert [proof["multiprocessors_seen"] for proof, _verdict in proofs] == [0, 16, 32]


def test_a_hang_is_the_finding_and_hides_nobody(board: Computer) -> None:
    board.fault("slow", 1, call="cuLaunchKernel", ms=3600 * 1000)
    begun = time.monotonic()
    first, second = board.verdicts(silence=8.0)
    assert first[0] == "passed"
    assert second[0] == "failed" and second[1].startswith("cuLaunchKernel had not answered after "), second
    assert time.monotonic() - begun < 60


def child_of(pid: int, but: int = 0) -> int:
    for _attempt in range(500):
        children = Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
        if children and int(children[0]) != but:
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError("it started no child")


@pytest.mark.variation
def test_a_child_that_cannot_be_ended_is_left_behind_and_named(board: Computer) -> None:
    """A process that is traced stays until its tracer has seen its end: so does one that sleeps in the driver."""
    board.fault("slow", 0, call="cuLaunchKernel", ms=3600 * 1000)
    library = ctypes.CDLL(None, use_errno=True)
    with board.start(PROVER, board.asked("quick", 8.0, board.uuids()[:1])) as prover:
        child = child_of(prover.pid)
        if library.ptrace(0x4206, child, None, None) != 0:
            prover.kill()
            pytest.skip("this machine does not let us trace a process")
        verdict = json.loads(prover.communicate(timeout=60)[0])[0][1]
        os.waitpid(child, 0x40000000)
    assert verdict[1].endswith("and its process (%d) cannot be ended" % child)


def test_a_process_of_ours_that_hangs_is_no_use_of_the_device() -> None:
    """NVML lists it, as it has the device open: the second run is not to take that for somebody's work."""
    device = Device("GPU-1", "GPU 1", in_use=("python3 (pid 77)",))
    assert judged(Proof(device, call="the call of an earlier check", left=77)).status == "failed"


def test_a_device_of_which_it_cannot_be_told_is_left_alone(board: Computer) -> None:
    device = Device(board.uuids()[0], "GPU 0", unknown="whether it is divided cannot be told: Insufficient Permissions")
    (proof,) = prove_all([device], LEVELS["quick"])
    assert judged(proof).status == "unknown" and proof.call == ""


def test_peers_without_switches_are_not_judged_by_all_their_links() -> None:
    slow = Proof(Device("GPU-1", "GPU 1"), board="NVIDIA A100-SXM4-80GB", multiprocessors=108, seen=108,
                 rates={"peer": 72.0})
    assert judged(slow).status == "passed"
    assert judged(replace(slow, device=replace(slow.device, switched=True))).status == "failed"


def test_memory_that_could_not_be_had_is_not_said_to_be_tested() -> None:
    proof = Proof(Device("GPU-1", "GPU 1"), multiprocessors=1, seen=1, written=1 << 30, unwritten=3 << 30)
    assert judged(proof)[:2] == ("unknown", "1024 of 4096 MiB of memory could be written")


def test_a_time_that_is_over_is_told_as_such(board: Computer) -> None:
    """One that says something all the time, and comes to no end."""
    board.fault("slow", 0, call="cuMemsetD8_v2", ms=1500)
    script = PROVER.replace("**asked[\"but\"]", "\"limit\": 3")
    ((_proof, verdict),) = board.say(script, board.asked("quick", 60.0, board.uuids()[:1]))
    assert verdict[0] == "failed" and "had not answered after" in verdict[1], verdict


def test_a_library_that_dies_is_tried_again_and_then_told(board: Computer) -> None:
    board.fault("slow", 0, call="cuCtxSynchronize", ms=3600 * 1000)
    with board.start(PROVER, board.asked("quick", 60.0, board.uuids()[:1])) as prover:
        before = 0
        for _time in range(2):
            before = child_of(prover.pid, before)
            time.sleep(2)
            os.kill(before, signal.SIGSEGV)
        verdict = json.loads(prover.communicate(timeout=60)[0])[0][1]
    assert verdict[:2] == ["failed", "the process that computed died in cuCtxSynchronize, twice"]


def test_nothing_is_left_of_a_proof(board: Computer, tmp_path: Path) -> None:
    """No compiled program in a home directory, no process, no device that is held."""
    home = tmp_path / "home"
    home.mkdir()
    assert board.verdict(HOME=str(home))[0] == "passed"
    assert list(home.iterdir()) == []
    found = subprocess.run(["grep", "-l", str(board.directory), *map(str, Path("/proc").glob("[0-9]*/environ"))],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True).stdout
    assert found == ""
