# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A proxy before a laboratory's API server, which spoils requests."""
from __future__ import annotations

import contextlib
import http
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

import urllib3

from gpulab.lab import Lab

TOKEN = "none"
WRITERS = ("PATCH", "DELETE")
PASSED_ON = ("Accept", "Content-Type", "User-Agent")
# What an API server says that sheds load
RETRY_AFTER_SECONDS = "1"


def _nothing() -> None:
    """What happens before a connection is closed, where nobody says otherwise."""


@dataclass
class Proxy:
    """Passes requests on to the API server, as its administrator, but for those that it spoils.

    kind:      a status, 'reset' (not passed on), 'lost' (passed on, and its answer is not).
    spoils:    the number of the one that is spoiled; 0 for the first of every request. Who waits for something asks
               the same again and again, not equally often in each run: that counts as one.
    lasting:   all are spoiled from that one on.
    meanwhile: done before the connection of a request that is reset or lost is closed.
    met:       whether one has been spoiled.
    seen:      the requests that count; last is the one before, whether it counts or not.
    """

    lab: Lab
    kind: str = ""
    spoils: int = 0
    lasting: bool = False
    meanwhile: Callable[[], None] = _nothing
    met: bool = False
    seen: List[Tuple[str, str]] = field(default_factory=list)
    last: Tuple[str, str] = ("", "")
    server: Optional[ThreadingHTTPServer] = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Proxy:
        pki = self.lab.control_plane.authority.directory  # type: ignore[union-attr]
        self.pool = urllib3.PoolManager(ca_certs=str(pki / "ca.crt"), cert_file=str(pki / "admin.crt"),
                                        key_file=str(pki / "admin.key"), maxsize=8)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *reason: Any) -> None:
        assert self.server is not None
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        assert self.server is not None
        return "http://127.0.0.1:%d" % self.server.server_address[1]

    def kubeconfig(self, path: Path) -> Path:
        """A kubeconfig that leads here."""
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {"token": TOKEN}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}]}))
        return path

    def spoil(self, kind: str, number: int = 0, lasting: bool = False,
              meanwhile: Callable[[], None] = _nothing) -> None:
        """Count anew, and spoil this request; '' for none."""
        with self.lock:
            self.kind, self.spoils, self.lasting, self.meanwhile = kind, number, lasting, meanwhile
            self.met, self.last = False, ("", "")
            self.seen.clear()

    def takes(self, method: str, path: str) -> bool:
        """Count a request, and say whether it is spoiled."""
        with self.lock:
            again, self.last = (method, path) == self.last, (method, path)
            counts = not again or method != "GET"
            if counts:
                self.seen.append((method, path))
            number = len(self.seen)
            if not answers(self.kind, method, path):
                return False
            if not self.spoils:
                # A deletion is asked for again with a look between, and would never be let through.
                spoiled = not again and (self.kind, method) != ("409", "DELETE")
            elif self.lasting:
                spoiled = number >= self.spoils
            else:
                spoiled = counts and number == self.spoils
            self.met |= spoiled
            return spoiled


def answers(kind: str, method: str, path: str) -> bool:
    """Whether a request can meet a kind of fault: a conflict is answered to writers, and 410 to who lists."""
    if kind == "409":
        return method in WRITERS
    if kind == "410":
        return method == "GET" and "limit" in parse_qs(urlsplit(path).query)
    return bool(kind)


def status_of(code: int) -> Dict[str, Any]:
    """An error as the API server words it."""
    phrase = http.HTTPStatus(code).phrase
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": phrase.replace(" ", ""), "message": "out of order: %s" % phrase}


def _handler(proxy: Proxy) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *arguments: Any) -> None:
            """Nobody reads it."""

        def handle(self) -> None:
            """Whoever asked may have died meanwhile."""
            with contextlib.suppress(ConnectionError):
                super().handle()

        def pass_on(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            kind = proxy.kind if proxy.takes(self.command, self.path) else ""
            if kind.isdigit():
                self.answer(int(kind), json.dumps(status_of(int(kind))).encode())
                return
            if kind != "reset":
                headers = {name: self.headers[name] for name in PASSED_ON if self.headers[name]}
                answer = proxy.pool.request(self.command, proxy.lab.network.api_url + self.path, body=body,
                                            headers=headers, retries=False)
            if kind:
                proxy.meanwhile()
                self.close_connection = True
                return
            self.answer(answer.status, answer.data)

        def answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            if status == http.HTTPStatus.TOO_MANY_REQUESTS:
                self.send_header("Retry-After", RETRY_AFTER_SECONDS)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_POST = do_DELETE = pass_on

    return Handler
