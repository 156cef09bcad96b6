# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What containerd's files can be that stops a run: said with file and line, and nothing is written.

And what they cost that are as they should be: no command at all.
"""
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import pytest
import tomlkit

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import (
    applying,
    model,
    observation,
    policy,
    writing,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends import known
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import (
    backend,
    configuration,
    writer,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import CAPABILITY

ROOT = "/etc/containerd/config.toml"
CRI2, CRI3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
RUNC = "[%s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
V2, V3 = "version = 2\n" + RUNC % CRI2, "version = 3\n" + RUNC % CRI3
FOREIGN = "[%s.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/x'\n"
SERVICE = model.Service("containerd", "", "containerd.service", True, 7, 0.0, "/usr/bin/containerd", (2, 2), ROOT,
                        "/run/containerd/containerd.sock", (("containerd",)))
Release = Tuple[int, int]


class Box(Host):
    """A host whose containerd dumps what its files mean; counts the commands."""

    def __init__(self, root: str, release: Release) -> None:
        super().__init__(root)
        self.release = release
        self.commands: List[Tuple[str, ...]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def run(self, argv: Any, *args: Any, **options: Any) -> CommandResult:
        self.commands.append(tuple(argv))
        if argv[-2:] != ["config", "dump"]:
            return CommandResult(tuple(argv), 0, "", "")
        files = configuration.load(Host(), argv[2], self.release[0])
        dumped = {"plugins": {files.cri_id: files.cri()}}
        return CommandResult(tuple(argv), 0, tomlkit.dumps(dumped), "")

    def append(self, name: str, text: str, mode: int = 0o600) -> None:
        super().append(name, text, mode)
        self.meanwhile()

    @property
    def dumps(self) -> int:
        return sum(words[-2:] == ("config", "dump") for words in self.commands)


class World:
    def __init__(self, host: Box, service: model.Service) -> None:
        self.host = host
        self.service = service

    def put(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            path = Path(self.host.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())

    def run(self, **options: Any) -> List[str]:
        parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
        run = Run(CAPABILITY, dict(parameters, **options), self.host, lambda _host: HostFacts(toolkit="1.20.1"))
        return run.apply().applied

    def tree(self) -> Dict[str, Tuple[Any, ...]]:
        """Everything on the disk, with its time: a write of the same bytes is one too."""
        top = Path(self.host.root)
        return {str(path.relative_to(top)): (path.lstat().st_mode, path.lstat().st_mtime_ns,
                                             path.read_bytes() if path.is_file() else b"") for path in top.rglob("*")}

    def refusal(self, **options: Any) -> GpuOpsError:
        """What a run says that must not write anything."""
        before = self.tree()
        with pytest.raises(GpuOpsError) as caught:
            self.run(**options)
        assert self.tree() == before
        assert [words for words in self.host.commands if words[0] == "systemctl"] == []
        assert caught.value.wanted and caught.value.remedy
        return caught.value


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    release: Release = getattr(request, "param", (2, 2))
    world = World(Box(str(tmp_path), release), replace(SERVICE, release=release))

    def find(_host: Host, _runtime: str, config_file: str, _socket: str = "") -> model.Service:
        return replace(world.service, root=config_file or ROOT)

    def answer(host: Host, service: model.Service) -> model.Answer:
        there = known.BACKENDS["containerd"].handlers(host, service)
        return model.Answer("", there, frozenset())

    monkeypatch.setattr(observation, "find", find)
    monkeypatch.setattr(writing, "rediscover", find)
    monkeypatch.setattr(known.BACKENDS["containerd"], "answer", answer, raising=False)
    monkeypatch.setattr(applying, "READY_SECONDS", 0.2)
    return world


BROKEN = (
    ("broken TOML", {ROOT: "version = 2\n\n[plugins\n"}, ROOT + ":3: "),
    ("broken TOML in an imported file", {ROOT: "version = 2\nimports = ['a.toml']\n", "/etc/containerd/a.toml":
                                         "version = 2\n[debug]\nlevel =\n"}, "/etc/containerd/a.toml:3: "),
    ("a key twice", {ROOT: V2 + "[debug]\nlevel = 'a'\nlevel = 'b'\n"}, ROOT + ":6: 'debug.level' is there twice"),
    ("a Go template", {ROOT: V2 + "{{ template \"base\" . }}\n"}, ROOT + ":4: '{{ template \"base\" . }}' belongs to"),
    ("version 1", {ROOT: "# old\nversion = 1\n[plugins.cri]\n"}, ROOT + ":2: format version 1"),
    ("no version", {ROOT: "oom_score = 0\n"}, ROOT + ":1: format version 1"),
    ("a version of the future", {ROOT: "# new\nversion = 9\n"}, ROOT + ":2: version = 9"),
    ("a version that is no number", {ROOT: "version = \"2\"\n"}, ROOT + ":1: version = \"2\""),
    ("imports that are no list", {ROOT: "version = 2\nimports = '/a'\n"}, ROOT + ":2: imports = \"/a\""),
    ("imports of no paths", {ROOT: "version = 2\nimports = [1]\n"}, ROOT + ":2: imports = another type"),
    *(("%s of the wrong type" % what, {ROOT: "version = 2\n" + text}, ROOT + found) for what, text, found in (
        ("a section", "[plugins]\n'io.containerd.grpc.v1.cri' = 1\n", ":3: io.containerd.grpc.v1.cri = 1"),
        ("a table", "[%s]\ncontainerd = 1\n" % CRI2, ":3: containerd = 1"),
        ("handlers", "[%s.containerd]\nruntimes = [1]\n" % CRI2, ":3: runtimes = another type"),
        ("a default", "[%s.containerd]\ndefault_runtime_name = 1\n" % CRI2, ":3: default_runtime_name = 1"),
        ("a handler", "[%s.containerd.runtimes]\nrunc = 1\n" % CRI2, ":3: runc = 1"),
        ("a wanted handler", "[%s.containerd.runtimes]\nnvidia = 1\n" % CRI2, ":3: nvidia = 1"),
        ("a handler's type", "[%s.containerd.runtimes.runc]\nruntime_type = 1\n" % CRI2, ":3: runtime_type = 1"),
        ("a handler's options", "[%s.containerd.runtimes.runc]\noptions = 'x'\n" % CRI2, ":3: options = \"x\""),
        ("directories", "[%s]\ncdi_spec_dirs = '/etc/cdi'\n" % CRI2, ":3: cdi_spec_dirs = \"/etc/cdi\""),
        ("a directory", "[%s]\ncdi_spec_dirs = [1]\n" % CRI2, ":3: cdi_spec_dirs = another type"),
    )),
    ("an import that is not there", {ROOT: "version = 2\nimports = ['gone.toml']\n"},
     ROOT + ":2 imports /etc/containerd/gone.toml, which is not there"),
    ("CRI switched off", {ROOT: "version = 2\ndisabled_plugins = ['cri']\n"}, ROOT + ":2: disabled_plugins names cri"),
    ("a default handler that nobody defines",
     {ROOT: V2 + "[%s.containerd]\ndefault_runtime_name = 'gone'\n" % CRI2}, ROOT + ":5 names the default handler"),
    ("a foreign handler", {ROOT: V2 + FOREIGN % CRI2},
     ROOT + ":4 defines the handler 'nvidia' with BinaryName = \"/opt/x\""),
    ("a foreign handler in another file",
     {ROOT: "version = 2\nimports = ['conf.d/*.toml']\n", "/etc/containerd/conf.d/a.toml": V2 + FOREIGN % CRI2},
     "/etc/containerd/conf.d/a.toml:4 defines the handler 'nvidia'"),
)


@pytest.mark.parametrize(("texts", "found"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN])
@pytest.mark.parametrize("world", [(1, 7), (2, 2)], indirect=True, ids=["1.7", "2.2"])
def test_a_file_that_stops_a_run(world: World, texts: Dict[str, str], found: str) -> None:
    world.put(texts)
    assert world.refusal().found.startswith(found)
    assert world.refusal(default_handler=True, handlers={"nvidia-cdi": ""}).found.startswith(found)


@pytest.mark.parametrize(("options", "found"), [
    ({"handler_binary": "nvidia-container-runtime"}, "the binary of handler 'nvidia': 'nvidia-container-runtime'"),
    ({"config_file": "containerd/config.toml"}, "`config_file`: 'containerd/config.toml'"),
    ({"handlers": {"own": "opt/own"}}, "the binary of handler 'own': 'opt/own'"),
    ({"handlers": {"nvidia-cid": ""}}, "`handlers` names 'nvidia-cid' without a binary"),
    ({"handlers": {"crun": "/usr/bin/crun"}}, "`handlers` names 'crun'"),
    ({"handler": "NVIDIA"}, "`handler`: 'NVIDIA'"),
    ({"handlers": {"nvidia": "/x"}}, "'nvidia' is the `handler`, and in `handlers` too"),
])
def test_an_option_that_stops_a_run(world: World, options: Dict[str, Any], found: str) -> None:
    world.put({ROOT: V2})
    assert world.refusal(**options).found == found


def test_a_file_that_is_a_directory(world: World) -> None:
    Path(world.host.path(ROOT)).mkdir(parents=True)
    assert world.refusal().found == ROOT + " cannot be read: Is a directory"


def test_a_runtime_that_does_not_run(world: World) -> None:
    world.put({ROOT: V2})
    world.service = replace(SERVICE, active=False, pid=0)
    error = world.refusal()
    assert error.found == "containerd.service is not running"
    assert "`systemctl start containerd.service`; `journalctl -u containerd.service`" in error.remedy


def test_a_read_only_file_system(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        f_flag = os.ST_RDONLY

    world.put({ROOT: V2})
    monkeypatch.setattr(backend.os, "statvfs", lambda _path: Mount)
    assert world.refusal().found == ROOT + " lies on a file system that is mounted read-only"


def test_a_link_is_followed_and_one_that_others_can_bend_is_refused(world: World) -> None:
    world.put({"/srv/site/config.toml": V2})
    Path(world.host.path("/etc/containerd")).mkdir(parents=True)
    Path(world.host.path(ROOT)).symlink_to("../../srv/site/config.toml")
    os.chmod(world.host.path("/srv/site"), 0o777)
    assert "others than root may write to /srv/site" in world.refusal().found
    os.chmod(world.host.path("/srv/site"), 0o755)
    assert world.run()
    assert Path(world.host.path(ROOT)).is_symlink()
    assert writer.DROP_IN_IMPORT in (world.host.read("/srv/site/config.toml") or "")
    world.run(state="absent")
    assert world.host.read("/srv/site/config.toml") == V2


@pytest.mark.parametrize("world", [(1, 7), (2, 2)], indirect=True, ids=["1.7", "2.2"])
def test_a_file_that_another_process_changes_between_plan_and_write(world: World) -> None:
    world.put({ROOT: V2})
    world.host.meanwhile = lambda: world.put({ROOT: V2 + "# another hand\n"})
    with pytest.raises(GpuOpsError) as caught:
        world.run()
    assert caught.value.found == ROOT + ": another program has changed it since it was read"
    assert "run again" in caught.value.remedy and "nothing of this run was left behind" in caught.value.remedy
    assert world.host.read(ROOT) == V2 + "# another hand\n"
    assert not world.host.exists(writer.DROP_IN_DIRECTORY)
    world.host.meanwhile = lambda: None
    assert world.run()
    assert "# another hand" in (world.host.read(ROOT) or "")


@pytest.mark.parametrize(("world", "text"), [((1, 6), V2), ((1, 7), V2), ((2, 0), V2), ((2, 2), V3), ((2, 3), V3)],
                         indirect=["world"])
def test_a_converged_host_costs_no_command(world: World, text: str) -> None:
    world.put({ROOT: text})
    assert world.run(default_handler=True)
    # The configuration as it is and as it will be, and the files once they are in place
    assert world.host.dumps == 3
    assert [words for words in world.host.commands if words[0] == "systemctl"] == [
        ("systemctl", "restart", "containerd.service")]

    world.host.commands.clear()
    before = world.tree()
    assert world.run(default_handler=True) == []
    assert world.host.commands == []
    assert world.tree() == before

    # A comment makes the file newer than the daemon and means nothing to it
    world.put({ROOT: (world.host.read(ROOT) or "") + "# seen\n"})
    assert world.run(default_handler=True) == []
    assert world.host.commands == []

    # What the daemon acts upon has changed: it is judged again, and the daemon restarted
    world.put({ROOT: (world.host.read(ROOT) or "").replace("runc.v2", "runc.v1")})
    assert world.run(default_handler=True)[-1] == "runtime/runtime.restart/containerd.service"
    assert world.host.dumps >= 1
    world.host.commands.clear()
    assert world.run(default_handler=True) == []
    assert world.host.commands == []


@pytest.mark.parametrize(("modes", "mode"), [((0o600, 0o644), 0o600), ((0o644, 0o600), 0o600), ((0o640, 0o644), 0o640)])
def test_our_file_is_as_closed_as_what_it_was_made_from(world: World, modes: Tuple[int, int], mode: int) -> None:
    site = "/etc/containerd/conf.d/10-site.toml"
    world.put({ROOT: "version = 2\nimports = ['conf.d/*.toml']\n", site: V2})
    for path, bits in zip((ROOT, site), modes):
        os.chmod(world.host.path(path), bits)
    world.run()
    assert world.host.mode(writer.DROP_IN) == mode


def test_without_any_file_ours_may_be_read_by_all(world: World) -> None:
    world.run()
    found: List[Optional[int]] = [world.host.mode(path) for path in (ROOT, writer.DROP_IN)]
    assert found == [0o644, 0o644]
