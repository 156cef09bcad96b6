# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The server of the tests answers a list with what Kubernetes would: no test may pass by what a selector leaves out."""
from __future__ import annotations

from typing import Any, List

import pytest
from cluster_api import Api
from cluster_objects import node, pod
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import ApiError, Client, Connection

PODS = "/api/v1/pods"


@pytest.fixture(params=["lists", "store"])
def cluster(api: Api, request: Any) -> Client:
    """Three pods, where the server keeps lists, and where it has a store."""
    items = [pod("bare"), pod("plugin", node_name="gpu-2"), pod("slow", phase="Pending")]
    for item, labels in zip(items, ({}, {"app": "plugin", "a.example/tier": ""}, {"app": "other"})):
        item["metadata"]["labels"] = labels
    if request.param == "lists":
        api.state.pods = items
    else:
        api.state.store = Store()
        for item in items:
            api.state.store.put(item)
    return Client(Connection(kubeconfig=str(api.kubeconfig)))


def names(items: List[Any]) -> List[str]:
    return [item["metadata"]["name"] for item in items]


@pytest.mark.parametrize("selector, expected", [
    ("app=plugin", ["plugin"]),
    ("app==plugin", ["plugin"]),
    ("a.example/tier=", ["plugin"]),
    ("app!=plugin", ["bare", "slow"]),
    ("app in (plugin, nothing)", ["plugin"]),
    ("app notin (plugin,nothing)", ["bare", "slow"]),
    ("app", ["plugin", "slow"]),
    ("!app", ["bare"]),
    ("app,app notin (plugin,nothing)", ["slow"]),
    ("app in (plugin,other),!a.example/tier", ["slow"]),
    ("", ["bare", "plugin", "slow"]),
])
def test_labels_select(cluster: Client, selector: str, expected: List[str]) -> None:
    assert names(cluster.items(PODS, labelSelector=selector)) == expected


@pytest.mark.parametrize("selector, expected", [
    ("spec.nodeName=gpu-2", ["plugin"]),
    ("spec.nodeName!=gpu-2", ["bare", "slow"]),
    ("spec.nodeName=gpu-1,status.phase==Pending", ["slow"]),
    ("metadata.name=bare", ["bare"]),
])
def test_fields_select(cluster: Client, selector: str, expected: List[str]) -> None:
    assert names(cluster.items(PODS, fieldSelector=selector)) == expected


@pytest.mark.parametrize("query", [
    {"labelSelector": "app in plugin"}, {"labelSelector": "app=a b"}, {"fieldSelector": "spec.nodeName"},
    {"fieldSelector": "spec.hostPID=true"}])
def test_what_the_server_does_not_take_is_no_empty_list(cluster: Client, query: Any) -> None:
    with pytest.raises(ApiError) as error:
        cluster.items(PODS, **query)
    assert error.value.status == 400


def test_both_select(cluster: Client) -> None:
    assert names(cluster.items(PODS, fieldSelector="spec.nodeName=gpu-1", labelSelector="app")) == ["slow"]


def test_nodes_are_selected_too(api: Api) -> None:
    api.state.nodes = [node("gpu-1", labels={"gpu": "true"}), node("cpu-1", unschedulable=True)]
    client = Client(Connection(kubeconfig=str(api.kubeconfig)))
    assert names(client.items("/api/v1/nodes", labelSelector="gpu=true")) == ["gpu-1"]
    assert names(client.items("/api/v1/nodes", fieldSelector="spec.unschedulable=true")) == ["cpu-1"]
