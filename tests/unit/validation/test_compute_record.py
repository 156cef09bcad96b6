# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What devices have proved is remembered for the driver as it is loaded, and no longer."""
from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import resets
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute import record
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof, Wrong
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.verdict import judged

DEVICE = Device("GPU-1", "GPU 1")
WELL = Proof(DEVICE, board="Tesla T4", multiprocessors=40, seen=40)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "var/lib").mkdir(parents=True)
    return Host(str(tmp_path))


@pytest.fixture
def asleep() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def keep(host: Host, *proofs: Proof, level: str = "standard") -> None:
    record.keep(host, record.kept(host), level, proofs, only_left=False)


def trusted(host: Host, level: str = "quick", device: Device = DEVICE) -> Any:
    return record.trusted(record.kept(host), device, level)


def test_what_passed_counts_for_what_is_no_more_thorough(host: Host) -> None:
    assert trusted(host) is None
    keep(host, WELL)
    assert trusted(host) == trusted(host, "standard") == WELL
    assert trusted(host, "long") is None
    assert trusted(host, device=Device("GPU-2", "GPU 2")) is None
    assert os.stat(host.path(record.PATH)).st_mode & 0o777 == 0o600


def test_a_device_that_somebody_has_now_is_not_told_to_be_well(host: Host) -> None:
    keep(host, WELL)
    assert trusted(host, device=Device("GPU-1", "GPU 1", in_use=("pod a/b",))) is None


def test_another_load_of_the_driver_begins_anew(host: Host) -> None:
    keep(host, WELL)
    os.utime(host.path("/sys/module/nvidia"), (1, 1))
    assert trusted(host) == WELL, "the kernel stamps a directory of sysfs whenever it looks at it anew"
    os.rename(host.path("/sys/module/nvidia"), host.path("/sys/module/before"))
    os.mkdir(host.path("/sys/module/nvidia"))
    assert trusted(host) is None


def test_a_step_of_ours_may_have_reset_the_gpu(host: Host) -> None:
    keep(host, WELL)
    host.make_directory("/var/lib/gpuops", 0o700)
    host.write("/var/lib/gpuops/journal.jsonl", "{}\n")
    assert trusted(host) is None


def test_a_reset_that_is_no_step_ends_what_was_proved_too(host: Host) -> None:
    keep(host, WELL)
    resets.begin(host, "repair", "Xid 62", [("GPU-1", "0000:17:00.0")])
    assert trusted(host) is None


def test_what_passed_beside_a_reset_or_a_step_may_have_passed_before_it(host: Host) -> None:
    """A validation takes no lock: others work on the host while it goes from one GPU to the next."""
    for disturb in (lambda: resets.begin(host, "repair", "Xid 62", [("GPU-1", "0000:17:00.0")]),
                    lambda: host.append("/var/lib/gpuops/journal.jsonl", "{}")):
        begun = record.kept(host)
        disturb()
        record.keep(host, begun, "quick", [WELL], False)
        assert trusted(host) is None
        record.keep(host, begun, "quick", [WRONG], False)
        record.keep(host, begun, "quick", [WELL], False)
        assert "GPU-1" in record.kept(host)["failed"], "what fails is never lost, nor lifted by what passed before"
        keep(host, WELL)
        assert trusted(host) == WELL and record.kept(host)["failed"] == {}


def test_what_was_computed_with_another_load_of_the_driver_says_nothing_of_this_one(host: Host, asleep: int) -> None:
    begun = record.kept(host)
    os.rename(host.path("/sys/module/nvidia"), host.path("/sys/module/before"))
    os.mkdir(host.path("/sys/module/nvidia"))
    record.keep(host, begun, "quick", [WRONG, Proof(Device("GPU-2", "GPU 2"), call="cuInit", left=asleep)], False)
    assert record.kept(host)["failed"] == {} and "GPU-2" in record.kept(host)["left"]


WRONG = Proof(DEVICE, wrong=(Wrong("prove", "multiprocessor 3"),))


def again(host: Host, proof: Proof) -> str:
    return judged(record.with_earlier(record.kept(host), proof)).status


def test_what_failed_goes_on_to_count_until_it_passes(host: Host) -> None:
    """A device that somebody has opened since, or of which nothing can be told, is as sick as it was."""
    keep(host, WRONG)
    used = Proof(Device("GPU-1", "GPU 1", in_use=("python (pid 7)",)))
    untold = Proof(DEVICE, call="cuModuleLoadDataEx", code=218)
    assert [again(host, each) for each in (used, untold, WELL)] == ["failed", "failed", "passed"]
    keep(host, record.with_earlier(record.kept(host), used))
    told = judged(record.with_earlier(record.kept(host), used)).evidence
    assert "computes wrongly: prove at multiprocessor 3" in told
    host.make_directory("/var/lib/gpuops", 0o700)
    host.write("/var/lib/gpuops/journal.jsonl", "{}\n")
    assert again(host, used) == "failed"
    keep(host, WELL)
    assert again(host, used) == "skipped"


