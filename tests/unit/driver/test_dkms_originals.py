# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules of packages that DKMS would put back are forgotten with their package, and no others."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import List

import pytest
from driver_world import policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import dkms_originals, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import EXECUTORS
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import Observation, OfRpm
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.record import Record

KERNEL, OTHER = "5.14.0-570.12.1.el9_6.x86_64", "5.14.0-611.5.1.el9_7.x86_64"
KMOD, KMOD_OF_OTHER = "kmod-nvidia-580.126.09-5.14.0-570.12.1", "kmod-nvidia-580.126.09-5.14.0-611.5.1"
DKMS = "kmod-nvidia-open-dkms"
ROCKY = facts(A100, os_id="rocky", os_version="9.6", kernel=KERNEL, boot_kernel=KERNEL)
TREE = "/var/lib/dkms/nvidia-open/original_module/"
RECORD = Record("580.126.09", "proprietary", "", {KMOD: "3:580.126.09-3.el9"})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """As DKMS 3.4 leaves it: of one kernel with the place of each file, of the other as releases before did."""
    made = Host(str(tmp_path))
    place = "/lib/modules/%s/extra/drivers/video/nvidia/nvidia.ko" % KERNEL
    made.write("%s%s/x86_64/nvidia.ko" % (TREE, KERNEL), "580")
    made.write("%s%s/x86_64/nvidia.ko.origin" % (TREE, KERNEL), place + "\n")
    made.write("%s%s/x86_64/nvidia-uvm.ko.xz" % (TREE, KERNEL), "580")
    made.write("%s%s/x86_64/nvidia.ko" % (TREE, OTHER), "somebody's")
    made.write("/var/lib/dkms/nvidia-fs/original_module/%s/x86_64/nvidia-fs.ko" % KERNEL, "another's")
    return made


def test_kernels_are_those_whose_modules_came_with_a_package(host: Host) -> None:
    assert dkms_originals.kernels_of(host, None, []) == (KERNEL,), "it lay where NVIDIA's packages put theirs"
    host.remove("%s%s/x86_64/nvidia.ko.origin" % (TREE, KERNEL))
    assert dkms_originals.kernels_of(host, None, [DKMS]) == ()
    assert dkms_originals.kernels_of(host, RECORD, [DKMS]) == (KERNEL,)
    assert dkms_originals.kernels_of(host, RECORD, [KMOD_OF_OTHER]) == (KERNEL, OTHER)


def test_the_driver_s_modules_of_that_kernel_alone_are_forgotten(host: Host) -> None:
    (step,) = dkms_originals.forget_all(Observation(of_rpm=OfRpm(originals=(KERNEL,))))
    EXECUTORS[step.action](host, Journal(host), step)
    assert host.list(TREE + KERNEL) == [], "DKMS would tell of it by the directory"
    assert host.read("%s%s/x86_64/nvidia.ko" % (TREE, OTHER)) == "somebody's"
    assert host.read("/var/lib/dkms/nvidia-fs/original_module/%s/x86_64/nvidia-fs.ko" % KERNEL) == "another's"
    EXECUTORS[step.action](host, Journal(host), step)


def forgotten(seen: Observation, *going: str) -> List[str]:
    step = packages_step("driver", "others", dict.fromkeys(going, "1"), dict.fromkeys(going), "")
    return [each.subject for each in dkms_originals.forget_steps(seen, [step] if going else [])]


def test_they_are_forgotten_once_no_package_of_them_stays() -> None:
    seen = Observation(installed={KMOD: "3:580.126.09-3.el9", DKMS: "3:595.91.07-1.el9"}, kernels=(Kernel(KERNEL),))
    assert (forgotten(seen), forgotten(seen, KMOD)) == ([], [KERNEL]), "also where DKMS has yet to take them away"
    kept = replace(seen, of_rpm=OfRpm(originals=(KERNEL,)))
    assert (forgotten(kept), forgotten(kept, KMOD)) == ([], [KERNEL])
    assert forgotten(replace(kept, installed={DKMS: "3:595.91.07-1.el9"})) == [KERNEL]


def test_a_driver_that_goes_leaves_none_that_dkms_would_put_back() -> None:
    ours = {DKMS: "3:595.91.07-1.el9"}
    seen = Observation(installed=ours, installed_by_us=ours, removable=(DKMS,), kernels=(Kernel(KERNEL),),
                       of_rpm=OfRpm(originals=(KERNEL,)))
    actions = [step.action for step in planner.plan(seen, policy(state="absent"), ROCKY).steps]
    assert actions[:2] == ["dkms.forget_original", "packages.remove"]
