# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A server, its store of objects and a client for every test that wants them; nothing of the developer's cluster."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster_api import Api  # noqa: E402
from object_store import Store  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection  # noqa: E402


@pytest.fixture(autouse=True)
def no_cluster_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("K8S_AUTH_", "KUBE")):
            monkeypatch.delenv(name)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    server = Api(tmp_path)
    yield server
    server.close()


@pytest.fixture
def store(api: Api) -> Store:
    api.state.store = Store()
    return api.state.store


@pytest.fixture
def client(api: Api, store: Store) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None)
