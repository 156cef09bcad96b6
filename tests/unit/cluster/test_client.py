# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The client against a real HTTP server: paging, credentials, and errors that a person can act on."""
from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Dict, List

import pytest
from cluster_api import TOKEN, Answer, Api, Fault, kubeconfig
from cluster_objects import h100_node
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    ApiError,
    Client,
    Connection,
    right_of,
    secrets,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


def connect(api: Api, **options: Any) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig), **options))


def test_a_list_is_read_page_by_page(api: Api) -> None:
    api.state.nodes = [h100_node("gpu-%d" % number) for number in range(7)]
    api.state.page = 3
    names = [node["metadata"]["name"] for node in connect(api).items("/api/v1/nodes")]
    assert names == ["gpu-%d" % number for number in range(7)]
    assert [request.query.get("continue") for request in api.state.requests] == [None, "3", "6"]


@pytest.mark.parametrize("how", ["path", "dictionary", "host and token"])
def test_three_ways_in(api: Api, how: str) -> None:
    options: Dict[str, Dict[str, Any]] = {
        "path": {"kubeconfig": str(api.kubeconfig)},
        "dictionary": {"kubeconfig": kubeconfig(api.url)},
        "host and token": {"host": api.url + "/", "api_key": TOKEN},
    }
    assert Client(Connection(**options[how])).items("/api/v1/nodes") == []


def test_impersonation_names_user_and_every_group(api: Api) -> None:
    connect(api, impersonate_user="ann", impersonate_groups=["a", "b"]).items("/api/v1/nodes")
    request = api.state.requests[0]
    assert request.header("Impersonate-User") == ["ann"]
    assert ", ".join(request.header("Impersonate-Group")) == "a, b"


def test_wrong_credentials_name_server_and_source(api: Api) -> None:
    with pytest.raises(ApiError) as refused:
        Client(Connection(kubeconfig=str(api.kubeconfig), api_key="wrong")).items("/api/v1/nodes")
    assert refused.value.status == 401
    assert api.url in refused.value.found and str(api.kubeconfig) in refused.value.remedy


def test_a_forbidden_list_keeps_the_servers_words(api: Api) -> None:
    api.state.refuse = Answer(403, 'nodes is forbidden: User "ann" cannot list resource "nodes"')
    with pytest.raises(ApiError, match='User "ann" cannot list'):
        connect(api).items("/api/v1/nodes")


def test_an_unreachable_server_is_named_with_its_kubeconfig(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % closed.getsockname()[1]
    with pytest.raises(GpuOpsError) as unreachable:
        Client(Connection(kubeconfig=kubeconfig(url), context="test")).items("/api/v1/nodes")
    assert url in unreachable.value.found and "context test" in unreachable.value.found


@pytest.mark.parametrize("content, words", [
    (None, "there is no file"),
    ("a: [", "not YAML"),
    ("", "kubeconfig"),
    ("apiVersion: v1\nkind: Config\ncurrent-context: gone\ncontexts: []\nclusters: []\nusers: []\n", "gone"),
])
def test_a_wrong_kubeconfig(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "wrong"
    if content is not None:
        path.write_text(content)
    with pytest.raises(GpuOpsError) as refused:
        Client(Connection(kubeconfig=str(path)))
    assert str(path) in refused.value.found and words in refused.value.found
    assert "K8S_AUTH_KUBECONFIG" in refused.value.remedy


def test_a_wrong_context(api: Api) -> None:
    with pytest.raises(GpuOpsError, match="context elsewhere"):
        connect(api, context="elsewhere")


def test_a_server_that_is_no_api_server(tmp_path: Path, api: Api) -> None:
    api.state.objects["/api/v1/namespaces/x"] = ["not", "an", "object"]  # type: ignore[assignment]
    with pytest.raises(GpuOpsError, match="no JSON object"):
        connect(api).get("/api/v1/namespaces/x")


def test_secrets_are_not_in_messages(api: Api) -> None:
    with pytest.raises(ApiError) as refused:
        Client(Connection(host=api.url, api_key="very-secret")).items("/api/v1/nodes")
    assert "very-secret" not in str(refused.value)


def test_secrets_are_those_of_every_way_in() -> None:
    access = Connection(
        kubeconfig=kubeconfig("https://192.0.2.1:6443"), api_key="a-key", password="a-password",
        proxy="http://someone:a-proxys@192.0.2.2:3128",
        proxy_headers={"basic_auth": "someone:a-header", "user_agent": "x"})
    assert sorted(secrets(access)) == sorted(["a-key", "a-password", "a-proxys", "someone:a-header", TOKEN])
    assert secrets(Connection(kubeconfig="/etc/kubernetes/admin.conf", proxy="http://192.0.2.2:3128")) == ()


def test_of_a_kubeconfigs_user_only_secrets_are_hidden() -> None:
    """What is hidden is taken out of every text: the name of a pod's namespace must not be."""
    config = kubeconfig("https://192.0.2.1:6443")
    config["users"] = [{"name": "exec", "user": {"username": "admin", "client-key-data": "a-key", "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "aws", "interactiveMode": "Never",
        "args": ["--region", "us-west-2", "eks", "get-token", "--cluster-name", "prod"],
        "env": [{"name": "AWS_PROFILE", "value": "default"}, {"name": "AWS_SECRET_ACCESS_KEY", "value": "a-secret"}],
    }}}, {"name": "oidc", "user": {"auth-provider": {"name": "oidc", "config": {
        "client-id": "kubernetes", "client-secret": "b-secret", "id-token": "c-secret", "refresh-token": "d-secret"}}}}]
    assert sorted(secrets(Connection(kubeconfig=config))) == ["a-key", "a-secret", "b-secret", "c-secret", "d-secret"]


# Sent again

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}
PLACE = "/api/v1/namespaces/x"


