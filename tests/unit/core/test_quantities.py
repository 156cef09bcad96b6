# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Numbers of devices as Kubernetes prints them."""
from __future__ import annotations

from typing import Any, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.quantities import nvidia_resources, whole


@pytest.mark.parametrize("quantity, number", [
    ("8", 8), (8, 8), ("0", 0), ("2k", 2000), ("1M", 1000000), ("2Ki", 2048), ("3e3", 3000), ("100m", None), ("", None),
    (None, None), ("many", None),
])
def test_a_number_is_read_in_every_form_of_the_api(quantity: Any, number: Optional[int]) -> None:
    assert whole(quantity) == number


def test_other_resources_are_none_of_ours() -> None:
    assert nvidia_resources({"cpu": "64", "nvidia.com/gpu.shared": "2k", "memory": "1Gi"}) == {
        "nvidia.com/gpu.shared": 2000}
    assert nvidia_resources(None) == {}
