# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The file of GPU feature discovery, and which labels are its own."""
from __future__ import annotations

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.features import is_feature, parse_features

PUBLISHED = (
    "cuda.driver-version.full", "cuda.driver.major", "cuda.runtime-version.minor", "gfd.timestamp", "gpu.clique",
    "gpu.compute.major", "gpu.count", "gpu.engines.copy", "gpu.family", "gpu.machine", "gpu.memory", "gpu.mode",
    "gpu.multiprocessors", "gpu.product", "gpu.replicas", "gpu.sharing-strategy", "gpu.slices.gi", "mig-1g.10gb.count",
    "mig-1g.10gb.me.engines.jpeg", "mig.capable", "mig.strategy", "mps.capable", "vgpu.host-driver-version",
    "vgpu.present")
NOT_PUBLISHED = (
    "gpu.deploy.device-plugin", "gpu.present", "mig.config", "mig.config.state", "device-plugin.config",
    "gpu-driver-upgrade-state")


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_feature_discovery_publishes_is_a_feature(name: str) -> None:
    assert is_feature("nvidia.com/" + name) and not is_feature("example.com/" + name)


@pytest.mark.parametrize("name", NOT_PUBLISHED)
def test_what_says_what_is_to_be_is_none(name: str) -> None:
    assert not is_feature("nvidia.com/" + name)


def test_a_line_is_a_label() -> None:
    assert parse_features("nvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\n"
                          "nvidia.com/gpu.sharing-strategy=\n") == {
        "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.sharing-strategy": ""}


@pytest.mark.parametrize("text", [
    "", "\n", "nothing", "nvidia.com/gpu.deploy.device-plugin=true", "node-role.kubernetes.io/control-plane=",
    "nvidia.com/gpu.machine=two words", "nvidia.com/gpu.machine=" + "a" * 64, "nvidia.com/gpu.machine=-a"])
def test_what_is_no_feature_or_no_value_of_a_label_is_left_out(text: str) -> None:
    assert parse_features(text) == {}
