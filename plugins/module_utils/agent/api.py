# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The few requests that a host makes of its API server, with nothing but Python's own library.

The kubeconfig and the files that it names are read for each conversation, and a program that fetches its credential is
asked: a kubelet renews its certificate. What is no file comes to the TLS library by memory that has no name in any file
system.
"""
from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import ssl
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from ..core.errors import GpuOpsError
from ..core.host import Host
from .kubeconfig import (
    Credential,
    Login,
    Source,
    Unreadable,
    access_of,
    credential_of,
    node_of_certificate,
    node_of_token,
)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
# Any JSON is YAML, and this is the one name that every API server knows for it
SERVER_SIDE_APPLY = "application/apply-patch+yaml"
CONFLICT, GONE = 409, 404
# For one step of one request, for a program that fetches a credential, and for a whole conversation
STEP_SECONDS, LOGIN_SECONDS, WHOLE_SECONDS = 5.0, 10.0, 20.0
# More than a Node has
_MOST_BYTES = 8 << 20

Answer = TypeVar("Answer")
Object = Dict[str, Any]


class ApiRefused(GpuOpsError):
    """The API server has answered, and has not done it. status: of HTTP."""

    status = 0


class Api:
    """A conversation with an API server.

    node: the name that the credential has for its node, '' where it names none.
    url:  of the server.
    """

    def __init__(self, host: Host, kubeconfig: str, until: float) -> None:
        """until: by the monotonic clock, when it is to be over."""
        self._host, self._path, self._until = host, kubeconfig, until
        text = host.read(kubeconfig)
        if text is None:
            raise self._unusable("no %s" % kubeconfig)
        try:
            self._access = access_of(text)
            mine = self._fetched(self._access.login) if self._access.login else self._kept()
            self._token = mine.token
            self._context = self._trust(mine)
        except (Unreadable, ssl.SSLError, ValueError, OSError) as error:
            raise self._unusable("%s: %s" % (kubeconfig, error)) from error
        self.node = node_of_certificate(mine.certificate.decode("utf-8", "replace")) or node_of_token(mine.token)
        self.url = self._access.server
        self._connection: Optional[http.client.HTTPSConnection] = None
        self._prefix = urlsplit(self._access.server).path.rstrip("/")

    def get(self, path: str) -> Object:
        return self._request("GET", path)

    def patch(self, path: str, body: Mapping[str, Any], kind: str, **query: str) -> Object:
        return self._request("PATCH", path + ("?" + urlencode(query) if query else ""), body, kind)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Who we are

    def _content(self, source: Source) -> bytes:
        """Of what the kubeconfig has or names; a path is beside it where it is no whole one."""
        if source.data or not source.path:
            return source.content()
        path = os.path.join(os.path.dirname(self._path), source.path)
        found = self._host.read_bytes(path)
        if found is None:
            raise Unreadable("no %s" % path)
        return found

    def _kept(self) -> Credential:
        """What the kubeconfig has or names. A kubelet's certificate and key are one file."""
        token = self._access.token if not self._access.token_file else self._content(
            Source(path=self._access.token_file)).decode("ascii", "replace").strip()
        certificate = self._content(self._access.certificate)
        return Credential(token, certificate, self._content(self._access.key) if certificate else b"")

    def _fetched(self, login: Login) -> Credential:
        """What a program prints. A command with a slash in it is beside the kubeconfig where it is no whole path."""
        command = login.argv[0]
        if "/" in command:
            command = os.path.join(os.path.dirname(self._path), command)
        left = max(0.0, min(LOGIN_SECONDS, self._until - time.monotonic()))
        done = self._host.run([command, *login.argv[1:]], check=False, timeout=left, env=login.environment)
        if done.rc != 0:
            words = done.stderr.strip().splitlines()[-1:]
            raise Unreadable("%s, which fetches the credential, ended with %d%s%s" % (
                login.argv[0], done.rc, ": " + words[0][:200] if words else "",
                " (%s)" % login.hint if login.hint else ""))
        try:
            return credential_of(done.stdout, login.version)
        except Unreadable as error:
            raise Unreadable("%s gave %s" % (login.argv[0], error)) from error

    def _trust(self, mine: Credential) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=self._content(
            self._access.authority).decode("ascii", "replace") or None)
        # From Python 3.13 on it refuses authorities that Kubernetes' own clients take: without a key identifier, as EKS
        # has made them (kubernetes-client/python#2394). Chain, name and time are verified all the same
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self._access.verifies:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if mine.certificate:
            with self._host.in_memory(mine.certificate + b"\n" + mine.key) as path:
                context.load_cert_chain(path)
        return context

    # Requests

    def _request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None, kind: str = "") -> Object:
        headers = {"Accept": "application/json", "User-Agent": "gpuops"}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = kind
        try:
            connection = self._connected()
            connection.request(method, self._prefix + path, data, headers)
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise self._silent(str(error) or type(error).__name__) from error
        if not 200 <= answer.status < 300:
            raise self._refused(method, path, answer.status, text)
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self._silent("an answer that is no JSON") from error
        if not isinstance(found, dict):
            raise self._silent("an answer that is no object")
        return found

    def _connected(self) -> http.client.HTTPSConnection:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left")
        if self._connection is None:
            where = urlsplit(self._access.server)
            self._connection = _Connection(where.hostname or "", where.port or 443, self._access.server_name,
                                           self._context)
        self._connection.timeout = min(STEP_SECONDS, left)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._connection.timeout)
        return self._connection

    # Errors

    def _unusable(self, found: str) -> GpuOpsError:
        return GpuOpsError(
            "agent.kubeconfig_unusable",
            found=found,
            wanted="a kubeconfig with the node's credential: a certificate or a token, in it or in files, or a program "
                   "that fetches one",
            remedy="name another one with `kubeconfig` (on the host: --kubeconfig); `kubectl config view "
                   "--kubeconfig FILE --raw --minify --output json` writes one in a form that is always read",
            option="kubeconfig",
        )

    def _silent(self, why: str) -> GpuOpsError:
        return GpuOpsError(
            "agent.no_answer",
            found="no answer of the API server at %s: %s" % (self._access.server, why),
            wanted="to tell the cluster of this host's GPUs",
            remedy="see whether this host reaches it, and whether %s is of this cluster" % self._path,
        )

    def _refused(self, method: str, path: str, status: int, text: str) -> ApiRefused:
        try:
            said = str(json.loads(text).get("message") or "")
        except (ValueError, AttributeError):
            said = ""
        error = ApiRefused(
            "agent.refused_by_cluster",
            found="the API server at %s answered %s %s with %d: %s" % (
                self._access.server, method, path, status, said or text.strip()[:200]),
            wanted="this host to tell of its own Node",
            remedy="see who that is in %s, and what it may do: the kubelet's credential may" % self._path,
        )
        error.status = status
        return error


