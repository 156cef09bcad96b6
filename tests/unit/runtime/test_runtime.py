# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which runtime it is, what its CRI says, and what becomes of files when something goes wrong."""
from __future__ import annotations

import errno
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run, plan_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError, HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host, Ownership
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import (
    applying,
    cri,
    detection,
    executors,
    memory,
    model,
    observation,
    policy,
    writing,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backend import Backend
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends import known
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import CAPABILITY

ROOT, OURS = "/etc/any/root.conf", "/etc/any/d/ours.conf"
LINE = "ours\n"


def parameters(**changes: Any) -> Dict[str, Any]:
    return {**{name: option.get("default") for name, option in policy.ARGUMENTS.items()}, **changes}


# the CRI client against a server that speaks by the frame


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def embedded(number: int, message: bytes) -> bytes:
    size = len(message)
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + message


def told(message: bytes, pieces: int = 1) -> bytes:
    """An answer in so many DATA frames, between header blocks that no one needs to read."""
    body = struct.pack(">BI", 0, len(message)) + message
    cuts = [body[len(body) * part // pieces:len(body) * (part + 1) // pieces] for part in range(pieces)]
    return frame(1, 4, 1, b"\x88") + b"".join(frame(0, 0, 1, cut) for cut in cuts) + frame(1, 5, 1, b"\xbf")


class Server:
    """Answers every connection with the same bytes."""

    def __init__(self, path: str, answer: bytes) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(8)
        self.answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.settimeout(2)
                try:
                    connection.sendall(frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678") + self.answer)
                    while connection.recv(65536):
                        continue
                except OSError:
                    continue


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    servers: List[Server] = []

    def start(answer: bytes) -> cri.CriClient:
        path = str(tmp_path / ("%d.sock" % len(servers)))
        servers.append(Server(path, answer))
        return cri.CriClient(path, timeout=3)

    yield start
    for server in servers:
        server.listener.close()


def condition(name: str, state: int, reason: str = "") -> bytes:
    return embedded(1, embedded(1, embedded(1, name.encode()) + bytes([2 << 3, state]) + embedded(3, reason.encode())))


class TestCri:
    def test_the_version(self, serve: Any) -> None:
        answer = embedded(1, b"0.1.0") + embedded(2, b"containerd") + embedded(3, b"v2.2.0")
        assert serve(told(answer)).version() == ("containerd", "v2.2.0")

    def test_a_status_in_many_pieces(self, serve: Any) -> None:
        info = embedded(2, embedded(1, b"config") + embedded(2, b'{"a": "%s"}' % (b"x" * 3000)))
        answer = condition("RuntimeReady", 1) + info + embedded(3, embedded(1, b"nvidia"))
        status = serve(told(answer, pieces=7)).status()
        assert (status.ready, status.handlers, status.topic("config")) == (True, ("nvidia",), {"a": "x" * 3000})

    @pytest.mark.parametrize(("answer", "word"), [
        (condition("NetworkReady", 1), "no condition RuntimeReady"),
        (condition("RuntimeReady", 0, "ShimMissing"), "ShimMissing"),
    ])
    def test_a_runtime_that_is_not_ready_says_why(self, serve: Any, answer: bytes, word: str) -> None:
        status = serve(told(answer)).status()
        assert not status.ready
        assert word in status.problem

    @pytest.mark.parametrize(("answer", "word"), [
        (frame(1, 5, 1, b"\x88\x10\x0bgrpc-status\x0212\x10\x0cgrpc-message\x0funknown service"), "unknown service"),
        (frame(3, 0, 1, struct.pack(">I", 7)), "RST_STREAM 7"),
        (frame(7, 0, 0, struct.pack(">II", 0, 2) + b"no"), "GOAWAY 2): no"),
    ])
    def test_an_error_is_told(self, serve: Any, answer: bytes, word: str) -> None:
        with pytest.raises(cri.CriError) as caught:
            serve(answer).version()
        assert word in caught.value.found

    def test_nobody_there_and_nobody_answering(self, serve: Any, tmp_path: Path) -> None:
        with pytest.raises(cri.CriError):
            cri.CriClient(str(tmp_path / "none")).version()
        client = serve(b"")
        client.timeout = 0.3
        with pytest.raises(cri.CriError) as caught:
            client.version()
        assert "within" in caught.value.found

    @pytest.mark.parametrize(("state", "code", "killed"), [(1, 0, False), (2, 0, False), (2, 137, True), (3, 0, True)])
    def test_a_container_that_was_killed(self, serve: Any, state: int, code: int, killed: bool) -> None:
        exit_code = bytes([7 << 3]) + (bytes([code]) if code < 128 else bytes([code & 0x7F | 0x80, 1]))
        status = embedded(1, b"id") + bytes([3 << 3, state]) + exit_code
        assert serve(told(embedded(1, status))).was_killed("id") is killed

    def test_a_container_that_is_gone_was_removed(self, serve: Any) -> None:
        assert serve(told(b"")).was_killed("id") is False

    def test_the_process_behind_a_socket(self, serve: Any, tmp_path: Path) -> None:
        client = serve(b"")
        assert cri.peer_pid(client.socket_path) == os.getpid()
        assert cri.peer_pid(str(tmp_path / "none")) == 0


class TestKubelet:
    def put(self, tmp_path: Path, files: Mapping[str, str]) -> Host:
        for name, text in files.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Host(str(tmp_path))

    @pytest.mark.parametrize(("files", "endpoint"), [
        ({}, ""),
        ({"/proc/7/comm": "kubelet\n", "/proc/7/cmdline": "kubelet\0--container-runtime-endpoint=unix:///a.sock\0"},
         "/a.sock"),
        ({"/proc/7/comm": "kubelet\n", "/proc/7/cmdline": "kubelet\0--config\0/k.yaml\0",
          "/k.yaml": "containerRuntimeEndpoint: unix:///b.sock\n"}, "/b.sock"),
        ({"/proc/7/comm": "kubelet\n", "/proc/7/cmdline": "kubelet\0"}, detection.KUBELET_DEFAULT),
        ({"/var/lib/kubelet/kubeadm-flags.env":
          'KUBELET_KUBEADM_ARGS="--x=1 --container-runtime-endpoint=unix:///c.sock"\n'}, "/c.sock"),
        ({detection.KUBELET_CONFIG: "containerRuntimeEndpoint: '/d.sock'\n"}, "/d.sock"),
    ])
    def test_its_socket(self, tmp_path: Path, files: Dict[str, str], endpoint: str) -> None:
        assert detection.kubelet_endpoint(self.put(tmp_path, files)) == endpoint


class Daemons(Host):
    """A host with daemons behind sockets: {socket: (pid, unit, program, arguments)}."""

    behind: Dict[str, Tuple[int, str, str, Tuple[str, ...]]] = {}

    def run(self, argv: Any, *args: Any, **options: Any) -> CommandResult:
        return CommandResult(tuple(argv), 0, "x version 2.1.3\n" if "--version" in argv else "", "")

    def link(self, name: str) -> Optional[str]:
        for pid, _unit, program, _arguments in self.behind.values():
            if name == "/proc/%d/exe" % pid:
                return program
        return None

    def read(self, name: str) -> Optional[str]:
        for pid, unit, program, arguments in self.behind.values():
            if name == "/proc/%d/cmdline" % pid:
                return "\0".join((program, *arguments)) + "\0"
            if name == "/proc/%d/cgroup" % pid:
                return "1:name=systemd:/system.slice/%s\n" % unit
        return super().read(name)

    def exists(self, name: str) -> bool:
        return name in self.behind or super().exists(name)


PLAIN = {"/run/containerd/containerd.sock": (11, "containerd.service", "/usr/bin/containerd", ())}
CRIO = {"/run/crio/crio.sock": (12, "crio.service", "/usr/bin/crio", ("-c", "/etc/other.conf"))}
K3S = {"/run/k3s/containerd/containerd.sock": (13, "k3s-agent.service", "/var/lib/rancher/k3s/data/1/bin/containerd",
                                               ("-c", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"))}
RKE2 = {"/run/k3s/containerd/containerd.sock": (14, "rke2-server.service", "/var/lib/rancher/rke2/bin/containerd",
                                                ("-c", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"))}


class TestDetection:
    @pytest.fixture
    def find(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        host = Daemons(str(tmp_path))
        monkeypatch.setattr(detection, "peer_pid", lambda path: next(
            (entry[0] for name, entry in host.behind.items() if path.endswith(name)), 0))
        monkeypatch.setattr(detection, "_told_version", lambda _host, path: "containerd v2.1.3")

        def find(behind: Any, endpoint: str = "", **changes: Any) -> Optional[model.Service]:
            host.behind = behind
            monkeypatch.setattr(detection, "kubelet_endpoint", lambda _host: endpoint)
            return detection.find(host, **changes)

        return find

    @pytest.mark.parametrize(("behind", "name"), [
        (PLAIN, ("containerd", "", "containerd.service", "/etc/containerd/config.toml")),
        (CRIO, ("crio", "", "crio.service", "/etc/other.conf")),
        (K3S, ("containerd", "k3s", "k3s-agent.service", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml")),
        (RKE2, ("containerd", "rke2", "rke2-server.service",
                "/var/lib/rancher/rke2/agent/etc/containerd/config.toml")),
    ])
    def test_the_process_tells(self, find: Any, behind: Any, name: Tuple[str, ...]) -> None:
        service = find(behind)
        assert (service.backend, service.distribution, service.unit, service.root) == name
        assert (service.release, service.active) == ((2, 1), True)


# what becomes of files: a runtime with two files, whose daemon is the test's


@dataclass(frozen=True)
class Text:
    """The two files."""

    root: str
    ours: Optional[str]

    def to_dict(self) -> Dict[str, Any]:
        return {"root": digest(self.root), "ours": digest(self.ours)}


class Any_(Backend[Text]):
    """Wants a line of ours in its root and a file of ours beside it; serves as the world says."""

    name = title = "any"

    def __init__(self) -> None:
        self.answers: List[model.Answer] = []
        self.gone: Tuple[str, ...] = ()
        self.verb = model.RESTART

    def observe(self, host: Host, journal: Journal, policy: Any, service: model.Service) -> model.Observation:
        root, ours = host.read(ROOT) or "", host.read(OURS)
        return model.Observation(service, reading=Text(root, ours))

    def edits(self, service: model.Service, reading: Text, policy: Any) -> Tuple[model.Edit, ...]:
        root, ours = reading.root, reading.ours
        base = root.replace(LINE, "")
        wanted = [(OURS, ours, "all\n" if policy.present else None, {}),
                  (ROOT, root, base + (LINE if policy.present else ""), {"line": policy.present})]
        return tuple(model.Edit(path, before, after, None, after if not more else "", more, like=ROOT)
                     for path, before, after, more in wanted if before != after)

    def judge(self, host: Host, service: model.Service, reading: Text, policy: Any) -> None:
        """Takes everything."""

    def edited(self, path: str, text: Optional[str], parameters: Mapping[str, Any]) -> Optional[str]:
        return (text or "").replace(LINE, "") + (LINE if parameters["line"] else "")

    def apply_verb(self, service: model.Service, reading: Text, edits: Any) -> str:
        return self.verb

    def effective_digest(self, host: Host, service: model.Service) -> str:
        return host.read(ROOT) or ""

    def handlers(self, host: Host, service: model.Service) -> Optional[FrozenSet[str]]:
        return frozenset({"runc", "nvidia"} if LINE in (host.read(ROOT) or "") else {"runc"})

    def answer(self, host: Host, service: model.Service) -> model.Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def lost(self, host: Host, service: model.Service, containers: Any) -> Tuple[str, ...]:
        return tuple(name for name in containers if name in self.gone)


class Machine(Host):
    """Counts the commands; dies before one of its changes, or cannot write a file."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.commands: List[Tuple[str, ...]] = []
        self.changes_left: Optional[int] = None
        self.immutable = ""

    def _change(self) -> None:
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise KeyboardInterrupt

    def write_bytes(self, name: str, *args: Any, **options: Any) -> None:
        self._change()
        if name == self.immutable:
            raise HostFailed.of(PermissionError(errno.EPERM, ""), name, "written")
        super().write_bytes(name, *args, **options)

    def put_back(self, name: str, data: bytes, ownership: Ownership) -> None:
        self._change()
        if name == self.immutable:
            raise HostFailed.of(PermissionError(errno.EPERM, ""), name, "written")
        super().put_back(name, data, ownership)

    def append(self, name: str, text: str, mode: int = 0o600) -> None:
        self._change()
        super().append(name, text, mode)

    def remove(self, name: str) -> None:
        self._change()
        super().remove(name)

    def remove_empty_dir(self, name: str) -> None:
        self._change()
        super().remove_empty_dir(name)

    def systemctl(self, *words: str, timeout: float = 180) -> CommandResult:
        self._change()
        self.commands.append(words)
        return CommandResult(words, 0, "", "")

    def unit(self, name: str) -> Dict[str, str]:
        return {"ActiveState": "active"}

    def run(self, argv: Any, *args: Any, **options: Any) -> CommandResult:
        self.commands.append(tuple(argv))
        return CommandResult(tuple(argv), 0, "", "")


SERVES = model.Answer("", frozenset({"nvidia", "runc"}), frozenset({"c1"}))
WITHOUT = model.Answer("", frozenset({"runc"}), frozenset({"c1"}))
SERVICE = model.Service("any", "", "any.service", True, 1, 0.0, "/bin/any", (2, 1), ROOT, "/run/any.sock")


def without_handler(handlers: FrozenSet[str]) -> model.Answer:
    return model.Answer("", handlers, frozenset({"c1"}))


class World:
    def __init__(self, host: Machine, backend: Any_) -> None:
        self.host = host
        self.backend = backend
        self.service = SERVICE
        host.write(ROOT, "theirs\n", 0o600)

    def run(self, **options: Any) -> List[str]:
        return Run(CAPABILITY, parameters(**options), self.host, lambda _: HostFacts(toolkit="1")).apply().applied

    def files(self) -> Dict[str, Tuple[bytes, int, int]]:
        top = Path(self.host.root) / "etc"
        return {str(path.relative_to(top)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode,
                                             path.stat().st_uid) for path in top.rglob("*")}

    def recorded(self) -> List[str]:
        return [original.path for original in Journal(self.host).originals(memory.MEMORY)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    backend = Any_()
    world = World(Machine(str(tmp_path)), backend)
    backend.answers = Honest(world)
    monkeypatch.setitem(known.BACKENDS, "any", backend)
    monkeypatch.setattr(observation, "find", lambda *_: world.service)
    monkeypatch.setattr(writing, "rediscover", lambda *_: world.service)
    monkeypatch.setattr(applying, "READY_SECONDS", 0.2)
    monkeypatch.setattr(applying, "PAUSE_SECONDS", 0.01)
    return world


class TestExecutors:
    def test_files_then_restart_then_nothing_then_back(self, world: World) -> None:
        before = world.files()
        assert [step.split("/")[1] for step in world.run()] == [
            "runtime_config.write", "runtime_config.edit", "runtime.restart"]
        assert world.host.mode(OURS) == 0o600
        assert world.host.commands == [("restart", "any.service")]
        assert world.run() == []
        world.run(state="absent")
        assert world.files() == before
        assert len(world.host.commands) == 2

    @pytest.mark.parametrize(("after", "word"), [
        (model.Answer("connection refused"), "connection refused"),
        (without_handler(frozenset({"runc"})), "does not know the handlers nvidia"),
    ])
    def test_a_daemon_that_does_not_serve_gets_its_files_back(
        self, world: World, after: model.Answer, word: str
    ) -> None:
        before = world.files()
        world.backend.answers = Failing(world, after)
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert word in caught.value.found
        assert "is up again" in caught.value.remedy
        assert world.files() == before
        assert [words[0] for words in world.host.commands] == ["restart", "restart"]

    def test_a_container_that_is_lost_is_found_and_one_that_ended_is_not(self, world: World) -> None:
        world.backend.answers = [SERVES, model.Answer("", SERVES.handlers, frozenset())]
        assert world.run()
        world.backend.answers = Honest(world)
        world.run(state="absent")
        world.backend.gone = ("c1",)
        world.backend.answers = [SERVES, model.Answer("", SERVES.handlers, frozenset())]
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert "containers that ran before are lost: c1" in caught.value.found

    def test_a_file_that_changed_since_it_was_read_stops_the_run(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = executors.EXECUTORS["runtime_config.write"]

        def meanwhile(host: Host, journal: Journal, step: Any) -> None:
            write(host, journal, step)
            host.write(ROOT, "theirs\nof another hand\n")

        monkeypatch.setitem(executors.EXECUTORS, "runtime_config.write", meanwhile)
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert ROOT in caught.value.found
        assert caught.value.details["restored"] == [OURS]
        assert world.host.read(ROOT) == "theirs\nof another hand\n"
        assert not world.host.exists("/etc/any/d")
        assert world.host.commands == []
        monkeypatch.setitem(executors.EXECUTORS, "runtime_config.write", write)
        assert len(world.run()) == 3

    def test_a_users_later_edit_is_not_put_back(self, world: World) -> None:
        world.run()
        world.host.write(ROOT, "theirs, and more\n")
        world.backend.answers = Failing(world, model.Answer("down"))
        with pytest.raises(GpuOpsError):
            world.run()
        assert world.host.read(ROOT) == "theirs, and more\n"

    @pytest.mark.parametrize("state", ["present", "absent"])
    def test_killed_before_any_change_the_next_run_completes(self, world: World, state: str) -> None:
        delivered = world.files(), world.recorded()
        world.run()
        installed = world.files(), world.recorded()
        ends = {"present": installed, "absent": delivered}
        for survivors in range(100):
            world.run(state="absent" if state == "present" else "present")
            world.host.changes_left = survivors
            try:
                world.run(state=state)
                break
            except KeyboardInterrupt:
                world.host.changes_left = None
            world.run(state=state)
            assert (world.files(), world.recorded()) == ends[state], survivors
            assert world.run(state=state) == []
        assert survivors > 10

    def test_a_removal_asks_the_daemon_whether_the_handler_has_left(self, world: World) -> None:
        world.run()
        installed = world.files()
        world.backend.answers = [SERVES]
        with pytest.raises(GpuOpsError) as caught:
            world.run(state="absent")
        assert "still knows the handlers nvidia" in caught.value.found
        assert "the files were put back and any is up again" in caught.value.remedy
        assert world.files() == installed

    def test_a_handler_that_somebody_elses_lines_define_may_stay(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.run()
        world.backend.answers = [SERVES]
        monkeypatch.setattr(world.backend, "handlers", lambda _host, _service: frozenset({"runc", "nvidia"}))
        assert len(world.run(state="absent")) == 3

    def test_handlers_that_are_wanted_no_more_have_to_leave(self, world: World) -> None:
        both = model.Answer("", frozenset({"nvidia", "runc", "own"}), frozenset())
        world.backend.answers = [both]
        world.run(handlers={"own": "/opt/own"})
        world.host.write(ROOT, "theirs, and more\n")
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert "still knows the handlers own" in caught.value.found

    def test_a_removal_that_is_undone_gives_owner_and_mode_back(self, world: World) -> None:
        world.run()
        if os.geteuid() == 0:
            os.chown(world.host.path(OURS), 12, 34)
        os.chmod(world.host.path(OURS), 0o640)
        installed = world.files()
        world.backend.answers = [SERVES]
        with pytest.raises(GpuOpsError):
            world.run(state="absent")
        assert world.files() == installed

    def test_a_reload_that_is_not_enough_is_undone_and_the_next_plan_restarts(self, world: World) -> None:
        delivered = world.files()
        world.backend.verb = model.RELOAD
        world.backend.answers = [WITHOUT]
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert "run again, and the plan will be to restart any.service" in caught.value.remedy
        assert [words[0] for words in world.host.commands] == ["reload", "reload"]
        assert world.files() == delivered

        world.backend.answers = Honest(world)
        assert world.run()[-1] == "runtime/runtime.restart/any.service"
        world.run(state="absent")
        assert world.host.commands[-1][0] == "reload"

    def test_a_file_that_cannot_be_written_stops_the_run_and_what_was_written_goes(self, world: World) -> None:
        delivered = world.files()
        world.host.immutable = ROOT
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert caught.value.found == ROOT + ": it cannot be written: Operation not permitted"
        assert "lsattr" in caught.value.remedy
        assert "nothing of this run was left behind" in caught.value.remedy
        assert world.files() == delivered
        world.host.immutable = ""
        assert len(world.run()) == 3

    def test_a_file_that_cannot_be_put_back_is_named(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        def down(host: Host, service: model.Service) -> model.Answer:
            world.host.immutable = ROOT
            return model.Answer("down")

        monkeypatch.setattr(world.backend, "answer", down)
        with pytest.raises(GpuOpsError) as caught:
            world.run()
        assert ROOT + " could not be put back" in caught.value.remedy

    def test_what_a_killed_run_wrote_and_the_daemon_came_up_with_is_not_undone_later(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_words: str, **_options: Any) -> CommandResult:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(world.host, "systemctl", killed)
            with pytest.raises(KeyboardInterrupt):
                world.run()
        world.service = replace(SERVICE, pid=2, started=time.time())
        installed = world.files()
        world.backend.answers = [SERVES]
        with pytest.raises(GpuOpsError):
            world.run(state="absent")
        assert world.files() == installed

    @pytest.mark.parametrize("seconds", [3600, -3600])
    def test_a_clock_that_is_set_after_a_killed_run_does_not_take_its_files_way_back(
        self, world: World, monkeypatch: pytest.MonkeyPatch, seconds: int
    ) -> None:
        before = world.files()
        world.service = replace(SERVICE, started=model.started_at(Host(), os.getpid()))
        for changes in range(1, 50):
            world.host.changes_left = changes
            with pytest.raises(KeyboardInterrupt):
                world.run()
            if world.files() != before:
                break
        world.host.changes_left = None
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + seconds)
        world.service = replace(SERVICE, started=model.started_at(Host(), os.getpid()))
        world.backend.answers = Failing(world, model.Answer("down"))
        with pytest.raises(GpuOpsError, match="up again with them"):
            world.run()
        assert world.files() == before

    @pytest.mark.parametrize("seconds", [3600, -3600])
    def test_files_of_a_killed_run_are_newer_than_the_daemon_wherever_the_clock_is_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
    ) -> None:
        host = Host(str(tmp_path))
        journal = Journal(host)
        host.write(ROOT, "ours")
        journal.remember(memory.MEMORY, {"undo": {ROOT: {"boot": host.boot(), "up": time.clock_gettime(
            time.CLOCK_BOOTTIME)}}})
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + seconds)
        service = replace(SERVICE, started=model.started_at(Host(), os.getpid()))
        assert model.pending(host, journal, True, service, [ROOT], "any")
        journal.remember(memory.MEMORY, {"undo": {ROOT: {"boot": "another", "up": 1.0}}})
        if seconds > 0:
            assert not model.pending(host, journal, True, service, [ROOT], "any")

    def test_killed_before_the_daemon_takes_its_former_files_in_again_that_is_still_due(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        up = model.started_at(Host(), os.getpid())
        world.backend.answers = Failing(world, model.Answer("down"))

        def restart(*words: str, **_options: Any) -> CommandResult:
            if world.host.commands:
                raise KeyboardInterrupt
            world.host.commands.append(words)
            world.service = replace(world.service, pid=2, started=time.time())
            return CommandResult(words, 0, "", "")

        world.service, delivered = replace(SERVICE, started=up), world.files()
        monkeypatch.setattr(world.host, "systemctl", restart)
        with pytest.raises(KeyboardInterrupt):
            world.run()
        assert world.files() == delivered
        assert model.pending(world.host, Journal(world.host), False, world.service, [ROOT], "any")
        world.service = replace(world.service, started=time.time())
        assert not model.pending(world.host, Journal(world.host), False, world.service, [ROOT], "any")

    def test_what_the_daemon_serves_with_outlives_the_edit_of_another_hand(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_words: str, **_options: Any) -> CommandResult:
            raise KeyboardInterrupt

        world.service = replace(SERVICE, started=model.started_at(Host(), os.getpid()))
        monkeypatch.setattr(world.host, "systemctl", killed)
        for text in ("theirs\n", "theirs, and more\n"):
            world.host.write(ROOT, text)
            with pytest.raises(KeyboardInterrupt):
                world.run()
        journal = Journal(world.host)
        change = memory.recall(journal, "any")["undo"][ROOT]
        assert (change["text"], memory.served_with(change)) == ("theirs, and more\n", "theirs\n")
        # what is put back is the other hand's, and still not what the daemon serves with
        assert writing.undo(world.host, journal, "any") == ([OURS, ROOT], [])
        assert list(memory.recall(journal, "any")["undo"]) == [ROOT]

    def test_handlers_of_a_file_that_cannot_tell_whose_they_are_are_remembered_with_the_edit(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world.backend, "brought", lambda parameters: frozenset({"of %s" % parameters["line"]}))
        world.host.immutable = ROOT
        with pytest.raises(GpuOpsError):
            world.run()
        assert memory.recall(Journal(world.host), "any")["handlers"] == ["of True"]


def test_each_runtime_has_a_memory_of_its_own(tmp_path: Path) -> None:
    journal = Journal(Host(str(tmp_path)))
    memory.remember(journal, "docker", handlers=["nvidia"])
    memory.remember(journal, "containerd", handlers=[], undo={ROOT: {}})
    assert memory.recall(journal, "docker") == {"handlers": ["nvidia"]}
    assert memory.recall(journal, "containerd") == {"undo": {ROOT: {}}}
    memory.remember(journal, "containerd", undo=None)
    assert journal.recall(memory.MEMORY) == {"docker": {"handlers": ["nvidia"]}}


def step_of_the_release_before(action: str, subject: str, before: str, after: str, **more: Any) -> Step:
    """A step with the parameters that it had there, as plans and journals hold it."""
    parameters = {"kind": "any", "runtime": "any", "root": ROOT, "socket": "/run/any.sock", "present": True,
                  "before": digest(before), "after": digest(after), **more}
    return Step.from_dict({
        "id": "runtime/%s/%s" % (action, subject), "capability": "runtime", "action": action, "subject": subject,
        "why": "It was planned before.", "disruption": "none", "change": {"before": None, "after": "ours\n"},
        "parameters": parameters, "reversible": True, "after": []})


class TestWhatTheReleaseBeforeHasStored:
    def test_its_steps_are_carried_out(self, world: World) -> None:
        journal = Journal(world.host)
        for step in (
            step_of_the_release_before("runtime_config.edit", ROOT, "theirs\n", "theirs\n" + LINE, edit={"line": True}),
            step_of_the_release_before("runtime.restart", "any.service", "", "", handlers=["nvidia"], ours=["nvidia"]),
        ):
            executors.EXECUTORS[step.action](world.host, journal, step)
        assert world.host.read(ROOT) == "theirs\n" + LINE
        assert world.host.commands == [("restart", "any.service")]
        assert world.recorded() == [ROOT]

    def test_its_plan_promises_what_the_plan_of_today_does(self, world: World) -> None:
        world.host.write(OURS, "all\n")
        step = planned(world).steps[0]
        former = step_of_the_release_before("runtime_config.edit", ROOT, "theirs\n", "theirs\n" + LINE,
                                            edit={"line": True}, like=ROOT)
        assert step.parameters == former.parameters

    def test_a_reload_that_was_ignored_is_remembered(self, world: World) -> None:
        journal = Journal(world.host)
        journal.remember(memory.MEMORY, {"deaf": SERVICE.pid, "handlers": ["nvidia"]})
        world.backend.verb = model.RELOAD
        assert planned(world).steps[-1].action == "runtime.restart"
        assert world.run()[-1] == "runtime/runtime.restart/any.service"
        assert set(memory.recall(journal, "any")) == {"handlers", "verified"}
        assert set(journal.recall(memory.MEMORY)) == {"any"}

    @pytest.mark.parametrize("present", [True, False])
    def test_when_it_changed_a_file_was_told_by_the_clock(self, tmp_path: Path, present: bool) -> None:
        journal = Journal(Host(str(tmp_path)))
        journal.remember(memory.MEMORY, {"undo": {ROOT: {"text": None, "owner": None, "after": None, "time": 1000.0}}})
        for started, due in ((999.0, True), (1001.0, False)):
            service = replace(SERVICE, started=started)
            assert model.pending(journal.host, journal, present, service, [], "any") is due


def planned(world: World) -> Plan:
    return plan_of(CAPABILITY, parameters(), world.host, HostFacts(toolkit="1"))[0]


class Honest(List[model.Answer]):
    """Knows the handlers that its files define."""

    def __init__(self, world: World) -> None:
        super().__init__([SERVES])
        self.world = world

    def __getitem__(self, _index: Any) -> Any:
        return SERVES if LINE in (self.world.host.read(ROOT) or "") else WITHOUT


class Failing(List[model.Answer]):
    """Serves before the change and once the files are back; in between it answers something else."""

    def __init__(self, world: World, between: model.Answer) -> None:
        super().__init__([SERVES])
        self.world = world
        self.between = between

    def __getitem__(self, _index: Any) -> Any:
        return self.between if LINE in (self.world.host.read(ROOT) or "") and self.world.host.commands else SERVES


@pytest.mark.parametrize(("changes", "entries"), [
    ({}, {"nvidia": "/usr/bin/nvidia-container-runtime"}),
    ({"handlers": {"nvidia-cdi": None, "own": "/opt/own"}},
     {"nvidia": "/usr/bin/nvidia-container-runtime", "nvidia-cdi": "/usr/bin/nvidia-container-runtime.cdi",
      "own": "/opt/own"}),
])
def test_handlers(changes: Dict[str, Any], entries: Dict[str, str]) -> None:
    assert policy.policy_of(parameters(**changes)).entries == entries


@pytest.mark.parametrize("changes", [
    {"handlers": {"own": ""}}, {"handlers": {"own": "opt/own"}}, {"handlers": {"runc": "/x"}},
    {"handlers": {"nvidia": "/x"}},
])
def test_handlers_that_cannot_be(changes: Dict[str, Any]) -> None:
    with pytest.raises(GpuOpsError):
        policy.policy_of(parameters(**changes))
