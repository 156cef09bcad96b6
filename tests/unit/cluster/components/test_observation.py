# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of a cluster: few requests, whose each object is, and what of others lives beside it."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from cluster_api import Api
from object_store import Store
from small_components import FINDER, PLUGIN, RULES, look, run

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.fields import (
    applied_fields,
    differences,
    holders,
    quantity,
    spoken,
    text,
    unsaid,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import KINDS, Key
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import complete, objects
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.observation import belongs
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.occupants import others_in
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}}


def test_every_kind_that_a_component_makes_is_looked_for() -> None:
    known = {(kind.api_version, kind.name) for kind in KINDS}
    options: Dict[str, Dict[str, Any]] = {
        "node_feature_discovery": {"feature_rules": ["gds"], "topology_updater": True, "master_replicas": 2},
        "dcgm_exporter": {"network_policy": True, "service_monitor": {"enabled": True}, "pod_labels_in_metrics": True}}
    made = {(item["apiVersion"], item["kind"]) for component in COMPONENTS.values()
            for item in objects(component, complete(component, options.get(component.name, {})))}
    assert made <= known


def test_an_empty_cluster_is_asked_once_for_each_kind_and_for_what_is_wanted(api: Api, client: Client) -> None:
    look(client)
    paths = [request.path for request in api.state.requests]
    assert len(paths) == len(set(paths))
    # Nothing can be in a namespace that is not there.
    assert not [path for path in paths if "/namespaces/gpuops/" in path]


def test_kinds_of_others_may_be_missing(client: Client) -> None:
    assert look(client).missing == {"NodeFeatureRule", "PrometheusRule", "ServiceMonitor"}


def test_what_is_listed_says_its_kind(client: Client, store: Store) -> None:
    run(client)
    live = look(client)
    assert all(item["kind"] == key.kind and "apiVersion" in item for key, item in live.objects.items())


def test_whose_an_object_is(client: Client, store: Store) -> None:
    run(client)
    live = look(client)
    mine = {str(key) for key, item in live.objects.items() if belongs(PLUGIN, item)}
    assert mine == {"ConfigMap gpuops/plugin", "DaemonSet gpuops/plugin"}


def test_two_clusters_are_two_clients(api: Api, client: Client, store: Store, tmp_path_factory: Any) -> None:
    other = Api(tmp_path_factory.mktemp("other"))
    other.state.store = Store()
    run(client)
    there = Client(Connection(kubeconfig=str(other.kubeconfig)))
    assert look(there).objects == {} and look(client).objects != {}
    other.close()


def test_contents_are_asked_for_when_a_namespace_may_go_and_only_then(api: Api, client: Client, store: Store) -> None:
    run(client)
    api.state.requests.clear()
    assert look(client, [PLUGIN], state="absent").contents == {}
    assert not [request for request in api.state.requests if request.path == "/apis"]
    assert look(client, state="absent").contents == {"gpuops": ()}


def test_what_somebody_would_miss(client: Client, store: Store) -> None:
    run(client)
    ours = set(look(client).objects)
    for item in (
            {"kind": "Secret", "metadata": {"name": "theirs"}},
            {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}},
            {"kind": "ServiceAccount", "metadata": {"name": "default"}},
            {"kind": "Event", "metadata": {"name": "plugin.1"}},
            {"kind": "Pod", "metadata": {"name": "made", "ownerReferences": [{"kind": "DaemonSet"}]}},
            {"kind": "Secret", "metadata": {"name": "token", "annotations": {
                "kubernetes.io/service-account.name": "finder"}}},
            {"kind": "Service", "metadata": {"name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z"},
             "spec": {}}):
        metadata = {**item["metadata"], "namespace": "gpuops"}  # type: ignore[dict-item]
        store.put({"apiVersion": "v1", "kind": item["kind"], "metadata": metadata,
                   **({"spec": {}} if "spec" in item else {})})
    assert others_in(client, "gpuops", ours) == ("Secret theirs",)


def test_a_kind_that_cannot_be_listed_is_named(client: Client, store: Store) -> None:
    run(client)
    store.denied = {("list", "secrets")}
    assert others_in(client, "gpuops", set(look(client).objects)) == ("secrets, which cannot be listed (HTTP 403)",)


def test_the_rest_of_us_keeps_what_is_shared(client: Client, store: Store) -> None:
    run(client)
    live = look(client, [PLUGIN], state="absent")
    assert {key.name for key in live.strangers} >= {"finder", "gpuops-finder", RULES}
    assert look(client, [PLUGIN, FINDER]).strangers == frozenset()


# Fields

def workload(*fields: Dict[str, Any], **pod: Any) -> Dict[str, Any]:
    entries = [{"manager": manager, "operation": operation, "fieldsV1": each}
               for manager, operation, each in zip(("gpuops", "kubectl-edit"), ("Apply", "Update"), fields)]
    book = {"managedFields": entries} if fields else {}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "x", **book},
            "spec": {"template": {"spec": pod}}}


def container(**more: Any) -> List[Dict[str, Any]]:
    return [{"name": "a", "image": "a:1", **more}]


def inside(**pod: Any) -> Dict[str, Any]:
    return {"f:spec": {"f:template": {"f:spec": {"f:" + name: each for name, each in pod.items()}}}}


