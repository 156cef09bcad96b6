# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Changed hosts are measured by those that are not changed yet."""
from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.health import worse_off

XID, ECC = "Xid 79", "uncorrectable ECC errors"


@pytest.mark.parametrize("signs, found", [
    ({}, {}),
    ({"c1": [XID]}, {"c1": XID}),
    ({"c1": [XID, ECC], "c2": [ECC]}, {"c1": "Xid 79, uncorrectable ECC errors", "c2": ECC}),
    # Half of the changed, and half of the others: whatever it is, all meet it
    ({"c1": [XID], "u1": [XID], "u2": [XID]}, {}),
    # Half of the changed, and a quarter of the others
    ({"c1": [XID], "u1": [XID]}, {"c1": XID}),
    # Rarer among the changed
    ({"c1": [XID], "u1": [XID], "u2": [XID], "u3": [XID]}, {}),
    ({"c1": [XID, ECC], "u1": [XID], "u2": [XID]}, {"c1": ECC}),
    ({"u1": [XID], "stranger": [XID]}, {}),
])
def test_a_sign_counts_where_it_is_more_common_among_the_changed(signs: Any, found: Dict[str, str]) -> None:
    assert worse_off(signs, ["c2", "c1"], ["u1", "u2", "u3", "u4"]) == found


def test_what_the_collection_finds_and_what_the_user_finds_are_words_of_their_own() -> None:
    signs = {"c1": ["health: xid 63", "Xid 63"], "u1": ["Xid 63"], "u2": ["Xid 63"]}
    assert worse_off(signs, ["c1", "c2"], ["u1", "u2"]) == {"c1": "health: xid 63"}


def test_without_a_measure_whatever_is_found_counts() -> None:
    assert worse_off({"c1": [XID]}, ["c1"], []) == {"c1": XID}
