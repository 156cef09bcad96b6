# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Expressions that pick nodes: what they see, and what is refused before a cluster is asked."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from cluster_objects import h100_labels, h100_node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.nodes import node_facts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import node_filters
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.node_filters import NodeFilters

FACTS = node_facts(h100_node(
    "gpu-1", labels={**h100_labels(), "topology.kubernetes.io/zone": "eu-1"},
    taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]))


def refused(*expressions: Any) -> GpuOpsError:
    with pytest.raises(GpuOpsError) as found:
        NodeFilters(expressions)
    return found.value


@pytest.mark.parametrize("expression, picked", [
    ("product == 'NVIDIA-H100-80GB-HBM3'", True), ("count >= `8`", True), ("count > `8`", False),
    ("memory_mib >= `80000` && ready", True), ("!ready", False),
    ("labels.\"nvidia.com/gpu.machine\" == 'DGXH100'", True),
    ("allocatable.\"nvidia.com/gpu\" == `8`", True), ("taints[?key == 'nvidia.com/gpu']", True),
    ("taints[?key == 'other']", False), ("starts_with(zone, 'eu')", True), ("clique", False), ("mig.strategy", True),
    ("contains(keys(labels), 'topology.kubernetes.io/zone')", True), ("@ | zone", True), ("roles", False),
    ("conditions.Ready.status == 'True'", True), ("length(addresses.*) > `0`", True), ("`0`", True), ("''", False),
])
def test_what_is_true_of_a_node_picks_it(expression: str, picked: bool) -> None:
    assert NodeFilters([expression]).pick(FACTS) is picked


def test_all_of_them_must_be_true_and_none_at_all_picks_every_node() -> None:
    assert NodeFilters(["ready", "count == `8`"]).pick(FACTS)
    assert not NodeFilters(["ready", "count == `7`"]).pick(FACTS)
    assert NodeFilters([]).pick(FACTS)


@pytest.mark.parametrize("expression, column, word", [
    ("count >=", 9, "Incomplete"), ("ready && && zone", 10, "invalid token"), ("zone == 'eu", 9, "Unclosed"),
    ("ready )", 7, "Unexpected token: )"),
    ("k8s_gpu_product == 'x'", 1, "no fact k8s_gpu_product; they have addresses"),
    ("ready && produkt", 10, "no fact produkt"), ("taints[?key == zones]", None, None),
    ("starts_wth(zone, 'eu')", 1, "no function starts_wth"), ("ready || starts_with(zone)", 10, "takes 2 arguments"),
    ("@.zonee == 'eu'", 3, "no fact zonee"), ("@ | zonee", 5, "no fact zonee"),
    ("@ | @ | [zonee]", 10, "no fact zonee"), ("(@ | @).zonee", 9, "no fact zonee"),
    ("ready && !(@.unschedulabel)", 14, "no fact unschedulabel"),
    ("length(@.findngs) == `0`", 10, "no fact findngs"), ("@.{of: zonee}", 8, "no fact zonee"),
    ("@.zone.anything", None, None), ("@ | mig | strategi", None, None), ("(@ | mig).strategi", None, None),
    ("@[?zonee]", None, None),
    ("!@.unschedulable", 1, "put parentheses around"), ("ready && !mig.strategy", 10, "as in `!(mig.strategy)`"),
    ("!mig.strategy == 'mixed'", 1, "put parentheses"), ("!taints[?key == 'a']", 1, "put parentheses"),
    ("!(mig.strategy)", None, None), ("!taints[0]", None, None), ("taints[:2]", None, None), ("!ready", None, None),
    ("merge(mig)", None, None), ("taints[?starts_with(key)]", 9, "takes 2 arguments"),
])
def test_one_that_cannot_be_right_is_refused_with_its_place(expression: str, column: Any, word: Any) -> None:
    if column is None:
        NodeFilters([expression])
        return
    error = refused("ready", expression)
    assert error.code == "inventory.filter_unreadable" and error.refusals[0].option == "filters"
    assert "filters[1], column %d: " % column in error.found and word in error.found, error.found
    assert "\n" not in error.found


@pytest.mark.parametrize("expression", ["!(mig).strategy", "! mig.strategy", "!keys(mig).strategy"])
def test_a_place_that_is_not_found_is_not_told(expression: str) -> None:
    found = refused(expression).found
    assert "in filters[0]: `!` is of what stands right behind it" in found


@pytest.mark.parametrize("expression", ["", 7, None, True, ["ready"], {"a": "b"}])
def test_what_is_no_expression_is_refused(expression: Any) -> None:
    assert refused(expression).code == "inventory.filter_unreadable"


def test_all_that_cannot_be_right_are_told_at_once() -> None:
    told = refused("a ==", "ready", "b()").refusals
    assert ["filters[%d]" % number in each.found for number, each in zip((0, 2), told)] == [True, True]


def test_without_the_library_they_are_an_error_and_their_lack_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_filters, "IMPORT_ERROR", ImportError("No module named 'jmespath'"))
    error = refused("ready")
    assert error.code == "inventory.jmespath_missing" and "pip install jmespath" in error.remedy
    assert NodeFilters([]).pick(FACTS)


def test_a_node_that_an_expression_does_not_fit_is_not_picked_and_told() -> None:
    filters = NodeFilters(["ready", "starts_with(zone, 'eu')"])
    nowhere: List[Dict[str, Any]] = [node_facts(h100_node(name)) for name in ("gpu-2", "gpu-3")]
    assert [filters.pick(facts) for facts in (FACTS, *nowhere)] == [True, False, False]
    (failure,) = filters.failures()
    assert failure.code == "inventory.filter_failed"
    assert "filters[1]" in failure.found
    assert "2 nodes, the first of them gpu-2: In function starts_with()" in failure.found
