# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what a cluster has to what is wanted, against a server that keeps the book of fields."""
from __future__ import annotations

from typing import Any, Dict

import pytest
from cluster_api import Api
from object_store import Store
from small_components import FINDER, PLUGIN, RULES, codes, daemon_set, plans, removed, run, told

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.device_plugin import DEVICE_PLUGIN
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import KINDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.registry import COMPONENTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import render

FOREIGN = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plugin", "namespace": "gpuops"},
           "data": {"config.yaml": "theirs\n"}}
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}}


def runtime_class(handler: str) -> object:
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": handler}


def test_what_all_share_comes_first_and_once(client: Client, store: Store) -> None:
    made = plans(client)
    assert told(made) == [
        "object.create Namespace gpuops", "object.create RuntimeClass nvidia",
        "object.create CustomResourceDefinition " + RULES, "object.create ServiceAccount gpuops/finder",
        "object.create ClusterRoleBinding gpuops-finder", "object.create NodeFeatureRule gpuops-gds",
        "object.create DaemonSet gpuops/finder",
        "object.create ConfigMap gpuops/plugin", "object.create DaemonSet gpuops/plugin"]
    assert store.writes == [] and store.objects == {}


def test_a_plan_is_what_is_done_and_nothing_is_left(client: Client, store: Store) -> None:
    planned = told(plans(client))
    assert told(run(client)) == planned
    before = store.snapshot()
    store.writes.clear()
    assert told(run(client)) == [] and store.writes == [] and store.snapshot() == before


def test_a_converged_cluster_is_asked_for_lists_and_nothing_else(api: Api, client: Client, store: Store) -> None:
    run(client)
    api.state.requests.clear()
    plans(client)
    asked = [request.path for request in api.state.requests if request.method != "GET"]
    assert asked == ["/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"]
    assert len(api.state.requests) == len(KINDS) + 1
    assert len(api.state.connections) == 1


def test_defaults_and_quantities_of_the_server_are_no_difference(api: Api, client: Client, store: Store) -> None:
    container = {"resources": {"requests": {"cpu": "0.5"}, "limits": {"memory": "1024Mi"}}}
    run(client, container=container)
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there and there["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m"}
    api.state.requests.clear()
    assert told(plans(client, container=container)) == []
    assert [request.path for request in api.state.requests if request.method == "PATCH"] == []


def test_a_change_has_before_and_after_as_the_server_would_have_it(client: Client, store: Store) -> None:
    run(client)
    made = plans(client, data={"config.yaml": "a: 2\n"})
    (step,) = made[1].steps
    assert (step.action, step.subject) == ("object.change", "ConfigMap gpuops/plugin")
    assert "  config.yaml: |\n    a: 1\n" in step.change["before"]
    assert "  config.yaml: |\n    a: 2\n" in step.change["after"]
    assert "resourceVersion" not in step.change["after"] and "managedFields" not in step.change["after"]


def test_what_somebody_changed_is_taken_back_and_says_from_whom(client: Client, store: Store) -> None:
    run(client)
    store.edit("ConfigMap", "gpuops", "plugin", data={"config.yaml": "by hand\n"})
    (step,) = run(client)[1].steps
    assert step.action == "object.change" and "kubectl-edit" in step.why and "data.config.yaml" in step.why
    assert told(plans(client)) == []


def test_fields_of_others_stay(client: Client, store: Store) -> None:
    run(client)
    store.edit("ConfigMap", "gpuops", "plugin", data={"more": "theirs"})
    assert told(run(client, data={"config.yaml": "a: 2\n"})) == ["object.change ConfigMap gpuops/plugin"]
    there = store.get("ConfigMap", "gpuops", "plugin")
    assert there and there["data"] == {"config.yaml": "a: 2\n", "more": "theirs"}


