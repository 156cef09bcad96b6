# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster's components on a real API server, and without a node: what is written, what is not, and what stays."""
from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence

import pytest
from api_proxy import TOKEN, Proxy
from laboratory import new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.carrying_out import apply
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.common import COMPONENT
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import BY_NAME, key_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import complete, objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.observation import (
    ServerDryRun,
    observe,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.planner import plan_component
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import BY_DEFAULT, COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from gpulab.lab import Lab

ALL = BY_DEFAULT
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SLICED = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
# Options with which the components make every kind of object that they can
RICH: Dict[str, Dict[str, Any]] = {
    "node_feature_discovery": {"feature_rules": ["peermem", "gds"], "topology_updater": True, "master_replicas": 2,
                               "master_config": {"extraLabelNs": ["example.com"]}},
    "gpu_feature_discovery": {"configs": {"sliced": SLICED}, "image_pull_secrets": ["mirror"]},
    # Quantities that the server writes otherwise
    "device_plugin": {"configs": {"sliced": SLICED}, "resources": {
        "requests": {"cpu": "0.05", "memory": "1024Mi"}, "limits": {"cpu": "1000m", "memory": "2e9"}}},
    "dcgm_exporter": {"network_policy": True, "pod_labels_in_metrics": True, "metric_sets": {"small": [
        {"field": "DCGM_FI_DEV_GPU_TEMP", "type": "gauge", "help": "Temperature"}]}},
}
SERVICE_MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
             "names": {"kind": "ServiceMonitor", "plural": "servicemonitors"},
             "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                 "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
# A kind that nobody here has heard of
THINGS = {
    **SERVICE_MONITORS, "metadata": {"name": "things.example.com"}, "spec": {
        **SERVICE_MONITORS["spec"], "group": "example.com",  # type: ignore[dict-item]
        "names": {"kind": "Thing", "plural": "things"}}}


@dataclass
class Cluster:
    """The API server, asked by kubectl as somebody else and by us."""

    lab: Lab
    client: Client

    def kubectl(self, *argv: str, feed: Any = None) -> str:
        return str(self.lab.kubectl(argv, feed=None if feed is None else json.dumps(feed)).stdout)

    def create(self, *items: Mapping[str, Any]) -> None:
        for item in items:
            self.kubectl("create", "--filename=-", feed=item)

    def plans(self, names: Sequence[str] = ALL, **options: Any) -> List[Plan]:
        return self._go(names, options, False)

    def run(self, names: Sequence[str] = ALL, **options: Any) -> List[Plan]:
        """options: of every component by their own names, of one by its name."""
        return self._go(names, options, True)

    def removed(self, names: Sequence[str] = ALL, **options: Any) -> List[Plan]:
        return self._go(tuple(reversed(names)), {**options, "state": "absent"}, True)

    def _go(self, names: Sequence[str], options: Mapping[str, Any], carry_out: bool) -> List[Plan]:
        components = [COMPONENTS[name] for name in names]
        common = {name: value for name, value in options.items() if name not in COMPONENTS}
        parameters = {each.name: complete(each, {**common, **options.get(each.name, {})}) for each in components}
        live = observe(self.client, components, parameters)
        made = []
        for each in components:
            plan = plan_component(each, parameters[each.name], live, ServerDryRun(self.client))
            made.append(plan)
            if carry_out:
                apply(self.client, plan, 30)
            live = live.after(plan)
        return made

    def versions(self) -> Dict[str, str]:
        """{object of ours: its resource version}."""
        found = {}
        for kind in BY_NAME.values():
            try:
                items = self.client.items(kind.list_path(), labelSelector="app.kubernetes.io/managed-by=gpuops")
            except GpuOpsError:
                continue
            # Their controllers write into the status of workloads.
            found.update({"%s %s" % (kind.name, item["metadata"]["name"]): str(
                item["metadata"].get("generation") or item["metadata"]["resourceVersion"]) for item in items})
        return found

    def names(self) -> List[str]:
        return sorted(self.versions())


def told(made: Sequence[Plan]) -> List[str]:
    return ["%s %s" % (step.action, step.subject) for plan in made for step in plan.steps]


def codes(made: Sequence[Plan]) -> List[str]:
    return [refusal.code for plan in made for refusal in plan.refusals]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = new_lab("objects")
    made.up("cluster")
    yield made
    made.down()


@pytest.fixture
def cluster(lab: Lab) -> Iterator[Cluster]:
    """A cluster without anything of ours; jobs in it are done as soon as they have a pod: there is no node for them."""
    made = Cluster(lab, Client(Connection(kubeconfig=str(lab.kubeconfig))))
    over = threading.Event()
    helper = threading.Thread(target=_end_pods, args=(Client(Connection(kubeconfig=str(lab.kubeconfig))), over))
    helper.start()
    yield made
    made.removed()
    over.set()
    helper.join()
    assert made.names() == []


def _end_pods(client: Client, over: threading.Event) -> None:
    while not over.wait(0.1):
        for pod in client.items("/api/v1/pods", labelSelector="batch.kubernetes.io/job-name=nfd-prune"):
            path = "/api/v1/namespaces/%(namespace)s/pods/%(name)s/status" % pod["metadata"]
            if pod.get("status", {}).get("phase") == "Pending":
                client.patch(path, {"status": {"phase": "Succeeded"}})


def brought(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """What is planned is done; a second run asks for lists and its rights by one connection, and writes nothing."""
    planned = told(cluster.plans(**options))
    assert told(cluster.run(**options)) == planned
    before, asked = cluster.versions(), []
    real = Client._answer

    def request(self: Client, method: str, path: str, *arguments: Any, **given: Any) -> Any:
        if self is cluster.client:
            asked.append(path if method == "POST" else method)
        return real(self, method, path, *arguments, **given)

    with monkeypatch.context() as counted:
        counted.setattr(Client, "_answer", request)
        assert told(cluster.run(**options)) == []
    assert set(asked) == {"GET", REVIEWS} and asked.count(REVIEWS) == 1 and len(asked) < 20
    assert cluster.versions() == before
    pools = cluster.client._api.rest_client.pool_manager.pools
    assert [pools[key].num_connections for key in pools.keys()] == [1]


def test_what_somebody_changed_is_taken_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    brought(cluster, monkeypatch)
    cluster.kubectl("--namespace=gpuops", "set", "image", "daemonset/nvidia-device-plugin", "*=example.com/other:1")
    cluster.kubectl("--namespace=gpuops", "patch", "daemonset/nvidia-device-plugin", "--type=json", '--patch=[{"op":'
                    '"add","path":"/spec/template/spec/tolerations/-","value":{"operator":"Exists"}}]')
    cluster.kubectl("--namespace=gpuops", "patch", "configmap/nvidia-device-plugin", "--patch",
                    '{"data": {"config.yaml": "version: v1", "more": "theirs"}}')
    cluster.kubectl("label", "runtimeclass/nvidia", "app.kubernetes.io/managed-by-", "team=theirs")
    made = cluster.run()
    assert told(made) == [
        "object.change RuntimeClass nvidia", "object.change ConfigMap gpuops/nvidia-device-plugin",
        "object.change DaemonSet gpuops/nvidia-device-plugin"]
    why = {step.subject: step.why for plan in made for step in plan.steps}
    assert "kubectl-set" in why["DaemonSet gpuops/nvidia-device-plugin"]
    assert "kubectl-patch" in why["ConfigMap gpuops/nvidia-device-plugin"]
    assert told(cluster.plans()) == []
    data = json.loads(cluster.kubectl("--namespace=gpuops", "get", "configmap/nvidia-device-plugin", "-o", "json"))
    assert data["data"]["more"] == "theirs" and data["data"]["config.yaml"] != "version: v1"
    assert "theirs" in cluster.kubectl("get", "runtimeclass/nvidia", "-o", "jsonpath={.metadata.labels.team}")


def test_what_is_no_longer_wanted_goes(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    brought(cluster, monkeypatch, **RICH)
    plain = cluster.run()
    assert {"object.prune DaemonSet gpuops/nvidia-device-plugin-sliced",
            "object.prune NetworkPolicy gpuops/nvidia-dcgm-exporter",
            "object.prune NodeFeatureRule gpuops-gds"} <= set(told(plain))
    assert told(cluster.plans()) == []
    wanted = {str(key_of(item)) for name in ALL for item in objects(COMPONENTS[name], {})}
    assert len(cluster.names()) == len(wanted) + 2


def test_objects_of_the_release_before_become_ours(cluster: Cluster) -> None:
    """They were applied by kubernetes.core, with our field manager and without the label of a component."""
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "before"}})
    made = list(objects(COMPONENTS["device_plugin"], {"namespace": "before"}))
    gone = {**made[1], "metadata": {**made[1]["metadata"], "name": "nvidia-device-plugin-of-old"}}
    for item in (*made, gone):
        old = json.loads(json.dumps(item))
        del old["metadata"]["labels"][COMPONENT]
        if old["kind"] == "DaemonSet":
            old["spec"]["template"]["spec"]["hostNetwork"] = True
        cluster.kubectl("apply", "--server-side", "--field-manager=gpuops", "--filename=-", feed=old)
    steps = told(cluster.run(["device_plugin"], namespace="before"))
    assert "object.change DaemonSet before/nvidia-device-plugin" in steps
    assert "object.prune ConfigMap before/nvidia-device-plugin-of-old" in steps
    assert not any("replace" in step or "adopt" in step for step in steps)
    there = cluster.kubectl("--namespace=before", "get", "daemonset/nvidia-device-plugin", "-o", "json")
    assert "hostNetwork" not in json.loads(there)["spec"]["template"]["spec"]
    cluster.removed()
    cluster.kubectl("delete", "--wait=false", "namespace", "before")


