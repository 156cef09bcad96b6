# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pod of a validation goes, whatever becomes of the requests that make it; and what its fate says of the node."""
from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import pytest
from cluster_objects import h100_node, pod

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Check
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import cluster_validation
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.cluster_validation import (
    ClusterScope,
    _created,
    validate_cluster,
)

PODS = "/api/v1/namespaces/default/pods"
WANTED = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}}


class Answers:
    """What the server says to one request after another; an Exception is a connection that breaks."""

    status = 0

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.methods: List[str] = []

    def request(self, method: str, _url: str, **_more: Any) -> Any:
        self.methods.append(method)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.status, self.data = answer
        return self

    headers: Mapping[str, str] = {}
    data: Optional[bytes] = None


MADE = (201, b'{"metadata": {"name": "probe", "uid": "its-own"}}')
THERE = (409, b'{"message": "pods probe already exists"}')


@pytest.mark.parametrize("answers", [
    [MADE], [(500, b"{}"), MADE], [ConnectionResetError(), THERE, (200, MADE[1])]])
def test_it_is_known_however_it_came_to_be(client: Client, answers: List[Any]) -> None:
    client.find("/api/v1/namespaces/x")
    server = Answers(*answers)
    client._api.rest_client.pool_manager = server
    wanted: Dict[str, Any] = dict(WANTED)
    assert _created(client, PODS, wanted) == "its-own" and server.answers == []


GPU = "nvidia.com/gpu"


def says(line: str) -> Dict[str, Any]:
    """The status of a probe that got its device, and said this of its computing."""
    return {"phase": "Succeeded", "containerStatuses": [
        {"name": "probe", "state": {"terminated": {"exitCode": 0, "message": "nvidia0 \n" + line}}}]}


PASSES = says('{"board": "NVIDIA H100", "multiprocessors": 132, "seen": 132}')
NO_PLACE = {"phase": "Pending", "conditions": [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"}]}
WAITS = {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {
    "reason": "CreateContainerError", "message": "unresolvable CDI devices nvidia.com/gpu=0"}}}]}


class Cluster:
    """An API server with one node and its pods. becomes: what the status of one probe after another is; None is of one
    that somebody has deleted, and a list is of pods that come to the node before it."""

    url = "https://api"

    def __init__(self, node: Dict[str, Any], pods: Sequence[Dict[str, Any]] = (), becomes: Sequence[Any] = ()) -> None:
        self.node, self.pods, self.becomes = node, list(pods), list(becomes)
        self.made: List[Dict[str, Any]] = []
        self.deleted: List[str] = []
        self.claimed: List[str] = []

    def get(self, _path: str) -> Dict[str, Any]:
        return self.node

    def find(self, path: str) -> Optional[Dict[str, Any]]:
        if "/pods/" not in path:
            return None
        became = self.becomes[len(self.made) - 1]
        if isinstance(became, list):
            self.pods += became
            became[:] = []
            became = NO_PLACE
        return None if became is None else {**self.made[-1], "status": became}

    def items(self, path: str, **selectors: Any) -> List[Any]:
        if path.endswith("/resourceslices"):
            assert "spec.nodeName=gpu-1" in selectors["fieldSelector"]
            return self.claimed
        if path == PODS:
            name, _is, value = selectors["labelSelector"].partition("=")
            return [each for each in self.pods if each["metadata"]["namespace"] == "default"
                    and each["metadata"].get("labels", {}).get(name) == value]
        return [each for each in self.pods if each["spec"].get("nodeName") == "gpu-1"]

    def ask(self, _path: str, _body: Any) -> Dict[str, Any]:
        return {"status": {"allowed": True}}

    def create(self, _path: str, body: Dict[str, Any], **_more: Any) -> Dict[str, Any]:
        self.made.append(copy.deepcopy(body))
        return {"metadata": {"uid": "of-the-probe"}}

    def delete(self, path: str, uid: str) -> None:
        self.deleted.append(path.rpartition("/")[2])


def found(cluster: Any, **more: Any) -> Check:
    """The last check."""
    return validated(cluster, **more)[0][-1]


def validated(cluster: Any, **more: Any) -> Tuple[Tuple[Check, ...], Dict[str, Any]]:
    scope: Dict[str, Any] = {
        "node": "gpu-1", "expected": {GPU: 8}, "only": True, "divided": False, "runtime_class": "nvidia", "pod": True,
        "pod_image": "busybox", "pod_namespace": "default", "pod_tolerations": [], "pod_trusted_for": 0, "proof": {},
        "startup_taint": "", "timeout": 0.4, "access": Connection(), "compute": "quick", **more}
    return validate_cluster(cluster, ClusterScope(**scope), False)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_validation, "POLL_S", 0.01)


def probe(made: Dict[str, Any]) -> Dict[str, Any]:
    """A pod of another run's validation, or of a killed one's."""
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "gpuops-validation"}
    return made


