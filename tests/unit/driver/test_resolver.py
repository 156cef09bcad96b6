# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The full set of a driver on every system: names row by row, and what is true of every set there is."""
from __future__ import annotations

import re
from typing import Any, Tuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import catalogue
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.catalogue import Resolution, Wanted
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables import kernel_locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.branches import BRANCHES
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.companions import is_companion
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.names import is_foreign_rpm

SYSTEMS = (
    "debian 12", "debian 13", "ubuntu 22.04", "ubuntu 24.04", "ubuntu 26.04", "rhel 8.10", "rhel 9.6", "rhel 10.1",
    "rocky 8.10", "rocky 9.6", "rocky 10.0", "almalinux 8.10", "almalinux 9.6", "almalinux 10.0", "ol 8.10", "ol 9.6",
    "ol 10.0", "fedora 42", "fedora 44", "sles 15.7", "sles 16.0", "opensuse-leap 15.6", "opensuse-leap 16.0",
    "amzn 2023")
KERNELS = {
    "ubuntu": "6.8.0-90-generic", "sles": "6.4.0-150700.53-default", "opensuse-leap": "6.12.0-160000.5-default",
    "amzn": "6.12.30-40.el"}
V580, V595, V610 = "580.178.04", "595.91.07", "610.57.04"


def wanted(system: str, branch: int, module: str = "open", of_distribution: bool = False, arch: str = "x86_64",
           **more: Any) -> Wanted:
    os_id, version = system.split()
    there = catalogue.system_of(os_id, version, arch)
    assert there is not None
    more.setdefault("kernel", KERNELS.get(os_id, "5.14.0-570.el9.x86_64"))
    return Wanted(there, of_distribution, branch, module, **more)


def resolved(given: Wanted, build: str = "auto", **more: Any) -> Resolution:
    found = catalogue.resolve(given, build, **more)
    assert isinstance(found, Resolution), str(found)
    return found


def refused(given: Wanted, build: str = "auto") -> Refusal:
    found = catalogue.resolve(given, build)
    assert isinstance(found, Refusal)
    return found


EL_SETS = ("nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")


