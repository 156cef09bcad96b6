# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Users who may not list everything, may only look, or lack what a role of ours grants."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from cluster_api import Api
from object_store import Store
from small_components import PLUGIN, look, plans, run, told

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import common
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.device_plugin import DEVICE_PLUGIN
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.kinds import Key
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.model import Component, complete
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.observation import (
    ServerDryRun,
    observe,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.planner import plan_component
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuops"}}
NARROW = ("list", "*")


def lists(api: Api) -> List[str]:
    return [request.path for request in api.state.requests if request.method == "GET" and "limit" in request.query]


def seen(client: Client, component: Component = PLUGIN) -> Any:
    """The plan of a component, of somebody who only looks."""
    parameters = {component.name: complete(component, {})}
    live = observe(client, [component], parameters)
    return plan_component(component, parameters[component.name], live, ServerDryRun(client, only_looks=True))


def test_who_may_list_everything_is_asked_for_each_kind_once(api: Api, client: Client, store: Store) -> None:
    run(client)
    api.state.requests.clear()
    look(client)
    assert "/api/v1/configmaps" in lists(api)
    assert not any("/namespaces/" in path for path in lists(api))


def test_others_look_where_accounts_and_workloads_are(api: Api, client: Client, store: Store) -> None:
    run(client)
    whole = look(client)
    store.denied = {NARROW}
    api.state.requests.clear()
    assert look(client) == whole
    assert "/api/v1/namespaces/gpuops/configmaps" in lists(api) and "/api/v1/configmaps" not in lists(api)
    assert told(plans(client)) == []


def test_quotas_of_users_are_found_and_nothing_else_is_looked_for_beside_them(
    api: Api, client: Client, store: Store
) -> None:
    store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
    run(client, [DEVICE_PLUGIN], namespace_quotas={"team-a": {"nvidia.com/gpu": 8}})
    store.denied = {NARROW}
    api.state.requests.clear()
    assert told(plans(client, [DEVICE_PLUGIN])) == ["object.prune ResourceQuota team-a/nvidia-gpu"]
    assert "/api/v1/resourcequotas" in lists(api) and not any("team-a" in path for path in lists(api))


def test_what_is_left_in_another_namespace_is_found_by_its_account(client: Client, store: Store) -> None:
    """A run that was killed on its way from one namespace to another left what goes last."""
    store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    run(client, namespace="elsewhere")
    store.denied = {NARROW}
    workloads = [item for item in store.objects.values() if item["kind"] == "DaemonSet"]
    for item in workloads:
        del store.objects[store.path_of(item)]
    assert {Key("ServiceAccount", "elsewhere", "finder"), Key("ConfigMap", "elsewhere", "plugin")} <= set(
        look(client).objects)
    assert [step for step in told(run(client)) if "elsewhere/" in step] == [
        "object.prune ServiceAccount elsewhere/finder", "object.prune ConfigMap elsewhere/plugin"]


def test_who_only_looks_tries_nothing_that_he_may_not(api: Api, client: Client, store: Store) -> None:
    store.put(NAMESPACE)
    whole = plans(client, [PLUGIN])[0]
    store.denied = {("patch", "configmaps"), ("patch", "daemonsets"), ("patch", "runtimeclasses")}
    api.state.requests.clear()
    plan = seen(client)
    assert told([plan]) == told([whole])
    assert not any(request.method == "PATCH" for request in api.state.requests)
    (note,) = plan.notes
    assert "this user may not change RuntimeClass nvidia, ConfigMap gpuops/plugin, DaemonSet gpuops/plugin" in note


def test_a_change_that_may_not_be_tried_is_shown_as_it_is_meant(client: Client, store: Store) -> None:
    run(client, [PLUGIN], data={"config.yaml": "a: 2\n", "other": "x"})
    store.denied = {("patch", "configmaps")}
    plan = seen(client)
    (step,) = plan.steps
    assert step.action == "object.change" and "a: 1" in step.change["after"] and plan.notes


def test_who_wants_it_done_is_refused_what_the_server_forbids(client: Client, store: Store) -> None:
    store.put(NAMESPACE)
    store.denied = {("patch", "configmaps")}
    dry_run = ServerDryRun(client)
    parameters = {"plugin": complete(PLUGIN, {})}
    plan = plan_component(PLUGIN, parameters["plugin"], observe(client, [PLUGIN], parameters), dry_run)
    assert len(dry_run.forbidden) == 1 and "object.create ConfigMap gpuops/plugin" in told([plan])


def with_role(parameters: Any) -> List[Dict[str, Any]]:
    return common.role("plugin", parameters, [common.rule("", ["events"], ["create"])])


@pytest.mark.parametrize("escalates", [False, True])
def test_a_role_is_made_by_who_has_what_it_grants(client: Client, store: Store, escalates: bool) -> None:
    component = Component("role", "a role", ("plugin",), {}, with_role)
    store.denied = {("create", "events")} if escalates else {("create", "events"), ("escalate", "roles")}
    if escalates:
        assert run(client, [component])
        return
    with pytest.raises(GpuOpsError) as refused:
        run(client, [component])
    assert refused.value.code == "cluster.rights_missing"
    assert "create events in namespace gpuops" in refused.value.found
    assert store.writes == []
