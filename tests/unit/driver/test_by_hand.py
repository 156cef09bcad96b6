# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a host is told whose package manager is not driven."""
from __future__ import annotations

from typing import Any, Tuple

import pytest
from driver_world import KEY, World, made, policy
from gpu_hosts import A100, B200, V100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import policy_of

EL8 = "4.18.0-553.16.1.el8_10.x86_64"
EL9 = "5.14.0-570.12.1.el9_6.x86_64"


def told(os_id: str, release: str, kernel: str = EL8, gpus: Tuple[str, ...] = (A100,), more: Any = None,
         **options: Any) -> Refusal:
    there = facts(*gpus, os_id=os_id, os_version=release, kernel=kernel, boot_kernel=kernel, **(more or {}))
    wanted = policy_of({"version": "580.178.04", **options})
    plan = made(World(kernels=(Kernel(kernel),)), wanted, there)
    assert not plan.steps
    return plan.refusals[0]


def steps(refusal: Refusal) -> str:
    """The remedy, a line a number."""
    assert refusal.code == "driver.install_by_hand", str(refusal)
    return "\n".join(part[4:] for part in refusal.remedy.split("; "))


def test_a_rebuild_of_el8_is_told_everything() -> None:
    assert steps(told("rocky", "8.10")).replace("set `source` to `preinstalled`", "") == """\
add the repository https://developer.download.nvidia.com/compute/cuda/repos/rhel8/x86_64/ signed by \
https://developer.download.nvidia.com/compute/cuda/repos/rhel8/x86_64/D42D0685.pub (fingerprint \
610C7B14E068A878070DA4E99CD0A493D42D0685)
enable the repositories epel, powertools
`dnf module reset nvidia-driver`, then `dnf module enable nvidia-driver:580-open`
`dnf install gcc make dkms kernel-devel-4.18.0-553.16.1.el8_10.x86_64`
`dnf install kmod-nvidia-open-dkms-3:580.178.04 nvidia-driver-cuda-3:580.178.04 nvidia-persistenced-3:580.178.04 \
nvidia-modprobe-3:580.178.04`
`dnf versionlock add kmod-nvidia-open-dkms nvidia-driver-cuda nvidia-persistenced nvidia-modprobe nvidia-kmod-common`
 """


@pytest.mark.parametrize("system, options, said", [
    (("rhel", "8.10"), {}, "codeready-builder-for-rhel-8-x86_64-rpms"),
    (("almalinux", "9.6"), {"source": "distribution", "version": ""}, "`dnf install almalinux-release-nvidia-driver`"),
    (("fedora", "44"), {}, "73CD9B30.pub"),
    (("sles", "17.0"), {"build": "precompiled"}, "nvidia-compute-utils-G06=580.178.04"),
    (("sles", "15.7"), {"source": "distribution"}, "`zypper addlock "),
    (("amzn", "2023"), {}, "`dnf module reset nvidia-driver`, then `dnf module enable nvidia-driver:580-open`"),
    (("amzn", "2023"), {"source": "distribution"}, "`dnf install nvidia-release`"),
    (("rocky", "8.10"), {"version": "595"}, "choose one version of branch 595 for all packages, in the place of V"),
    (("rocky", "8.10"), {"kernel_module": "proprietary"}, "nvidia-driver:580-dkms"),
    (("rocky", "8.10"), {"fabric_manager": "present"}, "nvidia-fabricmanager-580.178.04"),
    (("rocky", "8.10"), {"source": "local_repository", "repository_url": "https://mirror/el9", "repository_key": KEY},
     "add the repository https://mirror/el9/ signed by the key in `repository_key`"),
    (("rocky", "8.10"), {"kernel_module": "proprietary", "build": "precompiled"}, "nvidia-driver:580`"),
    (("rocky", "8.10"), {"kernel_module": "proprietary", "build": "precompiled"},
     "`dnf install kmod-nvidia-580.178.04-4.18.0-553.16.1 "),
    (("sles", "17.0"), {"build": "precompiled", "version": "595"}, "nvidia-open-driver-G07-signed-cuda-kmp-"),
    (("rocky", "8.10"), {"kernel_hold": True}, "`dnf versionlock add kernel-%s " % EL8),
    (("opensuse-leap", "17.0"), {"build": "precompiled"}, "it has no directory for this system"),
    (("sles", "17.0"), {"build": "precompiled", "kernel_arguments": ["iommu=pt", "pci=realloc"]},
     "`pbl --add-option iommu=pt --add-option pci=realloc --config`, then reboot"),
])
def test_systems_and_policies_have_instructions_of_their_own(
    system: Tuple[str, str], options: Any, said: str
) -> None:
    assert said in steps(told(*system, **options))


