# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pod of a validation goes, whatever becomes of the requests that make it."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.cluster_validation import _created

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
