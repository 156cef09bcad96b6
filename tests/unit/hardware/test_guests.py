# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the PCI configuration space of a virtual GPU says of the vGPU manager below."""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

import pytest
from pci_tree import Tree

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import vgpu
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import facts_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import read_bus


def space(*capabilities: Tuple[int, bytes]) -> bytes:
    """A configuration space whose list has these capabilities: (number, what follows its length)."""
    config = bytearray(256)
    config[0x06] = 0x10 if capabilities else 0
    place, link = 0x60, 0x34
    for number, content in capabilities:
        config[link], config[place], config[place + 2] = place, number, len(content) + 3
        config[place + 3:place + 3 + len(content)] = content
        link, place = place + 1, place + 3 + len(content)
    return bytes(config)


VERSION_RECORD = b"\0\x16580.126\0\0\0r580_00\0\0\0"


@pytest.mark.parametrize("config, manager", [
    (space((9, b"VF" + VERSION_RECORD)), "580.126"),
    (space((5, b"\x80\0"), (9, b"VF" + VERSION_RECORD)), "580.126"),
    (space((9, b"xx"), (9, b"VF" + VERSION_RECORD)), "580.126"),
    (space((9, b"VF\x01\x04ab" + VERSION_RECORD)), "580.126"),
    (space((9, b"VF\x01\x00")), "unknown"), (space((9, b"VF")), "unknown"),
    (space((9, b"V")), ""), (space((5, b"VF")), ""), (space(), ""), (b"\xff" * 256, ""),
    (space((9, b"VF" + VERSION_RECORD))[:64], ""), (b"", "")])
def test_the_manager_below_a_virtual_gpu_is_told_by_its_configuration_space(config: bytes, manager: str) -> None:
    assert vgpu.manager_of(config) == manager


def test_a_list_of_capabilities_that_leads_back_ends() -> None:
    config = bytearray(space((5, b"ab"), (5, b"cd")))
    config[0x60 + 1] = 0x60
    assert vgpu.manager_of(bytes(config)) == ""


def test_facts_and_the_bus_name_the_manager_of_a_guest(tmp_path: Path) -> None:
    tree = Tree(tmp_path).add("0000:01:00.0", "1eb8").add("0000:02:00.0", "1eb8")
    assert read_bus(tree.host).vgpu_manager == "" == HostFacts().vgpu_manager
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0/config").write_bytes(space((9, b"VF" + VERSION_RECORD)))
    bus = read_bus(tree.host)
    assert [gpu.manager for gpu in bus.gpus] == ["", "580.126"]
    (tmp_path / "usr").mkdir()
    assert facts_of(tree.host, bus).vgpu_manager == "580.126"
