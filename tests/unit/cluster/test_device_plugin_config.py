# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations of the device plugin: what is accepted, and what is named before a cluster sees it."""
from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.device_plugin import checked_config
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


def slicing(**changes: Any) -> Dict[str, Any]:
    return {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, **changes}]}


@pytest.mark.parametrize("config", [
    {},
    {"version": "v1"},
    {"flags": {"migStrategy": "mixed", "plugin": {"deviceListStrategy": "cdi-cri"}}},
    {"flags": {"plugin": {"deviceListStrategy": ["envvar", "cdi-annotations"]}, "gfd": {"sleepInterval": "1m30s"}}},
    {"sharing": {"timeSlicing": slicing()}},
    {"sharing": {"timeSlicing": slicing(name="gpu", devices="all")}},
    {"flags": {"mpsRoot": "/run/nvidia/mps"}, "sharing": {"mps": slicing(replicas=48)}},
    {"imex": {"channelIDs": [0], "required": True}},
])
def test_what_the_plugin_reads_as_it_is_meant(config: Dict[str, Any]) -> None:
    assert checked_config(config) == config


@pytest.mark.parametrize("config, words", [
    ([], "not a mapping"),
    ({"version": "v2"}, "version=v2"),
    ({"flag": {}}, "unknown key flag"),
    ({"flags": {"migStratgy": "single"}}, "unknown key migStratgy"),
    ({"flags": {"migStrategy": "all"}}, "migStrategy=all"),
    ({"flags": {"failOnInitError": "no"}}, "failOnInitError=no"),
    ({"flags": {"nvidiaDriverRoot": "run"}}, "absolute"),
    ({"flags": {"deviceDiscoveryStrategy": "vfio"}}, "vfio"),
    ({"flags": {"plugin": {"deviceListStrategy": ["cdi"]}}}, "cdi"),
    ({"flags": {"plugin": {"deviceListStrategy": []}}}, "deviceListStrategy"),
    ({"flags": {"gfd": {"sleepInterval": 60}}}, "duration"),
    ({"sharing": {"timeSlicing": slicing(replicas=1)}}, "replicas=1"),
    ({"sharing": {"timeSlicing": slicing(replicas="4")}}, "replicas=4"),
    ({"sharing": {"timeSlicing": slicing(replicas=True)}}, "replicas=True"),
    ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu"}]}}}, "lacks replicas"),
    ({"sharing": {"timeSlicing": {}}}, "lacks resources"),
    ({"sharing": {"timeSlicing": {"resources": []}}}, "leave the sharing block out"),
    ({"sharing": {"timeSlicing": slicing(name="amd.com/gpu")}}, "amd.com/gpu"),
    *(({"sharing": {"timeSlicing": slicing(name=name)}}, name) for name in (
        "nvidia.com/mig_1g.10gb", "mig-1g..10gb", "mig-1g.-10gb", "gpu\n")),
    ({"sharing": {"timeSlicing": slicing(devices=[0])}}, "whole node"),
    ({"sharing": {"timeSlicing": slicing(rename="gpu.mine")}}, "cannot be renamed"),
    ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2},
                                                {"name": "nvidia.com/gpu", "replicas": 3}]}}}, "more than once"),
    ({"sharing": {"mps": slicing()}}, "mpsRoot"),
    ({"flags": {"mpsRoot": "/mps", "migStrategy": "mixed"}, "sharing": {"mps": slicing()}}, "mixed"),
    ({"flags": {"mpsRoot": "/mps"}, "sharing": {"mps": slicing(replicas=49)}}, "at most 48"),
    ({"flags": {"mpsRoot": "/mps"}, "sharing": {"mps": slicing(name="nvidia.com/gpus")}}, "names nvidia.com/gpus"),
    ({"flags": {"mpsRoot": "/mps"}, "sharing": {"mps": slicing(), "timeSlicing": slicing()}}, "both"),
    ({"resources": {"gpus": [{"pattern": "*", "name": "gpu"}]}}, "cannot be renamed"),
    ({"imex": {"channelIDs": [1]}}, "channelIDs"),
])
def test_what_it_would_take_in_silence_or_die_of(config: Any, words: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        checked_config(config)
    assert words in refused.value.found


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(GpuOpsError) as refused:
        checked_config({"version": "v2", "flags": {"migStrategy": "x", "typo": 1}})
    assert len(refused.value.details["faults"]) == 3
