# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What configures the NVLink fabric of a board, told by its PCI devices."""
from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
from pci_tree import Tree

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boards import (
    may_be_divided,
    works_on_without_fabric_manager,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import read_bus
from gpulab import silicon

BRIDGE_DATA = b"\x82\x08\x00ConnectX\x90\x0d\x00V3\x06SW_MNGRV\x00\x78"
ADAPTER_DATA = b"\x82\x08\x00ConnectX\x90\x0d\x00V3\x06NVLINKRV\x00\x78"


@pytest.mark.parametrize("profile, fabric", [
    ("a100-80gb-sxm", "fabric_manager"), ("h100-sxm-hgx", "fabric_manager"), ("b200-hgx", "fabric_manager_nvlsm"),
    ("b300-hgx", "fabric_manager_nvlsm"), ("gb200-nvl72", ""), ("l40s", ""), ("h100-nvl", ""), ("t4", ""),
    ("rtx-pro-6000-server", ""),
])
def test_each_board_says_what_it_needs(tmp_path: Path, profile: str, fabric: str) -> None:
    slots = len(silicon.profile_table(profile)["slots"])
    silicon.write_board(tmp_path, profile, slots, seed="test")
    silicon.host_files.write_pci(tmp_path, silicon.board_file.read(tmp_path))
    bus = read_bus(Host(str(tmp_path)))
    assert (len(bus.gpus), bus.fabric) == (slots, fabric)


def test_network_adapters_of_the_host_are_no_bridges(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    tree = Tree(tmp_path).add("0000:17:00.0", "2901").add("0000:05:00.0", "1021", "020700", "15b3", vpd=ADAPTER_DATA)
    assert host_facts(tree.host).fabric == ""
    tree.add("0000:06:00.0", "1021", "020700", "15b3", vpd=BRIDGE_DATA)
    facts = host_facts(tree.host)
    assert (facts.fabric, facts.nvswitches) == ("fabric_manager_nvlsm", 0)


def test_bridges_count_for_gpus_with_nvlink_5_alone(tmp_path: Path) -> None:
    tree = Tree(tmp_path).add("0000:17:00.0", "2330").add("0000:05:00.0", "1021", "020700", "15b3", vpd=BRIDGE_DATA)
    assert read_bus(tree.host).fabric == ""


def test_switches_of_a_virtual_machine_are_configured_there(tmp_path: Path) -> None:
    tree = Tree(tmp_path).add("0000:17:00.0", "2330").add("0000:05:00.0", "22a3", "068000", driver="vfio-pci")
    assert read_bus(tree.host).fabric == ""


@pytest.mark.parametrize("devices, fabric, imex", [
    # HGX-2, HGX A100, HGX H100: NVSwitches on the bus of the host
    ([("0000:34:00.0", "1db3")] + [("0000:%02x:00.0" % bus, "1ac2", "068000") for bus in range(6)],
     "fabric_manager", False),
    ([("0000:07:00.0", "20b2")] + [("0000:%02x:00.0" % bus, "1af1", "068000") for bus in range(0xC4, 0xCA)],
     "fabric_manager", False),
    ([("0000:1b:00.0", "2335")] + [("0000:%02x:00.0" % bus, "22a3", "068000") for bus in range(5, 9)],
     "fabric_manager", False),
    # HGX B200 and B300: their switches behind network adapters
    ([("0000:1b:00.0", "2901"), ("0000:05:00.0", "1021", "020700", "15b3")], "fabric_manager_nvlsm", False),
    ([("0000:1b:00.0", "3182"), ("0000:05:00.0", "1021", "020700", "15b3")], "fabric_manager_nvlsm", False),
    # GB200 and GB300: their switches in trays of their own, whatever else is on the bus
    ([("0008:01:00.0", "2941")], "", True), ([("0008:01:00.0", "31c2")], "", True),
    ([("0008:01:00.0", "31c3")], "", True),
    ([("0008:01:00.0", "2941"), ("0000:05:00.0", "1021", "020700", "15b3")], "", True),
    # PCIe cards, with NVLink bridges between them or not
    ([("0000:17:00.0", "26b9")], "", False), ([("0000:17:00.0", "2321"), ("0000:3d:00.0", "2321")], "", False),
    ([("0000:17:00.0", "2342")], "", False),
])
def test_every_system_is_told_by_its_devices_alone(
    tmp_path: Path, devices: list, fabric: str, imex: bool
) -> None:
    (tmp_path / "usr").mkdir()
    tree = Tree(tmp_path)
    for address, device, *more in devices:
        tree.add(address, device, *more, vpd=BRIDGE_DATA if "15b3" in more else b"")
    facts = host_facts(tree.host)
    assert (facts.fabric, facts.imex, facts.driver_loaded) == (fabric, imex, "")


@pytest.mark.parametrize("devices, may", [
    (["20b2", "20b5", "20f1", "20b7", "2330", "2342", "2901", "2941", "2bb5", "3182", "31c2", "ffff"], True),
    (["1db6", "1eb8", "2236", "2235", "25b6", "26b9", "27b8"], False)])
def test_a_layout_may_wait_for_every_board_but_those_that_never_have_one(devices: List[str], may: bool) -> None:
    assert {may_be_divided(device) for device in devices} == {may}


@pytest.mark.parametrize("device, outlives", [("1db3", False), ("20b2", False), ("2330", True), ("2901", True)])
def test_before_hopper_work_ends_with_the_fabric_manager(device: str, outlives: bool) -> None:
    assert works_on_without_fabric_manager([device]) is outlives
