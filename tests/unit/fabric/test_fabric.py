# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of the fabric, what is done for it, and what is said when it fails."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import gpu_hosts
import pytest
from fabric_world import SHIPPED, World
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import daemons
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandFailed, CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric import executors, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.catalogue import (
    CONFIGURATION,
    KEYS,
    SUBNET_MANAGER,
    UNIT,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.observation import Observation, observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.fabric.policy import ARGUMENTS, Policy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex import observation as imex_observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.imex.policy import Policy as ImexPolicy

VERSION = "580.178.04"
RUNNING = "LoadState=loaded\nActiveState=active\nSubState=running\nActiveEnterTimestampMonotonic=7\n"
STOPPED = "LoadState=loaded\nActiveState=inactive\nSubState=dead\nActiveEnterTimestampMonotonic=0\n"
WAITING = NvmlGpu(1, pci_address="0000:0f:00.0", fabric_state="in_progress")
DONE = NvmlGpu(0, pci_address="0000:07:00.0", fabric_state="completed")


class Programs(Host):
    """A scratch root, and programs that answer: {words of a command, joined: (exit code, output)}."""

    def __init__(self, root: Path, answers: Mapping[str, Tuple[int, str]]) -> None:
        super().__init__(str(root))
        self.answers = {"systemctl is-enabled": (1, "disabled\n"), **answers}
        self.asked: List[str] = []

    def boot(self) -> str:
        return "boot"

    def run(self, argv: Sequence[str], check: bool = True, **_options: Any) -> CommandResult:
        words = " ".join(argv)
        self.asked.append(words)
        code, out = next((answer for begin, answer in self.answers.items() if begin in words), (0, ""))
        if check and code:
            raise CommandFailed("host.command_failed", words, "", "", stderr=out, rc=code)
        return CommandResult(tuple(argv), code, out, "")

    def install(self, name: str) -> None:
        self.write(name, "", 0o755)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Dict[str, Any]:
    """What NVML says ('gpus', 'error'), and how often it was opened ('opened')."""
    said: Dict[str, Any] = {"gpus": (DONE,), "error": "", "opened": 0}

    def read(*_limits: float, **_more: float) -> NvmlReading:
        said["opened"] += 1
        return NvmlReading(VERSION, gpus=said["gpus"], error=said["error"])

    monkeypatch.setattr(nvml, "read_nvml", read)
    monkeypatch.setattr(nvml, "_readings", {})
    return said


def board(**changes: Any) -> HostFacts:
    return gpu_hosts.facts(gpu_hosts.A100, fabric="fabric_manager", driver_loaded=VERSION, driver_userspace=VERSION,
                           driver_installed=VERSION).but(**changes)


def host_of(root: Path, state: str = RUNNING, **answers: Tuple[int, str]) -> Programs:
    host = Programs(root, {"systemctl show": (0, state), "nv-fabricmanager --version": (
        0, "Fabric Manager version is : %s\n" % VERSION), **answers})
    host.install("/usr/bin/nv-fabricmanager")
    host.write(CONFIGURATION, SHIPPED)
    return host


def seen(host: Host, facts: HostFacts) -> Observation:
    return observe(host, Journal(host), Policy(), facts)


def test_the_daemon_and_its_configuration_are_read(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading["gpus"] = (DONE, WAITING)
    found = seen(host_of(tmp_path), board())
    assert found.daemon == daemons.Daemon(VERSION, known=True, active=True, since="boot 7")
    assert found.settings is not None and found.settings["LOG_LEVEL"] == "4"
    assert found.keys == ("FABRIC_MODE", "LOG_FILE_NAME", "LOG_LEVEL", "UNIX_SOCKET_PATH")
    assert found.waiting == ("GPU 1 (0000:0f:00.0): in_progress, status 0",)


@pytest.mark.parametrize("facts", [gpu_hosts.facts(gpu_hosts.T4), gpu_hosts.facts()])
def test_a_host_without_switches_is_asked_nothing(tmp_path: Path, reading: Dict[str, Any], facts: HostFacts) -> None:
    host = host_of(tmp_path)
    assert seen(host, facts) == Observation() and host.asked == [] and reading["opened"] == 0
    assert not planner.plan(seen(host, facts), Policy(config={"NO": "1"}), facts).refusals


def test_a_converged_host_opens_nvml_once_and_writes_nothing(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading["gpus"] = (replace(DONE, fabric_cluster="a1", fabric_clique=2),)
    facts = board(imex=True)
    host = host_of(tmp_path, **{"systemctl is-enabled": (0, "enabled\n")})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert planner.plan(seen(host, facts), Policy(), facts) == planner.Plan()
    imex_observation.observe(host, Journal(host), ImexPolicy(nodes=("10.0.0.1",)), facts)
    assert reading["opened"] == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("loads, states", [
    (0, {"mlx5_ib": "loaded", "ib_umad": "loadable"}), (1, {"mlx5_ib": "loaded", "ib_umad": "missing"})])
def test_modules_and_programs_of_nvlink_5_are_looked_for(
    tmp_path: Path, reading: Dict[str, Any], loads: int, states: Dict[str, str]
) -> None:
    host = host_of(tmp_path, **{"modprobe --dry-run": (loads, "")})
    host.make_directory("/sys/module/mlx5_ib", 0o755)
    host.install(SUBNET_MANAGER)
    found = seen(host, board(fabric="fabric_manager_nvlsm"))
    assert found.modules == states and found.programs == {"nvlsm": True, "ibstat": False}


@pytest.mark.parametrize("said, code", [
    ("fabric manager NVIDIA GPU driver interface version 570.1 don't match with driver version 580.1",
     "fabric.driver_of_another_version"),
    ("NV_WARN_NOTHING_TO_DO", "fabric.nothing_to_manage"), ("out of memory", "fabric.not_started"),
])
def test_a_daemon_that_does_not_start_is_told_in_its_own_words(tmp_path: Path, said: str, code: str) -> None:
    host = host_of(tmp_path, **{"systemctl start": (1, "Job failed"), "journalctl": (0, said + "\n")})
    with pytest.raises(GpuOpsError) as caught:
        executors.start(host, Journal(host), Step("fabric", "service.start", UNIT, ""))
    assert caught.value.code == code and said in caught.value.found and caught.value.remedy


def test_a_daemon_that_ran_when_its_file_was_written_is_outdated_until_it_starts_again(
    tmp_path: Path, reading: Dict[str, Any]
) -> None:
    host = host_of(tmp_path)
    step = Step("fabric", "settings.write", CONFIGURATION, "", change={
        "before": {"LOG_LEVEL": "another value"}, "after": {"LOG_LEVEL": "3"}})
    executors.write_settings(host, Journal(host), step)
    assert seen(host, board()).outdated and "LOG_LEVEL=3\n" in (host.read(CONFIGURATION) or "")
    executors.start(host, Journal(host), Step("fabric", "service.restart", UNIT, ""))
    assert not seen(host, board()).outdated


@pytest.mark.parametrize("answer, noted", [
    ((1, "disabled\n"), {}), ((0, "enabled\n"), {"enabled": [UNIT]})], ids=["not done", "done"])
def test_a_unit_is_ours_only_where_its_enabling_was_done(
    tmp_path: Path, answer: Tuple[int, str], noted: Dict[str, Any]
) -> None:
    host = host_of(tmp_path, **{"systemctl enable": (1, "Read-only file system"), "systemctl is-enabled": answer})
    with pytest.raises(GpuOpsError):
        daemons.enable(host, Journal(host), Step("fabric", "service.enable", UNIT, ""))
    assert Journal(host).recall("fabric") == noted


def wait(host: Host, unit: str = UNIT) -> None:
    host.write("/sys/module/nvidia/version", VERSION + "\n")
    host.write("/usr/lib64/libnvidia-ml.so.%s" % VERSION, "")
    host.make_link("/usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so." + VERSION)
    executors.wait(host, Journal(host), Step("fabric", "fabric.wait", "GPUs", "", parameters={
        "limit": 1, "unit": unit}))


def test_gpus_that_do_not_register_are_named_with_state_and_health(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading["gpus"] = (DONE, replace(WAITING, fabric_health={"route_unhealthy": "true"}))
    with pytest.raises(GpuOpsError) as caught:
        wait(host_of(tmp_path))
    assert caught.value.code == "fabric.gpus_not_registered"
    assert "1 of 2 GPUs" in caught.value.found and "GPU 1 (0000:0f:00.0): in_progress, status 0, route unhealthy" in \
        caught.value.found and "nvidia-fabricmanager.service is active" in caught.value.found
    assert "nvlink -e" in caught.value.remedy and "nvidia-smi -r" in caught.value.remedy


def test_in_a_rack_others_are_asked(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading["gpus"] = (WAITING,)
    with pytest.raises(GpuOpsError) as caught:
        wait(host_of(tmp_path), unit="")
    assert "NMX" in caught.value.remedy and UNIT not in caught.value.found


def test_gpus_that_report_none_are_not_waited_for(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading["gpus"] = (NvmlGpu(0),)
    wait(host_of(tmp_path))


def test_gpus_that_do_not_answer_register_with_nothing(tmp_path: Path, reading: Dict[str, Any]) -> None:
    reading.update(gpus=(), error="nvmlInit: Unknown Error")
    with pytest.raises(GpuOpsError) as caught:
        wait(host_of(tmp_path))
    assert caught.value.code == "fabric.gpus_do_not_answer"


def test_a_value_that_is_no_text_is_refused() -> None:
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    with pytest.raises(GpuOpsError) as caught:
        policy_of(dict(given, config={"LOG_LEVEL": [1]}))
    assert (caught.value.code, caught.value.refusals[0].option) == ("fabric.config_malformed", "config")
    assert policy_of(dict(given, config={"LOG_USE_SYSLOG": True})).config == {"LOG_USE_SYSLOG": "1"}


def test_the_table_of_keys_is_that_of_the_file_that_packages_bring() -> None:
    text = (REPOSITORY / "tests/lab/packages/driver/fabricmanager.cfg").read_text()
    assert KEYS == set(executors.assignments.keys(text))


def test_gpus_that_register_once_their_host_has_booted_are_waited_for_as_approved() -> None:
    there = World()
    there.facts = there.facts.but(fabric="fabric_manager")
    there.say_installed("580.178.04", "580.178.04")
    policy = policy_of({name: option.get("default") for name, option in ARGUMENTS.items()})
    there.apply(there.plan(policy))
    approved = there.plan(policy)
    there.boot()
    there.say_waiting("GPU 0000:1b:00.0: in progress")
    assert there.plan(policy).steps and differences(there.plan(policy), approved) == ()
