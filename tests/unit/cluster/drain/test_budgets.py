# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Evictions added up per disruption budget, over nodes, and what is refused or waited for because of it."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import pytest
from cluster_objects import pod
from hypothesis import given
from hypothesis import strategies as some

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.budgets import Budget, add_up, budget_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.judgement import GOES
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.drain.preview import (
    NodeState,
    Observation,
    Preview,
    preview,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import Pod, pod_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


def budget(name: str = "web", allowed: int = 1, desired: int = 2, current: int = 3, expected: int = 3,
           observed: int = 1, selector: Optional[Mapping[str, Any]] = None, **spec: Any) -> Dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": name, "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}} if selector is None else selector, **spec},
        "status": {"disruptionsAllowed": allowed, "desiredHealthy": desired, "currentHealthy": current,
                   "expectedPods": expected, "observedGeneration": observed}}


def broken() -> Dict[str, Any]:
    made = budget(allowed=0)
    made["status"]["conditions"] = [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed",
                                     "message": "found no controllers"}]
    return made


def web(name: str, **options: Any) -> Dict[str, Any]:
    return pod(name, **{"labels": {"app": "web"}, **options})


def seen(pods: Sequence[Dict[str, Any]], budgets: Sequence[Dict[str, Any]], nodes: Sequence[str] = ("gpu-1",),
         silent: Sequence[str] = (), **options: Any) -> Preview:
    """What drains of these nodes at the same time come to, each with these options."""
    observation = Observation(
        tuple(map(pod_of, pods)), {node: NodeState(node in silent, "2026-01-01T00:00:00Z") for node in nodes}, {},
        tuple(map(budget_of, budgets)))
    return preview(observation, {node: policy_of(options) for node in nodes})


def codes(found: Preview) -> List[str]:
    return [refusal.code for refusal in found.refusals]


def later(found: Preview, *nodes: str) -> List[str]:
    return [each["pod"] for node in nodes or ("gpu-1",) for each in found.result(node)["blocked"]]


