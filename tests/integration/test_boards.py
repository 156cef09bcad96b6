# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A board whose NVLink switches are not on the PCI bus, with a display card and a GPU of a virtual machine beside it.

One host in this order: what is installed for it, what is counted, a fabric that is not configured, and a GPU whose
driver does not come back.
"""
from __future__ import annotations

import shutil
from typing import Any, Dict, Iterator

import pytest
from laboratory import Fleet, new_lab

from gpulab import silicon
from gpulab.topology import parse

# What is decided for each board is planned in words (tests/unit/fabric), and on the hosts of many tests a board with
# switches has its manager
pytestmark = pytest.mark.variation

HOST = "b200"
GT_710, H100 = "0000:f1:00.0", "0000:f2:00.0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("boards")
    lab.up(parse({"name": "boards", "control_plane": False,
                  "hosts": [{"name": HOST, "board": "b200-hgx", "gpus": 2}]}, "test_boards.py"))
    devices = lab.host(HOST).silicon / "sys" / "bus" / "pci" / "devices"
    # What is not told of a device here is as that of a GPU of the board
    board = next(path for path in sorted(devices.iterdir()) if (path / "class").read_text().strip() == "0x030200")
    for address, device, device_class, driver in ((GT_710, "0x128b", "0x030000", "nouveau"),
                                                  (H100, "0x2330", "0x030200", "vfio-pci")):
        shutil.copytree(board, devices / address, symlinks=True)
        for name, text in (("vendor", "0x10de"), ("device", device), ("class", device_class)):
            (devices / address / name).write_text(text + "\n")
        (devices / address / "driver").unlink(missing_ok=True)
        (devices / address / "driver").symlink_to("../../drivers/" + driver)
    fleet = Fleet(lab, tmp_path_factory.mktemp("boards"))
    fleet.play("gpuops.nvidia.site")
    yield fleet
    lab.down()


def module(fleet: Fleet, name: str, **options: Any) -> Dict[str, Any]:
    return fleet.tasks(HOST, [{"gpuops.nvidia." + name: options}]).result(HOST, name)


def test_the_board_gets_its_fabric_manager_and_subnet_manager(fleet: Fleet) -> None:
    installed = fleet.say(HOST, "dpkg-query", "-W", "-f", "${Package} ").split()
    assert {"nvidia-fabricmanager", "nvlsm"} <= set(installed)
    assert fleet.say(HOST, "systemctl", "is-active", "nvidia-fabricmanager.service") == "active"
    assert not module(fleet, "gpu_validation", expected_gpus=2).get("failed")
    assert fleet.play("gpuops.nvidia.site").changes() == []


def test_gpus_that_the_driver_is_not_for_are_named_and_not_counted(fleet: Fleet) -> None:
    observation = module(fleet, "gpu_info")["observation"]
    assert observation["host"]["fabric"] == "fabric_manager_nvlsm"
    assert len(observation["pci"]["gpus"]) == len(observation["nvml"]["gpus"]) == 2
    assert {gpu["address"]: gpu["role"] for gpu in observation["pci"]["other_gpus"]} == {
        GT_710: "display", H100: "passed_through"}
    assert len(observation["pci"]["nvlink_bridges"]) == 4


def test_a_fabric_that_is_not_configured_fails_with_its_remedy(fleet: Fleet) -> None:
    directory = fleet.lab.host(HOST).silicon
    with silicon.board_file.opened(directory) as board:
        for gpu in range(2):
            board.set("gpu.%d.fabric.state" % gpu, 2)
    verdict = module(fleet, "gpu_validation")
    assert verdict["failed"] and "in_progress" in verdict["msg"] and "nvlsm" in verdict["remedy"]
    fleet.say(HOST, "systemctl", "restart", "nvidia-fabricmanager.service")
    assert not module(fleet, "gpu_validation").get("failed")


def test_a_gpu_that_answers_and_computes_wrongly_is_not_offered(fleet: Fleet) -> None:
    directory = fleet.lab.host(HOST).silicon
    silicon.inject_fault(directory, "wrong-result", 1, sm=7)
    try:
        verdict = module(fleet, "gpu_validation")
        assert verdict["failed"] and "prove at multiprocessor 7, " in verdict["msg"], verdict
        assert {check["name"] for check in verdict["checks"] if check["status"] != "passed"} == {"compute"}
        assert "driver-ready" not in fleet.say(HOST, "ls", "/run/nvidia/validations")
    finally:
        silicon.clear_faults(directory)
    verdict = module(fleet, "gpu_validation")
    assert [each["multiprocessors_seen"] for each in verdict["compute"]] == [148, 148]


@pytest.mark.variation
def test_a_driver_that_does_not_come_back_is_named_by_everything_that_asks_it(fleet: Fleet) -> None:
    directory = fleet.lab.host(HOST).silicon
    silicon.inject_fault(directory, "slow", 1, call="nvmlDeviceGetMemoryInfo", ms=3600 * 1000)
    try:
        told = fleet.tasks(HOST, [
            {"gpuops.nvidia.gpu_info": {}},
            {"gpuops.nvidia.gpu_driver_activation": {}},
        ])
    finally:
        silicon.clear_faults(directory)
    reading = told.result(HOST, "gpu_info")["observation"]["nvml"]
    assert (reading["hung"], len(reading["gpus"])) == ("nvmlDeviceGetMemoryInfo of GPU 1", 1)
    refused = told.result(HOST, "gpu_driver_activation")
    assert refused["failed"] and "nvmlDeviceGetMemoryInfo of GPU 1 does not come back" in refused["msg"]
    assert not module(fleet, "gpu_driver_activation")["changed"]