def test_what_the_policy_does_not_want_is_not_told() -> None:
    text = steps(told("rocky", "8.10", hold=False, kernel_headers=False))
    assert "versionlock" not in text
    assert "kernel-devel" not in text


def test_a_password_of_the_mirror_is_not_told() -> None:
    text = steps(told("rocky", "8.10", repository_url="https://me:secret@mirror/el9"))
    assert "https://mirror/el9/" in text
    assert "secret" not in text


def test_under_secure_boot_the_key_of_nvidia_s_own_modules_is_to_be_enrolled() -> None:
    own = {"kernel_module": "proprietary", "build": "precompiled"}
    assert "NVIDIA2019-public_key.der" in steps(told("rocky", "8.10", more={"secure_boot": True}, **own))
    assert "public_key" not in steps(told("rocky", "8.10", **own))
    theirs = told("almalinux", "9.6", more={"secure_boot": True}, source="distribution", version="",
                  build="precompiled")
    assert "public_key" not in steps(theirs)
    assert "source distribution is not driven yet" in theirs.found


def test_under_secure_boot_modules_of_suse_are_told() -> None:
    text = steps(told("sles", "17.0", more={"secure_boot": True}, kernel="6.4.0-150700.53-default",
                      build="precompiled"))
    assert "nvidia-open-driver-G06-signed-cuda-kmp-default" in text
    assert "-devel" not in text
    assert "`zypper info nvidia-open-driver-G06-signed-cuda-kmp-default`" in text


@pytest.mark.parametrize("gpus, options, code", [
    ((B200,), {"kernel_module": "proprietary"}, "driver.kernel_module_not_for_gpu"),
    ((V100,), {"version": "595"}, "driver.branch_too_new"),
    ((A100,), {"version": "615", "kernel_module": "proprietary"}, "driver.kernel_module_not_in_branch"),
    ((A100,), {"source": "distribution", "version": ""}, "driver.not_packaged"),
    ((A100,), {"build": "precompiled"}, "driver.build_not_offered"),
])
def test_what_could_not_be_installed_by_hand_either_is_refused_for_that(
    gpus: Tuple[str, ...], options: Any, code: str
) -> None:
    assert told("rocky", "8.10", gpus=gpus, **options).code == code


def test_a_system_without_a_table_is_left_to_its_admin() -> None:
    refusal = told("arch", "")
    assert refusal.code == "driver.system_not_supported"
    assert "preinstalled" in refusal.remedy


def test_debian_is_driven() -> None:
    assert not made(World(), policy(), facts(A100)).refusals


def test_who_wants_the_driver_before_is_not_told_how_to_install_one() -> None:
    for system in (("rocky", "8.10"), ("freebsd", "14")):
        for source in ("nvidia_repository", "preinstalled"):
            assert told(*system, state="rolled_back", source=source).code == "driver.no_record"
    assert told("debian", "12", state="rolled_back", source="preinstalled",
                more={"immutable": "/run/ostree-booted"}).code == "driver.no_record"


@pytest.mark.parametrize("options, said", [
    ({"kernel_hold": True}, "run `dnf versionlock add kernel-%s " % EL9),
    ({"gds": True}, "run `dnf install nvidia-fs-dkms nvidia-fs` once the driver is there, and leave `gds` out"),
    ({"kernel_arguments": ["iommu=pt"]}, "iommu=pt"),
])
def test_what_is_not_done_with_dnf_is_told_where_the_driver_is(options: Any, said: str) -> None:
    refusal = told("rocky", "9.6", kernel=EL9, **options)
    assert refusal.code == "driver.option_by_hand" and refusal.option == next(iter(options))
    assert said in refusal.remedy