class TestAddedUp:
    def test_three_pods_where_one_disruption_is_allowed(self) -> None:
        found = seen([web("a"), web("b"), web("c")], [budget(allowed=1)])
        assert codes(found) == [] and later(found) == ["team/b", "team/c"]
        assert [fate.pod.name for fate in found.of("gpu-1", GOES)] == ["a", "b", "c"]
        [told] = found.result("gpu-1")["budgets"]
        assert (told["name"], told["allowed"], told["now"], told["later"]) == (
            "web", 1, ["team/a"], ["team/b", "team/c"])
        assert "budget web allows 1 disruption(s) now, and 3 are to come" in found.result("gpu-1")["blocked"][0][
            "reason"]

    def test_over_the_nodes_in_their_order(self) -> None:
        pods = [web("a", node_name="gpu-1"), web("b", node_name="gpu-2"), web("c", node_name="gpu-3")]
        found = seen(pods, [budget(allowed=1)], ["gpu-2", "gpu-1"])
        assert later(found, "gpu-1", "gpu-2") == ["team/a"], "gpu-2 is first, and gpu-3 is not drained"

    def test_each_budget_by_itself(self) -> None:
        mine = {"matchLabels": {"app": "batch"}}
        found = seen([web("a"), web("b", labels={"app": "batch"})],
                     [budget(allowed=1), budget("batch", allowed=1, selector=mine)])
        assert later(found) == []

    def test_one_of_another_namespace_counts_for_nothing(self) -> None:
        assert later(seen([web("a", namespace="other")], [budget(allowed=0)])) == []

    @pytest.mark.parametrize("options", [
        {"phase": "Pending"}, {"phase": "Succeeded"}, {"phase": "Failed"},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
    def test_pods_that_no_budget_holds(self, options: Dict[str, Any]) -> None:
        found = seen([web("a", **options), web("b")], [budget(allowed=1), budget("two", allowed=1)], scope="node")
        assert [refusal.found.count("team/a") for refusal in found.refusals] == [0]

    @pytest.mark.parametrize("given, held", [
        ({"current": 2, "desired": 2}, False),
        ({"current": 1, "desired": 2}, True),
        ({"current": 0, "desired": 0}, True),
        ({"current": 1, "desired": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, False),
        ({"current": 1, "desired": 2, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}, True),
    ])
    def test_pods_that_are_not_ready(self, given: Dict[str, Any], held: bool) -> None:
        assert later(seen([web("a", ready=False)], [budget(allowed=0, **given)])) == (["team/a"] if held else [])

    def test_unready_pods_leave_the_allowance_to_others(self) -> None:
        found = seen([web("a", ready=False), web("b")], [budget(allowed=1)])
        assert later(found) == []

    def test_numbers_of_an_older_budget_are_not_relied_on(self) -> None:
        found = seen([web("a")], [budget(allowed=1, observed=0)])
        assert codes(found) == [] and "is being worked out" in found.result("gpu-1")["blocked"][0]["reason"]


class TestRefused:
    def test_two_budgets_of_one_pod(self) -> None:
        found = seen([web("a"), pod("b")], [budget(), budget("all", selector={})])
        assert codes(found) == ["cluster.pods_of_several_budgets"]
        assert "team/a (web, all)" in found.refusals[0].found and "team/b" not in found.refusals[0].found

    @pytest.mark.parametrize("given", [
        {"desired": 3}, {"desired": 1, "current": 1, "expected": 1}, {"desired": 0, "current": 1, "expected": 0}])
    def test_a_budget_that_never_allows(self, given: Dict[str, Any]) -> None:
        found = seen([web("a")], [budget(allowed=0, **given)])
        assert codes(found) == ["cluster.budget_never_allows"]
        assert "budget team/web lets no pod go even while all of them are healthy" in found.refusals[0].found
        assert later(found) == []

    def test_a_budget_that_cannot_be_worked_out(self) -> None:
        found = seen([web("a")], [broken()])
        assert codes(found) == ["cluster.budget_never_allows"]
        assert "(found no controllers), which may be so while pods end whose" in found.refusals[0].found

    def test_one_that_allows_none_now_is_waited_for(self) -> None:
        found = seen([web("a")], [budget(allowed=0, current=2)])
        assert codes(found) == [] and "needs 2 healthy pods of 3 and has 2" in found.result("gpu-1")["blocked"][0][
            "reason"]

    @pytest.mark.parametrize("budgets", [[budget(), budget("two")], [budget(allowed=0, desired=3)], [broken()]])
    def test_none_is_asked_where_eviction_is_disabled(self, budgets: List[Dict[str, Any]]) -> None:
        found = seen([web("a")], budgets, disable_eviction=True)
        assert codes(found) == [] and later(found) == [] and len(found.of("gpu-1", GOES)) == 1

    def test_a_job_that_could_not_be_evicted_after_its_time(self) -> None:
        job = {"wait_for_completion": "app", "timeout": 600}
        found = seen([web("a")], [budget(allowed=0, desired=3)], wait_for_completion_timeout=60, **job)
        assert codes(found) == ["cluster.budget_never_allows"]
        assert codes(seen([web("a")], [budget(allowed=0, desired=3)], **job)) == [], "it never is"

    def test_a_job_takes_nothing_from_those_that_go_now(self) -> None:
        found = seen([web("a", labels={"app": "web", "job": "x"}), web("b")], [budget(allowed=1)],
                     wait_for_completion="job", wait_for_completion_timeout=60)
        assert codes(found) == later(found) == []

    def test_pods_that_nobody_ends(self) -> None:
        pods = [web("a"), web("done", phase="Succeeded"), web("b", node_name="gpu-2")]
        found = seen(pods, [], ["gpu-1", "gpu-2"], silent=["gpu-1"], scope="node")
        assert codes(found) == ["cluster.kubelet_silent"]
        assert "gpu-1, whose kubelet has not been heard of since 2026-01-01T00:00:00Z, has team/a" in (
            found.refusals[0].found)
        assert "team/done" not in found.refusals[0].found and "gpu-2" not in found.refusals[0].found
        assert "disable_eviction" in found.refusals[0].remedy
        assert codes(seen(pods, [], silent=["gpu-1"], skip_wait_for_delete_timeout=60)) == []

    def test_a_silent_node_without_pods_is_nobodys_concern(self) -> None:
        assert codes(seen([pod("a", gpus=0), pod("d", owner="DaemonSet")], [], silent=["gpu-1"])) == []

    def test_all_reasons_are_told_at_once(self) -> None:
        found = seen([web("a", owner=None)], [budget(), budget("two")], silent=["gpu-1"])
        assert codes(found) == [
            "cluster.pods_without_controller", "cluster.pods_of_several_budgets", "cluster.kubelet_silent"]
        with pytest.raises(GpuOpsError) as refused:
            found.require()
        assert [each["name"] for each in refused.value.details["pods"]] == ["a"]


@pytest.mark.parametrize("selector, labels, covered", [
    ({}, {}, True), (None, {"app": "web"}, False), ({"matchLabels": {"app": "web"}}, {"app": "web"}, True),
    ({"matchLabels": {"app": "web"}}, {"app": "api"}, False),
    ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]}, {"app": "api"}, True),
    ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, {}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"x": "y"}, False),
    ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {"x": "y"}, True),
])
def test_whom_a_budget_covers(selector: Optional[Dict[str, Any]], labels: Dict[str, str], covered: bool) -> None:
    made = budget()
    made["spec"]["selector"] = selector
    assert budget_of(made).covers(pod_of(pod(labels=labels))) is covered