class _Connection(http.client.HTTPSConnection):
    """One whose server has a certificate of another name than its address, where that is given."""

    def __init__(self, address: str, port: int, name: str, context: ssl.SSLContext) -> None:
        super().__init__(address, port, timeout=STEP_SECONDS, context=context)
        self._name, self._trusting = name or address, context

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._trusting.wrap_socket(self.sock, server_hostname=self._name)


def node_path(name: str) -> str:
    return "/api/v1/nodes/" + quote(name, safe="")


@contextlib.contextmanager
def conversation(host: Host, kubeconfig: str, until: float) -> Iterator[Api]:
    api = Api(host, kubeconfig, until)
    try:
        yield api
    finally:
        api.close()


# {what they were with: a conversation that was left behind, and hangs still}
_left_behind: Dict[str, threading.Thread] = {}


def within(seconds: float, whom: str, act: Callable[[], Answer]) -> Answer:
    """What an act gives. Raises GpuOpsError, whatever the act raises: an answer may be of any form. So it does where
    that has not ended by then: a look-up of a name knows no limit, and is left behind. While one hangs no other is
    begun with the same.

    whom: with whom it speaks.
    """
    ended: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
    hanging = _left_behind.pop(whom, None)
    if hanging is not None and hanging.is_alive():
        _left_behind[whom] = hanging
        raise _hangs("the API server was asked a while ago, and nothing has come of it yet")

    def run() -> None:
        try:
            ended.put((act(), None))
        except BaseException as error:
            ended.put((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        found, error = ended.get(timeout=seconds)
    except queue.Empty as late:
        _left_behind[whom] = thread
        raise _hangs("the API server was asked, and nothing had come of it after %.0f s" % seconds) from late
    if isinstance(error, Exception) and not isinstance(error, GpuOpsError):
        raise GpuOpsError(
            "agent.not_understood",
            found="what the API server or its kubeconfig says cannot be understood: %s" % type(error).__name__,
            wanted="a Node as Kubernetes has it",
            remedy="see whether the kubeconfig is of this cluster's API server",
        ) from error
    if error is not None:
        raise error
    result: Answer = found
    return result


def _hangs(found: str) -> GpuOpsError:
    return GpuOpsError(
        "agent.api_hangs",
        found=found,
        wanted="to tell the cluster of this host's GPUs",
        remedy="see whether this host can look up the server's name",
    )
