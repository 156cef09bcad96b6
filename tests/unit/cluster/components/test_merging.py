# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Merges are those of RFC 7386, whose own examples are here, and copy nothing that they change."""
from __future__ import annotations

import copy
from typing import Any, Dict, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.merging import merged
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.plugin_config import DEFAULT, completed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.text("ab", max_size=2), st.just([1, {"a": None}]))
trees = st.recursive(
    st.dictionaries(st.sampled_from("abc"), scalars, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), st.one_of(scalars, inner), max_size=3), max_leaves=12)


# RFC 7386, appendix A; those of mappings
@pytest.mark.parametrize("base, patch, result", [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
])
def test_the_examples_of_the_rfc(base: Dict[str, Any], patch: Dict[str, Any], result: Dict[str, Any]) -> None:
    assert merged(base, patch) == result


@given(base=trees, patch=trees)
def test_a_merge_said_twice_changes_nothing_more(base: Dict[str, Any], patch: Dict[str, Any]) -> None:
    kept = copy.deepcopy((base, patch))
    once = merged(base, patch)
    assert merged(once, patch) == once and (base, patch) == kept
    assert merged(base, {}) == base


@given(base=trees, patch=trees)
def test_what_a_patch_does_not_name_stays(base: Dict[str, Any], patch: Dict[str, Any]) -> None:
    def check(before: Mapping[str, Any], change: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for key, value in before.items():
            if key not in change:
                assert after[key] == value
            elif isinstance(value, Mapping) and isinstance(change[key], Mapping):
                check(value, change[key], after[key])
            else:
                assert (key in after) == (change[key] is not None)

    check(base, patch, merged(base, patch))


def test_a_configuration_keeps_the_defaults_that_it_does_not_name() -> None:
    whole = completed({"flags": {"plugin": {"deviceIDStrategy": "index"}}})
    assert whole["flags"]["plugin"] == {**DEFAULT["flags"]["plugin"], "deviceIDStrategy": "index"}
    assert completed({}) == DEFAULT
    assert completed({"flags": {"plugin": {"deviceListStrategy": ["envvar"]}}})["flags"]["plugin"][
        "deviceListStrategy"] == ["envvar"]


def test_the_directory_of_mps_is_the_configuration_s_else_the_option_s() -> None:
    mps = {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    config: Dict[str, Any] = {"flags": {"migStrategy": "none"}, "sharing": {"mps": mps}}
    assert completed(config, mps_root="/srv/mps")["flags"]["mpsRoot"] == "/srv/mps"
    assert completed({**config, "flags": {"migStrategy": "none", "mpsRoot": "/own"}})["flags"]["mpsRoot"] == "/own"
    assert "mpsRoot" not in completed({"flags": {"migStrategy": "none"}})["flags"]


def test_a_configuration_is_judged_as_the_plugin_gets_it() -> None:
    """MPS alone is well; with the strategy that is the default, the plugin would end."""
    mps = {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}
    with pytest.raises(GpuOpsError) as refused:
        completed({"sharing": {"mps": mps}})
    assert refused.value.code == "cluster.device_plugin_config_malformed" and "migStrategy" in refused.value.found
    assert completed({"sharing": {"mps": mps}}, {})["version"] == "v1"
