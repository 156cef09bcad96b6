# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which GPUs of the PCI bus the host's driver is for."""
from __future__ import annotations

import errno
from pathlib import Path
from typing import List, Optional

import pytest
from pci_tree import Tree

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.report import compact, read_host

A100, GT_710, GT_1030, RTX_PRO_6000, T4 = "20b2", "128b", "1d01", "2bb5", "1eb8"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    # What statvfs() looks at
    (tmp_path / "usr").mkdir()
    return Tree(tmp_path)


def roles(facts: HostFacts) -> List[str]:
    return [gpu.role for gpu in facts.gpus + facts.other_gpus]


def test_an_old_display_card_beside_a_gpu_is_nobodys_refusal(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100).add("0000:65:00.0", GT_710, "030000", driver="nouveau").load("nouveau")
    facts = host_facts(tree.host)
    assert facts.gpus == (Gpu("0000:17:00.0", A100),)
    assert facts.other_gpus == (Gpu("0000:65:00.0", GT_710, "display"),)
    assert not facts.nouveau_loaded
    assert catalogue.choose_module(facts.gpus, "auto", 580).module == "open"


def test_an_old_accelerator_is_no_display_card(tree: Tree) -> None:
    """A Tesla K80 is a 3D controller: it is there for computing, and is to be refused by name."""
    facts = host_facts(tree.add("0000:17:00.0", "102d").host)
    assert "Kepler" in catalogue.choose_module(facts.gpus, "auto", 580).refusal.found  # type: ignore[union-attr]


def test_nouveau_that_holds_a_gpu_of_ours_is_in_the_way(tree: Tree) -> None:
    tree.add("0000:17:00.0", T4, driver="nouveau").add("0000:65:00.0", GT_710, "030000", driver="nouveau")
    assert host_facts(tree.load("nouveau").host).nouveau_loaded


def test_gpus_with_a_display_that_have_a_driver_are_ours(tree: Tree) -> None:
    """Servers of RTX PRO boards have VGA controllers for GPUs, and a bare host has nouveau on them."""
    tree.add("0000:17:00.0", RTX_PRO_6000, "030000", driver="nouveau").add("0000:18:00.0", RTX_PRO_6000, "030000")
    assert roles(host_facts(tree.host)) == ["physical", "physical"]


def test_a_card_that_stayed_with_its_driver_beside_ours_is_a_display(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100, driver="nvidia").add("0000:65:00.0", GT_1030, "030000", driver="nouveau")
    assert roles(host_facts(tree.host)) == ["physical", "display"]


def test_an_old_display_card_does_not_hold_the_driver_of_a_board_back(tree: Tree) -> None:
    """A GT 1030 has no driver after branch 580, and no open kernel module."""
    tree.add("0000:17:00.0", "2330").add("0000:65:00.0", GT_1030, "030000")
    facts = host_facts(tree.host)
    assert roles(facts) == ["physical", "display"]
    assert catalogue.choose_module(facts.gpus, "auto", 595).module == "open"


@pytest.mark.parametrize("beside", [
    {}, {"device": A100, "driver": "vfio-pci"}, {"device": GT_1030, "device_class": "030000"},
])
def test_an_old_card_with_a_display_is_a_gpu_where_there_is_no_board_beside_it(tree: Tree, beside: dict) -> None:
    tree.add("0000:65:00.0", GT_1030, "030000", driver="nouveau")
    if beside:
        tree.add("0000:66:00.0", **beside)
    assert host_facts(tree.host).gpus[0] == Gpu("0000:65:00.0", GT_1030)


def test_what_nvidias_driver_drives_is_a_gpu(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100, driver="nvidia").add("0000:65:00.0", GT_1030, "030000", driver="nvidia")
    assert roles(host_facts(tree.host)) == ["physical", "physical"]


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci", "pci-stub", "xen-pciback", "pciback"])
def test_gpus_of_virtual_machines_are_not_ours(tree: Tree, driver: str) -> None:
    tree.add("0000:17:00.0", A100, driver=driver).add("0000:18:00.0", A100, driver="nvidia")
    facts = host_facts(tree.host)
    assert [gpu.address for gpu in facts.gpus] == ["0000:18:00.0"]
    assert facts.other_gpus[0].role == "passed_through"


def test_a_gpu_that_is_reserved_is_not_ours_before_it_is_bound(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100, override="vfio-pci").add("0000:18:00.0", A100, driver="nvidia", override="vfio-pci")
    assert roles(host_facts(tree.host)) == ["physical", "passed_through"]


def test_a_host_of_virtual_machines_has_no_gpu_for_the_driver_and_says_why(tree: Tree) -> None:
    facts = host_facts(tree.add("0000:17:00.0", A100, driver="vfio-pci").host)
    assert facts.gpus == ()
    assert "0000:17:00.0 (10de:20b2) is passed through to a virtual machine" in facts.lack_of_gpus
    assert "no NVIDIA GPU on the PCI bus" in HostFacts().lack_of_gpus


def test_virtual_functions_are_no_gpus_of_the_host(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100, driver="nvidia")
    for number in range(4, 8):
        tree.add("0000:17:00.%d" % number, A100, physical="0000:17:00.0")
    assert roles(host_facts(tree.host)) == ["physical"] + ["virtual_function"] * 4


def test_in_a_virtual_machine_a_gpu_is_an_ordinary_one(tree: Tree) -> None:
    assert roles(host_facts(tree.add("0000:00:06.0", T4).host)) == ["physical"]


def test_the_whole_reading_counts_ours_and_names_the_others(tree: Tree) -> None:
    tree.add("0000:17:00.0", A100).add("0000:18:00.0", A100, driver="vfio-pci")
    reading = read_host(tree.host)
    assert [gpu["address"] for gpu in reading["pci"]["gpus"]] == ["0000:17:00.0"]
    assert [(gpu["address"], gpu["role"]) for gpu in reading["pci"]["other_gpus"]] == [
        ("0000:18:00.0", "passed_through")]
    assert compact(reading)["gpu_count"] == 1


def test_the_reading_has_what_feature_discovery_has_written(tree: Tree) -> None:
    assert read_host(tree.host)["features"] == {}
    file = tree.root / "etc/kubernetes/node-feature-discovery/features.d/gfd"
    file.parent.mkdir(parents=True)
    file.write_text("nvidia.com/gpu.count=2\nelse=x\n")
    assert read_host(tree.host)["features"] == {"nvidia.com/gpu.count": "2"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_who_may_not_look_at_features_reads_the_rest(tree: Tree, number: int) -> None:
    class Unprivileged(Host):
        """Tests run as root, whom no mode keeps out."""

        def read(self, name: str) -> Optional[str]:
            if name.startswith("/etc/kubernetes/"):
                raise HostFailed.of(OSError(number, ""), name, "read")
            return super().read(name)

    if number == errno.EACCES:
        assert read_host(Unprivileged(tree.root))["features"] == {}
    else:
        with pytest.raises(HostFailed):
            read_host(Unprivileged(tree.root))
