# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The client against a real HTTP server: paging, credentials, and errors that a person can act on."""
from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Dict

import pytest
from cluster_api import TOKEN, Answer, Api, kubeconfig
from cluster_objects import h100_node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    ApiError,
    Client,
    Connection,
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
