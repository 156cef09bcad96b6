# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A tree of an image, with real apt: the driver of the boards that are named, for the kernel of the image."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scratch_apt import Repository, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.awaited import foreseen
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import host_facts

OF_IMAGE = "6.1.0-50-image"
NAMES = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe",
         "nvidia-fabricmanager", "nvidia-imex", "linux-headers-" + OF_IMAGE)


@pytest.fixture
def image(root: Root, repository: Repository) -> Root:
    root.write("/etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    root.write("/boot/vmlinuz-" + OF_IMAGE, "")
    (root.path / "lib/modules" / OF_IMAGE / "kernel").mkdir(parents=True)
    for name in NAMES:
        repository.add(name, "580.178.04-1")
    return root


def planned(image: Root, repository: Repository, *boards: str) -> Plan:
    policy = policy_of({"source": "local_repository", "version": "580", "repository_url": repository.url,
                        "repository_key": repository.key.public, "boards": list(boards)})
    facts: HostFacts = foreseen(host_facts(image.host), boards)
    there: Any = observe(image.host, Journal(image.host), policy, facts)
    # Whether this machine has python3-apt is no matter of the image
    return plan(replace(there, bindings=True), policy, facts)


@pytest.mark.parametrize("board, companion", [("hgx-h100", "nvidia-fabricmanager"), ("gb200", "nvidia-imex"),
                                              ("l40s", "")])
def test_apt_brings_what_the_boards_need_for_the_kernel_of_the_image(
    image: Root, repository: Repository, board: str, companion: str
) -> None:
    made = planned(image, repository, board)
    assert made.refusals == ()
    (packages,) = [step for step in made.steps if step.action == "packages.install"]
    expected = {*NAMES[:4], "linux-headers-" + OF_IMAGE, *([companion] if companion else [])}
    assert set(packages.change["after"]) == expected
    assert [step.subject for step in made.steps if step.action == "dkms.build"] == [OF_IMAGE]
    image.trust(repository)
    image.apt("update")
    image.install(*("%s=%s" % item for item in packages.parameters["request"].items()))
    assert set(image.installed()) >= expected
    assert "packages.install" not in [step.action for step in planned(image, repository, board).steps]


def test_without_boards_such_a_host_has_no_gpu(image: Root, repository: Repository) -> None:
    assert [refusal.code for refusal in planned(image, repository).refusals] == ["host.no_gpu"]


def test_an_image_without_a_kernel_is_refused(image: Root, repository: Repository) -> None:
    (image.path / "boot" / ("vmlinuz-" + OF_IMAGE)).unlink()
    assert [refusal.code for refusal in planned(image, repository, "l40s").refusals] == ["driver.running_kernel_gone"]
