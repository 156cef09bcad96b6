# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the device plugin offers of a host's devices, by strategy and sharing."""
from __future__ import annotations

from typing import Any, Dict, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.offer import offered
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


def devices(whole: int = 0, mig: Optional[Dict[str, int]] = None, empty: int = 0, divided: int = 0) -> Dict[str, Any]:
    return {"whole": whole, "divided": divided or empty + bool(mig), "empty": empty, "mig": mig or {}}


def by(strategy: str, **more: Any) -> Dict[str, Any]:
    return {"flags": {"migStrategy": strategy}, **more}


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_whole_gpus_are_gpus_under_every_strategy(strategy: str) -> None:
    assert offered(devices(8), by(strategy)) == {"nvidia.com/gpu": 8}


def test_without_a_strategy_the_plugin_takes_none() -> None:
    assert offered(devices(6, {"1g.10gb": 14}, divided=2), {}) == {"nvidia.com/gpu": 8}


@pytest.mark.parametrize("there, resources", [
    (devices(6, {"1g.10gb": 4, "3g.40gb": 2}, divided=2),
     {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 2}),
    (devices(0, {"1g.10gb+me": 1, "1g.24gb+me.all": 1}),
     {"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-1g.24gb": 1}),
    (devices(0, {"1c.3g.40gb": 3, "3g.40gb": 1, "1g.10gb-me": 1, "1g.10gb": 2}),
     {"nvidia.com/mig-3g.40gb": 4, "nvidia.com/mig-1g.10gb": 3}),
    (devices(0, empty=2), {"nvidia.com/gpu": 0}),
])
def test_mixed_has_a_resource_for_each_profile(there: Dict[str, Any], resources: Dict[str, int]) -> None:
    assert offered(there, by("mixed")) == resources


@pytest.mark.parametrize("version, resources", [
    ("v0.19.3", {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 3, "nvidia.com/mig-1g.24gb": 3}),
    ("latest", {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 3, "nvidia.com/mig-1g.24gb": 3}),
    ("v0.20.0", {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-1g.10gb.me": 1,
                 "nvidia.com/mig-1g.24gb.me.all": 1, "nvidia.com/mig-1g.24gb-me": 2}),
    ("v0.20.0-ubi9", {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-1g.10gb.me": 1,
                      "nvidia.com/mig-1g.24gb.me.all": 1, "nvidia.com/mig-1g.24gb-me": 2}),
])
def test_from_0_20_on_the_plugin_goes_by_whole_names(version: str, resources: Dict[str, int]) -> None:
    there = devices(1, {"1g.10gb": 2, "1g.10gb+me": 1, "1g.24gb+me.all": 1, "1g.24gb-me": 2})
    assert offered(there, by("mixed"), version) == resources
    assert offered(devices(2), by("mixed"), version) == {"nvidia.com/gpu": 2}


def test_from_0_20_on_smaller_compute_instances_are_not_offered_as_profiles() -> None:
    there = devices(0, {"1c.3g.40gb": 3})
    with pytest.raises(GpuOpsError, match="1c.3g.40gb; with migStrategy=mixed the device plugin offers nothing"):
        offered(there, by("mixed"), "v0.20.0")
    assert offered(there, by("single"), "v0.20.0") == {"nvidia.com/gpu": 3}


def test_single_has_mig_devices_by_the_name_of_gpus() -> None:
    assert offered(devices(0, {"1c.3g.40gb": 6}, divided=2), by("single")) == {"nvidia.com/gpu": 6}


@pytest.mark.parametrize("strategy, there", [
    ("single", devices(1, {"1g.10gb": 7})),
    ("single", devices(0, {"1g.10gb": 2, "3g.40gb": 1})),
    ("single", devices(0, {"1g.10gb": 7}, empty=1, divided=2)),
    ("single", devices(0, empty=1)),
])
def test_what_the_plugin_would_end_over_is_said_in_words(strategy: str, there: Dict[str, Any]) -> None:
    with pytest.raises(GpuOpsError, match="migStrategy=%s the device plugin offers nothing" % strategy) as refusal:
        offered(there, by(strategy))
    assert refusal.value.refusals[0].code == "cluster.devices_not_offerable"


@pytest.mark.parametrize("block, resources", [
    ({"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}, {"nvidia.com/gpu": 24, "nvidia.com/mig-1g.10gb": 7}),
    ({"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 2}]},
     {"nvidia.com/gpu.shared": 12, "nvidia.com/mig-1g.10gb": 7}),
    ({"resources": [{"name": "nvidia.com/mig-1g.10gb", "replicas": 3, "rename": "small"}]},
     {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 21}),
    ({"resources": [{"name": "gpu", "replicas": 3}, {"name": "nvidia.com/gpu", "replicas": 2}]},
     {"nvidia.com/gpu": 18, "nvidia.com/mig-1g.10gb": 7}),
    ({"resources": [{"name": "nvidia.com/mig-2g.20gb", "replicas": 3}]},
     {"nvidia.com/gpu": 6, "nvidia.com/mig-1g.10gb": 7}),
])
def test_shared_devices_are_counted_as_often_as_they_are_offered(
    block: Dict[str, Any], resources: Dict[str, int]
) -> None:
    assert offered(devices(6, {"1g.10gb": 7}), by("mixed", sharing={"timeSlicing": block})) == resources


def test_of_two_ways_to_share_the_plugin_takes_mps() -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.10gb", "replicas": 3}]},
               "mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    assert offered(devices(6), by("none", sharing=sharing)) == {"nvidia.com/gpu": 12}
    assert offered(devices(6), by("mixed", sharing={"timeSlicing": None})) == {"nvidia.com/gpu": 6}


def test_mps_shares_no_mig_device() -> None:
    sharing = {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    assert offered(devices(2), by("single", sharing=sharing)) == {"nvidia.com/gpu": 4}
    for strategy, there in (("single", devices(0, {"1g.10gb": 7})), ("none", devices(0, {"1g.10gb": 7})),
                            ("none", devices(3, empty=1))):
        with pytest.raises(GpuOpsError, match="MPS does not share MIG devices"):
            offered(there, by(strategy, sharing=sharing))


def test_a_strategy_that_there_is_not_is_refused() -> None:
    with pytest.raises(GpuOpsError, match="migStrategy=both"):
        offered(devices(1), by("both"))
