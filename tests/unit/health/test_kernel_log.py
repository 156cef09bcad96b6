# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of the driver in the kernel's log, of drivers old and new, for whole GPUs and parts of them."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.health.kernel_log import (
    Event,
    Record,
    gaps,
    normal,
    parse_event,
    parse_record,
    parse_uuids,
)


def event(line: str) -> Event:
    found = parse_event(Record(7, 42, line))
    assert found is not None, line
    assert (found.sequence, found.at) == (7, 42)
    return found


@pytest.mark.parametrize("line, wanted", [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
     {"address": "0000:3b:00.0", "number": 79, "process": ""}),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault",
     {"number": 31, "process": "python3 (pid 4711)", "instance": (-1, -1)}),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 94, pid=99, name=train, Contained: SM (0x1). RST: No, D-RST: No",
     {"number": 94, "instance": (2, -1), "process": "train (pid 99)"}),
    ("NVRM: Xid (PCI:0000:3b:00 GPU-I:10 GPU-CI:11): 13, pid=99, name=train, Graphics Exception",
     {"number": 13, "instance": (10, 11)}),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=a,b, Ch 00000008", {"process": "a,b (pid 7)"}),
    ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=a", {"process": "a (pid 7)"}),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, Ch 00000008, intr 00000000. MMU Fault", {"process": "a process (pid 7)"}),
    ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7", {"process": "a process (pid 7)"}),
    ("NVRM: Xid (0000:07:00): 48, An uncorrectable double bit error", {"address": "0000:07:00.0", "number": 48}),
    ("NVRM: Xid (PCI:0010:c1:00): 63, Row Remapper: New row marked for remapping", {"address": "0010:c1:00.0"}),
    ("NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=a, Ch 00000001 caused by previous Xid 94", {"previous": 94}),
    ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
     {"number": 154, "action": 1}),
    ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)",
     {"action": 0}),
    ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0)",
     {"number": 149, "is_fatal": True, "link": 8}),
    ("NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK  Nonfatal XC1 i0 Link -1 (0x00100000 0x00000000)",
     {"is_fatal": False, "link": -1}),
    ("NVRM: Xid (PCI:0000:3b:00): 119", {"number": 119, "text": ""}),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
     {"is_switch": True, "number": 20034, "is_fatal": True, "link": 30, "address": "0000:c1:00.0"}),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11012, Non-fatal, Link 46 Single bit ECC errors",
     {"number": 11012, "is_fatal": False, "link": 46}),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
     {"is_switch": True, "number": 26006, "is_fatal": None, "link": -1, "text": "SOE HALTED"}),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10004, NVSWITCH Temperature 101C | TSENSE WARN Threshold 100C",
     {"number": 10004, "is_fatal": None}),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12024, Correctable, Link 07 egress ECC DBE",
     {"number": 12024, "is_fatal": False, "link": 7, "text": "egress ECC DBE"}),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", {"number": 79, "address": "0000:3b:00.0"}),
    # Of several lines of one message, as /dev/kmsg has it (src/nvidia/arch/nvalloc/unix/src/osapi.c)
    ("NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0aNVRM: "
     "fallen off the bus and is not responding to commands.", {"number": 79, "address": "0000:3b:00.0"}),
])
def test_each_form_of_a_line(line: str, wanted: Dict[str, Any]) -> None:
    found = event(line)
    assert {name: getattr(found, name) for name in wanted} == wanted
    # Behind a prefix, as syslog has it
    assert event("[  12.345678] " + line).number == found.number


@pytest.mark.parametrize("line", [
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.126.09",
    "NVRM: GPU at PCI:0000:3b:00: GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0",
    "usb 1-1: new high-speed USB device", "", "NVRM: Xid (PCI:0000:3b:00):", "Xid 79 was seen, says somebody",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x50610002, 0x10100030, 0x00000000, 0x10100030}",
])
def test_other_lines_are_no_events(line: str) -> None:
    assert parse_event(Record(0, 0, line)) is None


def test_uuids_of_gpus_are_found_by_address() -> None:
    lines = ["NVRM: GPU at PCI:0000:3b:00: GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0", "NVRM: something else",
             "NVRM: GPU at PCI:0001:07:00: GPU-a8cad33a-81f0-535e-8800-3a8d926510da"]
    assert parse_uuids(Record(number, 0, line) for number, line in enumerate(lines)) == {
        "0000:3b:00.0": "GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0",
        "0001:07:00.0": "GPU-a8cad33a-81f0-535e-8800-3a8d926510da"}


@pytest.mark.parametrize("text, wanted", [
    ("6,339,5140900,-;NET: Registered PF_NETLINK", Record(339, 5140900, "NET: Registered PF_NETLINK")),
    ("3,9,12,-,caller=T1;NVRM: a; b\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", Record(9, 12, "NVRM: a; b")),
    ("6,1,2,c;", Record(1, 2, "")), ("no record", None), ("a,b,c,d;e", None), ("", None)])
def test_records_of_the_kernel(text: str, wanted: Any) -> None:
    assert parse_record(text) == wanted


@pytest.mark.parametrize("sequences, before, missing", [
    ([0, 1, 2], -1, []), ([5, 6], -1, [(0, 4)]), ([5, 8, 9], 4, [(6, 7)]), ([], 3, []), ([4, 4, 5], 3, [])])
def test_a_log_that_was_overwritten_shows(sequences: List[int], before: int, missing: Any) -> None:
    assert gaps(sequences, before) == missing


@given(st.text(max_size=200))
def test_no_line_stops_the_reader(line: str) -> None:
    parse_event(Record(0, 0, line))
    parse_event(Record(0, 0, "NVRM: Xid (PCI:0000:3b:00): 154, " + line))
    parse_record(line)


@pytest.mark.parametrize("address, wanted", [
    ("0000:3b:00", "0000:3b:00.0"), ("3b:00", "0000:3b:00.0"), ("00000000:3B:00.0", "0000:3b:00.0"),
    ("10000:e1:00", "10000:e1:00.0")])
def test_addresses_are_those_of_sysfs(address: str, wanted: str) -> None:
    assert normal(address) == wanted
