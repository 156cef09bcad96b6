# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A server with a store of objects, and the client of it."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster_api import Api  # noqa: E402
from object_store import Store  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection  # noqa: E402


@pytest.fixture
def store(api: Api) -> Store:
    api.state.store = Store()
    return api.state.store


@pytest.fixture
def client(api: Api, store: Store) -> Client:
    return Client(Connection(kubeconfig=str(api.kubeconfig)), sleep=lambda seconds: None)