@pytest.mark.parametrize("wanted, there, paths", [
    ({"a": 1}, {"a": 1, "b": 2}, []),
    ({"a": 1}, {"a": 1.0}, []),
    ({"a": True}, {"a": 1}, ["a"]),
    ({"a": 1}, {"a": "1"}, ["a"]),
    ({"a": []}, {}, []),
    ({"nodeSelector": {}}, {}, []),
    ({"emptyDir": {}}, {}, ["emptyDir"]),
    ({"containers": container()}, {"containers": [{"name": "mesh"}, *container(tty=False)]}, []),
    ({"containers": container()}, {"containers": container(image="b")}, ["containers[name=a].image"]),
    ({"containers": container(resources={"limits": {"cpu": "0.5", "memory": "1024Mi"}})},
     {"containers": container(resources={"limits": {"cpu": "500m", "memory": "1Gi"}})}, []),
    ({"containers": container(resources={"limits": {"cpu": 1}})},
     {"containers": container(resources={"limits": {"cpu": "2"}})}, ["containers[name=a].resources.limits.cpu"]),
    ({"containers": container(ports=[{"containerPort": 80}])},
     {"containers": container(ports=[{"containerPort": 80, "protocol": "TCP"}])}, []),
    ({"containers": container(ports=[{"containerPort": 80, "protocol": "UDP"}])},
     {"containers": container(ports=[{"containerPort": 80, "protocol": "TCP"}])},
     ["containers[name=a].ports[containerPort=80,protocol=UDP]"]),
    ({"containers": container(args=["a", "b"])}, {"containers": container(args=["b", "a"])},
     ["containers[name=a].args"]),
    ({"tolerations": [{"key": "x"}]}, {"tolerations": [{"key": "x"}, {"key": "y"}]}, ["tolerations"]),
    ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "b", "c": "d"}}, ["nodeSelector"]),
])
def test_what_is_different(wanted: Dict[str, Any], there: Dict[str, Any], paths: List[str]) -> None:
    found = [spoken(path) for path in differences(workload(**wanted), workload(**there))]
    assert found == ["spec.template.spec." + path for path in paths]


def test_a_list_that_is_one_field_is_ours_or_it_is_not_sure() -> None:
    """What an element has beside is a default of the server's while the list is ours."""
    wanted = workload(tolerations=[{"key": "x"}])
    ours = workload(inside(tolerations={}), tolerations=[{"key": "x", "operator": "Equal"}])
    theirs = workload(inside(containers={}), inside(tolerations={}), tolerations=[{"key": "x", "operator": "Exists"}])
    assert differences(wanted, ours) == []
    (path,) = differences(wanted, theirs)
    assert spoken(path) == "spec.template.spec.tolerations" and holders(theirs, [path]) == ["kubectl-edit"]


@pytest.mark.parametrize("fields, gone", [
    (inside(containers={'k:{"name":"a"}': {".": {}, "f:name": {}, "f:image": {}}}), []),
    (inside(containers={'k:{"name":"b"}': {".": {}, "f:name": {}}}), ["containers[name=b]"]),
    (inside(containers={'k:{"name":"a"}': {"f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {
        ".": {}, "f:containerPort": {}}}}}), []),
    (inside(containers={'k:{"name":"a"}': {"f:tty": {}}}), ["containers[name=a].tty"]),
    (inside(hostNetwork={}), ["hostNetwork"]),
    (inside(finalizers={'v:"ours"': {}, 'v:"old"': {}}), ['finalizers["old"]']),
])
def test_what_we_said_and_say_no_more(fields: Dict[str, Any], gone: List[str]) -> None:
    wanted = workload(containers=container(ports=[{"containerPort": 80}]), finalizers=["ours"])
    assert [spoken(path) for path in unsaid(fields, wanted)] == ["spec.template.spec." + path for path in gone]


def test_who_has_applied_an_object() -> None:
    assert applied_fields(workload({"f:spec": {}})) == {"f:spec": {}}
    assert applied_fields(workload()) is None
    update = {"metadata": {"managedFields": [{"manager": "gpuops", "operation": "Update"}]}}
    assert applied_fields(update) is None


@pytest.mark.parametrize("one, other", [
    ("1", "1000m"), ("1Gi", "1024Mi"), ("1e3", "1k"), (1, "1"), ("0.5", "500m"), ("1E", "1e18"), (".5", "500m")])
def test_quantities_in_two_forms(one: Any, other: Any) -> None:
    assert quantity(one) == quantity(other) is not None
    assert quantity("many") is None


def test_an_object_as_text_is_what_somebody_would_write() -> None:
    item = {"kind": "ConfigMap", "metadata": {"name": "x", "uid": "u", "managedFields": [], "resourceVersion": "1"},
            "data": {"config.yaml": "a: 1\nb: 2\n"}, "status": {}}
    assert text(item) == "data:\n  config.yaml: |\n    a: 1\n    b: 2\nkind: ConfigMap\nmetadata:\n  name: x\n"


def test_a_key_is_a_place_and_a_word() -> None:
    assert str(Key("DaemonSet", "gpuops", "x")) == "DaemonSet gpuops/x"
    assert Key("RuntimeClass", "", "nvidia").path == "/apis/node.k8s.io/v1/runtimeclasses/nvidia"
