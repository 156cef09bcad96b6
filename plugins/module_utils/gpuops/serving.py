# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What goes by sockets: the metrics, for who asks by HTTP, and to systemd that the service has started.

Python's own server takes three times the memory, and as long for a request as its client pleases.
"""
from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Tuple

from ..core.errors import GpuOpsError

PATH = "/metrics"
# Of one request, from its first byte to the last of its answer
SECONDS = 2.0
MOST_BYTES = 8192
# After each, so that who asks without end takes nothing from others
PAUSE_SECONDS = 0.02
_WAITING = 16
_KIND = "text/plain; version=0.0.4; charset=utf-8"
_TOLD = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Page:
    """A text that anybody may read at an address: by one thread, one request after another, each in bounded time.

    text: '' while there is none yet.
    """

    def __init__(self, address: Tuple[str, int]) -> None:
        self.text = ""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._socket = socket.create_server(address, family=family, backlog=_WAITING)
        except (OSError, OverflowError) as error:
            raise GpuOpsError(
                "gpuops.address_not_free",
                found="%s port %d cannot be listened at: %s" % (*address, error),
                wanted="an address of this host that nobody else listens at",
                remedy="see who does (`ss -ltnp`), or give another one with `watch_listen`",
                option="watch_listen",
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._is_closed = False
        # It ends with the process, whatever it is at
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        # To close it alone does not wake the thread
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                # Without a file descriptor, say, there may be one later
                time.sleep(0 if self._is_closed else 1)
                continue
            with connection, contextlib.suppress(OSError):
                self._answer(connection)
            time.sleep(PAUSE_SECONDS)

    def _answer(self, connection: socket.socket) -> None:
        until = time.monotonic() + SECONDS
        asked = b""
        while b"\n\r\n" not in asked and b"\n\n" not in asked and len(asked) < MOST_BYTES:
            connection.settimeout(max(0.01, until - time.monotonic()))
            data = connection.recv(MOST_BYTES)
            if not data or time.monotonic() > until:
                return
            asked += data
        connection.settimeout(max(0.01, until - time.monotonic()))
        connection.sendall(answer(asked, self.text))


def answer(asked: bytes, text: str) -> bytes:
    """The answer to a request, by its first line. Pure."""
    words = asked.split(b"\n", 1)[0].decode("latin-1").split()
    code, body = 200, text
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        code = 400
    elif words[0] not in ("GET", "HEAD"):
        code = 405
    elif words[1].partition("?")[0] != PATH:
        code = 404
    elif not text:
        code = 503
    if code != 200:
        body = "%s\n" % (_TOLD[code] if code != 503 else "This host has not been looked at yet")
    content = body.encode()
    head = "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (
        code, _TOLD[code], _KIND, len(content))
    return head.encode() + (b"" if words[:1] == ["HEAD"] else content)


def tell_started() -> None:
    """Tell systemd that this service has started, where it wants to know (sd_notify(3))."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notice:
            notice.connect("\0" + address[1:] if address.startswith("@") else address)
            notice.send(b"READY=1")
