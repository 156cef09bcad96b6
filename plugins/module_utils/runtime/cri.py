# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A client of the Container Runtime Interface (runtime.v1.RuntimeService), as small as our few questions.

gRPC is HTTP/2 with protobuf messages. A question is one connection: preface, SETTINGS, one request, its answer. Header
fields go out as literals that are never indexed and not Huffman-coded (RFC 7541, 6.2.3), so no table is kept; those
that come in are read only as far as they are literals too, which is enough to tell an error's text where a server
sends one plainly. Messages are read field by field (Protocol Buffers, 'Encoding').
"""
from __future__ import annotations

import json
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Tuple, Union

from ..core.errors import GpuOpsError

SERVICE = "/runtime.v1.RuntimeService/"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
STREAM = 1
# The window that every connection has to begin with (RFC 9113, 6.9.2)
FIRST_WINDOW = 65535
WIDE_WINDOW = 1 << 24
LARGEST_ANSWER = 1 << 26

RUNNING = 1
UNKNOWN = 3
# Exit codes of a container that was killed: by SIGKILL, by SIGTERM, or with a shim that was lost (containerd says 255)
KILLED = (137, 143, 255)

Field = Tuple[int, Union[int, bytes]]


@dataclass(frozen=True)
class CriStatus:
    """What a runtime says of itself over the CRI.

    ready:    whether the condition RuntimeReady is true.
    problem:  why it is not, '' when it is.
    handlers: names of the runtime handlers, as far as this version tells them (containerd 2.0, CRI-O 1.30).
    info:     the verbose part: {topic: text, mostly JSON}.
    """

    ready: bool
    problem: str
    handlers: Tuple[str, ...] = ()
    info: Mapping[str, str] = field(default_factory=dict)

    def topic(self, name: str) -> Any:
        """A topic's JSON as data, None when it is not there or is no JSON."""
        try:
            return json.loads(self.info.get(name, ""))
        except ValueError:
            return None


class CriError(GpuOpsError):
    """The runtime did not answer, or answered with an error."""

    def __init__(self, socket_path: str, found: str) -> None:
        super().__init__(
            "runtime.cri_silent",
            found="%s: %s" % (socket_path, found),
            wanted="an answer of the Container Runtime Interface",
            remedy="see the journal of the container runtime, and whether its CRI is switched on",
        )


