# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a Node object says about its GPUs."""
from __future__ import annotations

from typing import Any, Dict, List, Optional

import pytest
from cluster_objects import h100_labels, h100_node, node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster import nodes


def codes(facts: Dict[str, Any]) -> List[str]:
    return [finding["code"].partition(".")[2] for finding in facts["findings"]]


def test_a_node_with_eight_h100() -> None:
    facts = nodes.node_facts(h100_node())
    assert facts["product"] == "NVIDIA-H100-80GB-HBM3"
    assert (facts["count"], facts["memory_mib"], facts["family"]) == (8, 81559, "hopper")
    assert facts["compute_capability"] == "9.0"
    assert (facts["driver_version"], facts["cuda_version"]) == ("580.126.09", "13.0")
    assert facts["mig"] == {
        "capable": True, "strategy": "none", "profiles": {}, "config": None, "config_state": None
    }
    assert facts["capacity"] == facts["allocatable"] == {"nvidia.com/gpu": 8}
    assert facts["container_runtime"] == {"name": "containerd", "version": "2.2.0"}
    assert facts["present_reason"] == "label"
    assert facts["ready"] and facts["findings"] == []


def test_an_empty_node_object_has_facts_too() -> None:
    facts = nodes.node_facts({"metadata": {"name": "bare"}})
    assert not facts["present"] and not facts["ready"]
    assert codes(facts) == ["not_ready"]


@pytest.mark.parametrize("labels, capacity, reason", [
    ({"nvidia.com/gpu.count": "2"}, {}, "count"),
    ({"feature.node.kubernetes.io/pci-0302_10de.present": "true"}, {}, "nfd_pci"),
    ({}, {"nvidia.com/mig-1g.10gb": "7"}, "capacity"),
    ({"nvidia.com/gpu.present": "false"}, {"nvidia.com/gpu": "0"}, None),
    ({"feature.node.kubernetes.io/pci-8086.present": "true"}, {}, None),
])
def test_how_a_gpu_shows_itself(labels: Dict[str, str], capacity: Dict[str, str], reason: Any) -> None:
    assert nodes.node_facts(node(labels=labels, capacity=capacity))["present_reason"] == reason


def test_old_driver_labels_still_count() -> None:
    labels = {"nvidia.com/cuda.driver.major": "535", "nvidia.com/cuda.driver.minor": "309",
              "nvidia.com/cuda.driver.rev": "01"}
    assert nodes.node_facts(node(labels=labels))["driver_version"] == "535.309.01"


def test_mixed_mig_profiles() -> None:
    labels = h100_labels(mig__strategy="mixed")
    labels.update({"nvidia.com/mig-1g.10gb.count": "4", "nvidia.com/mig-1g.10gb.me.count": "1",
                   "nvidia.com/mig-1c.3g.40gb.count": "3",
                   "nvidia.com/mig-1g.10gb.product": "x", "nvidia.com/mig.config": "all-balanced",
                   "nvidia.com/mig.config.state": "success"})
    facts = nodes.node_facts(h100_node(labels=labels))
    assert facts["mig"]["profiles"] == {"1g.10gb": 4, "1g.10gb.me": 1, "1c.3g.40gb": 3}
    assert (facts["mig"]["config"], facts["mig"]["config_state"]) == ("all-balanced", "success")


