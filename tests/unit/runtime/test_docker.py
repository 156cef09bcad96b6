# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker's daemon.json: values in and out of somebody else's file."""
from __future__ import annotations

import json
import socketserver
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_edits import WorkedOut, work_out

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker import configuration
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker.backend import Docker
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.memory import MEMORY
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.model import (
    Answer,
    Service,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.policy import Policy

FILE = configuration.FILE
BINARY = "/usr/bin/nvidia-container-runtime"
WANTED = configuration.settings({"nvidia": BINARY}, "nvidia", True, (27, 5), {})

RICH = """{
  "log-driver": "json-file",
  "log-opts": {"max-size": "10m"},
  "features": {"buildkit": true},
  "default-runtime": "runc",
  "runtimes": {
    "kata": {"path": "/opt/kata"}
  },
  "insecure-registries": [ "r.example:5000" ]
}"""

keys = st.sampled_from(["runtimes", "features", "default-runtime", "log-driver", "a", "\u00e4", "x\"y"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6)


@st.composite
def files(draw: Any) -> str:
    data = draw(st.dictionaries(keys, values, max_size=6))
    for key in ("runtimes", "features"):
        if key in data and not isinstance(data[key], dict):
            data[key] = {}
    data.get("runtimes", {}).pop("nvidia", None)
    text = json.dumps(data, indent=draw(st.sampled_from([None, 0, 1, 4, "\t"])), ensure_ascii=draw(st.booleans()))
    text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    return draw(st.sampled_from(["", "\n", "  "])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))


@given(files())
def test_apply_then_remove_gives_back_the_bytes_and_twice_is_once(text: str) -> None:
    changed, record = configuration.with_settings(FILE, text, WANTED)
    wanted = configuration.parse(FILE, text)
    wanted.setdefault("runtimes", {})["nvidia"] = {"path": BINARY, "args": []}
    wanted.setdefault("features", {})["cdi"] = True
    wanted["default-runtime"] = "nvidia"
    assert configuration.parse(FILE, changed or "") == wanted
    assert configuration.with_settings(FILE, changed, WANTED) == (changed, [])
    assert configuration.without_settings(FILE, changed, json.loads(json.dumps(record))) == text


@pytest.mark.parametrize("text", [None, "", "\n", "{}", "{ }\n", RICH])
def test_known_files_come_back(text: Optional[str]) -> None:
    changed, record = configuration.with_settings(FILE, text, WANTED)
    assert changed is not None and json.loads(changed)["features"]["cdi"] is True
    assert configuration.without_settings(FILE, changed, record) == text


def test_order_indentation_and_neighbours_stay() -> None:
    changed, _record = configuration.with_settings(FILE, RICH, WANTED)
    assert changed is not None
    kept = [line for line in RICH.splitlines() if "runc" not in line and "features" not in line and "kata" not in line]
    assert [line for line in changed.splitlines() if line in kept] == kept
    assert json.loads(changed)["features"] == {"buildkit": True, "cdi": True}
    assert list(json.loads(changed)) == list(json.loads(RICH))


@pytest.mark.parametrize("words, kept", [
    (["-H", "fd://", "--config-file", "/a", "--debug"], ["-H", "fd://", "--debug"]),
    (["--config-file=/a"], []), ([], []),
])
def test_a_flag_is_left_out(words: List[str], kept: List[str]) -> None:
    assert configuration.without_flag(words, "--config-file") == kept


def test_what_others_wrote_since_is_left_to_them() -> None:
    changed, record = configuration.with_settings(FILE, RICH, WANTED)
    data = json.loads(changed or "")
    data["runtimes"]["gvisor"] = {"path": "runsc"}
    data["default-runtime"] = "kata"
    after = json.loads(configuration.without_settings(FILE, json.dumps(data, indent=2), record) or "")
    assert after["default-runtime"] == "kata"
    assert set(after["runtimes"]) == {"kata", "gvisor"}
    assert after["features"] == {"buildkit": True}


def test_a_file_of_ours_that_others_use_now_stays() -> None:
    changed, record = configuration.with_settings(FILE, None, WANTED)
    text = json.dumps(dict(json.loads(changed or ""), debug=True))
    assert json.loads(configuration.without_settings(FILE, text, record) or "") == {"debug": True}


def test_a_table_of_ours_that_others_use_now_loses_our_entry_alone() -> None:
    changed, record = configuration.with_settings(FILE, "{}", WANTED)
    data = json.loads(changed or "")
    data["runtimes"]["gvisor"] = {"path": "runsc"}
    after = json.loads(configuration.without_settings(FILE, json.dumps(data), record) or "")
    assert after == {"runtimes": {"gvisor": {"path": "runsc"}}}


@pytest.mark.parametrize("text, line, told", [
    ('{\n "a": 1,\n}', 3, "key"),
    ('{\n "a": 1\n "b": 2}', 3, "','"),
    ('{"a": 1,\n "a": 2}', 2, "twice"),
    ('{"runtimes": {\n"x": {},\n"x": {}}}', 3, "twice"),
    ("[]", 1, "no JSON object"),
    ('{"a": tru}', 1, "no JSON value"),
    ('{"a": 1}\n{}', 2, "behind the end"),
    ('{"a": "x\n"}', 1, "Invalid control character"),
])
def test_a_broken_file_is_refused_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        configuration.with_settings(FILE, text, WANTED)
    assert caught.value.found.startswith("%s:%d: " % (FILE, line)) and told in caught.value.found


def test_what_contradicts_is_told() -> None:
    told = configuration.contradictions({"runtimes": {"nvidia": {"path": "/x"}}, "features": []}, WANTED)
    assert told == ["runtime 'nvidia' is {\"path\": \"/x\"}", "'features' is no object"]
    entry = {"path": "nvidia-container-runtime", "args": []}
    assert configuration.contradictions({"runtimes": {"nvidia": entry}}, WANTED) == []


@pytest.mark.parametrize("arguments, conflicts", [
    (["dockerd", "-H", "fd://"], []),
    (["dockerd", "--default-runtime=runc"], ["--default-runtime"]),
    (["dockerd", "--default-runtime", "runc", "--feature=cdi=false"], ["--default-runtime", "--feature"]),
    (["dockerd", "--add-runtime", "x=/y"], []),
])
def test_flags_that_exclude_the_file_are_named(arguments: List[str], conflicts: List[str]) -> None:
    assert configuration.flag_conflicts(arguments, WANTED) == conflicts


@pytest.mark.parametrize("release, before, after, causes", [
    ((24, 0), "{}", '{"features": {"cdi": true}}', []),
    ((27, 5), "{}", '{"features": {"cdi": true}}', ["features"]),
    ((28, 2), "{}", '{"features": {"cdi": true}}', []),
    ((28, 2), '{"features": {"cdi": false}}', '{"features": {"cdi": true}}', ["features"]),
    ((28, 2), "{}", '{"runtimes": {"nvidia": {"path": "/x"}}, "default-runtime": "nvidia"}', []),
    ((28, 2), '{"default-runtime": "nvidia"}', '{"default-runtime": "runc"}', []),
    ((28, 2), '{"default-runtime": "nvidia"}', None, ["default-runtime"]),
])
def test_what_a_reload_does_not_bring_about(
    release: Tuple[int, int], before: str, after: Optional[str], causes: List[str]
) -> None:
    assert configuration.restart_causes(FILE, before, after, release) == causes


def test_the_feature_is_written_only_where_docker_needs_it() -> None:
    def wanted(release: Tuple[int, int], text: str) -> List[Any]:
        return configuration.settings({}, "", True, release, json.loads(text))

    assert wanted((24, 0), "{}") == []
    assert wanted((25, 0), "{}") == wanted((28, 2), '{"features": {"cdi": false}}') == [(("features", "cdi"), True)]
    assert wanted((28, 2), "{}") == wanted((28, 1), '{"features": {"cdi": true}}') == []


@pytest.mark.parametrize("text", ["\ufeff{}", '\ufeff\n{"debug": true}\n', "\ufeff", "\ufeff\n"])
def test_a_byte_order_mark_stays(text: str) -> None:
    changed, record = configuration.with_settings(FILE, text, WANTED)
    assert (changed or "").startswith("\ufeff") or not text.strip("\ufeff\n")
    assert configuration.without_settings(FILE, changed, record) == text


SERVICE = Service(backend="docker", distribution="", unit="docker.service", active=False, pid=0, started=0.0,
                  binary="/usr/sbin/dockerd", release=(20, 10), root=FILE, socket="/run/docker.sock",
                  arguments=("/usr/sbin/dockerd", "-H", "fd://"))
PRESENT = Policy(True, "nvidia", BINARY, True, True, "")


def host_with(root: Path, text: Optional[str]) -> Host:
    host = Host(str(root))
    if text is not None:
        host.write(FILE, text)
    return host


def worked_out(host: Host, journal: Journal, policy: Policy, service: Service) -> WorkedOut:
    return work_out(Docker(), host, journal, policy, service)


@pytest.mark.parametrize("value", ["null", "1", '"x"', '[{"a": 1}, {"b": 2}]', "true"])
@pytest.mark.parametrize("key", ["runtimes", "features"])
@pytest.mark.parametrize("changed_before", [False, True])
def test_a_table_that_is_none_is_refused(tmp_path: Path, key: str, value: str, changed_before: bool) -> None:
    text = '{"%s": %s}' % (key, value)
    host, service = host_with(tmp_path, text), replace(SERVICE, release=(27, 5))
    journal = Journal(host)
    if changed_before:
        journal.keep_original(MEMORY, FILE)
    planned = worked_out(host, journal, PRESENT, service)
    assert planned.refusal is not None
    assert planned.refusal.found == "%s: '%s' is no object" % (FILE, key)
    assert host.read(FILE) == text


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers as dockerd does, what it is told to."""

    daemon_threads = True
    answers: Dict[str, Any] = {}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path)  # type: ignore[attr-defined]
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *_words: Any) -> None:
        pass


def test_the_daemon_is_asked_over_its_socket(tmp_path: Path) -> None:
    host, service = Host(str(tmp_path)), replace(SERVICE, socket="/docker.sock")
    assert "docker.sock" in Docker().answer(host, service).problem
    with Daemon(str(tmp_path / "docker.sock"), Handler) as daemon:
        threading.Thread(target=daemon.serve_forever, daemon=True).start()
        daemon.answers = {
            "/info": {"Runtimes": {"runc": {}, "nvidia": {}}}, "/containers/json": [{"Id": "a"}, {"Id": "b"}],
            "/containers/c/json": {"State": {"Running": False, "ExitCode": 137}},
            "/containers/d/json": {"State": {"Running": False, "ExitCode": 0}},
        }
        assert Docker().answer(host, service) == Answer("", frozenset({"runc", "nvidia"}), frozenset({"a", "b"}))
        assert Docker().lost(host, service, ["c", "d", "gone"]) == ("c",)
        daemon.answers = {"/info": b"no JSON"}
        assert "/info" in Docker().answer(host, service).problem
        daemon.shutdown()
