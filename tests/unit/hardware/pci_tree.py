# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""PCI devices as sysfs shows them, in a scratch root."""
from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host

DEVICES = "sys/bus/pci/devices"


class Tree:
    """A scratch root whose /sys/bus/pci fills device by device."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(str(root))

    def add(
        self, address: str, device: str, device_class: str = "030200", vendor: str = "10de", driver: str = "",
        override: str = "", physical: str = "", vpd: bytes = b"",
    ) -> Tree:
        """physical: address of the physical function that this one is a virtual function of."""
        directory = self.root / DEVICES / address
        directory.mkdir(parents=True)
        for name, text in (("vendor", "0x" + vendor), ("device", "0x" + device), ("class", "0x" + device_class),
                           ("subsystem_vendor", "0x10de"), ("subsystem_device", "0x1463"), ("numa_node", "0"),
                           ("driver_override", override or "(null)")):
            (directory / name).write_text(text + "\n")
        if driver:
            (directory / "driver").symlink_to("../../drivers/" + driver)
        if physical:
            (directory / "physfn").symlink_to("../" + physical)
        if vpd:
            (directory / "vpd").write_bytes(vpd)
        return self

    def load(self, module: str, version: str = "") -> Tree:
        directory = self.root / "sys/module" / module
        directory.mkdir(parents=True)
        if version:
            (directory / "version").write_text(version + "\n")
        return self