PODS = some.lists(some.builds(
    pod, name=some.uuids().map(str), labels=some.sampled_from([{}, {"a": "1"}, {"b": "1"}, {"a": "1", "b": "1"}]),
    phase=some.sampled_from(["Pending", "Running", "Running", "Succeeded"]), ready=some.booleans()).map(pod_of),
    max_size=8, unique_by=lambda each: each.uid)
BUDGETS = some.lists(some.builds(
    Budget, some.just("team"), some.uuids().map(str), some.sampled_from([
        None, ({"key": "a", "operator": "Exists"},), ({"key": "b", "operator": "Exists"},)]),
    allowed=some.integers(0, 3), expected=some.integers(0, 4), desired=some.integers(0, 4),
    current=some.integers(0, 4), is_settled=some.booleans(), broken=some.sampled_from(["", "why"]),
    unhealthy=some.sampled_from(["", "AlwaysAllow"])), max_size=3, unique_by=lambda each: each.name)


@given(PODS, BUDGETS)
def test_no_budget_is_overdrawn_and_no_pod_is_counted_twice(pods: List[Pod], budgets: List[Budget]) -> None:
    found = add_up(pods, budgets)
    told = [each.uid for charge in found.charges for each in (*charge.now, *charge.later)]
    told += [each.uid for each, _covering in found.rivals]
    assert len(told) == len(set(told)) and set(told) <= {each.uid for each in pods}
    for charge in found.charges:
        assert len(charge.now) <= charge.budget.allowed
        assert not charge.later or len(charge.now) == charge.budget.allowed or not charge.budget.is_settled or (
            charge.budget.broken)


@given(PODS, BUDGETS, some.data())
def test_fewer_evictions_never_wait_for_more(pods: List[Pod], budgets: List[Budget], data: some.DataObject) -> None:
    fewer = data.draw(some.lists(some.sampled_from(pods), unique_by=id)) if pods else []
    kept = [each for each in pods if each in fewer]
    assert sum(len(charge.later) for charge in add_up(kept, budgets).charges) <= sum(
        len(charge.later) for charge in add_up(pods, budgets).charges)
