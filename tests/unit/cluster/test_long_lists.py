# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nobody reads is taken out of JSON before it is parsed: nothing else ever is."""
from __future__ import annotations

import json
from typing import Any

import pytest
from cluster_objects import h100_node
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.long_lists import without

NAMES = ("images", "managedFields")


def written(value: Any) -> bytes:
    """As an API server writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def test_what_is_long_and_not_read_is_gone_and_all_else_is_there() -> None:
    nodes = [h100_node("gpu-%d" % number) for number in range(3)]
    for number, node in enumerate(nodes):
        node["status"]["images"] = [{"names": ["a@sha256:%d" % number, "a:1"], "sizeBytes": 7}, {"names": ["b"]}]
        node["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": {
            "f:status": {'k:{"type":"Ready"}': {".": {}}}}}]
    text = without(written({"items": nodes}), NAMES)
    assert b"sha256" not in text and b"kubelet\"," not in text
    for node in nodes:
        node["status"]["images"] = node["metadata"]["managedFields"] = []
    assert json.loads(text) == {"items": nodes}


@pytest.mark.parametrize("value", [
    {"images": []}, {"images": ["a"]}, {"images": {"a": 1}}, {"images": None}, {"x": "images"}, {"ximages": [{"a": 1}]},
    {"images": [{"names": ["}]"]}], "next": [{"a": "}]"}]}, {"x": '"images":[{"a":1}]', "images": "[{}]"},
    {'"images': [{"a": 1}]}, {"a,\"images": [{"a": 1}]}, {"images": [{"a": "\\\\"}]},
])
def test_what_is_in_doubt_stays(value: Any) -> None:
    assert json.loads(without(written(value), NAMES)) in (value, {**value, "images": []})


def test_what_is_written_with_blanks_stays() -> None:
    text = json.dumps({"images": [{"a": 1}]}).encode()
    assert without(text, NAMES) == text


TEXTS = st.sampled_from(["", "images", '"images":[', "}]", '"', "\\", ',"images":[{', "[{", 'a"}]', "managedFields"])
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(0, 9), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)), max_leaves=12)


def differs_only_by_what_is_left_out(found: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(found, dict) and list(found) == list(value) and all(
            (key in NAMES and found[key] == [] and isinstance(each, list) and isinstance(each[0], dict))
            if found[key] == [] != each else differs_only_by_what_is_left_out(found[key], each)
            for key, each in value.items())
    if isinstance(value, list):
        return isinstance(found, list) and len(found) == len(value) and all(
            map(differs_only_by_what_is_left_out, found, value))
    return bool(found == value)


@given(VALUES)
def test_of_any_json_nothing_else_is_lost_or_changed(value: Any) -> None:
    assert differs_only_by_what_is_left_out(json.loads(without(written({"v": value}), NAMES)), {"v": value})
