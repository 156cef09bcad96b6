# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import fnmatch
import re
from typing import Any

import pytest
from gpu_hosts import A100, B200, B300, GH200, T4, V100, facts
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue


def wanted(os_id: str, source: str, branch: int, module: str = "open", **more: Any) -> catalogue.Wanted:
    system = catalogue.system_of(os_id, {"debian": "12", "ubuntu": "24.04"}[os_id], "x86_64")
    assert system is not None
    return catalogue.Wanted(system, source == "distribution", branch, module, **more)


@pytest.mark.parametrize("ids, wanted, branch, module", [
    ((A100,), "auto", 580, "open"),
    ((A100,), "auto", 550, "proprietary"),
    ((A100,), "open", 550, "open"),
    ((T4,), "proprietary", 610, "proprietary"),
    ((T4,), "auto", 615, "open"),
    ((V100,), "auto", 580, "proprietary"),
    ((V100, T4), "auto", 580, "proprietary"),
    ((B200,), "auto", 570, "open"),
    ((B200, A100), "auto", 595, "open"),
    ((B300,), "auto", 580, "open"),
    ((GH200,), "auto", 550, "open"),
    ((), "auto", 580, "open"),
])
def test_the_module_that_all_gpus_take(ids: tuple, wanted: str, branch: int, module: str) -> None:
    assert catalogue.choose_module(facts(*ids).gpus, wanted, branch) == catalogue.ModuleChoice(module)


@pytest.mark.parametrize("ids, wanted, branch, said", [
    ((V100,), "open", 580, "proprietary module only"),
    ((V100,), "auto", 595, "branch 580 or older"),
    ((B200,), "proprietary", 580, "open module only"),
    ((B200,), "auto", 550, "branch 570 or newer"),
    ((B300,), "auto", 570, "branch 580 or newer"),
    ((V100, B200), "auto", 580, "only"),
    ((T4,), "proprietary", 615, "open kernel module only"),
    (("118e",), "auto", 580, "Kepler"),
])
def test_what_no_driver_can_do_is_said(ids: tuple, wanted: str, branch: int, said: str) -> None:
    refusal = catalogue.choose_module(facts(*ids).gpus, wanted, branch).refusal
    assert refusal is not None
    assert said in refusal.found
    assert refusal.remedy


@pytest.mark.parametrize("board", [V100, T4, A100, GH200, B200, B300])
def test_the_branch_that_is_named_without_a_wish_has_a_module_for_every_gpu(board: str) -> None:
    assert catalogue.choose_module(facts(board).gpus, "auto", catalogue.LONG_TERM_BRANCH).refusal is None


def test_equal_gpus_are_named_together() -> None:
    refusal = catalogue.choose_module(facts(B200, B200, V100).gpus, "proprietary", 580).refusal
    assert refusal is not None
    assert refusal.found.count("Blackwell") == 1
    assert all(gpu.address in refusal.found for gpu in facts(B200, B200).gpus)


@given(st.integers(0, 0xFFFF), st.sampled_from(["auto", "open", "proprietary"]), st.integers(470, 630))
def test_a_choice_is_one_that_the_silicon_allows(number: int, wanted: str, branch: int) -> None:
    device_id = "%04x" % number
    choice = catalogue.choose_module([Gpu("0000:01:00.0", device_id)], wanted, branch)
    row = catalogue.architecture_of(device_id)
    assert bool(choice.module) != bool(choice.refusal)
    if choice.module:
        assert choice.module in row.modules
        assert row.first_branch <= branch <= (row.last_branch or branch)
        assert wanted in ("auto", choice.module)
        assert choice.module == "open" or branch < catalogue.FIRST_OPEN_ONLY