def waiting(name: str, count: int) -> Dict[str, Any]:
    return {**pod(name, count), "status": WAITS}


class TestDevicesThatAreAllPromised:
    def test_to_pods_of_which_one_works_say_that_the_node_is_well(self) -> None:
        check = found(Cluster(h100_node(), [pod("train", 7), waiting("queued", 1)]))
        assert (check.status, check.evidence) == ("skipped", "not probed: all 8 in use by team/queued, team/train")

    @pytest.mark.parametrize("held", [waiting("queued", 8), probe(waiting("queued", 8)), probe(pod("queued", 8))])
    def test_to_pods_of_which_none_has_started_say_nothing(self, held: Dict[str, Any]) -> None:
        """Nor does the probe of a run that was killed, or of another controller's."""
        with pytest.raises(GpuOpsError, match="promised to team/queued, and no pod that got one has started"):
            found(Cluster(h100_node(), [held]))


class TestAProbe:
    def test_that_another_pod_came_before_says_nothing_where_that_one_works(self) -> None:
        cluster = Cluster(h100_node(), [pod("train", 7)], [[pod("quicker", 1)]])
        assert found(cluster).status == "skipped"
        assert [made["metadata"]["name"] for made in cluster.made] == cluster.deleted

    def test_that_was_preempted_is_tried_again(self) -> None:
        cluster = Cluster(h100_node(), [], [None, PASSES])
        assert found(cluster).status == "passed" and len(cluster.made) == 2

    def test_that_is_always_preempted_is_told_as_that(self) -> None:
        with pytest.raises(GpuOpsError, match="pods of others came before"):
            found(Cluster(h100_node(), [], [None] * 100))

    def test_that_has_no_place_though_a_device_is_free_is_the_nodes_failure(self) -> None:
        with pytest.raises(GpuOpsError, match="Insufficient"):
            found(Cluster(h100_node(), [], [NO_PLACE]))

    @pytest.mark.parametrize("phase, beside", [
        ("Running", {"running": {}}), ("Succeeded", {"terminated": {"exitCode": 0}})])
    def test_is_judged_by_its_own_container(self, phase: str, beside: Dict[str, Any]) -> None:
        """A webhook puts a proxy beside it, whose status comes first."""
        statuses = [{"name": "istio-proxy", "state": beside}, *PASSES["containerStatuses"]]
        assert found(Cluster(h100_node(), [], [{"phase": phase, "containerStatuses": statuses}])).status == "passed"

    def test_tolerates_what_it_is_told_to(self) -> None:
        cluster = Cluster(h100_node(), [], [PASSES])
        ours = {"key": "dedicated", "operator": "Exists"}
        found(cluster, pod_tolerations=[ours], startup_taint="example.com/new")
        keys = [each["key"] for each in cluster.made[0]["spec"]["tolerations"]]
        assert keys == [GPU, "node.kubernetes.io/unschedulable", "example.com/new", "dedicated"]

    def test_goes_to_the_node_of_that_name_whatever_its_labels_are(self) -> None:
        cluster = Cluster(h100_node(), [], [PASSES])
        found(cluster)
        spec = cluster.made[0]["spec"]
        assert "nodeSelector" not in spec and "nodeName" not in spec
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]

    def test_is_one_that_a_restricted_namespace_with_quotas_takes(self) -> None:
        cluster = Cluster(h100_node(), [], [PASSES])
        found(cluster)
        spec = cluster.made[0]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert set(container["resources"]["requests"]) == {"cpu", "memory"} < set(container["resources"]["limits"])

    @pytest.mark.parametrize("made, namespace, goes", [
        ("2020-01-01T00:00:00Z", "default", True), ("2999-01-01T00:00:00Z", "default", False),
        ("2020-01-01T00:00:00Z", "team", False)])
    @pytest.mark.parametrize("node", ["gpu-1", "gpu-2", ""])
    def test_of_a_killed_run_goes_when_nobody_can_wait_for_it(
        self, node: str, made: str, namespace: str, goes: bool
    ) -> None:
        """Also one that no node had a free device for: only an end of its container would have ended it."""
        old = probe(pod("gpuops-validation-old", node_name=node, phase="Succeeded" if node else "Pending"))
        old["metadata"].update(creationTimestamp=made, namespace=namespace)
        old["spec"]["activeDeadlineSeconds"] = 180
        cluster = Cluster(h100_node(), [old], [PASSES])
        assert found(cluster).status == "passed" and ("gpuops-validation-old" in cluster.deleted) is goes


