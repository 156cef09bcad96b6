# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Node changes, evictions and the gate, over a real connection."""
from __future__ import annotations

from typing import Any, List, Optional

import pytest
from cluster_api import Api, Fault
from cluster_objects import h100_labels, h100_node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.eviction import (
    Eviction,
    evict_gpu_pods,
    read_gpu_pods,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.node_changes import change_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.observation import (
    observe,
    wait_for_components_gone,
    wait_for_resources,
    wait_for_rollout,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.pods import EvictionPlan, plan_eviction
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

NODE = "/api/v1/nodes/gpu-1"


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def cluster(api: Api) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig)))


class TestNode:
    def test_check_mode_asks_the_server_and_changes_nothing(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        assert change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=True)["changed"]
        assert "unschedulable" not in api.state.nodes[0]["spec"]
        assert api.state.requests[-1].query == {"dryRun": "All"}

    def test_a_second_run_sends_no_patch(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        assert change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=False)["changed"]
        assert not change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=False)["changed"]
        assert api.count("PATCH", NODE) == 1

    def test_a_change_in_between_is_seen(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.conflicts = 2
        assert change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=False)["changed"]
        assert api.count("PATCH", NODE) == 3

    @pytest.mark.parametrize("kind", ["500", "503", "504", "reset", "lost"])
    def test_a_server_that_is_out_of_order_for_a_moment_has_the_change_all_the_same(
        self, api: Api, client: Client, kind: str
    ) -> None:
        api.state.store = None
        api.state.nodes = [h100_node()]
        client.find(NODE)
        api.state.fault = Fault(kind, 3)
        done = change_node(client, "gpu-1", NodePolicy(cordoned=True), dry_run=False)
        assert api.state.nodes[0]["spec"]["unschedulable"]
        assert done["changed"] and not done["diff"]["before"]["unschedulable"]

    def test_endless_conflicts_end(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.conflicts = 99
        with pytest.raises(ApiError, match="modified"):
            change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=False)

    def test_a_host_that_is_no_node(self, cluster: Client) -> None:
        with pytest.raises(GpuOpsError, match="has no node gpu-1"):
            change_node(cluster, "gpu-1", NodePolicy(cordoned=True), dry_run=False)


