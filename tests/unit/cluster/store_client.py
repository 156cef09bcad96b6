# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A client whose requests are answered in this process: for what is done once for each request of a long way."""
from __future__ import annotations

import copy
import json
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from object_store import Store

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    NO_ANSWER,
    SERVER_SIDE_APPLY,
    Client,
    Connection,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


class StoreClient(Client):
    """Of a Store, without a server. before, after: what happens then, by the number of the request."""

    def __init__(self, store: Store) -> None:
        super().__init__(Connection(host="http://store", api_key="none"), sleep=lambda seconds: None)
        self.store, self.sent = store, 0
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[int], None] = lambda number: None

    def _answer(self, method: str, path: str, query: Optional[Mapping[str, Any]] = None,
                body: Optional[Dict[str, Any]] = None, content_type: str = "application/json",
                *_more: Any, proof: Callable[[], None] = lambda: None, **_options: Any
                ) -> Tuple[int, bytes, Optional[float]]:
        proof()
        self.sent += 1
        number = self.sent
        self.before(number)
        asked = {key: str(value) for key, value in (query or {}).items()}
        told = self.store.answer(method, path, asked, copy.deepcopy(body), content_type == SERVER_SIDE_APPLY)
        self.after(number)
        assert told is not None, path
        return told[0], json.dumps(told[1]).encode(), None


def no_answer() -> GpuOpsError:
    """As of a server that is away."""
    return GpuOpsError(NO_ANSWER, "no answer", "an answer", "see to the server")
