# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small HTTP server that answers as a Kubernetes API server does, for tests over a real connection."""
from __future__ import annotations

import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple
from urllib.parse import parse_qs, urlsplit

from list_selectors import Unreadable, selector
from object_store import Store

TOKEN = "a-token"
# Of kinds that every API server has, be there an object of them or not
LISTS = ("/api/v1/namespaces", "/apis/apps/v1/daemonsets", "/apis/policy/v1/poddisruptionbudgets")
# By which runs know of each other
OF_BOOKS = re.compile("/apis/coordination.k8s.io/v1/|/api/v1/namespaces/[^/]+(/configmaps/[^/]+)?$")


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    query: Dict[str, str]
    headers: List[Tuple[str, str]]
    body: Any

    @property
    def is_apply(self) -> bool:
        """Of a PATCH, whether it is a server-side apply."""
        return self.header("content-type") != ["application/merge-patch+json"]

    def header(self, name: str) -> List[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


@dataclass
class Answer:
    """A status and the words of the API server. cause: a reason and a message of its details."""

    status: int
    message: str
    cause: Tuple[str, str] = ("", "")
    retry_after: str = ""


def blocked(name: str) -> Answer:
    """A disruption budget's answer."""
    return Answer(429, "Cannot evict pod as it would violate the pod's disruption budget.",
                  ("DisruptionBudget", "The disruption budget %s needs 1 healthy pods and has 1 currently" % name))


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: an error status, or a connection that ends.

    kind:   'reset' ends it before the request is carried out, 'lost' after it. 409 is for writers, 410 for who
            continues a list.
    number: which request of all it is; 0 for each that is not the same as the one before.
    """

    kind: str
    number: int = 0

    def meets(self, requests: List[Request]) -> bool:
        last = requests[-1]
        if self.kind == "409" and last.method not in (("PATCH", "DELETE") if self.number else ("PATCH",)):
            return False
        if self.kind == "410" and "continue" not in last.query:
            return False
        if self.number:
            return self.number == len(requests)
        before = requests[-2] if len(requests) > 1 else None
        return before is None or (before.method, before.path, before.query) != (last.method, last.path, last.query)


@dataclass
class State:
    """The cluster behind the server. With a store, that is what there is of objects.

    lists:     {path: items} of kinds that have no place of their own.
    books:     Leases, the record of rollouts and their namespaces, where there is no store.
    evictions: {pod: answers to its evictions, in their order}; after the last, or an answer of 201, it goes.
    """

    nodes: List[Dict[str, Any]] = field(default_factory=list)
    pods: List[Dict[str, Any]] = field(default_factory=list)
    lists: Dict[str, List[Dict[str, Any]]] = field(default_factory=dict)
    objects: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    page: int = 500
    requests: List[Request] = field(default_factory=list)
    evictions: Dict[str, List[Answer]] = field(default_factory=dict)
    conflicts: int = 0
    refuse: Optional[Answer] = None
    terminating: Set[str] = field(default_factory=set)
    store: Optional[Store] = None
    books: Store = field(default_factory=Store)
    fault: Optional[Fault] = None
    connections: Set[Tuple[str, int]] = field(default_factory=set)


class Api:
    """One server on a free port of the loopback address, with a kubeconfig that leads to it."""

    def __init__(self, directory: Path) -> None:
        self.state = State()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.state))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = "http://127.0.0.1:%d" % self._server.server_address[1]
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(self.url)))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, method: str, path: str) -> int:
        return len([each for each in self.state.requests if (each.method, each.path) == (method, path)])


def kubeconfig(url: str) -> Dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": TOKEN}}],
    }


def _handler(state: State) -> type:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one packet: two would wait for each other, 40 ms a request
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *arguments: Any) -> None:
            """Tests read state.requests instead."""

        # Whether what is done now is not told
        unanswered = False

        def answer(self, status: int, content: Dict[str, Any], retry_after: str = "") -> None:
            if self.unanswered:
                return
            data = json.dumps(content).encode()
            self.send_response(status)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def fail(self, status: int, message: str, cause: Tuple[str, str] = ("", ""), retry_after: str = "") -> None:
            details = {"causes": [{"reason": cause[0], "message": cause[1]}]} if cause[0] else {}
            self.answer(status, {"kind": "Status", "status": "Failure", "code": status, "message": message,
                                 "details": details}, retry_after)

        def take(self) -> Request:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            request = Request(self.command, parts.path, query, list(self.headers.items()), body)
            state.requests.append(request)
            state.connections.add(self.client_address)
            return request

        def hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def meets_fault(self, request: Request) -> bool:
            """Whether that is all that becomes of this request."""
            if state.fault is None or not state.fault.meets(state.requests):
                return False
            kind = state.fault.kind
            if kind == "lost" and state.store is not None:
                state.store.answer(request.method, request.path, request.query, request.body, request.is_apply)
            elif kind == "lost":
                self.unanswered = True
                getattr(self, "do_" + request.method.lower())(request)
            if kind in ("reset", "lost"):
                self.hang_up()
            else:
                self.fail(int(kind), "out of order", retry_after="0.01" if kind == "429" else "")
            return True

        def handle_any(self) -> None:
            request = self.take()
            if self.headers.get("Authorization") != "Bearer " + TOKEN:
                self.fail(401, "Unauthorized")
            elif state.refuse is not None:
                self.fail(state.refuse.status, state.refuse.message)
            elif self.meets_fault(request) or self.is_stored(request):
                return
            else:
                getattr(self, "do_" + request.method.lower())(request)

        def is_stored(self, request: Request) -> bool:
            in_books = OF_BOOKS.match(request.path) and request.path not in state.objects
            store = state.books if state.store is None and in_books else state.store
            if store is None:
                return False
            answer = store.answer(request.method, request.path, request.query, request.body, request.is_apply)
            if answer is not None:
                self.answer(*answer)
            return answer is not None

        do_GET = do_PATCH = do_POST = do_DELETE = handle_any

        def do_get(self, request: Request) -> None:
            if request.path == "/api/v1/nodes":
                self.page(request, "Node", state.nodes)
            elif request.path == "/api/v1/pods":
                self.page(request, "Pod", state.pods)
            elif request.path in LISTS:
                self.page(request, "", state.lists.get(request.path, []))
            elif re.fullmatch("/api/v1/namespaces/[^/]+/pods", request.path):
                namespace = request.path.split("/")[-2]
                self.page(request, "Pod", [pod for pod in state.pods if pod["metadata"]["namespace"] == namespace])
            else:
                found = self.one(request.path)
                self.answer(200, found) if found else self.fail(404, "%s not found" % request.path)

        def page(self, request: Request, kind: str, there: List[Dict[str, Any]]) -> None:
            try:
                items = list(filter(selector(kind, request.query), there))
            except Unreadable as error:
                self.fail(400, str(error))
                return
            start = int(request.query.get("continue") or 0)
            end = start + min(state.page, int(request.query.get("limit") or state.page))
            metadata = {"continue": str(end)} if end < len(items) else {}
            self.answer(200, {"kind": "List", "metadata": metadata, "items": items[start:end]})

        def one(self, path: str) -> Optional[Dict[str, Any]]:
            if path in state.objects:
                return state.objects[path]
            for prefix, items in (("/api/v1/nodes/", state.nodes), ("", state.pods)):
                for item in items:
                    namespace = item["metadata"].get("namespace")
                    place = prefix or "/api/v1/namespaces/%s/pods/" % namespace
                    if path == place + item["metadata"]["name"]:
                        return item
            return None

        def do_patch(self, request: Request) -> None:
            found = self.one(request.path)
            if found is None:
                self.fail(404, "not found")
                return
            if state.conflicts:
                state.conflicts -= 1
                found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
            wanted = (request.body.get("metadata") or {}).get("resourceVersion")
            if wanted not in (None, found["metadata"].get("resourceVersion")):
                self.fail(409, "the object has been modified")
                return
            if request.is_apply:
                merged = state.books.applied(found, request.body, request.query.get("fieldManager", ""))
            else:
                merged = state.books.patched(found, request.body, request.query.get("fieldManager", "gpuops.nvidia"))
            if request.query.get("dryRun") != "All":
                found.clear()
                found.update(merged)
                found["metadata"]["resourceVersion"] = str(int(found["metadata"].get("resourceVersion") or 0) + 1)
            self.answer(200, merged)

        def do_post(self, request: Request) -> None:
            path, _separator, action = request.path.rpartition("/")
            pod = self.one(path)
            if action != "eviction" or pod is None:
                self.fail(404, "not found")
            elif request.body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
                self.fail(409, "Precondition failed: UID in precondition")
            elif state.evictions.get(pod["metadata"]["name"]):
                told = state.evictions[pod["metadata"]["name"]].pop(0)
                self.fail(told.status, told.message, told.cause, told.retry_after)
            else:
                if request.query.get("dryRun") != "All":
                    self.end(pod)
                self.answer(201, {"kind": "Status", "status": "Success"})

        def do_delete(self, request: Request) -> None:
            pod = self.one(request.path)
            if pod is None:
                self.fail(404, "not found")
                return
            self.end(pod)
            self.answer(200, {"kind": "Status", "status": "Success"})

        def end(self, pod: Dict[str, Any]) -> None:
            """At once, but for those that do not end."""
            if pod["metadata"]["name"] in state.terminating:
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
            else:
                state.pods.remove(pod)

    return Handler
