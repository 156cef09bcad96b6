# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A server for every test that wants one, and no trace of the developer's own cluster."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster_api import Api  # noqa: E402


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
