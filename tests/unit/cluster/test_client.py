# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The client against a real HTTP server: paging, credentials, and errors that a person can act on."""
from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from cluster_api import TOKEN, Answer, Api, Fault, kubeconfig
from cluster_objects import h100_node
from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    ApiError,
    Client,
    Connection,
    is_outage,
    right_of,
    secrets,
    server_named,
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


def test_the_next_page_is_asked_for_while_one_is_read(api: Api) -> None:
    api.state.nodes = [h100_node("gpu-%d" % number) for number in range(3)]
    api.state.page = 1
    asked: List[int] = []

    def keep(node: Dict[str, Any]) -> str:
        deadline = time.monotonic() + 5
        while len(api.state.requests) < min(3, len(asked) + 2) and time.monotonic() < deadline:
            time.sleep(0.01)
        asked.append(len(api.state.requests))
        return str(node["metadata"]["name"])

    assert connect(api).items("/api/v1/nodes", keep=keep) == ["gpu-0", "gpu-1", "gpu-2"]
    assert asked == [2, 3, 3] and len(api.state.connections) == 1


@pytest.mark.parametrize("page", [
    '{"items": [{"n": %(n)d}], "metadata": {"continue": "%(c)s"}}',
    '{"metadata": {"x": {"continue": "nowhere"}, "continue": "%(c)s"}, "items": [{"n": %(n)d}]}',
    '{"metadata": {"continue": "%(c)s"}, "items": [{"n": %(n)d, "metadata": {"continue": "nowhere"}}]}',
    '{"x": {"metadata": {"continue": "nowhere"}}, "metadata": {"continue": "%(c)s"}, "items": [{"n": %(n)d}]}',
])
def test_where_a_page_goes_on_is_found_wherever_it_stands(api: Api, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    client = connect(api)
    pages = {"": (1, "b"), "b": (2, "c"), "c": (3, "")}

    def answer(_method: str, _path: str, query: Dict[str, Any], accept: str) -> Tuple[int, bytes, None]:
        number, following = pages[query.get("continue", "")]
        return 200, (page % {"n": number, "c": following}).encode(), None

    monkeypatch.setattr(client, "_answer", answer)
    assert [each["n"] for each in client.items("/x")] == [1, 2, 3]


def test_who_reads_a_page_and_fails_is_not_held_up_by_the_next_one(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.state.nodes = [h100_node("gpu-%d" % number) for number in range(2)]
    api.state.page = 1
    client = connect(api)
    answered, plain = threading.Event(), client._answer

    def answer(*arguments: Any, **options: Any) -> Any:
        if "continue" in arguments[2]:
            answered.wait(30)
        return plain(*arguments, **options)

    monkeypatch.setattr(client, "_answer", answer)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        client.items("/api/v1/nodes", keep=lambda node: 1 // 0)
    assert time.monotonic() - began < 10
    answered.set()


class TestOutage:
    def test_a_server_that_is_not_there_or_cannot_serve_is_one(self, api: Api) -> None:
        for status, outage in ((429, True), (500, True), (503, True), (504, True), (401, False), (403, False),
                               (404, False), (410, False)):
            error = ApiError("cluster.request_refused", status, "", "f", "w", "r")
            assert is_outage(error) == outage, status
        client = connect(api)
        api.close()
        with pytest.raises(GpuOpsError) as silent:
            client.items("/api/v1/nodes")
        assert is_outage(silent.value)

    def test_a_certificate_that_does_not_fit_is_none(self, api: Api) -> None:
        # It speaks no TLS at all
        client = Client(Connection(host=api.url.replace("http:", "https:"), api_key=TOKEN))
        with pytest.raises(GpuOpsError) as refused:
            client.items("/api/v1/nodes")
        assert refused.value.code == "cluster.no_answer" and not is_outage(refused.value)

    def test_what_is_wrong_here_is_none(self) -> None:
        assert not is_outage(GpuOpsError("cluster.kubeconfig_unusable", "f", "w", "r"))


class TestServerNamed:
    def test_it_is_that_of_the_context_that_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        there = kubeconfig("https://a.example")
        there["contexts"].append({"name": "other", "context": {"cluster": "b", "user": "test"}})
        there["clusters"].append({"name": "b", "cluster": {"server": "https://b.example"}})
        (tmp_path / "config").write_text(json.dumps(there))
        path = str(tmp_path / "config")
        assert server_named(Connection(kubeconfig=path)) == "https://a.example"
        assert server_named(Connection(kubeconfig=there, context="other")) == "https://b.example"
        assert server_named(Connection(kubeconfig=path, host="https://c.example")) == "https://c.example"
        monkeypatch.setenv("KUBECONFIG", "/nonexistent:%s" % path)
        assert server_named(Connection(context="other")) == "https://b.example"
        # The first file that says a thing counts
        (tmp_path / "first").write_text(json.dumps({"current-context": "other"}))
        assert server_named(Connection(kubeconfig="%s:%s" % (tmp_path / "first", path))) == "https://b.example"

    def test_a_pod_knows_it_from_its_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        assert server_named(Connection()) == "10.96.0.1:443"

    @pytest.mark.parametrize("text", ["", "{", "[]", "contexts: [{}]", "current-context: x"])
    def test_what_leads_nowhere_names_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config").write_text(text)
        assert server_named(Connection(kubeconfig=str(tmp_path / "config"))) == ""
        assert server_named(Connection(kubeconfig="/nonexistent")) == ""


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