class TestComputingInIt:
    def test_is_a_check_of_its_own_beside_the_device(self) -> None:
        checks, proof = validated(Cluster(h100_node(), [], [PASSES]))
        assert [(check.name, check.status) for check in checks] == [
            ("allocatable", "passed"), ("pod", "passed"), ("pod_compute", "passed")]
        assert proof["evidence"] == (
            "a pod that asked for one device got /dev/nvidia0; 132 multiprocessors compute; NVIDIA H100")

    def test_that_fails_is_the_nodes_failure_with_all_that_was_found(self) -> None:
        line = '{"call": "cuInit", "code": 999, "error": "CUDA_ERROR_UNKNOWN", "lacks": ["/dev/nvidia-uvm"]}'
        cluster = Cluster(h100_node(), [], [says(line)])
        with pytest.raises(GpuOpsError, match="gpu-1 fails pod_compute: cuInit: .*has no /dev/nvidia-uvm") as told:
            found(cluster)
        assert "cdi_spec" in told.value.result()["remedy"] and len(cluster.deleted) == 1
        assert [check["name"] for check in told.value.result()["checks"]] == ["allocatable", "pod", "pod_compute"]

    def test_that_tells_nothing_is_no_failure_and_no_proof(self) -> None:
        checks, proof = validated(Cluster(h100_node(), [], [says("python3 ended with 1")]))
        assert (checks[-1].status, proof) == ("unknown", {}) and "ended with 1" in checks[-1].evidence

    def test_that_the_image_cannot_do_says_how_to_let_it(self) -> None:
        checks, proof = validated(Cluster(h100_node(), [], [says('{"unable": "it has no python3"}')]))
        assert checks[-1].status == "skipped" and "busybox: it has no python3" in checks[-1].evidence
        assert "gpu_validation_pod_image" in checks[-1].remedy and proof["at"]

    def test_is_left_out_where_none_is_asked_for(self) -> None:
        cluster = Cluster(h100_node(), [], [says("")])
        assert found(cluster, compute="none").evidence == "computing was not asked for"
        (container,) = cluster.made[0]["spec"]["containers"]
        assert len(container["command"]) == 4 and container["resources"]["limits"]["memory"] == "64Mi"

    def test_that_does_not_end_is_told_by_its_container(self) -> None:
        runs = {"phase": "Running", "containerStatuses": [{"name": "probe", "state": {"running": {}}}]}
        with pytest.raises(GpuOpsError, match="and its container runs") as told:
            found(Cluster(h100_node(), [], [runs]))
        assert "reboot" in told.value.result()["remedy"]


class TestANode:
    def test_whose_kubelet_is_not_heard_of_is_not_well_whatever_it_offered(self) -> None:
        for pods, more in (([pod("train", 8)], {}), ([], {"pod": False})):
            with pytest.raises(GpuOpsError, match="is not ready: NodeStatusUnknown"):
                found(Cluster(h100_node(ready=False), pods), **more)

    def test_with_a_device_that_is_not_healthy_is_not_well_whatever_the_host_counts(self) -> None:
        node = h100_node(capacity={GPU: "8"}, allocatable={GPU: "7"})
        with pytest.raises(GpuOpsError, match="7 allocatable, 7 expected, 1 not healthy"):
            found(Cluster(node), expected={GPU: 7})

    @pytest.mark.parametrize("labels, claimed, why", [
        ({}, ["gpu-1"], "by claims"), ({"nvidia.com/gpu.deploy.device-plugin": "false"}, [], "device-plugin=false"),
        ({"nvidia.com/gpu.deploy.operands": "false"}, [], "operands=false")])
    def test_whose_gpus_our_plugin_is_not_to_offer_is_not_asked_for_them(
        self, labels: Dict[str, str], claimed: List[str], why: str
    ) -> None:
        cluster = Cluster(h100_node(labels=labels, capacity={}))
        cluster.claimed = claimed
        check = found(cluster)
        assert check.status == "skipped" and why in check.evidence and cluster.made == []

    def test_that_offers_none_for_no_reason_is_not_well(self) -> None:
        with pytest.raises(GpuOpsError, match="0 allocatable, 8 expected"):
            found(Cluster(h100_node(capacity={})))


@pytest.mark.parametrize("message, code", [
    ('pods "probe" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', "denied_by_admission"),
    ('pods "probe" is forbidden: exceeded quota: team, requested: pods=1', "denied_by_admission"),
    ('admission webhook "validate.kyverno.svc-fail" denied the request: no', "denied_by_admission"),
    ('pods is forbidden: User "ci" cannot create resource "pods" in API group ""', "right_missing"),
    ("forbidden", "right_missing"),
])
def test_what_a_policy_denies_is_no_right_that_is_missing(client: Client, message: str, code: str) -> None:
    client.find("/api/v1/namespaces/x")
    client._api.rest_client.pool_manager = Answers((403, b'{"message": "%s"}' % message.replace('"', '\\"').encode()))
    with pytest.raises(ApiError) as told:
        client.create(PODS, dict(WANTED))
    assert told.value.refusals[0].code == "cluster." + code