def test_from_the_release_before_to_now_to_nothing_others_keep_every_byte(lab: Lab, cluster: Cluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}})
    for name in ALL:
        for item in objects(COMPONENTS[name], {}):
            old = json.loads(json.dumps(item))
            del old["metadata"]["labels"][COMPONENT]
            cluster.kubectl("apply", "--server-side", "--field-manager=gpuops", "--filename=-", feed=old)
            if old["kind"] == "CustomResourceDefinition":
                cluster.kubectl("wait", "--for=condition=Established", "crd/" + old["metadata"]["name"])
    cluster.create(SERVICE_MONITORS, THINGS)
    cluster.kubectl("wait", "--for=condition=Established", "crd/things.example.com",
                    "crd/servicemonitors.monitoring.coreos.com")
    theirs = {"name": "theirs", "namespace": "gpuops"}
    cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": theirs},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**theirs, "labels": {
            "app.kubernetes.io/managed-by": "gpuops"}}},
        {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": theirs, "spec": {}},
        {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": theirs},
        {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "theirs"},
         "spec": {"rules": []}})
    plane = lab.control_plane
    assert plane
    of_others = {key: value for key, value in plane.stored().items() if key.endswith(("/theirs", "things.example.com"))}
    assert len(of_others) == 6
    assert not any("object.create" in step or "object.replace" in step for step in told(cluster.run()) if (
        "Namespace" not in step and "RuntimeClass" not in step))
    assert told(cluster.plans()) == []
    cluster.removed()
    there = plane.stored()
    assert {key: there.get(key) for key in of_others} == of_others
    assert [name for name in cluster.names() if "CustomResourceDefinition" not in name
            and name != "Namespace gpuops"] == ["ConfigMap theirs"]
    cluster.kubectl("delete", "crd/things.example.com", "crd/servicemonitors.monitoring.coreos.com",
                    "nodefeaturerule/theirs")
    cluster.removed()
    cluster.kubectl("delete", "namespace", "gpuops")