@pytest.mark.parametrize("os_id, source, branch, module, flavour, required", [
    ("debian", "nvidia_repository", 580, "open", "headless",
     ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")),
    ("debian", "nvidia_repository", 580, "proprietary", "headless",
     ("nvidia-kernel-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")),
    ("debian", "local_repository", 610, "open", "full",
     ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe", "nvidia-open")),
    ("ubuntu", "nvidia_repository", 580, "open", "headless",
     ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580")),
    ("ubuntu", "nvidia_repository", 580, "proprietary", "full",
     ("nvidia-dkms-580", "libnvidia-compute-580", "nvidia-utils-580", "cuda-drivers-580")),
    ("ubuntu", "nvidia_repository", 595, "open", "headless",
     ("nvidia-dkms-open", "libnvidia-compute", "nvidia-persistenced", "nvidia-modprobe")),
    ("debian", "distribution", 535, "proprietary", "headless",
     ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")),
    ("debian", "distribution", 550, "open", "headless",
     ("nvidia-open-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")),
    ("ubuntu", "distribution", 580, "open", "headless",
     ("nvidia-headless-580-server-open", "nvidia-utils-580-server")),
])
def test_package_names(
    os_id: str, source: str, branch: int, module: str, flavour: str, required: tuple
) -> None:
    named = catalogue.package_set(wanted(os_id, source, branch, module, flavour=flavour))
    assert named.required == required
    assert named.anchor == required[0]


@pytest.mark.parametrize("os_id, branch, name", [
    ("debian", 580, "nvidia-imex"), ("debian", 570, "nvidia-imex-570"), ("ubuntu", 595, "nvidia-imex"),
])
def test_the_name_of_imex(os_id: str, branch: int, name: str) -> None:
    assert name in catalogue.package_set(wanted(os_id, "nvidia_repository", branch, imex=True)).required
    without = catalogue.package_set(wanted(os_id, "nvidia_repository", branch, fabric_manager=True)).required
    assert not any("imex" in each for each in without)


@pytest.mark.parametrize("os_id, source, branch, name", [
    ("debian", "nvidia_repository", 580, "nvidia-fabricmanager"),
    ("debian", "nvidia_repository", 570, "nvidia-fabricmanager-570"),
    ("ubuntu", "nvidia_repository", 580, "nvidia-fabricmanager"),
    ("ubuntu", "distribution", 580, "nvidia-fabricmanager-580"),
])
def test_the_name_of_the_fabric_manager(os_id: str, source: str, branch: int, name: str) -> None:
    assert name in catalogue.package_set(wanted(os_id, source, branch, fabric_manager=True)).required


@pytest.mark.parametrize("name, belongs", [
    ("nvidia-driver-cuda", True), ("libnvidia-ml1", True), ("firmware-nvidia-gsp", True), ("libcuda1", True),
    ("nvidia-container-toolkit", False), ("libnvidia-container1", False), ("nvidia-container-toolkit-base", False),
    ("linux-modules-nvidia-580-server-6.8.0-90-generic", True), ("dkms", False), ("libgl1-mesa-dri", False),
    ("libgl1-nvidia-glvnd-glx", True), ("libglx-nvidia0", True), ("libegl-nvidia0", True), ("libgles-nvidia2", True),
    ("libegl-mesa0", False), ("libglx0", False),
])
def test_which_packages_belong_to_the_driver(name: str, belongs: bool) -> None:
    assert bool(catalogue.FAMILY.match(name)) is belongs
    # Of those that apt alone has; modules that come built follow their kernel
    assert any(re.match(each, name) for each in catalogue.FAMILY_EXPRESSIONS) is belongs
    assert any(fnmatch.fnmatchcase(name, each) for each in catalogue.FAMILY_GLOBS) is (
        belongs and not name.startswith("linux-")) or "container" in name


@pytest.mark.parametrize("name, version, belongs", [
    ("nvidia-smi", "550.163.01-2", True), ("nvidia-cuda-toolkit", "12.2.140~12.2.2-1", False),
    ("nvidia-prime", "0.8.17.1", False), ("linux-modules-nvidia-580-server-generic", "6.8.0-90.91", True),
    ("libnvidia-egl-wayland1", "1:1.1.13-1", False), ("vim", "550.163.01-2", False),
])
def test_what_is_only_called_as_a_driver_is_none(name: str, version: str, belongs: bool) -> None:
    assert catalogue.is_of_driver(name, version) is belongs


@pytest.mark.parametrize("name, is_of_ubuntu", [
    ("nvidia-utils-580-server", True), ("libnvidia-common-580-server", True), ("libnvidia-gl-580-server", True),
    ("xserver-xorg-video-nvidia-580-server", True), ("nvidia-dkms-580-server-open", True),
    ("libnvidia-compute-580", False), ("nvidia-driver-cuda", False),
])
def test_whose_packages_are_of_the_distribution_by_their_names(name: str, is_of_ubuntu: bool) -> None:
    assert bool(catalogue.ONLY_IN_DISTRIBUTION.match(name)) is is_of_ubuntu


@pytest.mark.parametrize("package, version", [
    ("580.178.04-1", "580.178.04"), ("1:595.91.07-0ubuntu1", "595.91.07"), ("535.261.03-1~deb12u1", "535.261.03"),
    ("550.163.01-2", "550.163.01"),
])
def test_the_driver_version_of_a_package_version(package: str, version: str) -> None:
    assert catalogue.upstream(package) == version
    assert catalogue.is_driver_version(package)


@pytest.mark.parametrize("system, url", [
    (("debian", "12", "x86_64"), "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"),
    (("ubuntu", "24.04", "aarch64"), "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/sbsa/"),
    (("debian", "11", "x86_64"), ""),
    (("debian", "12", "riscv64"), ""),
])
def test_nvidias_directory(system: tuple, url: str) -> None:
    assert catalogue.default_repository(*system) == url


def test_every_known_key_is_of_a_known_directory() -> None:
    assert set(catalogue.REPOSITORY_KEYS) <= set(catalogue.REPOSITORY_DIRECTORIES.values())


@pytest.mark.parametrize("directory", catalogue.REPOSITORY_KEYS)
def test_the_file_of_a_key_is_named_by_the_end_of_its_fingerprint(directory: str) -> None:
    key = catalogue.REPOSITORY_KEYS[directory]
    assert key.file.endswith(".pub")
    if key.fingerprint:
        assert len(key.fingerprint) == 40
        assert key.fingerprint.endswith(key.file[:-4].upper())