class TestEviction:
    @staticmethod
    def plan(cluster: Client, force: bool = False) -> EvictionPlan:
        return plan_eviction(read_gpu_pods(cluster, "gpu-1"), force=force, delete_emptydir_data=False)

    def test_only_gpu_pods_of_this_node_go(self, api: Api, cluster: Client) -> None:
        api.state.pods = [pod("a"), pod("web", gpus=0), pod("elsewhere", node_name="gpu-2"),
                          pod("agent", owner="DaemonSet")]
        result = Eviction(cluster).run(self.plan(cluster), timeout=10)
        assert [each["name"] for each in result["evicted"]] == ["a"]
        assert [each["name"] for each in result["stayed"]] == ["agent"]
        assert [each["metadata"]["name"] for each in api.state.pods] == ["web", "elsewhere", "agent"]
        eviction = next(request for request in api.state.requests if request.method == "POST")
        assert eviction.body["deleteOptions"]["preconditions"] == {"uid": "uid-a"}

    @pytest.mark.parametrize("named, gone", [
        (None, ["a", "b"]), (["team/b"], ["b"]), (["uid-a", "team/elsewhere", "team/web"], ["a"]), ([], [])])
    def test_those_that_are_named_go_and_no_others(
        self, api: Api, cluster: Client, named: Optional[List[str]], gone: List[str]
    ) -> None:
        api.state.pods = [pod("a"), pod("b"), pod("web", gpus=0), pod("elsewhere", node_name="gpu-2")]
        done = evict_gpu_pods(cluster, "gpu-1", named, False, False, None, 10, dry_run=False)
        assert [each["name"] for each in done["evicted"]] == gone and done["changed"] == bool(gone)

    def test_a_pod_without_a_controller_is_in_nobodys_way_whose_devices_stay(self, api: Api, cluster: Client) -> None:
        api.state.pods = [pod("a"), pod("precious", owner=None)]
        assert evict_gpu_pods(cluster, "gpu-1", ["team/a"], False, False, None, 10, dry_run=True)["changed"]
        with pytest.raises(GpuOpsError, match="precious"):
            evict_gpu_pods(cluster, "gpu-1", ["team/precious"], False, False, None, 10, dry_run=True)

    def test_a_disruption_budget_is_asked_again_until_it_allows(self, api: Api, cluster: Client) -> None:
        time = Time()
        api.state.pods = [pod("a"), pod("b")]
        api.state.budget_blocks = {"b": 3}
        assert Eviction(cluster, None, time.clock, time.sleep).run(self.plan(cluster), timeout=60)["changed"]
        assert api.state.pods == [] and time.now > 0

    def test_a_budget_that_never_allows_is_named(self, api: Api, cluster: Client) -> None:
        time = Time()
        api.state.pods = [pod("a")]
        api.state.budget_blocks = {"a": 999}
        with pytest.raises(GpuOpsError, match="disruption budget") as refused:
            Eviction(cluster, None, time.clock, time.sleep).run(self.plan(cluster), timeout=30)
        assert "team/a" in refused.value.found and "budget a needs 1 healthy pods" in refused.value.found
        assert len(api.state.pods) == 1

    @pytest.mark.parametrize("kind", ["500", "503", "504", "reset", "lost"])
    def test_a_server_that_is_out_of_order_for_a_moment_keeps_no_pod(
        self, api: Api, client: Client, kind: str
    ) -> None:
        api.state.store = None
        api.state.pods = [pod("a")]
        plan = self.plan(client)
        api.state.fault = Fault(kind, len(api.state.requests) + 1)
        assert Eviction(client).run(plan, timeout=10)["changed"]
        assert api.state.pods == []

    def test_another_pod_of_the_same_name_is_left_alone(self, api: Api, cluster: Client) -> None:
        """Those of a StatefulSet come back elsewhere under their names."""
        api.state.pods = [pod("db-0", owner="StatefulSet"), pod("a")]
        plan = self.plan(cluster)
        api.state.pods[0] = pod("db-0", owner="StatefulSet", node_name="gpu-2")
        api.state.pods[0]["metadata"]["uid"] = "uid-of-the-next"
        assert Eviction(cluster).preview(plan)["blocked"] == []
        assert Eviction(cluster).run(plan, timeout=10)["changed"]
        assert [each["metadata"]["uid"] for each in api.state.pods] == ["uid-of-the-next"]

    def test_a_pod_that_does_not_end_is_named(self, api: Api, cluster: Client) -> None:
        time = Time()
        api.state.pods = [pod("a")]
        api.state.terminating = {"a"}
        with pytest.raises(GpuOpsError, match="still terminating"):
            Eviction(cluster, None, time.clock, time.sleep).run(self.plan(cluster), timeout=30)
        assert api.count("POST", "/api/v1/namespaces/team/pods/a/eviction") == 1

    def test_check_mode_asks_the_server_and_evicts_nothing(self, api: Api, cluster: Client) -> None:
        api.state.pods = [pod("a"), pod("b")]
        api.state.budget_blocks = {"b": 1}
        result = Eviction(cluster).preview(self.plan(cluster))
        assert result["changed"] and [each["pod"] for each in result["blocked"]] == ["team/b"]
        assert len(api.state.pods) == 2

    def test_a_free_node_is_unchanged(self, api: Api, cluster: Client) -> None:
        assert not Eviction(cluster).run(self.plan(cluster), timeout=1)["changed"]