class Pauses:
    """The pauses of a client, and a clock that goes with them."""

    def __init__(self) -> None:
        self.seconds: List[float] = []

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def clock(self) -> float:
        return sum(self.seconds)

    def client(self, api: Api) -> Client:
        return Client(Connection(kubeconfig=str(api.kubeconfig)), clock=self.clock, sleep=self.sleep)


@pytest.mark.parametrize("kind", ["429", "500", "502", "503", "504", "reset", "lost"])
def test_what_may_be_done_twice_is_sent_again(api: Api, kind: str) -> None:
    api.state.store, pauses = Store(), Pauses()
    client = pauses.client(api)
    api.state.fault = Fault(kind)
    assert client.items("/api/v1/configmaps") == []
    uid = client.apply(PLACE, NAMESPACE)["metadata"]["uid"]
    assert client.apply(PLACE, NAMESPACE, dry_run=True)["metadata"]["uid"] == uid
    client.delete(PLACE, uid)
    assert api.state.store.objects == {} and len(pauses.seconds) == 4
    assert [each == 0.01 for each in pauses.seconds] == [kind == "429"] * 4


def test_a_merge_is_tried_again_when_another_writer_was_quicker(api: Api) -> None:
    api.state.store, pauses = Store(), Pauses()
    api.state.fault = Fault("409", 1)
    assert pauses.client(api).apply(PLACE, NAMESPACE)["metadata"]["name"] == "x"


@pytest.mark.parametrize("kind", ["500", "reset"])
def test_what_may_not_be_done_twice_is_sent_once(api: Api, kind: str) -> None:
    pauses = Pauses()
    client = pauses.client(api)
    api.state.nodes = [h100_node()]
    for act in (lambda: client.create("/api/v1/namespaces/x/pods", {}), lambda: client.delete("/api/v1/nodes/gpu-1"),
                lambda: client.patch("/api/v1/nodes/gpu-1", {"spec": {}})):
        api.state.requests.clear()
        api.state.fault = Fault(kind)
        with pytest.raises(GpuOpsError):
            act()
        assert len(api.state.requests) == 1 and pauses.seconds == []


def test_a_server_that_stays_busy_is_given_up(api: Api) -> None:
    api.state.refuse, pauses = Answer(503, "no etcd"), Pauses()
    with pytest.raises(ApiError, match="no etcd"):
        pauses.client(api).get(PLACE)
    assert pauses.seconds == [0.25, 0.5, 1, 2, 4]


def test_a_server_that_nobody_has_reached_is_not_waited_for(tmp_path: Path) -> None:
    pauses = Pauses()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % closed.getsockname()[1]
    client = Client(Connection(kubeconfig=kubeconfig(url)), clock=pauses.clock, sleep=pauses.sleep)
    with pytest.raises(GpuOpsError):
        client.get(PLACE)
    assert pauses.seconds == []


def test_a_server_that_restarts_is_waited_for(api: Api) -> None:
    pauses = Pauses()
    client = pauses.client(api)
    assert client.find(PLACE) is None
    api.state.fault = Fault("reset", 2)
    api.close()
    with pytest.raises(GpuOpsError):
        client.get(PLACE)
    assert len(pauses.seconds) == 5


def test_a_list_that_the_server_forgets_begins_again_in_one_piece(api: Api) -> None:
    api.state.nodes = [h100_node("gpu-%d" % number) for number in range(700)]
    api.state.page = 10 ** 6
    api.state.fault = Fault("410", 2)
    nodes = connect(api).items("/api/v1/nodes", keep=lambda node: node["metadata"]["name"])
    assert nodes == ["gpu-%d" % number for number in range(700)]
    assert [request.query.get("limit") for request in api.state.requests] == ["500", "500", None]


def test_of_a_list_only_what_is_needed_is_kept(api: Api) -> None:
    api.state.nodes = [h100_node("gpu-%d" % number) for number in range(3)]
    assert connect(api).items("/api/v1/nodes", keep=lambda node: node["metadata"]["name"]
                              if node["metadata"]["name"] != "gpu-1" else None) == ["gpu-0", "gpu-2"]


def test_another_object_of_the_name_is_not_deleted(api: Api) -> None:
    api.state.store = Store()
    client = connect(api)
    client.apply(PLACE, NAMESPACE)
    assert client.delete(PLACE, "another") == {}
    assert PLACE in api.state.store.objects
    assert client.delete("/api/v1/namespaces/none", "any") == {}


@pytest.mark.parametrize("method, path, right", [
    ("GET", "/api/v1/nodes", "list nodes"),
    ("GET", "/api/v1/nodes/gpu-1", "get nodes"),
    ("GET", "/api/v1/namespaces/x", "get namespaces"),
    ("GET", "/apis/apps/v1/daemonsets", "list daemonsets.apps"),
    ("PATCH", "/apis/apps/v1/namespaces/x/daemonsets/y", "patch daemonsets.apps in namespace x"),
    ("POST", "/api/v1/namespaces/x/pods/y/eviction", "create pods/eviction in namespace x"),
    ("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/y", "delete clusterroles.rbac.authorization.k8s.io"),
    ("GET", "/apis", "list /apis"),
    ("GET", "/api", "list /api"),
])
def test_a_right_is_named_as_rbac_names_it(method: str, path: str, right: str) -> None:
    assert right_of(method, path) == right
