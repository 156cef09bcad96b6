# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Node changes and the gate, over a real connection."""
from __future__ import annotations

from typing import Any, List

import pytest
from clock import Time
from cluster_api import Api, Fault
from cluster_objects import h100_labels, h100_node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.node_changes import change_node
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.observation import (
    observe,
    wait_for_components_gone,
    wait_for_resources,
    wait_for_rollout,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.times import epoch

NODE = "/api/v1/nodes/gpu-1"


@pytest.fixture
def cluster(api: Api) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig)))


LABEL = "nvidia.com/mig.config.state"
LABELLED = NodePolicy(labels={LABEL: "a"})


class TestNode:
    def test_check_mode_asks_the_server_and_changes_nothing(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        assert change_node(cluster, "gpu-1", LABELLED, dry_run=True)["changed"]
        assert LABEL not in api.state.nodes[0]["metadata"]["labels"]
        assert api.state.requests[-1].query == {"dryRun": "All"}

    def test_a_second_run_sends_no_patch(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        assert change_node(cluster, "gpu-1", LABELLED, dry_run=False)["changed"]
        assert not change_node(cluster, "gpu-1", LABELLED, dry_run=False)["changed"]
        assert api.count("PATCH", NODE) == 1

    def test_a_change_in_between_is_seen(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.conflicts = 12
        assert change_node(cluster, "gpu-1", LABELLED, dry_run=False)["changed"]
        assert api.count("PATCH", NODE) == 13

    @pytest.mark.parametrize("kind", ["500", "503", "504", "reset", "lost"])
    def test_a_server_that_is_out_of_order_for_a_moment_has_the_change_all_the_same(
        self, api: Api, client: Client, kind: str
    ) -> None:
        api.state.store = None
        api.state.nodes = [h100_node()]
        client.find(NODE)
        api.state.fault = Fault(kind, 3)
        done = change_node(client, "gpu-1", LABELLED, dry_run=False)
        assert api.state.nodes[0]["metadata"]["labels"][LABEL] == "a"
        assert done["changed"] and LABEL not in done["diff"]["before"]["labels"]

    def test_endless_conflicts_end(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.conflicts = 99
        with pytest.raises(ApiError, match="modified"):
            change_node(cluster, "gpu-1", LABELLED, dry_run=False)

    def test_a_host_that_is_no_node(self, cluster: Client) -> None:
        with pytest.raises(GpuOpsError, match="has no node gpu-1"):
            change_node(cluster, "gpu-1", LABELLED, dry_run=False)


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
        broken = pod("plugin-x", owner="DaemonSet", ready=False)
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
        wait_for_components_gone(cluster, "gpu-1", 60, 0, time.clock, sleep)
        assert 0 < time.now < 60 and len(api.state.pods) == 1

    def test_one_that_is_being_deleted_is_waited_for_wherever_it_might_run(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("nvidia-device-plugin", leaves=True)]
        time = Time()
        with pytest.raises(GpuOpsError) as error:
            wait_for_components_gone(cluster, "gpu-1", 60, 0, time.clock, time.sleep)
        assert error.value.code == "cluster.components_stay" and "team/nvidia-device-plugin" in error.value.found

    def test_one_that_nobody_ends_is_left_behind_once_it_is_past_its_grace_by_what_was_said(
        self, api: Api, cluster: Client
    ) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("nvidia-device-plugin", leaves=True)]
        time = Time()
        left = wait_for_components_gone(cluster, "gpu-1", 60, 30, time.clock, time.sleep,
                                        lambda: epoch("2026-01-01T00:00:00Z") + time.now)
        assert list(map(str, left)) == ["team/nvidia-device-plugin"] and 30 < time.now < 40

    def test_one_that_is_not_being_deleted_yet_is_never_left_behind(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("gpu-feature-discovery", nodeSelector={"gone": "true"})]
        time = Time()
        with pytest.raises(GpuOpsError):
            wait_for_components_gone(cluster, "gpu-1", 60, 1, time.clock, time.sleep)

    def test_one_that_the_node_admits_all_the_same_is_not(self, api: Api, cluster: Client) -> None:
        api.state.nodes = [h100_node()]
        api.state.pods = [self.component("nvidia-device-plugin", nodeSelector={"nvidia.com/gpu.present": "true"}),
                          self.component("nvidia-dcgm-exporter")]
        time = Time()
        wait_for_components_gone(cluster, "gpu-1", 60, 0, time.clock, time.sleep)
        assert time.now == 0

    def test_a_node_without_components_is_not_asked_about_its_labels(self, api: Api, cluster: Client) -> None:
        api.state.pods = [pod()]
        wait_for_components_gone(cluster, "gpu-1", 60)
        assert api.count("GET", NODE) == 0
