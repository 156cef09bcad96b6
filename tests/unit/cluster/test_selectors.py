# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Selectors of labels, in the form that people type and in the form that objects have."""
from __future__ import annotations

from typing import Dict

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.selectors import of_object, parsed, selects
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

WEB = {"app": "web", "tier": "1"}


@pytest.mark.parametrize("text, labels, selected", [
    ("", {}, True),
    ("app", WEB, True), ("app", {}, False), ("!app", {}, True), ("! app", WEB, False),
    ("app=web", WEB, True), ("app==web", WEB, True), ("app = web", WEB, True), ("app=api", WEB, False),
    ("app=", {"app": ""}, True), ("app=", {}, False),
    ("app!=web", WEB, False), ("app!=web", {}, True),
    ("app in (web,api)", WEB, True), ("app in (api, web)", WEB, True), ("app in (api)", WEB, False),
    ("app notin (web)", WEB, False), ("app notin (api)", WEB, True), ("app notin (api)", {}, True),
    ("tier>0", WEB, True), ("tier<1", WEB, False), ("tier>0", {}, False), ("tier>0", {"tier": "x"}, False),
    ("app in (web,api),tier=1", WEB, True), ("app=web,tier=2", WEB, False),
    ("example.com/job-name", {"example.com/job-name": "x"}, True),
])
def test_what_is_typed_selects(text: str, labels: Dict[str, str], selected: bool) -> None:
    assert selects(parsed(text, "x"), labels) is selected


@pytest.mark.parametrize("text", ["app in", "app in web", "=web", "app=web,", ",", "app=a b", "app=-web", "a b", "!",
                                  "app in (a b)", "app=web;x", "a!b"])
def test_what_the_server_would_not_take_is_refused(text: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        parsed(text, "skip_selector")
    assert refused.value.code == "cluster.selector_malformed" and repr(text) in refused.value.found


def test_an_object_without_a_selector_selects_nothing_and_with_an_empty_one_all() -> None:
    assert not selects(of_object(None), WEB) and selects(of_object({}), WEB)
    both = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["2"]}]}
    assert not selects(of_object(both), WEB) and selects(of_object(both), {"app": "web", "tier": "2"})
