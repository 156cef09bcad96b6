# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The document of nvidia-mig-parted: what it takes is taken, what it refuses is refused, all of it at once."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mig_boards import document, entry

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.configuration import Entry, Instances, read


def refusals(data: Dict[str, Any]) -> List[Refusal]:
    with pytest.raises(GpuOpsError) as error:
        read(data)
    return list(error.value.refusals)


def without(data: Dict[str, Any], key: str) -> Dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def test_an_entry_has_what_the_file_says() -> None:
    first = entry("all", {"1g.10gb": 2, "3g.40gb": 1}, device_filter=["0x233010DE", "0x233110de:0x16C110DE"])
    second = {"devices": [0, 3], "mig-enabled": False}
    assert read(document(first, second))["mine"] == (
        Entry("entry 1 of 'mine' in `configs`", ("all",), ("0x233010de", "0x233110de:0x16c110de"), True,
              (Instances("1g.10gb", 2), Instances("3g.40gb", 1))),
        Entry("entry 2 of 'mine' in `configs`", ("0", "3"), (), False, ()),
    )


@pytest.mark.parametrize("accepted", [
    entry(profiles={}),
    entry(device_filter="0x20B710DE"),
    entry(device_filter=[]),
    entry(device_filter=""),
    entry(device_filter=None),
    entry([0]),
    entry(profiles={"1g.10gb": 0, "2g.20gb": 1}),
    entry(profiles={"1g.24gb+me.all": 1, "1g.24gb-me": 2, "1g.24gb+gfx,me": 1, "1c.3g.40gb": 3}),
    {"devices": "all", "mig-enabled": False, "mig-devices": {}},
    {"devices": "all", "mig-enabled": False, "mig-devices": None},
])
def test_what_nvidias_tool_takes_is_taken(accepted: Dict[str, Any]) -> None:
    assert len(read(document(accepted))["mine"]) == 1


@pytest.mark.parametrize("data, code", [
    ({}, "mig.document_version"),
    (without(document(entry()), "version"), "mig.document_version"),
    (dict(document(entry()), version="v2"), "mig.document_version"),
    (dict(document(entry()), version=1), "mig.document_version"),
    (dict(document(entry()), foo=1), "mig.document_key_unknown"),
    ({"version": "v1"}, "mig.document_without_labels"),
    ({"version": "v1", "mig-configs": {}}, "mig.document_without_labels"),
    ({"version": "v1", "mig-configs": [entry()]}, "mig.document_without_labels"),
    (document(), "mig.label_without_entries"),
    ({"version": "v1", "mig-configs": {"mine": None}}, "mig.label_without_entries"),
    ({"version": "v1", "mig-configs": {"mine": entry()}}, "mig.label_without_entries"),
    ({"version": "v1", "mig-configs": {"mine": ["all"]}}, "mig.entry_malformed"),
    (document(entry(foo=1)), "mig.entry_key_unknown"),
    (document(entry(start=1)), "mig.entry_key_unknown"),
    (document(without(entry(), "devices")), "mig.entry_key_missing"),
    (document(without(entry(), "mig-enabled")), "mig.entry_key_missing"),
    (document(without(entry(), "mig-devices")), "mig.entry_key_missing"),
    (document(entry(mig_devices=None)), "mig.entry_key_missing"),
    (document(entry(mig_enabled="yes")), "mig.enabled_malformed"),
    (document(entry(mig_enabled=1)), "mig.enabled_malformed"),
    (document(entry("some")), "mig.devices_malformed"),
    (document(entry(None)), "mig.devices_malformed"),
    (document(entry(0)), "mig.devices_malformed"),
    (document(entry([])), "mig.devices_malformed"),
    (document(entry([-1])), "mig.devices_malformed"),
    (document(entry(["0"])), "mig.devices_malformed"),
    (document(entry([True])), "mig.devices_malformed"),
    (document(entry(device_filter="A100")), "mig.device_filter_malformed"),
    (document(entry(device_filter="0x2330")), "mig.device_filter_malformed"),
    (document(entry(device_filter="0x233010DE:")), "mig.device_filter_malformed"),
    (document(entry(device_filter="233010DE")), "mig.device_filter_malformed"),
    (document(entry(device_filter=0x233010DE)), "mig.device_filter_malformed"),
    (document(entry(device_filter=["0x233010DE", 7])), "mig.device_filter_malformed"),
    (document(entry(mig_devices=["1g.10gb"])), "mig.instances_malformed"),
    (document(entry(mig_devices="all")), "mig.instances_malformed"),
    (document(entry(mig_enabled=False, profiles={"1g.10gb": 7})), "mig.instances_without_mode"),
    (document(entry(profiles={"1g.10gb": -1})), "mig.count_malformed"),
    (document(entry(profiles={"1g.10gb": "7"})), "mig.count_malformed"),
    (document(entry(profiles={"1g.10gb": True})), "mig.count_malformed"),
    (document(entry(profiles={"1g.10gb": None})), "mig.count_malformed"),
    (document(entry(profiles={"1g.10gb": 0, "2g.20gb": 0})), "mig.counts_all_zero"),
])
def test_what_it_refuses_is_refused(data: Dict[str, Any], code: str) -> None:
    assert code in [refusal.code for refusal in refusals(data)]


@pytest.mark.parametrize("name", [
    "", "1g", "3g+me", "19", "1g.10gb.me", "1G.10GB", "1g.10gb+", "1g.10gb+me,", "1g.10gb+me,me", "1g.10gb+me-gfx",
    "1g.10gb+.me", "1g.10gb+me.", "1g.10gb+1", "1g.10gb + me", " 1g.10gb", "MIG 1g.10gb", "c.1g.10gb", "1c.10gb",
    "1.5g.10gb", "-1g.10gb", "x",
])
def test_names_of_profiles_are_in_nvidias_grammar(name: str) -> None:
    (refusal,) = refusals(document(entry(profiles={name: 1})))
    assert refusal.code == "mig.profile_name_malformed" and "'%s'" % name in refusal.found


def test_everything_that_is_wrong_is_said_at_once_and_where() -> None:
    data = {"version": "v2", "mig-configs": {
        "one": [entry(), entry("some", {"1g": -1})],
        "two": [],
    }}
    assert [(refusal.code, refusal.found) for refusal in refusals(data)] == [
        ("mig.document_version", "`configs` has the version 'v2'"),
        ("mig.profile_name_malformed", "entry 2 of 'one' in `configs`: the profile '1g'"),
        ("mig.count_malformed", "entry 2 of 'one' in `configs`: '1g': -1"),
        ("mig.devices_malformed", "entry 2 of 'one' in `configs`: 'devices': 'some'"),
        ("mig.label_without_entries", "'two' in `configs` is []"),
    ]


def test_a_filter_that_yaml_took_for_a_number_is_explained() -> None:
    (refusal,) = refusals(document(entry(device_filter=0x20B010DE)))
    assert "quotes" in refusal.remedy


@given(some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=9)
    | some.sampled_from(["v1", "all", "1g.10gb", "0x233010DE"]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(
        some.text(max_size=3) | some.sampled_from(
            ["version", "mig-configs", "device-filter", "devices", "mig-enabled", "mig-devices"]), inner, max_size=5),
    max_leaves=20))
def test_whatever_the_document_is_it_is_taken_or_refused(data: Any) -> None:
    """As a document, as a label's list and as an entry: never another error."""
    for each in (data, {"version": "v1", "mig-configs": {"x": data}}, document(data)):
        if isinstance(each, dict):
            try:
                read(each)
            except GpuOpsError as error:
                assert all(refusal.found and refusal.remedy for refusal in error.refusals)