@pytest.mark.parametrize("changes, capacity, allocatable, expected", [
    ({"gpu__product": "NVIDIA-H100-80GB-HBM3-MIG-INVALID", "gpu__count": "0"}, "8", None, ["mig_invalid"]),
    ({"gpu__replicas": "0"}, "8", None, ["mig_without_strategy"]),
    ({}, "8", {"nvidia.com/gpu": "7"}, ["unhealthy_devices"]),
    ({}, "7", None, ["count_mismatch"]),
    ({"gpu__replicas": "4"}, "32", None, []),
    ({"gpu__replicas": "4"}, "8", None, ["count_mismatch"]),
    # All GPUs divided, and one of eight in MIG mode without an instance: of that no label tells
    ({"mig__strategy": "mixed", "gpu__replicas": "0", "mig-1g.10gb.count": "56"}, "0", None, []),
    ({"mig__strategy": "mixed"}, "7", None, []),
    ({"mig__strategy": "mixed"}, "9", None, ["count_mismatch"]),
    ({"mig__strategy": "mixed", "mig__capable": "false"}, "7", None, ["count_mismatch"]),
    ({"mig__strategy": "mixed", "mig-1c.3g.40gb.count": "3"}, "7", None, []),
    ({"mig__strategy": "mixed", "mig-1g.10gb.count": "7"}, "7", None, []),
])
def test_findings(changes: Dict[str, str], capacity: str, allocatable: Any, expected: List[str]) -> None:
    found = nodes.node_facts(h100_node(
        labels=h100_labels(**changes), capacity={"nvidia.com/gpu": capacity}, allocatable=allocatable))
    assert codes(found) == expected
    assert all(set(finding) == {"code", "found", "wanted", "remedy", "option"} for finding in found["findings"])


def test_driver_skew_names_the_odd_one_out() -> None:
    odd = h100_node("gpu-3", labels=h100_labels(**{"cuda__driver-version__full": "595.91.07"}))
    facts = [nodes.node_facts(each) for each in (h100_node("gpu-1"), h100_node("gpu-2"), odd)]
    usual = nodes.usual_drivers((each["product"], each["driver_version"]) for each in facts)
    assert [each["name"] for each in facts if nodes.skew_finding(each, usual)] == ["gpu-3"]


def test_of_drivers_that_are_as_usual_as_each_other_the_lower_one_counts() -> None:
    seen = [("H100", "595.91.07"), ("H100", "580.126.09"), ("L40S", "595.91.07"), (None, "1"), ("A30", None)]
    assert nodes.usual_drivers(seen) == {"H100": "580.126.09", "L40S": "595.91.07"}
    for product, driver in ((None, "1"), ("A30", None), ("A100", "1")):
        assert nodes.skew_finding({"name": "n", "product": product, "driver_version": driver}, {"H100": "2"}) is None


