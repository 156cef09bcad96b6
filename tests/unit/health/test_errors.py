# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Errors since the boot, as a person reads them."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.errors import read_errors

UUID = "GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0"


def errors(root: Path, *lines: str, first: int = 0) -> Any:
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/kmsg").write_text("".join(
        "3,%d,%d,-;%s\n SUBSYSTEM=pci\n" % (number, number * 1000000, line)
        for number, line in enumerate(lines, first)))
    return read_errors(Host(str(root)))


def test_an_error_is_told_with_its_gpu_and_its_meaning(tmp_path: Path) -> None:
    found = errors(tmp_path, "NVRM: GPU at PCI:0000:3b:00: " + UUID, "something",
                   "NVRM: Xid (PCI:0000:3b:00): 79, gone")
    assert found["complete"] is True
    assert found["errors"] == [{
        "pci_address": "0000:3b:00.0", "uuid": UUID, "xid": 79, "sxid": None, "kind": "sick", "count": 1,
        "meaning": "the GPU has fallen off the bus", "remedy": "reboot the node", "first_seconds": 2,
        "last_seconds": 2, "process": "", "caused_by": None, "text": "gone"}]


def test_an_error_of_a_gpu_before_ampere_asks_for_nothing_that_is_known(tmp_path: Path) -> None:
    errors(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 63, row", "NVRM: Xid (PCI:0000:5e:00): 63, row")
    found = read_errors(Host(str(tmp_path)), [
        {"pci_address": "0000:3b:00.0", "compute_capability": "7.0"},
        {"pci_address": "0000:5e:00.0", "compute_capability": "8.0"}])["errors"]
    assert [(each["kind"], each["remedy"]) for each in found] == [("warning", ""), ("pending", "reset the GPU")]


def test_work_that_was_removed_is_told_with_its_cause(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=a, Ch 00000001"
    (found,) = errors(tmp_path, line, line + " caused by previous Xid 94")["errors"]
    assert (found["xid"], found["kind"], found["count"], found["caused_by"]) == (45, "event", 2, 94)


def test_a_flood_of_one_error_is_one(tmp_path: Path) -> None:
    found = errors(tmp_path, *["NVRM: Xid (PCI:0000:3b:00): 95, pid=1, name=a, Uncontained"] * 5000,
                   "NVRM: Xid (PCI:0000:3b:00): 31, pid=2, name=b, Fault")["errors"]
    assert [(each["xid"], each["count"], each["first_seconds"], each["last_seconds"]) for each in found] == [
        (95, 5000, 0, 4999), (31, 1, 5000, 5000)]
    assert found[1]["process"] == "b (pid 2)"


def test_many_errors_are_the_latest(tmp_path: Path) -> None:
    lines: List[str] = ["NVRM: Xid (PCI:%04x:3b:00): 31, x" % domain for domain in range(300)]
    found = errors(tmp_path, *lines)["errors"]
    assert (len(found), found[-1]["pci_address"]) == (200, "012b:3b:00.0")


def test_a_switch_says_one_error_in_several_lines(tmp_path: Path) -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    found = errors(tmp_path, head, head.replace("LTSSM Fault Up", "Severity 1"))["errors"]
    assert [(each["sxid"], each["count"], each["kind"], each["text"]) for each in found] == [
        (20034, 1, "sick", "LTSSM Fault Up")]


def test_nvlink_5_says_itself_whether_it_is_fatal(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  %s  XC0 i0 Link 08 (0x004505c6 0x0)"
    found = errors(tmp_path, line % "Fatal", line % "Nonfatal")["errors"]
    assert [each["kind"] for each in found] == ["sick", "warning"]


def test_a_log_that_was_overwritten_is_not_complete(tmp_path: Path) -> None:
    assert errors(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 79, gone", first=17)["complete"] is False


@pytest.mark.parametrize("kind", ["none", "pipe"])
def test_a_host_without_a_log_says_so(tmp_path: Path, kind: str) -> None:
    (tmp_path / "dev").mkdir()
    if kind == "pipe":
        os.mkfifo(tmp_path / "dev/kmsg")
    assert read_errors(Host(str(tmp_path))) == {"errors": [], "complete": None}


def test_the_kernels_own_log_can_be_read() -> None:
    """The real device of this machine, where it lets us."""
    records = Host().kernel_log()
    if records is None:
        pytest.skip("this machine does not let us read its kernel's log")
    assert all(";" in record for record in records)
