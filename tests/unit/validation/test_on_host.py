# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a validation leaves on its host."""
from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation import on_host
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check, Evidence
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.model import Device, Proof
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.compute.verdict import judged

ASKED: Dict[str, Any] = {"state": "present", "status_files": False}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """One whose boot has failed, and whose checks pass."""
    found = Host(str(tmp_path))
    evidence = SimpleNamespace(facts=SimpleNamespace(hostname="gpu1", gpus=()), nvml=None, proofs=())
    for name, value in (("Host", lambda: found), ("await_startup", lambda _host: ()), ("kept_proof", lambda _host: {}),
                        ("gather", lambda *_words: evidence), ("devices_of", lambda *_words: []),
                        ("computed", lambda *_words, **_more: evidence), ("run_chain", lambda _evidence: ())):
        monkeypatch.setattr(on_host, name, value)
    boot_record.end(found, boot_record.begin(found), boot_record.FAILED, "GPU 3 is ill")
    return found


def test_a_host_that_has_been_validated_is_not_what_its_boot_has_left(host: Host) -> None:
    on_host.validate_host(ASKED, check_mode=True)
    assert boot_record.read(host)["state"] == "failed"
    on_host.validate_host(ASKED, check_mode=False)
    assert boot_record.read(host)["state"] == "validated"


def test_a_slighter_look_lets_nobody_in(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It clears no boot that has failed, and brings no file for which NVIDIA's components wait; one may go."""
    named = ("gpus_on_bus", "driver_versions", "gpus_answer", "fabric", "device_nodes")
    monkeypatch.setattr(on_host, "run_chain", lambda _evidence: tuple(Check(name, "passed", "well") for name in named))
    asked = dict(ASKED, status_files=True)
    assert not on_host.validate_host(asked, check_mode=False, proves=False)["changed"]
    assert boot_record.read(host)["state"] == "failed" and host.list("/run/nvidia/validations") == []
    assert on_host.validate_host(asked, check_mode=False)["changed"]
    assert host.list("/run/nvidia/validations") == ["driver-ready"]
    monkeypatch.setattr(on_host, "run_chain", lambda _evidence: ())
    assert on_host.validate_host(asked, check_mode=False, proves=False)["changed"]
    assert host.list("/run/nvidia/validations") == []


def test_one_that_fails_again_is(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Check("driver", "failed", "it is not loaded", "load it")
    monkeypatch.setattr(on_host, "run_chain", lambda _evidence: (failed,))
    with pytest.raises(GpuOpsError):
        on_host.validate_host(ASKED, check_mode=False)
    assert boot_record.read(host)["reason"] == "GPU 3 is ill"


# several at once

WELL = {"board": "Tesla T4", "multiprocessors": 40, "seen": 40}


@pytest.fixture
def computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computing:
    return Computing(Host(str(tmp_path)), monkeypatch)


class Computing:
    """A host with one GPU. events: what is done on it."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self.events: List[str] = []
        for name in ("sys/module/nvidia", "run", "var/lib"):
            (Path(host.root) / name).mkdir(parents=True)
        monkeypatch.setattr(on_host, "prerequisite_of_compute", lambda _evidence: "")
        monkeypatch.setattr(on_host, "reading_of", lambda *_words: self.events.append("read") or NvmlReading())
        monkeypatch.setattr(on_host, "devices_to_prove", lambda *_words: (Device("GPU-1", "GPU 1"),))
        monkeypatch.setattr(on_host, "prove_all", self.prove_all)

    def prove_all(self, devices: Sequence[Device], _level: Any) -> Tuple[Proof, ...]:
        self.events.append("begin")
        time.sleep(0.2)
        self.events.append("end")
        return tuple(Proof(device) if device.unknown else Proof(device, **WELL) for device in devices)

    def compute(self, **more: Any) -> Proof:
        evidence = Evidence(HostFacts(), NvmlReading(), (), "", 0, "", "", (), "", None, compute="quick")
        (proof,) = on_host.computed(self.host, evidence, **more).proofs
        return proof


def test_two_validations_compute_one_after_the_other(computing: Computing) -> None:
    """The second one looks once more at who has the GPUs, as that was long ago."""
    with ThreadPoolExecutor() as threads:
        proofs = [each.result() for each in [threads.submit(computing.compute) for _each in range(2)]]
    assert computing.events == ["begin", "end", "read", "begin", "end"]
    assert [judged(proof).status for proof in proofs] == ["passed", "passed"]


def test_beside_one_that_computes_for_long_nothing_can_be_told(
    computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_host, "_OTHERS_SECONDS", 0.0)
    computing.host.make_directory("/run/gpuops", 0o700)
    with computing.host.guard(on_host._COMPUTING):
        proof = computing.compute()
    assert judged(proof)[:2] == ("unknown", "another validation computes on this host")


def test_who_can_lock_nothing_computes_and_what_is_trusted_waits_for_nobody(computing: Computing) -> None:
    run = Path(computing.host.root) / "run"
    assert judged(computing.compute()).status == "passed"
    computing.events.clear()
    with computing.host.guard(on_host._COMPUTING):
        assert judged(computing.compute(trusting=True)).status == "passed" and computing.events == []
    shutil.rmtree(run)
    run.write_text("no directory")
    assert judged(computing.compute()).status == "passed"