def test_what_we_said_once_and_say_no_more_goes(client: Client, store: Store) -> None:
    run(client, container={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]})
    (step,) = run(client)[1].steps
    assert "env[name=B]" in step.why
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there and there["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]


def test_a_container_of_others_in_our_pods_stays(client: Client, store: Store) -> None:
    run(client)
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there
    pod = there["spec"]["template"]["spec"]
    store.edit("DaemonSet", "gpuops", "plugin", manager="sidecars", spec={"template": {"spec": {
        "containers": [*pod["containers"], {"name": "mesh", "image": "mesh:1"}]}}})
    assert told(plans(client)) == []


def test_an_object_of_others_is_refused_and_names_them(client: Client, store: Store) -> None:
    store.put(NAMESPACE)
    store.put(FOREIGN, manager="helm")
    made = plans(client)
    assert codes(made) == ["cluster.object_of_another"]
    assert "helm" in made[1].refusals[0].found and "`adopt`" in made[1].refusals[0].remedy
    with pytest.raises(GpuOpsError):
        run(client, [PLUGIN])
    assert store.writes == []


def test_an_object_of_others_is_adopted_when_asked(client: Client, store: Store) -> None:
    store.put(NAMESPACE)
    store.put(FOREIGN, manager="helm")
    made = run(client, adopt=True)
    step = next(step for step in made[1].steps if step.action == "object.adopt")
    assert "theirs" in step.change["before"] and "a: 1" in step.change["after"]
    assert told(plans(client)) == []
    assert told(removed(client))[:1] == ["object.remove DaemonSet gpuops/plugin"]


def test_a_copy_with_our_label_is_not_ours(client: Client, store: Store) -> None:
    """Who copies one of our objects copies its labels."""
    run(client)
    copy = daemon_set("mine", {"namespace": "gpuops", "runtime_class": "nvidia"})
    copy["metadata"]["labels"]["app.kubernetes.io/name"] = "plugin"
    store.put(copy, manager="kubectl-client-side-apply")
    made = plans(client)
    assert told(made) == [] and [kept.subject for kept in made[1].kept] == ["DaemonSet gpuops/mine"]
    removed(client)
    assert store.get("DaemonSet", "gpuops", "mine") is not None
    assert store.get("Namespace", "", "gpuops") is not None


def test_a_namespace_of_others_is_used_and_never_removed(client: Client, store: Store) -> None:
    store.put(NAMESPACE)
    made = run(client)
    assert [kept.subject for kept in made[0].kept] == ["Namespace gpuops"]
    removed(client)
    assert [item["kind"] for item in store.objects.values()] == ["Namespace"]


def test_a_namespace_that_is_going_is_refused(client: Client, store: Store) -> None:
    store.put({**NAMESPACE, "metadata": {"name": "gpuops", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert codes(plans(client)) == ["cluster.namespace_is_leaving"] * 2


def test_a_namespace_of_others_that_takes_no_such_pods_is_refused(client: Client, store: Store) -> None:
    store.put({**NAMESPACE, "metadata": {
        "name": "gpuops", "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}})
    assert codes(plans(client, [PLUGIN])) == ["cluster.namespace_is_restricted"]


@pytest.mark.parametrize("handler, refused", [("nvidia", []), ("other", ["cluster.runtime_class_of_another"])])
def test_a_runtime_class_of_others(client: Client, store: Store, handler: str, refused: object) -> None:
    store.put(runtime_class(handler))  # type: ignore[arg-type]
    assert codes(plans(client, [PLUGIN])) == refused


def test_the_scheduling_of_a_runtime_class_changes_in_place(client: Client, store: Store) -> None:
    run(client)
    asked = {"node_selector": {"nvidia.com/gpu.present": "true"}, "tolerations": [{"operator": "Exists"}]}
    assert told(run(client, runtime_class_scheduling=asked)) == ["object.change RuntimeClass nvidia"]
    assert told(plans(client, runtime_class_scheduling=asked)) == []
    there = store.get("RuntimeClass", "", "nvidia")
    assert there and there["scheduling"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert told(run(client)) == ["object.change RuntimeClass nvidia"]
    assert told(plans(client)) == []


def test_a_runtime_class_of_others_keeps_its_scheduling_and_the_plan_says_so(client: Client, store: Store) -> None:
    store.put(runtime_class("nvidia"))  # type: ignore[arg-type]
    (plan,) = plans(client, [PLUGIN], runtime_class_scheduling={"node_selector": {"a": "b"}})
    assert not plan.refusals and "RuntimeClass nvidia, made by kubectl-create, has another scheduling" in plan.notes[0]
    assert plans(client, [PLUGIN])[0].notes == ()


def test_a_quota_comes_before_pods_and_goes_when_it_is_switched_off(client: Client, store: Store) -> None:
    steps = told(run(client, [DEVICE_PLUGIN], resource_quota={"enabled": True}))
    quota, pods = "ResourceQuota gpuops/nvidia-device-plugin", "DaemonSet gpuops/nvidia-device-plugin"
    assert steps.index("object.create " + quota) < steps.index("object.create " + pods)
    assert told(run(client, [DEVICE_PLUGIN], resource_quota={"enabled": True, "pods": 5})) == [
        "object.change " + quota]
    assert told(run(client, [DEVICE_PLUGIN])) == ["object.prune " + quota]
    assert told(plans(client, [DEVICE_PLUGIN])) == []


def namespace(name: str, **metadata: object) -> Dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def test_quotas_of_users_are_in_their_namespaces_which_are_never_made(client: Client, store: Store) -> None:
    quotas = {"team-a": {"nvidia.com/gpu": 8}, "team-b": {"nvidia.com/gpu": 2}, "team-c": {"nvidia.com/gpu": 0}}
    store.put(namespace("team-b"))
    (plan,) = run(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
    assert [step for step in told([plan]) if "team-" in step] == ["object.create ResourceQuota team-b/nvidia-gpu"]
    assert store.get("DaemonSet", "gpuops", "nvidia-device-plugin") and not store.get("Namespace", "", "team-a")
    assert plan.notes == tuple(
        "there is no namespace %s: ResourceQuota %s/nvidia-gpu waits for it, and comes with a run after it is made"
        % (name, name) for name in ("team-a", "team-c"))
    assert not plan.complete and plan.waiting == ("device_plugin",)
    (again,) = plans(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
    assert told([again]) == [] and "nothing to do yet" in render(again)
    for name in ("team-a", "team-c"):
        store.put(namespace(name))
    assert told(run(client, [DEVICE_PLUGIN], namespace_quotas=quotas)) == [
        "object.create ResourceQuota team-%s/nvidia-gpu" % each for each in "ac"]
    (again,) = plans(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
    assert told([again]) == [] and again.notes == () and again.complete
    quotas = {"team-a": {"nvidia.com/gpu": 4}}
    assert told(run(client, [DEVICE_PLUGIN], namespace_quotas=quotas)) == [
        "object.change ResourceQuota team-a/nvidia-gpu", "object.prune ResourceQuota team-b/nvidia-gpu",
        "object.prune ResourceQuota team-c/nvidia-gpu"]
    removed(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
    assert [item["metadata"]["name"] for item in store.objects.values()] == ["team-b", "team-a", "team-c"]


def test_a_quota_of_others_is_refused(client: Client, store: Store) -> None:
    store.put(namespace("team-a"))
    store.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "nvidia-gpu", "namespace": "team-a"},
               "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    quotas = {"team-a": {"nvidia.com/gpu": 8}}
    assert codes(plans(client, [DEVICE_PLUGIN], namespace_quotas=quotas)) == ["cluster.object_of_another"]
    assert "object.adopt ResourceQuota team-a/nvidia-gpu" in told(
        plans(client, [DEVICE_PLUGIN], namespace_quotas=quotas, adopt=True))


def test_a_quota_waits_until_a_namespace_that_is_going_is_there_again(client: Client, store: Store) -> None:
    quotas = {"team-a": {"nvidia.com/gpu": 8}, "team-b": {"nvidia.com/gpu": 8}}
    for name in quotas:
        store.put(namespace(name))
    run(client, [DEVICE_PLUGIN], namespace_quotas={"team-a": {"nvidia.com/gpu": 8}})
    for name in quotas:
        store.edit("Namespace", "", name, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    (plan,) = run(client, [DEVICE_PLUGIN], namespace_quotas={**quotas, "team-a": {"nvidia.com/gpu": 4}})
    assert told([plan]) == [] and plan.refusals == () and not plan.complete, "nothing of it is taken away either"
    assert [note.partition(":")[0] for note in plan.notes] == [
        "namespace team-a is being deleted", "namespace team-b is being deleted"]


@pytest.mark.parametrize("leave", ["prune", "remove"])
def test_a_quota_that_went_with_its_namespace_keeps_nothing_back(client: Client, store: Store, leave: str) -> None:
    quotas = {"team-a": {"nvidia.com/gpu": 8}, "team-b": {"nvidia.com/gpu": 8}}
    for name in quotas:
        store.put(namespace(name))
    run(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
    store.answer("DELETE", "/api/v1/namespaces/team-a", {}, None)
    if leave == "prune":
        assert told(run(client, [DEVICE_PLUGIN])) == ["object.prune ResourceQuota team-b/nvidia-gpu"]
    else:
        removed(client, [DEVICE_PLUGIN], namespace_quotas=quotas)
        assert [item["metadata"]["name"] for item in store.objects.values()] == ["team-b"]


@pytest.mark.parametrize("metadata, code", [
    (None, "cluster.namespace_missing"),
    ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, "cluster.namespace_is_leaving"),
])
def test_a_namespace_of_others_that_a_component_needs_has_to_be_there(
    client: Client, store: Store, metadata: Any, code: str
) -> None:
    if metadata is not None:
        store.put(namespace("grafana", **metadata))
    (plan,) = plans(client, [COMPONENTS["gpu_monitoring"]], dashboard_namespace="grafana", rules="none")
    (refusal,) = plan.refusals
    assert refusal.code == code and "namespace grafana" in refusal.found and plan.steps == plan.notes == ()


def test_a_kind_that_the_api_lacks_is_refused_by_name(client: Client, store: Store) -> None:
    made = plans(client, [PLUGIN], monitored=True)
    assert codes(made) == ["cluster.kind_missing"]
    assert "servicemonitors.monitoring.coreos.com" in made[0].refusals[0].remedy


def test_what_others_provide_is_left_to_them(api: Api, client: Client, store: Store) -> None:
    store.put({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": RULES},
               "spec": {"group": "nfd.k8s-sigs.io", "scope": "Cluster", "names": {
                   "kind": "NodeFeatureRule", "plural": "nodefeaturerules"}, "versions": [{"name": "v1alpha1"}]}},
              manager="helm")
    made = plans(client, [FINDER])
    assert told(made) == [] and "helm" in made[0].kept[0].why
    assert told(removed(client, [FINDER])) == []


def test_objects_of_an_older_release_are_found_by_their_app_and_pruned(client: Client, store: Store) -> None:
    run(client)
    old = daemon_set("plugin-of-old", {"namespace": "gpuops", "runtime_class": "nvidia"})
    store.put(old, manager="gpuops")["metadata"]["managedFields"][0]["operation"] = "Apply"
    assert told(run(client)) == ["object.prune DaemonSet gpuops/plugin-of-old"]
    assert told(plans(client)) == []


def test_a_selector_of_an_older_release_means_a_replacement(client: Client, store: Store) -> None:
    run(client)
    there = store.get("DaemonSet", "gpuops", "plugin")
    assert there
    there["spec"]["selector"]["matchLabels"]["app.kubernetes.io/part-of"] = "old"
    made = run(client)
    assert told(made) == ["object.replace DaemonSet gpuops/plugin"]
    assert "immutable" in made[1].steps[0].why
    assert told(plans(client)) == []


def test_another_namespace_takes_everything_along(client: Client, store: Store) -> None:
    run(client)
    made = run(client, namespace="gpu-system")
    assert "object.prune Namespace gpuops" in told(made)
    assert {item["metadata"].get("namespace") for item in store.objects.values()} == {None, "gpu-system"}
    assert told(plans(client, namespace="gpu-system")) == []


def test_another_runtime_class_takes_the_place_of_the_first(client: Client, store: Store) -> None:
    run(client)
    assert told(run(client, runtime_class="gpu"))[-1] == "object.prune RuntimeClass nvidia"
    assert told(plans(client, runtime_class="gpu")) == []


def test_the_last_component_takes_what_all_shared(client: Client, store: Store) -> None:
    run(client)
    first = removed(client, [PLUGIN])
    assert told(first) == ["object.remove DaemonSet gpuops/plugin", "object.remove ConfigMap gpuops/plugin"]
    second = removed(client, [FINDER])
    assert told(second) == [
        "object.remove DaemonSet gpuops/finder", "job.run Job gpuops/prune",
        "object.remove NodeFeatureRule gpuops-gds", "object.remove ClusterRoleBinding gpuops-finder",
        "object.remove ServiceAccount gpuops/finder", "object.remove CustomResourceDefinition " + RULES,
        "object.remove RuntimeClass nvidia", "object.remove Namespace gpuops"]
    assert store.objects == {}
    assert told(removed(client)) == []


def test_what_others_put_there_keeps_the_namespace_and_the_kind(client: Client, store: Store) -> None:
    run(client)
    store.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": "gpuops"}})
    store.put({"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule", "metadata": {"name": "mine"}})
    for passing in ({"name": "kube-root-ca.crt"}, {"name": "made", "ownerReferences": [{"kind": "Deployment"}]}):
        store.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**passing, "namespace": "gpuops"}})
    kept = [str(kept) for plan in removed(client) for kept in plan.kept]
    assert any("mine" in each for each in kept) and any("Secret theirs" in each for each in kept)
    assert {item["metadata"]["name"] for item in store.objects.values()} == {
        "gpuops", "theirs", "mine", RULES, "kube-root-ca.crt", "made"}
    assert told(removed(client)) == []


def test_what_others_have_made_belongs_to_them_whatever_owns_it(client: Client, store: Store) -> None:
    """An operator's operands are owned by an object of the cluster, and its rules by itself."""
    run(client)
    owned = {"ownerReferences": [{"kind": "NicClusterPolicy", "name": "theirs"}]}
    store.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "operand", "namespace": "gpuops", **owned}})
    store.put({"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureRule",
               "metadata": {"name": "rule", **owned}})
    removed(client)
    assert {item["metadata"]["name"] for item in store.objects.values()} == {"gpuops", "operand", "rule", RULES}


def test_a_list_that_may_not_be_read_names_verb_and_resource(client: Client, store: Store) -> None:
    store.denied = {("list", "daemonsets")}
    with pytest.raises(ApiError) as refused:
        run(client)
    assert refused.value.code == "cluster.right_missing" and "list daemonsets.apps" in refused.value.wanted
    assert store.writes == []


def test_a_change_that_could_not_be_seen_through_is_not_begun(client: Client, store: Store) -> None:
    run(client)
    store.writes.clear()
    store.denied = {("get", "daemonsets")}
    with pytest.raises(GpuOpsError) as refused:
        run(client, [PLUGIN], container={"image": "plugin:2"})
    assert refused.value.code == "cluster.rights_missing" and "get daemonsets.apps" in refused.value.found
    assert store.writes == []


@pytest.mark.parametrize("verb", ["bind", "escalate"])
def test_who_may_not_give_a_role_to_others_makes_none(client: Client, store: Store, verb: str) -> None:
    """The server refuses a binding when its role is there: that is after the first write."""
    store.denied = {(verb, "clusterroles"), ("watch", "pods")}
    with pytest.raises(GpuOpsError) as refused:
        run(client, [COMPONENTS["dcgm_exporter"]], pod_labels_in_metrics=True)
    assert refused.value.code == "cluster.rights_missing" and "watch pods" in refused.value.found
    assert store.writes == []


@pytest.mark.parametrize("verb", ["create", "delete"])
def test_a_right_that_a_step_lacks_is_named_before_the_first_write(client: Client, store: Store, verb: str) -> None:
    if verb == "delete":
        run(client)
    store.writes.clear()
    store.denied = {(verb, "serviceaccounts")}
    with pytest.raises(GpuOpsError) as refused:
        run(client, [FINDER], state="present" if verb == "create" else "absent")
    assert refused.value.code == "cluster.rights_missing"
    assert "%s serviceaccounts in namespace gpuops" % verb in refused.value.found
    assert store.writes == []


@pytest.mark.parametrize("name", ["device_plugin", "gpu_feature_discovery"])
def test_a_switch_to_config_manager_and_back_leaves_nothing_of_the_other_mode(
    client: Client, store: Store, name: str
) -> None:
    component, app = COMPONENTS[name], COMPONENTS[name].apps[0]
    groups = {"configs": {"shared": {}}}
    run(client, [component], **groups)
    apart = set(store.objects)
    assert told(run(client, [component], **groups, config_manager=True)) == [
        "object.create ClusterRole gpuops-" + app, "object.create ClusterRoleBinding gpuops-" + app,
        "object.create ConfigMap gpuops/%s-configs" % app,
        "object.prune DaemonSet gpuops/%s-shared" % app, "object.change DaemonSet gpuops/" + app,
        "object.prune ConfigMap gpuops/" + app, "object.prune ConfigMap gpuops/%s-shared" % app]
    assert told(plans(client, [component], **groups, config_manager=True)) == []
    assert told(run(client, [component], **groups)) == [
        "object.create ConfigMap gpuops/" + app, "object.create ConfigMap gpuops/%s-shared" % app,
        "object.change DaemonSet gpuops/" + app, "object.create DaemonSet gpuops/%s-shared" % app,
        "object.prune ConfigMap gpuops/%s-configs" % app,
        "object.prune ClusterRoleBinding gpuops-" + app, "object.prune ClusterRole gpuops-" + app]
    assert set(store.objects) == apart
    removed(client, [component])
    assert store.objects == {}