class CriClient:
    """Questions to the runtime behind a socket. timeout: seconds for one answer."""

    def __init__(self, socket_path: str, timeout: float = 10) -> None:
        self.socket_path = socket_path
        self.timeout = timeout

    def version(self) -> Tuple[str, str]:
        """(name, version) of the runtime, as ('containerd', '2.2.1')."""
        answer = dict(fields(self.ask("Version")))
        return _text(answer.get(2)), _text(answer.get(3))

    def status(self) -> CriStatus:
        conditions: Dict[str, Tuple[bool, str]] = {}
        handlers: List[str] = []
        info: Dict[str, str] = {}
        for number, value in fields(self.ask("Status", bytes([1 << 3, 1]))):
            if number == 1:
                for inner, condition in fields(_bytes(value)):
                    if inner == 1:
                        name, state = _condition(_bytes(condition))
                        conditions[name] = state
            elif number == 2:
                entry = dict(fields(_bytes(value)))
                info[_text(entry.get(1))] = _text(entry.get(2))
            elif number == 3:
                handlers.append(_text(dict(fields(_bytes(value))).get(1)))
        ready, told = conditions.get("RuntimeReady", (False, "it tells no condition RuntimeReady"))
        problem = "" if ready else "RuntimeReady is false: %s" % told
        return CriStatus(ready, problem, tuple(name for name in handlers if name), info)

    def running_containers(self) -> FrozenSet[str]:
        # ContainerFilter { state: { state: CONTAINER_RUNNING } }
        listed = self._containers(_embedded(2, bytes([1 << 3, RUNNING])))
        return frozenset(name for name, state in listed.items() if state == RUNNING)

    def was_killed(self, container: str) -> bool:
        """Whether a container was lost or killed; one that is gone was removed by somebody who meant to."""
        # ContainerFilter { id }
        state = self._containers(_embedded(1, container.encode())).get(container)
        if state is None or state == RUNNING:
            return False
        answer = dict(fields(self.ask("ContainerStatus", _embedded(1, container.encode()))))
        status = dict(fields(_bytes(answer.get(1, b""))))
        return status.get(3, 0) == UNKNOWN or status.get(7, 0) in KILLED

    def _containers(self, chosen: bytes) -> Dict[str, int]:
        """{id: state} of the containers that a ContainerFilter chooses."""
        answer = self.ask("ListContainers", _embedded(1, chosen))
        listed = [dict(fields(_bytes(value))) for number, value in fields(answer) if number == 1]
        return {_text(each.get(1)): int(each.get(6, 0)) for each in listed}

    def ask(self, method: str, message: bytes = b"") -> bytes:
        """The answer's message to one request."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self.timeout)
                connection.connect(self.socket_path)
                return _Exchange(connection, self.socket_path, self.timeout).ask(SERVICE + method, message)
        except socket.timeout as late:
            raise CriError(self.socket_path, "no answer to %s within %.0f s" % (method, self.timeout)) from late
        except OSError as error:
            raise CriError(self.socket_path, error.strerror or str(error)) from error


def peer_pid(socket_path: str, timeout: float = 2) -> int:
    """The process that listens on a Unix socket, 0 when none does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(socket_path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return 0
    return int(struct.unpack("3i", credentials)[0])


class _Exchange:
    """One request and its answer on one HTTP/2 connection."""

    def __init__(self, connection: socket.socket, name: str, timeout: float) -> None:
        self.connection = connection
        self.name = name
        self.deadline = time.monotonic() + timeout
        self.buffer = b""
        self.answer = b""
        self.trailers = b""

    def ask(self, path: str, message: bytes) -> bytes:
        body = struct.pack(">BI", 0, len(message)) + message
        self.connection.sendall(
            PREFACE
            # INITIAL_WINDOW_SIZE of streams
            + _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WIDE_WINDOW))
            + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDE_WINDOW - FIRST_WINDOW))
            + _frame(HEADERS, END_HEADERS, STREAM, _header_block(path))
            + _frame(DATA, END_STREAM, STREAM, body)
        )
        while not self._take(*self._next_frame()):
            continue
        return self._message()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Handle one frame; whether the answer is complete."""
        if kind == SETTINGS and not flags & ACK:
            self.connection.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.connection.sendall(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            code = struct.unpack(">I", payload[4:8])[0]
            if code or not struct.unpack(">I", payload[:4])[0]:
                raise CriError(self.name, "it closed the connection (GOAWAY %d): %s" % (code, _told(payload[8:])))
        elif stream == STREAM and kind == RST_STREAM:
            raise CriError(self.name, "it broke the answer off (RST_STREAM %d)" % struct.unpack(">I", payload)[0])
        elif stream == STREAM and kind == DATA:
            self.answer += _unpadded(flags, payload)
            self._widen(len(payload))
        elif stream == STREAM and kind == HEADERS:
            self.trailers = _unpadded(flags, payload)
        return stream == STREAM and kind in (DATA, HEADERS) and bool(flags & END_STREAM)

    def _widen(self, taken: int) -> None:
        """Give back the room that a DATA frame took, of the connection and of the stream."""
        if len(self.answer) > LARGEST_ANSWER:
            raise CriError(self.name, "an answer of more than %d bytes" % LARGEST_ANSWER)
        if taken:
            room = struct.pack(">I", taken)
            self.connection.sendall(_frame(WINDOW_UPDATE, 0, 0, room) + _frame(WINDOW_UPDATE, 0, STREAM, room))

    def _message(self) -> bytes:
        if len(self.answer) < 5:
            raise CriError(self.name, grpc_message(self.trailers) or "it answered with an error")
        compressed, length = struct.unpack(">BI", self.answer[:5])
        if compressed or len(self.answer) < 5 + length:
            raise CriError(self.name, "an answer that is cut short or compressed")
        return self.answer[5:5 + length]

    def _next_frame(self) -> Tuple[int, int, int, bytes]:
        head = self._read(9)
        length = int.from_bytes(head[:3], "big")
        return head[3], head[4], int.from_bytes(head[5:9], "big") & 0x7FFFFFFF, self._read(length)

    def _read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise socket.timeout
            self.connection.settimeout(left)
            more = self.connection.recv(65536)
            if not more:
                raise CriError(self.name, "it closed the connection before it had answered")
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken


def grpc_message(block: bytes) -> str:
    """The text of an error in a header block, '' where it is no plain literal."""
    message = re.search(rb"grpc-message(?:[\x01-\x7e]|\x7f[\x00-\x7f]|\x7f[\x80-\xff][\x00-\x7f])([ -~]+)", block)
    return message.group(1).decode() if message else ""


def fields(message: bytes) -> Iterator[Field]:
    """(number, value) of a message's fields: integers, or bytes of strings and embedded messages."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield number, value
        elif kind == 2:
            length, position = _varint(message, position)
            yield number, message[position:position + length]
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError("wire type %d" % kind)


def _varint(message: bytes, position: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return value, position


def _embedded(number: int, message: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _length(len(message)) + message


def _length(value: int) -> bytes:
    coded = b""
    while value > 0x7F:
        coded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return coded + bytes([value])


def _condition(message: bytes) -> Tuple[str, Tuple[bool, str]]:
    entry = dict(fields(message))
    told = "%s %s" % (_text(entry.get(3)), _text(entry.get(4)))
    return _text(entry.get(1)), (bool(entry.get(2, 0)), told.strip())


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else b""


def _text(value: Any) -> str:
    return _bytes(value).decode("utf-8", "replace")


def _told(data: bytes) -> str:
    return data.decode("ascii", "replace") or "no reason given"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1:len(payload) - payload[0]] if flags & 8 and payload else payload


def _header_block(path: str) -> bytes:
    pairs = (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
        ("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "gpuops"),
    )
    return b"".join(b"\x10" + _literal(name) + _literal(value) for name, value in pairs)


def _literal(text: str) -> bytes:
    """A string of fewer than 127 bytes, not Huffman-coded (RFC 7541, 5.2)."""
    return bytes([len(text)]) + text.encode()
