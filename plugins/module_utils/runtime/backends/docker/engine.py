# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A client of the Docker Engine API, as small as our few questions: no `docker` command has to be installed."""
from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Dict, FrozenSet, Optional
from urllib.parse import quote

from ....core.errors import GpuOpsError


class Engine:
    """Questions to the daemon behind a socket. timeout: seconds for one answer."""

    def __init__(self, socket_path: str, timeout: float = 30) -> None:
        self.socket_path = socket_path
        self.timeout = timeout

    def info(self) -> Dict[str, Any]:
        """What the daemon has in effect, such as Runtimes and DefaultRuntime."""
        return dict(self._get("/info") or {})

    def running_containers(self) -> FrozenSet[str]:
        return frozenset(each["Id"] for each in self._get("/containers/json") or [])

    def exit_code(self, container: str) -> Optional[int]:
        """How a container ended; None when it is gone or still runs."""
        state = (self._get("/containers/%s/json" % quote(container, safe="")) or {}).get("State", {})
        return None if state.get("Running") else state.get("ExitCode")

    def _get(self, path: str) -> Any:
        """The answer as data, None for what is not there. Without a version in its path, the daemon's own applies."""
        connection = _UnixConnection(self.socket_path, self.timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise self._error("%s: %d %s" % (path, answer.status, text.strip()[:200]))
            return json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._error("%s: %s" % (path, error or type(error).__name__)) from error
        finally:
            connection.close()

    def _error(self, found: str) -> GpuOpsError:
        return GpuOpsError(
            "runtime.docker_silent",
            found="%s: %s" % (self.socket_path, found),
            wanted="an answer of the Docker Engine API",
            remedy="see whether Docker runs, and its journal",
        )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)
