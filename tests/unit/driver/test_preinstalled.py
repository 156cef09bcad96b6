# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that others have brought is taken as it is when every part of it is of one version; each part that is
missing or differs is a refusal of its own, and nothing is ever changed."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest
from driver_world import World, made, policy
from gpu_hosts import A100, GB200, facts
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.versions import (
    bounds_of,
    is_empty,
    version_key,
    within,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import preinstalled
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.preinstalled_parts import Parts, read_parts

RUNNING, OLDER = "6.1.0-50-amd64", "6.1.0-42-amd64"
THERE = "580.178.04"
OPEN = "Dual MIT/GPL"
WHOLE = facts(A100, driver_installed=THERE, driver_boots=THERE, driver_userspace=THERE, module_installed="open")
PARTS = Parts(cuda=THERE, firmware=(THERE,), nodes_program=True)
KERNELS = (Kernel(OLDER, module=THERE, license=OPEN), Kernel(RUNNING, module=THERE, license=OPEN))


def planned(there: Any = WHOLE, parts: Parts = PARTS, kernels: Any = KERNELS, **changes: Any) -> Plan:
    world = World(kernels=kernels, more={"parts": parts})
    return made(world, policy(source="preinstalled", **{"version": "580", **changes}), there)


def codes(plan: Plan) -> List[str]:
    assert plan.steps == ()
    assert all(refusal.found and refusal.wanted and refusal.remedy for refusal in plan.refusals)
    return [refusal.code.partition(".")[2] for refusal in plan.refusals]


class TestWhole:
    @pytest.mark.parametrize("version", ["", "580", THERE, ">=580.95.05,<590", ">580.126,<=580"])
    def test_a_fitting_driver_is_left_alone(self, version: str) -> None:
        assert planned(version=version) == Plan()

    def test_a_system_whose_image_carries_it_is_no_obstacle(self) -> None:
        assert planned(WHOLE.but(immutable="/run/ostree-booted", image="a system", image_remedy="layer it")) == Plan()

    def test_another_source_is_no_advice_where_the_image_carries_everything(self) -> None:
        (refusal,) = planned(facts(A100, immutable="/run/ostree-booted", image_remedy="layer it")).refusals
        assert refusal.code == "driver.not_preinstalled" and refusal.remedy == "layer it"
        assert "set `source`" in planned(facts(A100)).refusals[0].remedy

    def test_the_proprietary_module_may_do_without_firmware(self) -> None:
        kernels = tuple(replace(kernel, license="NVIDIA") for kernel in KERNELS)
        assert planned(WHOLE.but(module_installed="proprietary"), replace(PARTS, firmware=()), kernels) == Plan()

    def test_a_driver_that_is_loaded_in_another_version_is_left_to_the_activation(self) -> None:
        (note,) = planned(WHOLE.but(driver_loaded="580.126.09")).notes
        assert "580.126.09 is loaded, and 580.178.04 is on disk" in note

    def test_who_brought_it_is_said(self) -> None:
        plan = planned(parts=replace(PARTS, brought_by="NVIDIA's runfile installer"))
        assert plan.notes == ("The driver was brought by NVIDIA's runfile installer.",)


class TestPartsThatAreMissingOrDiffer:
    @pytest.mark.parametrize("changes, code, said", [
        ({"there": facts(A100)}, "not_preinstalled", "no kernel module for " + RUNNING),
        ({"there": WHOLE.but(driver_userspace="")}, "not_preinstalled", "no libnvidia-ml.so.1"),
        ({"version": "595"}, "preinstalled_in_another_version", "kernel module 580.178.04"),
        ({"version": ">=580.200"}, "preinstalled_in_another_version", "kernel module 580.178.04"),
        ({"kernels": (replace(KERNELS[0], module=""), KERNELS[1])}, "preinstalled_kernel_without_module",
         OLDER + " (none)"),
        ({"kernels": (replace(KERNELS[0], module="570.1"), KERNELS[1])}, "preinstalled_kernel_without_module",
         OLDER + " (570.1)"),
        ({"kernel_module": "proprietary"}, "preinstalled_with_another_kernel_module", "the open kernel module"),
        ({"there": WHOLE.but(driver_userspace="580.126.09")}, "preinstalled_user_space_differs",
         "libnvidia-ml.so.1 580.126.09"),
        ({"parts": replace(PARTS, cuda="")}, "preinstalled_user_space_differs", "libcuda.so.1 missing"),
        ({"parts": replace(PARTS, firmware=("570.1",))}, "preinstalled_without_firmware", "for driver 570.1"),
        ({"parts": replace(PARTS, firmware=())}, "preinstalled_without_firmware", "for no driver"),
        ({"parts": replace(PARTS, nodes_program=False)}, "preinstalled_without_nodes_program", "no nvidia-modprobe"),
        ({"parts": replace(PARTS, daemons=(("fabric_manager", ""),))}, "preinstalled_daemon_differs",
         "nv-fabricmanager missing"),
        ({"parts": replace(PARTS, daemons=(("imex", "580.1"),))}, "preinstalled_daemon_differs", "nvidia-imex 580.1"),
    ])
    def test_each_is_a_refusal_of_its_own(self, changes: Dict[str, Any], code: str, said: str) -> None:
        plan = planned(**changes)
        assert codes(plan) == [code]
        assert said in plan.refusals[0].found

    def test_several_are_all_told(self) -> None:
        parts = replace(PARTS, cuda="", nodes_program=False)
        assert codes(planned(parts=parts, version="595")) == [
            "preinstalled_in_another_version", "preinstalled_user_space_differs", "preinstalled_without_nodes_program"]

    def test_the_remedy_is_that_of_the_system(self) -> None:
        image = WHOLE.but(immutable="os-release ID=sle-micro", image_remedy="run `transactional-update pkg install`")
        assert "transactional-update pkg install" in planned(image, version="595").refusals[0].remedy

    def test_packages_are_not_installed_over_an_image_that_brings_its_driver(self) -> None:
        world = World(more={"brought_by": "EKS's image of Amazon Linux 2023 for GPUs"})
        plan = made(world, policy(), facts(A100, os_id="amzn", os_version="2023"))
        assert codes(plan) == ["image_brings_the_driver"]
        assert "preinstalled" in plan.refusals[0].remedy


class TestReading:
    def link(self, root: Path, name: str, target: str) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / target).write_text("")
        path.symlink_to(target)

    def test_parts_are_read_from_their_files(self, tmp_path: Path) -> None:
        self.link(tmp_path, "usr/lib64/libcuda.so.1", "libcuda.so.580.178.04")
        for name in ("lib/firmware/nvidia/580.178.04/gsp_ga10x.bin", "lib/firmware/nvidia/570.1/gsp_tu10x.bin.xz",
                     "lib/firmware/nvidia/ga102/acr/ucode.bin", "usr/bin/nvidia-uninstall"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("")
        parts = read_parts(Host(str(tmp_path)), policy(source="preinstalled"), facts(A100))
        assert parts.cuda == "580.178.04"
        assert sorted(parts.firmware) == ["570.1", "580.178.04"]
        assert parts.brought_by == "NVIDIA's runfile installer (/usr/bin/nvidia-uninstall)"
        assert parts.daemons == ()

    @pytest.mark.parametrize("path", ["var/lib/dkms-archive/nvidia-open/580.178.04.tar.gz",
                                      "etc/systemd/system/nvidia-kmod-load.service"])
    def test_the_image_of_eks_is_told(self, tmp_path: Path, path: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("")
        parts = read_parts(Host(str(tmp_path)), policy(source="preinstalled"), facts(A100))
        assert parts.brought_by.startswith("EKS's image of Amazon Linux 2023")

    @pytest.mark.parametrize("there, changes, daemons", [
        (facts(A100, fabric="fabric_manager"), {}, ["fabric_manager"]),
        (facts(GB200, imex=True), {}, ["imex"]),
        (facts(A100), {"fabric_manager": "present", "imex": "present"}, ["fabric_manager", "imex"]),
        (facts(A100, fabric="fabric_manager", imex=True), {"fabric_manager": "absent", "imex": "absent"}, []),
    ])
    def test_daemons_are_asked_for_where_the_board_or_the_policy_needs_them(
        self, tmp_path: Path, there: Any, changes: Dict[str, Any], daemons: List[str]
    ) -> None:
        parts = read_parts(Host(str(tmp_path)), policy(source="preinstalled", **changes), there)
        assert [name for name, _version in parts.daemons] == daemons


VERSIONS = st.builds("{}.{}.{:02d}".format, st.integers(570, 590), st.integers(1, 200), st.integers(1, 20))


class TestRanges:
    @pytest.mark.parametrize("version, wanted, fits", [
        ("580.95.05", ">=580.95.05", True), ("580.95.04", ">=580.95.05", False), ("590.1.1", "<590", False),
        ("589.1.1", "<590", True), ("580.178.04", "<=580", True), ("580.178.04", ">580", False),
        ("595.1.1", ">580", True), ("580.178.04", "> 580.126 , < 590", True), ("580.178.04", "", True),
        ("580.178.04", "580.178", False), ("580.178.04", "580", True),
    ])
    def test_a_bound_is_about_as_many_numbers_as_it_has(self, version: str, wanted: str, fits: bool) -> None:
        assert preinstalled.fits(version, wanted) is fits

    @pytest.mark.parametrize("text", ["580", "=580", ">=580;<590", ">=", "latest", ">=580,", "~580", ""])
    def test_other_words_are_no_range(self, text: str) -> None:
        assert bounds_of(text) == ()

    @given(VERSIONS, VERSIONS)
    def test_a_range_between_two_versions_has_both_or_nothing_at_all(self, low: str, high: str) -> None:
        bounds = bounds_of(">=%s,<=%s" % (low, high))
        assert is_empty(bounds) is (version_key(low) > version_key(high))
        assert is_empty(bounds) or (within(low, bounds) and within(high, bounds))

    @given(st.sampled_from([">", ">="]), VERSIONS, st.sampled_from(["<", "<="]), VERSIONS, VERSIONS,
           st.integers(1, 3), st.integers(1, 3))
    def test_nothing_is_in_an_empty_range(
        self, above: str, low: str, below: str, high: str, version: str, few: int, many: int
    ) -> None:
        lower, upper = ".".join(low.split(".")[:few]), ".".join(high.split(".")[:many])
        bounds = bounds_of("%s%s,%s%s" % (above, lower, below, upper))
        assert not (is_empty(bounds) and within(version, bounds))