class TestOverview:
    def read(self, cluster: Client) -> Any:
        return observe(cluster, None, "gpuops", "nvidia")

    def test_an_empty_cluster(self, cluster: Client) -> None:
        seen = self.read(cluster)
        assert seen["nodes"] == [] and seen["operator_refusal"] is None
        assert not seen["namespace"]["exists"] and not seen["runtime_class"]["exists"]

    @pytest.mark.parametrize("applied", [True, False])
    def test_a_label_alone_makes_no_namespace_ours(self, api: Api, cluster: Client, applied: bool) -> None:
        fields = [{"manager": "gpuops", "operation": "Apply", "fieldsV1": {"f:metadata": {}}}] if applied else []
        api.state.objects["/api/v1/namespaces/gpuops"] = {"metadata": {
            "name": "gpuops", "labels": {"app.kubernetes.io/managed-by": "gpuops"}, "managedFields": fields}}
        assert self.read(cluster)["namespace"]["ours"] is applied

    def test_a_policy_of_the_operator_is_seen(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.objects["/apis/nvidia.com/v1/clusterpolicies"] = {"items": [{"metadata": {"name": "cluster-policy"}}]}
        assert "cluster-policy" in self.read(cluster)["operator_refusal"]["found"]

    def test_each_node_that_is_asked_for_says_whether_the_operator_manages_it(
        self, api: Api, cluster: Client
    ) -> None:
        left = h100_node("gpu-2", labels={**h100_labels(), "nvidia.com/gpu.deploy.operands": "false"})
        api.state.nodes = [h100_node(), left]
        api.state.objects["/apis/nvidia.com/v1/clusterpolicies"] = {"items": [{"metadata": {"name": "cluster-policy"}}]}
        api.state.objects["/apis/apps/v1/daemonsets"] = {"items": []}
        seen = observe(cluster, None, "", "", ["gpu-1", "gpu-2"])["of_nodes"]
        assert "manages gpu-1 (" in seen["gpu-1"]["operator_refusal"]["found"]
        assert seen["gpu-2"]["operator_refusal"] is None

    def test_the_gate_waits_and_then_names_what_is_missing(self, api: Api, cluster: Client) -> None:
        time = Time()
        api.state.nodes = [h100_node(capacity={"nvidia.com/gpu": "7"})]
        with pytest.raises(GpuOpsError, match="offers nvidia.com/gpu=7, not 8"):
            wait_for_resources(cluster, {"gpu-1": {"nvidia.com/gpu": 8}}, 10, time.clock, time.sleep)
        waits: List[float] = []

        def heal(seconds: float) -> None:
            waits.append(seconds)
            api.state.nodes = [h100_node()]

        wait_for_resources(cluster, {"gpu-1": {"nvidia.com/gpu": 8}}, 10, time.clock, heal)
        assert len(waits) == 1

    def test_the_rollout_waits_and_then_says_what_the_kubelet_says(self, api: Api, cluster: Client) -> None:
        time = Time()
        path = "/apis/apps/v1/namespaces/gpuops/daemonsets/plugin"
        status = {"observedGeneration": 2, "desiredNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 0}
        api.state.objects[path] = {
            "kind": "DaemonSet", "metadata": {"generation": 2}, "status": status,
            "spec": {"selector": {"matchLabels": {"app": "plugin"}}},
        }
        broken = pod("plugin-x", owner="DaemonSet")
        broken["metadata"].update(labels={"app": "plugin"}, namespace="gpuops")
        broken["status"]["containerStatuses"] = [{
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"reason": "StartError", "exitCode": 128, "message": "no such hook"}},
        }]
        api.state.pods = [broken]
        with pytest.raises(GpuOpsError, match="DaemonSet/plugin") as refused:
            wait_for_rollout(cluster, "gpuops", ["DaemonSet/plugin"], 10, time.clock, time.sleep)
        assert "pod plugin-x on node gpu-1: StartError, exit code 128, no such hook" in refused.value.found
        status["numberReady"] = 1
        wait_for_rollout(cluster, "gpuops", ["DaemonSet/plugin"], 10, time.clock, time.sleep)


class TestComponentsLeave:
    """A node has lost our labels; its components' pods are what a DaemonSet makes."""

    def component(self, name: str, leaves: bool = False, **spec: Any) -> Any:
        made = pod(name, owner="DaemonSet", gpus=0)
        made["metadata"]["labels"] = {"app.kubernetes.io/part-of": "gpuops", "app.kubernetes.io/name": name}
        if leaves:
            made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        made["spec"].update(spec)
        return made

    def test_one_is_waited_for_until_it_is_gone(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("gpu-feature-discovery", nodeSelector={"gone": "true"}), pod()]
        time = Time()

        def sleep(seconds: float) -> None:
            time.sleep(seconds)
            del api.state.pods[0]
        wait_for_components_gone(cluster, "gpu-1", 60, time.clock, sleep)
        assert 0 < time.now < 60 and len(api.state.pods) == 1

    def test_one_that_is_being_deleted_is_waited_for_wherever_it_might_run(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("nvidia-device-plugin", leaves=True)]
        time = Time()
        with pytest.raises(GpuOpsError) as error:
            wait_for_components_gone(cluster, "gpu-1", 60, time.clock, time.sleep)
        assert error.value.code == "cluster.components_stay" and "team/nvidia-device-plugin" in error.value.found

    def test_one_that_the_node_admits_all_the_same_is_not(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("nvidia-device-plugin", nodeSelector={"nvidia.com/gpu.present": "true"}),
                          self.component("nvidia-dcgm-exporter")]
        time = Time()
        wait_for_components_gone(cluster, "gpu-1", 60, time.clock, time.sleep)
        assert time.now == 0

    def test_a_node_without_components_is_not_asked_about_its_labels(self, api: Api, cluster: Client) -> None:
        api.state.pods = [pod()]
        wait_for_components_gone(cluster, "gpu-1", 60)
        assert api.count("GET", NODE) == 0
