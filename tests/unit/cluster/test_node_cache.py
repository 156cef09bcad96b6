# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts of nodes on their way into a cache and out of it."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

import pytest
from cluster_objects import h100_labels, h100_node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.nodes import node_facts
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import node_cache

NOW = 1000.0
# Whoever changes what facts there are gives SCHEMA of node_cache.py another number, and writes both here
FACTS_OF_SCHEMA = (1, "addresses allocatable annotations arch capacity clique compute_capability conditions "
                      "container_runtime cordoned_by count created cuda_version device_plugin_config driver_version "
                      "family findings instance_type kernel kubelet_version labels machine memory_mib mig mode name "
                      "os_image our_labels pod_cidr present present_reason product provider_id ready region replicas "
                      "roles sharing_strategy taints unschedulable vgpu zone")


def packed(facts: List[Dict[str, Any]], usual: Optional[Dict[str, str]] = None) -> Dict[str, Any]:
    packing = node_cache.Packing()
    for each in facts:
        packing.add(each)
    return packing.entry("q", usual or {}, NOW)


def test_what_comes_out_is_what_went_in_in_few_texts() -> None:
    facts = [node_facts(h100_node("gpu-%05d" % number)) for number in range(1100)]
    value = json.loads(json.dumps(packed(facts)))
    assert len(value["nodes"]) == 3 and sum(map(len, value["nodes"])) < len(json.dumps(facts)) / 10
    found = node_cache.found(value, "q", NOW + 5)
    assert found is not None and found.facts() == facts and (found.age, found.read) == (5, NOW)


def test_what_a_comparison_shows_is_shown_when_it_comes_out() -> None:
    odd = node_facts(h100_node("gpu-1", labels=h100_labels(**{"cuda__driver-version__full": "595.91.07"})))
    found = node_cache.found(packed([odd], {odd["product"]: "580.126.09"}), "q", NOW)
    assert found is not None and [each["code"] for each in found.facts()[0]["findings"]] == ["cluster.driver_skew"]
    assert odd["findings"] == []


def test_what_is_forgotten_is_not_in_it() -> None:
    packing = node_cache.Packing()
    for number in range(501):
        packing.add({"name": str(number)})
    packing.forget()
    packing.add({"name": "a", "product": None, "driver_version": None})
    found = node_cache.found(packing.entry("q", {}, NOW), "q", NOW)
    assert found is not None and [each["name"] for each in found.facts()] == ["a"]


@pytest.mark.parametrize("now, age", [(NOW, 0), (NOW + 60, 60), (NOW - 60, 60)])
def test_its_age_is_how_far_away_it_is(now: float, age: float) -> None:
    found = node_cache.found(packed([]), "q", now)
    assert found is not None and found.age == age


@pytest.mark.parametrize("value", [None, [], [{"metadata": {}}], "text", {}, {"schema": 0, "question": "q"},
                                   {"schema": node_cache.SCHEMA, "question": "another"}])
def test_what_is_of_another_release_or_question_is_none(value: Any) -> None:
    assert node_cache.found(value, "q", NOW) is None


def test_other_facts_have_another_number() -> None:
    assert (node_cache.SCHEMA, " ".join(sorted(node_facts({})))) == FACTS_OF_SCHEMA
