# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of GPUs of which one tells nothing, of a disk of another machine, and before there is a driver."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional

import pytest
from settings_world import World

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlFailed, NvmlGpu, NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings import notes, observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.model import ECC
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.policy import ARGUMENTS, Policy, policy_of

VERSION = "580.126.09"
FACTS = HostFacts(hostname="gpu", driver_userspace=VERSION, driver_loaded=VERSION)
ABSENT = Policy("absent")
GPUS = [NvmlGpu(index=index, uuid="GPU-%d" % index, pci_address="0000:%02x:00.0" % (index + 1)) for index in range(3)]
TOLD: Dict[str, Any] = {
    "power_limit": 500, "power_least": 200, "power_default": 700, "power_most": 700, "compute_mode": "default",
    "persistence": True, ECC: False, "ecc_pending": False, "architecture": 8, "fastest_gpu": 0, "fastest_memory": 0}
MACHINE = "/sys/class/dmi/id/product_uuid"


class Asked:
    """NVML of three GPUs. fails: {request: UUID of the GPU for which it does}."""

    lost = False

    def __init__(self, fails: Dict[str, str]) -> None:
        self.fails = fails

    def ask(self, name: str, uuid: str) -> Any:
        if self.fails.get(name) == uuid:
            raise NvmlFailed("nvmlOf%s" % name, 999, "an error that nobody knows")
        return TOLD if name == "get" else []

    def close(self) -> None:
        return


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(str(tmp_path))
    monkeypatch.setattr(observation, "reading_of", lambda *_words: NvmlReading(VERSION, gpus=tuple(GPUS)))
    return found


def seen(host: Host, monkeypatch: pytest.MonkeyPatch, **fails: str) -> observation.Observation:
    monkeypatch.setattr(observation, "Session", lambda _requests: Asked(fails))
    return observation.observe(host, Journal(host), ABSENT, FACTS)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_gpu_that_tells_nothing_keeps_no_other_from_what_it_had(
    host: Host, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    for gpu in GPUS:
        notes.note_former(Journal(host), gpu.uuid, {"power_limit": 700}, {"power_limit": 500})
    found = seen(host, monkeypatch, get="GPU-%d" % silent)
    assert [gpu for gpu, _why in found.silent] == [GPUS[silent].named()]
    given_back = [step.subject for step in plan(found, ABSENT, FACTS).steps if step.action == "settings.change"]
    assert given_back == [gpu.pci_address for gpu in GPUS if gpu.index != silent]


def test_the_gpu_that_does_not_tell_of_its_links_is_the_one_that_is_named(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpu in GPUS:
        notes.note_former(Journal(host), gpu.uuid, {ECC: True}, {ECC: False})
    found = seen(host, monkeypatch, links="GPU-1")
    assert [gpu for gpu, _why in found.silent] == [GPUS[1].named()]


@pytest.mark.parametrize("noted, now, is_elsewhere", [
    ("a", "b", True), ("a", "a", False), (None, "b", False), ("a", None, False)])
def test_gpus_of_the_machine_whose_disk_was_copied_are_told_from_those_here(
    host: Host, monkeypatch: pytest.MonkeyPatch, noted: Optional[str], now: Optional[str], is_elsewhere: bool
) -> None:
    def be(machine: Optional[str]) -> None:
        host.remove(MACHINE)
        if machine is not None:
            host.write(MACHINE, machine + "\n")

    be(noted)
    notes.note_former(Journal(host), "GPU-9", {"power_limit": 700}, {"power_limit": 500})
    be(now)
    notes.note_former(Journal(host), "GPU-1", {"power_limit": 700}, {"power_limit": 500})
    assert seen(host, monkeypatch).elsewhere == (("GPU-9",) if is_elsewhere else ())
    notes.forget(Journal(host), "GPU-9", None)
    assert seen(host, monkeypatch).elsewhere == ()


@pytest.mark.parametrize("board, match, settings, may_come", [
    ("a40", "all", {"ecc": False}, True), ("a40", "2235", {"ecc": False}, True),
    ("a40", "NVIDIA A40", {"ecc": False}, True), ("a40", "2330", {"ecc": False}, False),
    ("a40", "all", {"power_limit": 200}, False), ("h100", "all", {"ecc": True}, False)])
def test_a_reset_may_come_where_the_boards_are_some_whose_ecc_may_be_meant(
    board: str, match: str, settings: Dict[str, Any], may_come: bool
) -> None:
    there = World()
    there.say_gpus(board)
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    planned = there.plan(policy_of({**given, "gpus": [{"match": [match], **settings}]}), {"driver_reloads": True})
    assert planned.waiting or not planned.complete
    assert planned.may_come == ((Disruption.gpu_reset,) if may_come else ())