class TestOperator:
    policy = {"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}

    def test_a_cluster_policy_manages_every_gpu_node(self) -> None:
        assert nodes.managed_by_operator([self.policy], h100_node())
        assert not nodes.managed_by_operator([self.policy], node("cpu-1"))
        refusal = nodes.operator_refusal([self.policy], ["gpu-1"])
        assert refusal is not None
        assert "gpu-1" in refusal["found"] and "cluster-policy" in refusal["found"]
        assert "operands=false" in refusal["remedy"]

    def test_without_a_managed_node_there_is_nothing_to_refuse(self) -> None:
        assert nodes.operator_refusal([self.policy], []) is None

    def test_opted_out_nodes_are_ours(self) -> None:
        opted = h100_node(labels=h100_labels(gpu__deploy__operands="false", gpu__deploy__driver="true"))
        assert not nodes.managed_by_operator([self.policy], opted)

    def test_an_ignored_policy_manages_nothing(self) -> None:
        assert not nodes.managed_by_operator([{"status": {"state": "ignored"}}], h100_node())

    @pytest.mark.parametrize("value", ["true", "paused-for-driver-upgrade"])
    def test_the_operators_labels_tell_even_when_the_policy_cannot_be_seen(self, value: str) -> None:
        assert nodes.managed_by_operator([], h100_node(labels=h100_labels(gpu__deploy__driver=value)))
        refusal = nodes.operator_refusal([], ["gpu-1"])
        assert refusal is not None and "labels" in refusal["found"]

    @pytest.mark.parametrize("operand", ["dra-driver", "dra-validator", "dcgm-dra", "dcgm-exporter-dra"])
    def test_a_gpucluster_manages_by_the_labels_of_its_own_operands(self, operand: str) -> None:
        labels = h100_labels(**{"gpu__deploy__" + operand: "true", "gpu__deploy__driver": "pre-installed"})
        assert nodes.managed_by_operator([], h100_node(labels=labels))

    def test_our_own_labels_are_no_evidence(self) -> None:
        ours = h100_labels(**{"gpu__deploy__device-plugin": "true"})
        assert not nodes.managed_by_operator([], h100_node(labels=ours))


class TestOffer:
    """Who offers a node's GPUs, as its Node tells."""

    selector = {"nvidia.com/gpu.deploy.device-plugin": "true"}

    def facts(self, allocatable: Dict[str, str], **labels: str) -> Dict[str, Any]:
        bare = node("gpu-1", labels={name.replace("__", "."): value for name, value in labels.items()})
        bare["status"] = {"allocatable": allocatable, "capacity": allocatable}
        return nodes.node_facts(bare)

    @pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"])
    def test_gpus_that_are_offered_where_our_plugin_does_not_run_are_others(self, resource: str) -> None:
        refusal = nodes.offer_refusal(self.facts({resource: "8"}), [self.selector], [], False)
        assert refusal is not None and refusal["code"] == "cluster.offered_by_others" and resource in refusal["found"]

    def test_a_node_that_our_plugin_selects_offers_by_it(self) -> None:
        facts = self.facts({"nvidia.com/gpu": "8"}, **{"nvidia.com/gpu__deploy__device-plugin": "true"})
        assert nodes.offer_refusal(facts, [self.selector], [], False) is None

    def test_what_a_plugin_has_left_behind_is_nobodys(self) -> None:
        assert nodes.offer_refusal(self.facts({"nvidia.com/gpu": "0"}), [self.selector], [], False) is None

    def test_other_devices_of_nvidia_are_no_gpus(self) -> None:
        assert nodes.offer_refusal(self.facts({"nvidia.com/hostdev": "4"}), [], [], False) is None

    def test_claims_and_a_plugin_would_give_a_gpu_out_twice(self) -> None:
        refusal = nodes.offer_refusal(self.facts({}), [self.selector], ["gpu-1"], False)
        assert refusal is not None and refusal["code"] == "cluster.offered_by_dra"

    @pytest.mark.parametrize("operator, selector, code", [
        (True, {"nvidia.com/gpu.deploy.device-plugin": "true"}, "cluster.labels_taken_by_gpu_operator"),
        (False, {"nvidia.com/gpu.deploy.device-plugin": "true"}, None),
        (True, {"pool": "gpu"}, None),
    ])
    def test_a_running_operator_takes_the_labels_of_its_operands_away_from_a_node_that_it_leaves_alone(
        self, operator: bool, selector: Dict[str, str], code: Optional[str]
    ) -> None:
        facts = self.facts({"nvidia.com/gpu": "8"}, pool="gpu", **{
            "nvidia.com/gpu__deploy__operands": "false", "nvidia.com/gpu__deploy__device-plugin": "true"})
        refusal = nodes.offer_refusal(facts, [selector], [], operator)
        assert (refusal and refusal["code"]) == code


def test_shortfall_is_told_in_words() -> None:
    facts = [nodes.node_facts(h100_node())]
    assert nodes.resource_shortfall({"gpu-1": {"nvidia.com/gpu": 8}}, facts) == []
    assert nodes.resource_shortfall({"gpu-1": {"nvidia.com/gpu": 7}, "gpu-9": {"nvidia.com/gpu": 1}}, facts) == [
        "node gpu-1 offers nvidia.com/gpu=8, not 7", "node gpu-9 is not in the cluster",
    ]


@pytest.mark.parametrize(("record", "ours"), [('{"b": "1", "a": "2"}', ["a", "b"]), ("{", []), ("", [])])
def test_which_labels_are_ours_is_what_is_recorded(record: str, ours: List[str]) -> None:
    assert nodes.node_facts(node("gpu-1", annotations={"gpuops.nvidia.com/labels": record}))["our_labels"] == ours