def test_another_selector_is_a_replacement(cluster: Cluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "old"}})
    item = json.loads(json.dumps(objects(COMPONENTS["device_plugin"], {"namespace": "old"})[-1]))
    for labels in (item["spec"]["selector"]["matchLabels"], item["spec"]["template"]["metadata"]["labels"]):
        labels["release"] = "old"
    cluster.kubectl("apply", "--server-side", "--field-manager=gpuops", "--filename=-", feed=item)
    made = cluster.run(["device_plugin"], namespace="old")
    assert "object.replace DaemonSet old/nvidia-device-plugin" in told(made)
    assert told(cluster.plans(["device_plugin"], namespace="old")) == []
    cluster.removed(namespace="old")
    cluster.kubectl("delete", "--wait=false", "namespace", "old")


def test_objects_of_others_are_refused_or_adopted(cluster: Cluster) -> None:
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shared"}})
    cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "nvidia-device-plugin", "namespace": "shared"}, "data": {"config.yaml": "theirs", "more": "theirs"}})
    only = ["device_plugin"]
    refused = cluster.plans(only, namespace="shared")
    assert codes(refused) == ["cluster.object_of_another"] and "kubectl-create" in refused[0].refusals[0].found
    with pytest.raises(GpuOpsError):
        cluster.run(only, namespace="shared")
    assert cluster.names() == []
    assert "object.adopt ConfigMap shared/nvidia-device-plugin" in told(
        cluster.run(only, namespace="shared", adopt=True))
    assert told(cluster.plans(only, namespace="shared")) == []
    made = cluster.removed(only, namespace="shared")
    assert "object.remove Namespace shared" not in told(made)
    cluster.kubectl("delete", "--wait=false", "namespace", "shared")