@pytest.mark.parametrize("system, branch, module, own, build, required", [
    ("ubuntu 22.04", 580, "open", False, "dkms", ("nvidia-dkms-580-open", "libnvidia-compute-580", "nvidia-utils-580")),
    ("ubuntu 24.04", 580, "proprietary", False, "dkms",
     ("nvidia-dkms-580", "libnvidia-compute-580", "nvidia-utils-580")),
    ("ubuntu 26.04", 595, "open", False, "dkms",
     ("nvidia-dkms-open", "libnvidia-compute", "nvidia-persistenced", "nvidia-modprobe")),
    ("ubuntu 24.04", 610, "proprietary", False, "dkms",
     ("nvidia-dkms", "libnvidia-compute", "nvidia-persistenced", "nvidia-modprobe")),
    ("ubuntu 24.04", 580, "open", True, "dkms", ("nvidia-headless-580-server-open", "nvidia-utils-580-server")),
    ("ubuntu 24.04", 580, "proprietary", True, "dkms", ("nvidia-headless-580-server", "nvidia-utils-580-server")),
    ("ubuntu 24.04", 580, "open", True, "precompiled",
     ("nvidia-headless-no-dkms-580-server-open", "nvidia-utils-580-server",
      "linux-modules-nvidia-580-server-open-6.8.0-90-generic")),
    ("ubuntu 24.04", 580, "proprietary", True, "precompiled",
     ("nvidia-headless-no-dkms-580-server", "nvidia-utils-580-server",
      "linux-modules-nvidia-580-server-6.8.0-90-generic")),
    ("ubuntu 22.04", 535, "proprietary", True, "precompiled",
     ("nvidia-headless-no-dkms-535-server", "nvidia-utils-535-server",
      "linux-modules-nvidia-535-server-6.8.0-90-generic")),
    ("ubuntu 26.04", 595, "open", True, "precompiled",
     ("nvidia-headless-no-dkms-595-server-open", "nvidia-utils-595-server",
      "linux-modules-nvidia-595-server-open-6.8.0-90-generic")),
    ("debian 12", 580, "open", False, "dkms",
     ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")),
    ("debian 13", 595, "proprietary", False, "dkms",
     ("nvidia-kernel-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")),
    ("debian 12", 535, "open", True, "dkms",
     ("nvidia-open-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")),
    ("debian 13", 550, "proprietary", True, "dkms",
     ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")),
    ("rocky 8.10", 580, "open", False, "dkms", ("kmod-nvidia-open-dkms", *EL_SETS)),
    ("almalinux 9.6", 580, "proprietary", False, "dkms", ("kmod-nvidia-latest-dkms", *EL_SETS)),
    ("rhel 9.6", 580, "proprietary", False, "precompiled", ("kmod-nvidia-580.178.04-5.14.0-570", *EL_SETS)),
    ("rhel 10.1", 595, "open", False, "dkms", ("kmod-nvidia-open-dkms", *EL_SETS)),
    ("fedora 44", 580, "proprietary", False, "dkms", ("kmod-nvidia-latest-dkms", *EL_SETS)),
    ("rhel 10.1", 595, "open", True, "precompiled", ("kmod-nvidia-open-595.91.07-5.14.0-570", *EL_SETS)),
    ("almalinux 9.6", 615, "open", True, "precompiled", ("nvidia-open-kmod", "nvidia-driver", "nvidia-driver-cuda")),
    ("sles 15.7", 595, "open", False, "dkms",
     ("nvidia-open-driver-G07", "nvidia-compute-utils-G07", "nvidia-persistenced")),
    ("sles 16.0", 595, "open", False, "precompiled",
     ("nvidia-compute-utils-G07", "nvidia-open-driver-G07-signed-cuda-kmp-default", "nvidia-persistenced")),
    ("sles 15.7", 580, "open", False, "dkms",
     ("nvidia-open-driver-G06", "nvidia-compute-utils-G06", "nvidia-persistenced")),
    ("sles 15.7", 580, "proprietary", False, "dkms",
     ("nvidia-driver-G06", "nvidia-compute-utils-G06", "nvidia-persistenced")),
    ("sles 16.0", 595, "proprietary", False, "dkms",
     ("nvidia-driver-G07", "nvidia-compute-utils-G07", "nvidia-persistenced")),
    ("sles 15.7", 580, "open", False, "precompiled",
     ("nvidia-compute-utils-G06", "nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-persistenced")),
    ("opensuse-leap 15.6", 595, "open", True, "precompiled",
     ("nvidia-open-driver-G07-signed-kmp-meta", "nvidia-compute-utils-G07")),
    ("opensuse-leap 16.0", 580, "proprietary", True, "dkms",
     ("nvidia-driver-G06-kmp-meta", "nvidia-compute-utils-G06")),
    ("amzn 2023", 580, "open", False, "dkms", ("kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced")),
    ("amzn 2023", 610, "proprietary", False, "dkms",
     ("kmod-nvidia-latest-dkms", "nvidia-driver-cuda", "nvidia-persistenced")),
])
def test_packages_of_a_headless_driver(
    system: str, branch: int, module: str, own: bool, build: str, required: Tuple[str, ...]
) -> None:
    version = {580: V580, 595: V595, 610: V610}.get(branch, "")
    assert resolved(wanted(system, branch, module, own, version=version), build).packages.required == required


@pytest.mark.parametrize("kernels, follows, arch, module, optional", [
    (("6.8.0-90-generic",), (), "x86_64", "open",
     ("linux-modules-nvidia-580-server-open-generic", "linux-signatures-nvidia-6.8.0-90-generic")),
    (("6.8.0-90-generic", "6.8.0-1015-nvidia-64k"), (), "aarch64", "open",
     ("linux-modules-nvidia-580-server-open-generic", "linux-modules-nvidia-580-server-open-nvidia-64k")),
    (("6.8.0-90-generic",), ("generic-hwe-22.04",), "x86_64", "proprietary",
     ("linux-modules-nvidia-580-server-generic-hwe-22.04", "linux-objects-nvidia-580-server-6.8.0-90-generic",
      "linux-signatures-nvidia-6.8.0-90-generic")),
    (("6.17.0-1002-aws",), ("aws",), "x86_64", "open",
     ("linux-modules-nvidia-580-server-open-aws", "linux-signatures-nvidia-6.17.0-1002-aws")),
])
def test_signed_modules_of_ubuntu_follow_the_kernel_and_show_what_they_are_made_of(
    kernels: Tuple[str, ...], follows: Tuple[str, ...], arch: str, module: str, optional: Tuple[str, ...]
) -> None:
    packages = resolved(wanted("ubuntu 24.04", 580, module, True, arch, kernel=kernels[0], kernels=kernels,
                               follows=follows), "precompiled").packages
    assert packages.optional == ("nvidia-modprobe", *optional)
    assert packages.required[2:] == tuple("linux-modules-nvidia-580-server%s-%s" % (
        "-open" if module == "open" else "", kernel) for kernel in kernels)
    assert packages.bounded == {*packages.required[2:], *optional}
    assert not any("dkms" in name and "no-dkms" not in name for name in packages.names)


@pytest.mark.parametrize("system, branch, module, own, modules", [
    ("rocky 9.6", 580, "proprietary", False,
     ("kmod-nvidia-580.178.04-5.14.0-570.12.1", "kmod-nvidia-580.178.04-5.14.0-503")),
    ("sles 15.7", 595, "open", False, ("nvidia-open-driver-G07-signed-cuda-kmp-default",
                                       "nvidia-open-driver-G07-signed-cuda-kmp-64kb")),
])
def test_modules_that_come_built_are_named_for_each_kernel(
    system: str, branch: int, module: str, own: bool, modules: Tuple[str, ...]
) -> None:
    kernels = ("6.4.0-150700.53-default", "6.4.0-150700.53-64kb") if system.startswith("sles") else (
        "5.14.0-570.12.1.el9_6.x86_64", "5.14.0-503.el9.x86_64")
    found = resolved(wanted(system, branch, module, own, kernel=kernels[0], kernels=kernels, version=V580),
                     "precompiled")
    assert set(modules) <= set(found.packages.required)
    assert not found.headers and not found.compiler and not found.enabled_first


@pytest.mark.parametrize("system, kernel, words", [
    ("rocky 9.6", "5.14.0-570.el9.x86_64", "dnf versionlock add kernel-5.14.0-570.el9.x86_64 "
     "kernel-core-5.14.0-570.el9.x86_64 kernel-modules-5.14.0-570.el9.x86_64"),
    ("rhel 10.1", "6.12.0-55.el10.aarch64+64k", "dnf versionlock add kernel-64k-6.12.0-55.el10.aarch64 "
     "kernel-64k-core-6.12.0-55.el10.aarch64 kernel-64k-modules-6.12.0-55.el10.aarch64"),
    ("ol 9.6", "5.15.0-312.187.5.el9uek.x86_64", "dnf versionlock add kernel-uek-5.15.0-312.187.5.el9uek.x86_64 "
     "kernel-uek-core-5.15.0-312.187.5.el9uek.x86_64 kernel-uek-modules-5.15.0-312.187.5.el9uek.x86_64"),
    ("amzn 2023", "6.12.30-40.amzn2023.x86_64", "dnf versionlock add kernel6.12-6.12.30-40.amzn2023.x86_64 "
     "kernel6.12-devel-6.12.30-40.amzn2023.x86_64"),
    ("sles 15.7", "6.4.0-150700.53-default", "zypper addlock kernel-default"),
])
def test_how_a_kernel_is_locked_where_packages_are_rpms(system: str, kernel: str, words: str) -> None:
    assert " ".join(kernel_locks.lock(wanted(system, 580).system, kernel)) == words


@pytest.mark.parametrize("system, branch, module, own, build, said", [
    ("rocky 9.6", 580, "open", True, "auto", "ships no driver of its own"),
    ("rhel 9.6", 580, "open", True, "auto", "ships no driver of its own"),
    ("almalinux 8.10", 580, "open", True, "auto", "ships no driver of its own"),
    ("rhel 10.0", 580, "open", True, "auto", "ships no driver of its own"),
    ("almalinux 9.6", 595, "proprietary", True, "auto", "ships no driver of its own"),
    ("fedora 44", 580, "open", True, "auto", "ships no driver of its own"),
    ("rocky 10.0", 595, "proprietary", False, "auto", "in branch 580 and before"),
    ("sles 16.0", 595, "proprietary", True, "auto", "in branch 580 and before"),
    ("sles 15.7", 570, "proprietary", False, "auto", "since branch 575"),
    ("ubuntu 24.04", 615, "proprietary", False, "auto", "before 615"),
    ("debian 13", 615, "proprietary", False, "dkms", "before 615"),
    ("debian 12", 580, "open", False, "precompiled", "dkms"),
    ("amzn 2023", 580, "open", False, "precompiled", "dkms"),
])
def test_a_set_that_nobody_makes_is_said(
    system: str, branch: int, module: str, own: bool, build: str, said: str
) -> None:
    assert said in refused(wanted(system, branch, module, own), build).found


def test_a_fabric_manager_that_the_source_lacks_is_said() -> None:
    assert "nvidia-fabricmanager" in refused(wanted("sles 15.7", 595, of_distribution=True, fabric_manager=True)).found


@pytest.mark.parametrize("system, branch, stream", [
    ("rocky 8.10", 580, "nvidia-driver:580-open"), ("rhel 9.6", 595, "nvidia-driver:595-open"),
    ("amzn 2023", 580, "nvidia-driver:580-open"), ("almalinux 10.0", 580, ""), ("fedora 42", 580, ""),
    ("sles 15.7", 595, ""), ("debian 12", 580, ""),
])
def test_a_stream_names_its_branch(system: str, branch: int, stream: str) -> None:
    assert resolved(wanted(system, branch)).stream == stream


@pytest.mark.parametrize("build, stream", [("dkms", "nvidia-driver:580-dkms"), ("precompiled", "nvidia-driver:580")])
def test_the_stream_of_the_proprietary_module(build: str, stream: str) -> None:
    assert resolved(wanted("rocky 9.6", 580, "proprietary"), build).stream == stream


@pytest.mark.parametrize("system, branch, own, names", [
    ("debian 12", 570, False, {"nvidia-fabricmanager-570", "libnvidia-nscq-570", "libnvsdm-570", "nvidia-imex-570"}),
    ("debian 13", 580, False, {"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}),
    ("ubuntu 24.04", 575, False,
     {"nvidia-fabricmanager-575", "libnvidia-nscq-575", "libnvsdm-575", "nvidia-imex-575"}),
    ("ubuntu 24.04", 595, False, {"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}),
    ("ubuntu 24.04", 580, True,
     {"nvidia-fabricmanager-580", "libnvidia-nscq-580", "libnvsdm-580", "nvidia-imex-580"}),
    ("rocky 9.6", 570, False, {"nvidia-fabric-manager", "libnvidia-nscq-570", "libnvsdm-570", "nvidia-imex-570"}),
    ("rocky 9.6", 580, False, {"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}),
    ("sles 15.7", 595, False, {"nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex"}),
    ("ubuntu 24.04", 550, False, {"nvidia-fabricmanager-550", "libnvidia-nscq-550", "nvidia-imex-550"}),
])
def test_companions_of_a_board_with_everything(system: str, branch: int, own: bool, names: set) -> None:
    packages = resolved(wanted(system, branch, of_distribution=own, fabric_manager=True, subnet_manager=True,
                               imex=True)).packages
    assert {name for name in packages.names if is_companion(name)} == {*names, "nvlsm", "infiniband-diags"}
    assert {name for name in packages.names if packages.relation(name) == "floating"} >= {"nvlsm", "infiniband-diags"}
    assert all(packages.relation(name) == "exact" for name in names)


def test_the_switch_library_is_for_x86_alone() -> None:
    packages = resolved(wanted("debian 13", 580, arch="aarch64", fabric_manager=True, subnet_manager=True)).packages
    assert not any("nvsdm" in name for name in packages.names)


@pytest.mark.parametrize("system, url, key", [
    ("rocky 9.6", "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/", "D42D0685"),
    ("ol 10.0", "https://developer.download.nvidia.com/compute/cuda/repos/rhel10/x86_64/", "CDF6BA43"),
    ("fedora 43", "https://developer.download.nvidia.com/compute/cuda/repos/fedora43/x86_64/", "1940C73E"),
    ("fedora 44", "https://developer.download.nvidia.com/compute/cuda/repos/fedora44/x86_64/", "73CD9B30"),
    ("sles 15.7", "https://developer.download.nvidia.com/compute/cuda/repos/sles15/x86_64/", "D42D0685"),
    ("sles 16.0", "https://developer.download.nvidia.com/compute/cuda/repos/suse16/x86_64/", "3A8B5622"),
    ("opensuse-leap 15.6", "https://developer.download.nvidia.com/compute/cuda/repos/opensuse15/x86_64/", "D42D0685"),
    ("opensuse-leap 16.0", "https://developer.download.nvidia.com/compute/cuda/repos/suse16/x86_64/", "3A8B5622"),
    ("amzn 2023", "https://developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64/", "D42D0685"),
    ("debian 13", "https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64/", "8793F200"),
    ("ubuntu 22.04", "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/", "3bf863cc"),
])
def test_the_repository_of_a_system(system: str, url: str, key: str) -> None:
    repository = resolved(wanted(system, 580)).repository
    assert repository is not None
    assert (repository.url, repository.key) == (url, "%s%s.pub" % (url, key))
    assert "gpgcheck=1\ngpgkey=%s\n" % repository.key in repository.text()


@pytest.mark.parametrize("system, url", [
    ("opensuse-leap 15.6", "https://download.nvidia.com/opensuse/leap/15.6/"),
    ("opensuse-leap 16.0", "https://download.nvidia.com/opensuse/leap/16.0/"),
    ("sles 15.7", "https://download.nvidia.com/suse/sle15sp7/"), ("sles 16.0", "https://download.nvidia.com/suse/sle16/"),
    ("sles 16.1", "https://download.nvidia.com/suse/sle16.1/"),
])
def test_the_graphics_repository_of_suse(system: str, url: str) -> None:
    repository = resolved(wanted(system, 595, of_distribution=True)).repository
    assert repository is not None
    assert repository.url == url


def test_a_mirror_takes_the_place_of_nvidias_repository_and_its_key() -> None:
    repository = resolved(wanted("rocky 9.6", 580), url="https://mirror/el9/", key="https://mirror/key").repository
    assert repository is not None
    assert (repository.url, repository.key, repository.fingerprint) == ("https://mirror/el9/", "https://mirror/key", "")


@pytest.mark.parametrize("system, enabled", [
    ("rocky 8.10", ("epel", "powertools")), ("almalinux 9.6", ("epel", "crb")), ("rocky 10.0", ("epel", "crb")),
    ("rhel 9.6", ("epel", "codeready-builder-for-rhel-9-x86_64-rpms")), ("ol 9.6", ("epel", "ol9_codeready_builder")),
    ("fedora 44", ()), ("amzn 2023", ()), ("sles 15.7", ()), ("debian 12", ()),
])
def test_repositories_without_which_nothing_is_built(system: str, enabled: Tuple[str, ...]) -> None:
    assert resolved(wanted(system, 580)).enabled_first == enabled


@pytest.mark.parametrize("system, kernel, headers", [
    ("rocky 8.10", "4.18.0-553.el8_10.x86_64", ("kernel-devel-4.18.0-553.el8_10.x86_64",)),
    ("rocky 9.6", "5.14.0-570.el9.x86_64", ("kernel-devel-matched", "kernel-devel-5.14.0-570.el9.x86_64")),
    ("rhel 9.6", "5.14.0-570.el9.aarch64+64k", ("kernel-64k-devel-matched", "kernel-64k-devel-5.14.0-570.el9.aarch64")),
    ("rhel 9.6", "5.14.0-570.el9.x86_64+rt", ("kernel-rt-devel-matched", "kernel-rt-devel-5.14.0-570.el9.x86_64")),
    ("ol 9.6", "5.15.0-312.187.5.el9uek.x86_64", ("kernel-uek-devel-5.15.0-312.187.5.el9uek.x86_64",)),
    ("amzn 2023", "6.1.140-154.amzn2023.x86_64", ("kernel-devel", "kernel-modules-extra")),
    ("amzn 2023", "6.12.30-40.amzn2023.x86_64", ("kernel6.12-devel", "kernel6.12-modules-extra")),
    ("amzn 2023", "6.18.2-3.amzn2023.x86_64", ("kernel6.18-devel", "kernel6.18-modules-extra")),
    ("sles 15.7", "6.4.0-150700.53-default", ("kernel-default-devel",)),
    ("debian 12", "6.1.0-50-amd64", ("linux-headers-6.1.0-50-amd64", "linux-headers-amd64")),
    ("ubuntu 24.04", "6.8.0-90-generic", ("linux-headers-6.8.0-90-generic", "linux-headers-generic")),
])
def test_headers_of_a_kernel(system: str, kernel: str, headers: Tuple[str, ...]) -> None:
    assert resolved(wanted(system, 580, kernel=kernel), "dkms", kernels=[kernel]).headers == headers


@pytest.mark.parametrize("system, own, secure_boot, way", [
    ("ubuntu 24.04", True, True, "linux-modules-nvidia-580-server-open-generic"),
    ("ubuntu 24.04", True, False, "nvidia-headless-580-server-open"),
    ("sles 15.7", False, True, "nvidia-open-driver-G06-signed-cuda-kmp-default"),
    ("sles 15.7", False, False, "nvidia-open-driver-G06"),
    ("debian 12", False, True, "nvidia-kernel-open-dkms"),
])
def test_modules_that_others_have_signed_are_for_secure_boot(
    system: str, own: bool, secure_boot: bool, way: str
) -> None:
    assert way in resolved(wanted(system, 580, of_distribution=own), secure_boot=secure_boot).packages.names


def test_packages_of_the_other_generation_and_of_the_other_module_leave() -> None:
    there = ("nvidia-open-driver-G06", "nvidia-driver-G07", "nvidia-compute-G06-32bit", "nvidia-compute-G07", "dkms",
             "libnvidia-gpucomp-G06", "nvidia-persistenced", "nvidia-driver-assistant")
    assert leaving(wanted("sles 15.7", 595), *there) == (
        "libnvidia-gpucomp-G06", "nvidia-compute-G06-32bit", "nvidia-driver-G07", "nvidia-open-driver-G06")
    assert leaving(wanted("sles 15.7", 580), *there) == ("nvidia-compute-G07", "nvidia-driver-G07")
    assert leaving(wanted("rocky 9.6", 595), *there) == ()
    assert catalogue.excluded(["nvidia-driver-cuda", "kmod-nvidia-open-dkms"], there) == ()


def leaving(given: Wanted, *there: str) -> Tuple[str, ...]:
    return catalogue.leaving(given, catalogue.package_set(given), there)


SIGNED = "nvidia-open-driver-G06-signed-cuda-kmp-default"


def test_beside_modules_of_suse_stay_no_others_built_here_or_there() -> None:
    older, newer = (SIGNED + "-%s_k6.4.0_150700.51-150700.3.1" % version for version in ("580.126.09", V580))
    there = (older, newer, "nvidia-open-driver-G06", "nvidia-compute-utils-G06", "dkms")
    assert catalogue.excluded(["nvidia-compute-utils-G06", newer], there) == ("nvidia-open-driver-G06", older)
    assert leaving(wanted("sles 15.7", 580), *there) == (older, newer)
    assert leaving(wanted("sles 15.7", 580, of_distribution=True), *there) == ()
    prefers = ("nv-prefer-signed-open-driver", "nv-prefer-signed-open-driver-G07")
    assert catalogue.excluded(["nvidia-compute-utils-G06", newer], prefers) == prefers[1:]
    assert catalogue.excluded(["nvidia-compute-utils-G07", newer.replace("G06", "G07")], prefers) == prefers[:1]
    assert leaving(wanted("sles 15.7", 580), *prefers) == prefers and leaving(wanted("rocky 9.6", 595), *prefers) == ()


@pytest.mark.parametrize("built_for, kernel, serves", [
    ("6.4.0_150700.51", "6.4.0-150700.51-default", True),
    ("6.4.0_150700.51", "6.4.0-150700.53.11-default", True),
    # Of the service pack before, older than it, of another kind, of another series
    ("6.4.0_150600.21", "6.4.0-150700.53.11-default", False),
    ("6.4.0_150700.53.11", "6.4.0-150700.53.3-default", False),
    ("6.4.0_150700.51", "6.4.0-150700.53.11-64kb", False),
    ("6.4.0_150700.51", "6.12.0-150700.53-default", False),
    ("6.12.0_160000.5", "6.12.0-160000.8-default", True),
])
def test_modules_of_suse_serve_every_later_kernel_of_their_service_pack(
    built_for: str, kernel: str, serves: bool
) -> None:
    assert catalogue.serves("%s-%s_k%s-150700.3.1" % (SIGNED, V580, built_for), kernel) is serves
    assert not catalogue.serves(SIGNED, kernel), "nobody knows for which kernel"


def test_what_replaces_the_open_module_that_is_built_here_is_known_by_name() -> None:
    kernels = ("6.4.0-150700.53-default", "6.4.0-150700.53.3-default")
    assert catalogue.instead_of(["nvidia-open-driver-G06", "nvidia-compute-utils-G06"], kernels) == (
        SIGNED, SIGNED.replace("-cuda", ""))
    assert catalogue.instead_of(["nvidia-driver-G06", SIGNED], kernels) == ()


def test_modules_of_ubuntu_are_of_one_kernel() -> None:
    package = "linux-modules-nvidia-580-server-open-6.8.0-90-generic"
    assert catalogue.serves(package, "6.8.0-90-generic") and not catalogue.serves(package, "6.8.0-95-generic")


@pytest.mark.parametrize("version, driver", [
    ("580.126.09_k6.4.0_150700.51-150700.3.22.1", "580.126.09"), ("3:580.178.04-1.el9", V580),
    ("1:580.178.04-1ubuntu2", V580), ("595.91.07~rc1", V595), ("610.57.04+git", V610),
])
def test_the_driver_is_read_from_the_version_of_a_package(version: str, driver: str) -> None:
    assert catalogue.upstream(version) == driver and catalogue.is_driver_version(version)


@pytest.mark.parametrize("system, own, module, leave", [
    ("debian 13", True, "open", ("nvidia-kernel-dkms", "nvidia-kernel-support")),
    ("debian 13", True, "proprietary", ("nvidia-open-kernel-dkms", "nvidia-open-kernel-support")),
    ("debian 12", False, "open", ()),
])
def test_the_other_module_of_debians_own_would_stay_and_be_loaded(
    system: str, own: bool, module: str, leave: Tuple[str, ...]
) -> None:
    there = ("nvidia-kernel-dkms", "nvidia-kernel-support", "nvidia-open-kernel-dkms", "nvidia-open-kernel-support",
             "nvidia-kernel-common", "nvidia-smi")
    assert leaving(wanted(system, 550, module, of_distribution=own), *there) == leave


@pytest.mark.parametrize("version, serves", [
    ("6.4.0-150700.53.3.1", True), ("6.4.0-150700.53.3", True), ("6.4.0-150700.53.31.1", False),
    ("6.4.0-150700.53.3.1.gabcdef", True),
])
def test_headers_of_suse_have_the_number_of_their_build_behind_the_release(version: str, serves: bool) -> None:
    kernel = "6.4.0-150700.53.3-default"
    assert catalogue.brings_headers(["kernel-default-devel-" + version], kernel) is serves
    assert not catalogue.brings_headers(["kernel-default-" + version, "kernel-azure-devel-" + version], kernel)


def test_precompiled_modules_that_lag_are_only_for_those_who_ask() -> None:
    asked = wanted("rocky 9.6", 580, "proprietary", version=V580)
    assert resolved(asked, secure_boot=True).wanted.build == "dkms"


@pytest.mark.parametrize("system, requests", [
    ("rocky 9.6", ("kmod-nvidia-open-dkms-3:595.91.07", "nvidia-driver-cuda-3:595.91.07",
                   "nvidia-persistenced-3:595.91.07", "nvidia-modprobe-3:595.91.07", "nvidia-imex-595.91.07")),
    ("sles 15.7", ("nvidia-open-driver-G07=595.91.07", "nvidia-compute-utils-G07=595.91.07",
                   "nvidia-persistenced=595.91.07", "nvidia-imex=595.91.07")),
    ("debian 13", ("nvidia-kernel-open-dkms=595.91.07-*", "nvidia-driver-cuda=595.91.07-*",
                   "nvidia-persistenced=595.91.07-*", "nvidia-modprobe=595.91.07-*", "nvidia-imex=595.91.07-*")),
])
def test_a_request_has_the_epoch_of_its_package(system: str, requests: Tuple[str, ...]) -> None:
    assert resolved(wanted(system, 595, version=V595, imex=True)).requests() == requests


# what is true of every set

RESOLUTIONS = st.builds(
    lambda system, arch, branch, module, own, build, flavour, fabric, imex, secure: (
        catalogue.resolve(wanted(system, branch, module, own, arch, version="%d.57.04" % branch, flavour=flavour,
                                 fabric_manager=bool(fabric), subnet_manager=fabric == "nvlsm", imex=imex),
                          build, secure)),
    st.sampled_from(SYSTEMS), st.sampled_from(["x86_64", "aarch64"]),
    st.sampled_from([branch.number for branch in BRANCHES]), st.sampled_from(["open", "proprietary"]), st.booleans(),
    st.sampled_from(["auto", "dkms", "precompiled"]), st.sampled_from(["headless", "full"]),
    st.sampled_from(["", "fabric_manager", "nvlsm"]), st.booleans(), st.booleans())
METAPACKAGES = re.compile(r"^(cuda-drivers|nvidia-open)(-\d+)?$")


@given(RESOLUTIONS)
def test_no_set_mixes_versions(found: Any) -> None:
    assume(isinstance(found, Resolution))
    version = found.wanted.version
    for name in found.packages.names:
        told = found.request(name)
        assert found.packages.relation(name) != "exact" or version in told
        # A branch in a name is the branch of the set; what follows a kernel's version (5.14.0-570) is none
        assert all(number == str(found.wanted.branch) for number in re.findall(r"(?<!\.0)-(\d{3})(?:-|$)", name))


@given(RESOLUTIONS)
def test_no_set_mixes_sources(found: Any) -> None:
    assume(isinstance(found, Resolution))
    # Names of rpm packages tell no source, but there the repository does
    if found.wanted.system.manager == "apt":
        foreign = catalogue.ONLY_AT_NVIDIA if found.wanted.of_distribution else catalogue.ONLY_IN_DISTRIBUTION
        assert not [name for name in found.packages.names if foreign.match(name)]
    elif found.repository is not None:
        assert ("/compute/cuda/repos/" in found.repository.url) is not found.wanted.of_distribution


@given(RESOLUTIONS)
def test_no_set_stands_on_a_metapackage(found: Any) -> None:
    """cuda-drivers is empty since 615, cuda-drivers-580 of Debian has no ceiling: each comes beside what it means."""
    assume(isinstance(found, Resolution))
    real = [name for name in found.packages.required if not METAPACKAGES.match(name) and not is_companion(name)]
    assert not METAPACKAGES.match(found.packages.anchor)
    assert len(real) > 1, "module and user space are named themselves"
    for name in found.packages.required:
        if METAPACKAGES.match(name):
            assert found.packages.relation(name) == "exact"
            assert name.startswith("cuda-drivers") is not found.wanted.open
            assert found.wanted.branch < 615 or found.wanted.open
    if found.wanted.system.os_id == "debian":
        assert not any(re.match(r"^(cuda-drivers|nvidia-open)-\d", name) for name in found.packages.names)


@given(RESOLUTIONS)
def test_a_set_is_whole_or_refused_with_a_way_out(found: Any) -> None:
    if isinstance(found, Refusal):
        assert all((found.code, found.found, found.wanted, found.remedy))
        return
    assert found.packages.anchor in found.packages.required
    assert len(set(found.packages.names)) == len(found.packages.names)
    assert found.packages.bounded <= set(found.packages.names)
    assert not found.packages.bounded & found.packages.floating
    if found.wanted.fabric_manager:
        assert any("fabric" in name for name in found.packages.required)
    if found.wanted.imex:
        assert any("imex" in name for name in found.packages.required)


@given(RESOLUTIONS)
def test_a_lock_holds_exactly_what_has_the_drivers_version(found: Any) -> None:
    assume(isinstance(found, Resolution))
    locked = set(found.lock()[3 if found.wanted.system.manager == "dnf" else 2:])
    exact = {name for name in found.packages.names if found.packages.relation(name) == "exact"}
    assert locked == ({*exact, found.packages.firmware} - {""} if found.wanted.system.manager != "apt" else set())


# branches


@pytest.mark.parametrize("number, kind, ends, cuda", [
    (535, "long-term support", "2026-06", "12.2"), (550, "production", "2025-04", "12.4"),
    (570, "production", "2026-02", "12.8"), (575, "new feature", "2026-06", "12.9"),
    (580, "long-term support", "2028-06", "13.0"), (590, "new feature", "2026-12", "13.1"),
    (595, "production", "2027-03", "13.2"), (610, "new feature", "2027-08", "13.3"),
    (615, "new feature", "2027-09", "13.4"), (620, "long-term support", "2029-09", "13.5"),
])
def test_the_table_of_branches(number: int, kind: str, ends: str, cuda: str) -> None:
    (branch,) = [each for each in BRANCHES if each.number == number]
    assert (branch.kind, branch.ends, branch.cuda) == (kind, ends, cuda)


@pytest.mark.parametrize("number, month, said", [
    (570, "2026-11", "no more since 2026-02: newer branches are 580 until 2028-06"), (570, "2026-02", ""),
    (580, "2028-06", ""), (610, "2027-09", "as branches of its kind are"), (550, "", ""),
    (620, "2026-11", ""), (640, "", "none of those that this collection knows"), (470, "2026-11", "none of those"),
])
def test_a_branch_at_its_end_and_one_that_is_unknown_are_told(number: int, month: str, said: str) -> None:
    notes = catalogue.notes_on(number, month)
    assert bool(notes) is bool(said)
    assert said in "".join(notes)


@pytest.mark.parametrize("os_id, version", [("fedora", "41"), ("rhel", "7.9"), ("arch", ""), ("sles", "12.5")])
def test_a_system_that_nobody_packages_for(os_id: str, version: str) -> None:
    assert catalogue.system_of(os_id, version, "x86_64") is None


@pytest.mark.parametrize("system, arch, names, first", [
    ("debian 12", "x86_64", ("dkms",), ()),
    ("ubuntu 24.04", "x86_64", ("dkms",), ()),
    ("rocky 9.6", "x86_64", ("gcc", "make", "dkms"), ("epel", "crb")),
    ("rhel 10.1", "aarch64", ("gcc", "make", "dkms"), ("epel", "codeready-builder-for-rhel-10-aarch64-rpms")),
    ("ol 9.6", "x86_64", ("gcc", "make", "dkms"), ("epel", "ol9_codeready_builder")),
    ("sles 15.7", "x86_64", ("gcc", "make", "dkms"), ("sle-module-development-tools/15.7/x86_64",
                                                      "PackageHub/15.7/x86_64")),
    ("sles 16.0", "aarch64", ("gcc", "make", "dkms"), ("PackageHub/16.0/aarch64",)),
    ("opensuse-leap 16.0", "x86_64", ("gcc", "make", "dkms"), ()),
    ("fedora 44", "x86_64", ("gcc", "make", "dkms"), ()),
])
def test_what_builds_a_module_that_is_in_no_package_and_where_it_is(
    system: str, arch: str, names: Tuple[str, ...], first: Tuple[str, ...]
) -> None:
    there = wanted(system, 580, arch=arch).system
    assert (catalogue.builders(there), catalogue.builders_first(there)) == (names, first)


def test_what_a_source_of_el_has_not_is_refused_with_what_would_do() -> None:
    told = refused(wanted("rhel 10.1", 580, "proprietary", of_distribution=True))
    assert (told.code, told.remedy.partition(",")[0]) == (
        "driver.not_packaged", "set `source` to `nvidia_repository`")
    told = refused(wanted("rocky 9.6", 580), "precompiled")
    assert (told.code, "`kernel_module` to `proprietary`" in told.remedy) == ("driver.build_not_offered", True)


@pytest.mark.parametrize("name", ["nvidia-dc-driver-cuda", "kmod-nvidia-dc-open", "kmod-nvidia-dc-open-dkms"])
def test_ciq_s_driver_is_of_another_source(name: str) -> None:
    assert is_foreign_rpm(name, of_distribution=False)
