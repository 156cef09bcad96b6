# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Metrics by HTTP: what is answered, and that nobody can hold it up."""
from __future__ import annotations

import contextlib
import socket
import urllib.request
from pathlib import Path
from typing import Iterator

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.watch import address_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops import serving
from ansible_collections.gpuops.nvidia.plugins.module_utils.gpuops.serving import Page, answer, tell_started

TEXT = '# TYPE gpuops_health_verdict gauge\ngpuops_health_verdict{verdict="well"} 1.0\n'


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(("127.0.0.1", 0))
    made.text = TEXT
    yield made
    made.close()


def asked(page: Page, path: str = "/metrics") -> str:
    with urllib.request.urlopen("http://127.0.0.1:%d%s" % (page.port, path), timeout=30) as response:
        return str(response.read().decode())


def test_the_text_is_served_to_who_asks(page: Page) -> None:
    assert asked(page) == TEXT
    page.text = TEXT.replace("1.0", "0.0")
    assert asked(page, "/metrics?name=x") == TEXT.replace("1.0", "0.0")


def test_what_it_is_is_told_as_prometheus_wants_it() -> None:
    """Since release 3 it reads nothing that is called otherwise (prometheus.io/docs/prometheus/3.0/migration)."""
    head, _blank, body = answer(b"GET /metrics HTTP/1.1\r\n\r\n", TEXT + "# \u20ac\n").partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    assert fields["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(fields["Content-Length"]) == len(body)


@pytest.mark.parametrize("line, code", [
    (b"GET /metrics HTTP/1.1", 200), (b"HEAD /metrics HTTP/1.1", 200), (b"GET / HTTP/1.1", 404),
    (b"GET /etc/passwd HTTP/1.1", 404), (b"POST /metrics HTTP/1.1", 405), (b"GET /metrics", 400), (b"", 400),
    (b"\xff\xfe\x00 \x16\x03\x01 \x00", 400)])
def test_only_the_metrics_are_to_be_had(line: bytes, code: int) -> None:
    told = answer(line + b"\r\nHost: x\r\n\r\n", TEXT)
    assert told.startswith(b"HTTP/1.1 %d " % code)
    assert told.endswith(TEXT.encode()) is (code == 200 and not line.startswith(b"HEAD"))


def test_before_the_first_round_there_is_nothing_to_tell() -> None:
    assert answer(b"GET /metrics HTTP/1.1\r\n\r\n", "").startswith(b"HTTP/1.1 503 ")


def test_who_asks_slowly_or_for_ever_holds_nobody_up(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.2)
    with contextlib.ExitStack() as stack:
        silent, slow, endless = (stack.enter_context(socket.create_connection(("127.0.0.1", page.port)))
                                 for _each in range(3))
        slow.sendall(b"GET /met")
        endless.sendall(b"x" * 100000)
        assert asked(page) == TEXT
        # Nobody waits for them any more
        for each in (silent, slow):
            each.settimeout(30)
            assert each.recv(10) == b""


def test_an_address_that_somebody_has_is_refused_and_free_again_after_the_end() -> None:
    first = Page(("127.0.0.1", 0))
    with pytest.raises(GpuOpsError) as caught:
        Page(("127.0.0.1", first.port))
    assert caught.value.code == "gpuops.address_not_free"
    first.close()
    Page(("127.0.0.1", first.port)).close()


@pytest.mark.parametrize("listen, wanted", [
    ("127.0.0.1:9836", ("127.0.0.1", 9836)), ("[::1]:9836", ("::1", 9836)), ("0.0.0.0:1", ("0.0.0.0", 1))])
def test_an_address_is_understood(listen: str, wanted: object) -> None:
    assert address_of(listen) == wanted


@pytest.mark.parametrize("listen", ["9836", ":9836", "localhost:9836", "::1:9836", "[127.0.0.1]:9836", "127.0.0.1:",
                                    "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        address_of(listen)
    assert caught.value.code == "agent.listen_malformed"


def test_systemd_is_told_where_it_wants_to_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        tell_started()
        systemd.settimeout(30)
        assert systemd.recv(100) == b"READY=1"
    tell_started()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    tell_started()