def test_what_others_have_put_there_survives(cluster: Cluster) -> None:
    cluster.run()
    cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": "gpuops"}},
        {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "theirs"},
         "spec": {"rules": []}},
        THINGS)
    cluster.kubectl("wait", "--for=condition=Established", "crd/things.example.com")
    cluster.create({"apiVersion": "example.com/v1", "kind": "Thing",
                    "metadata": {"name": "theirs", "namespace": "gpuops"}})
    kept = {kept.subject: kept.why for plan in cluster.removed() for kept in plan.kept}
    assert "theirs" in kept["CustomResourceDefinition nodefeaturerules.nfd.k8s-sigs.io"]
    assert {"Secret theirs", "Thing theirs"} <= set(kept["Namespace gpuops"].split(": ")[1].split(", "))
    assert cluster.names() == ["CustomResourceDefinition nodefeaturerules.nfd.k8s-sigs.io", "Namespace gpuops"]
    assert told(cluster.removed()) == []
    cluster.kubectl("--namespace=gpuops", "delete", "secret/theirs", "thing/theirs")
    cluster.kubectl("delete", "nodefeaturerule/theirs", "crd/things.example.com")
    assert set(told(cluster.removed())) == {
        "object.remove CustomResourceDefinition nodefeaturerules.nfd.k8s-sigs.io", "object.remove Namespace gpuops"}


def test_a_kind_that_is_missing_is_refused_until_somebody_brings_it(cluster: Cluster) -> None:
    wanted = {"dcgm_exporter": {"service_monitor": {"enabled": True}}}
    assert codes(cluster.plans(["dcgm_exporter"], **wanted)) == ["cluster.kind_missing"]
    cluster.create(SERVICE_MONITORS)
    cluster.kubectl("wait", "--for=condition=Established", "crd/" + str(SERVICE_MONITORS["metadata"][  # type: ignore[index]
        "name"]))
    assert any("ServiceMonitor" in step for step in told(cluster.run(["dcgm_exporter"], **wanted)))
    assert told(cluster.plans(["dcgm_exporter"], **wanted)) == []
    assert "object.prune ServiceMonitor gpuops/nvidia-dcgm-exporter" in told(cluster.run(["dcgm_exporter"]))
    cluster.kubectl("delete", "crd/" + str(SERVICE_MONITORS["metadata"]["name"]))  # type: ignore[index]


@pytest.mark.variation
def test_through_a_proxy_that_spoils_requests(cluster: Cluster, lab: Lab, tmp_path: Path) -> None:
    """Every request once by each kind of fault; and each writing one alone. The end is always the same."""
    only = ["gpu_feature_discovery", "device_plugin"]
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "spoiled"}})
    cluster.run(only, namespace="spoiled")
    end = cluster.names()
    cluster.removed(only)
    with Proxy(lab) as proxy:
        ours = Cluster(lab, Client(Connection(host=proxy.url, api_key=TOKEN), sleep=lambda seconds: None))
        ours.run(only, namespace="spoiled")
        writers = [number for number, (method, path) in enumerate(proxy.seen, 1)
                   if method == "PATCH" and "dryRun" not in path]
        ours.removed(only)
        faults = [(kind, 0) for kind in ("429", "409", "500", "503", "reset", "lost")]
        faults += [(("lost", "reset", "500", "409")[number % 4], number) for number in writers]
        for kind, number in faults:
            proxy.spoil(kind, number)
            ours.run(only, namespace="spoiled")
            assert cluster.names() == end, (kind, number)
            assert told(cluster.plans(only, namespace="spoiled")) == []
            proxy.spoil(kind, number)
            ours.removed(only)
            assert cluster.names() == [], (kind, number)
    cluster.kubectl("delete", "--wait=false", "namespace", "spoiled")