def test_in_check_mode_only_what_hangs_is_written_down(host: Host, asleep: int) -> None:
    hanging = Proof(Device("MIG-1", "MIG", gpu="GPU-7"), call="cuInit", left=asleep)
    record.keep(host, record.kept(host), "quick", [WELL, hanging], True)
    assert trusted(host) is None
    found = record.hanging(record.kept(host), Device("MIG-2", "its neighbour", gpu="GPU-7"))
    assert found is not None and judged(found).status == "failed"


def test_a_process_that_only_takes_its_time_to_end_hangs_nowhere(host: Host, asleep: int) -> None:
    keep(host, replace(WELL, left=asleep))
    assert record.hanging(record.kept(host), DEVICE) is None


def test_a_full_run_hides_no_verdict(host: Host) -> None:
    (Path(host.path("/run"))).write_text("no directory")
    keep(host, WELL)
    assert trusted(host) is None


def test_what_fails_is_forgotten_and_what_shows_nothing_is_not(host: Host) -> None:
    keep(host, WELL)
    keep(host, Proof(DEVICE, unstarted="no memory"), Proof(DEVICE, call="cuModuleLoadDataEx", code=218))
    assert trusted(host) == WELL
    keep(host, Proof(DEVICE, wrong=(Wrong("prove", "multiprocessor 3"),)))
    assert trusted(host) is None


def test_a_child_that_hangs_is_remembered_as_long_as_it_does(host: Host, asleep: int) -> None:
    keep(host, Proof(DEVICE, call="cuLaunchKernel", hung=60.0, left=asleep))
    found = record.hanging(record.kept(host), DEVICE)
    assert found is not None and found.left == asleep
    os.kill(asleep, 9)
    os.waitpid(asleep, 0)
    assert record.hanging(record.kept(host), DEVICE) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 7}', '{"schema": 1, "driver": "x"}', *(
    '{"schema": 1, "%s": %s}' % (name, part) for name in ("passed", "failed", "failed_at", "left")
    for part in ('null', '"x"', '[1]', '{"GPU-1": null}', '{"GPU-1": {"a": 1}}', '{"GPU-1": ["x", 1]}'))])
def test_a_record_that_cannot_be_read_is_none(host: Host, text: str) -> None:
    host.make_directory("/run/gpuops", 0o700)
    host.write(record.PATH, text)
    assert trusted(host) is None and record.hanging(record.kept(host), DEVICE) is None
    keep(host, WELL)
    assert trusted(host) == WELL


OF_HOST = [("libcuda.so.1", 0), *(("cuInit", code) for code in (34, 100, 101, 102, 802, 803, 804, 999)),
           ("cuModuleLoadDataEx", 221)]


@pytest.mark.parametrize("call, code", OF_HOST)
def test_what_the_hosts_software_failed_condemns_no_gpu(host: Host, call: str, code: int) -> None:
    keep(host, WELL)
    failed = Proof(DEVICE, call=call, code=code, error="told")
    assert judged(failed).status == "failed"
    keep(host, failed)
    assert record.kept(host)["failed"] == {} and trusted(host) is None, "what had passed counts no more"


def test_what_the_hosts_software_failed_lifts_nothing(host: Host) -> None:
    keep(host, WRONG)
    keep(host, record.with_earlier(record.kept(host), Proof(DEVICE, call="cuInit", code=803)))
    assert "computes wrongly" in record.kept(host)["failed"]["GPU-1"]


@pytest.mark.parametrize("proof", [
    Proof(DEVICE, call="cuEventSynchronize", code=999), Proof(DEVICE, call="cuEventSynchronize", code=214),
    Proof(DEVICE, call="libcuda.so.1", died=True), Proof(DEVICE, call="libcuda.so.1", hung=60.0),
    Proof(DEVICE, wrong=WRONG.wrong, call="cuModuleLoadDataEx", code=221)])
def test_what_may_be_the_device_is_written_down_of_it(host: Host, proof: Proof) -> None:
    keep(host, proof)
    assert "GPU-1" in record.kept(host)["failed"]


def test_when_a_device_failed_is_not_when_somebody_was_in_the_way(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record.time, "time_ns", lambda: 100)
    keep(host, WRONG)
    monkeypatch.setattr(record.time, "time_ns", lambda: 200)
    keep(host, record.with_earlier(record.kept(host), replace(WELL, device=replace(DEVICE, in_use=("pod a/b",)))))
    assert record.kept(host)["failed_at"] == {"GPU-1": 100}
    keep(host, WRONG)
    assert record.kept(host)["failed_at"] == {"GPU-1": 200}
    keep(host, WELL)
    assert record.kept(host)["failed_at"] == {}


def test_checks_that_follow_at_once_are_told_from_each_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the second of two failures within a second, with a reset between, would count as the one before it."""
    monkeypatch.setattr(record.time, "time", lambda: 100.0)

    def found(proof: Proof) -> Any:
        keep(host, proof)
        there = record.kept(host)
        return there["failed_at"].get("GPU-1") or there["passed"]["GPU-1"]["at"]

    for proof in (WRONG, WELL):
        assert found(proof) != found(proof)
