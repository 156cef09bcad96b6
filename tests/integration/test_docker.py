# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker of a real host: what a reload brings and what takes a restart, asked of the daemon; containers go on."""
from __future__ import annotations

import http.client
import json
import shutil
import socket
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from laboratory import Fleet, new_lab
from workspace import collections_root

from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker.engine import Engine
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive
from gpulab.parts.registry import workshop
from gpulab.topology import parse

HOST = "dock"
FILE = "/etc/docker/daemon.json"
BINARY = "/usr/bin/nvidia-container-runtime"
IMAGE = "docker.io/library/gpulab-tools:1"
# As Docker's packages ship it: this containerd is no Kubernetes'
CONTAINERD = 'version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
UNIT = """\
[Unit]
After=network-online.target containerd.service
Requires=containerd.service

[Service]
Type=notify
ExecStart=/usr/bin/dockerd -H unix:///run/docker.sock --containerd=/run/containerd/containerd.sock
ExecReload=/bin/kill -s HUP $MAINPID
KillMode=process
Delegate=yes

[Install]
WantedBy=multi-user.target
"""
# What an administrator has there, in an order and layout of their own; a laboratory host has no packet filter, and a
# runc that knows no time namespaces
DELIVERED = """\
{
  "live-restore": true,
  "storage-driver": "vfs",
  "features": { "containerd-snapshotter": false, "time-namespaces": false },

  "bridge": "none",
  "iptables": false, "ip6tables": false,
  "userland-proxy": false,
  "proxies": { "http-proxy": "http://robot:s3cret@proxy.example:3128" }
}"""


class Dock:
    """A host with Docker, seen from outside through its file system."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def path(self, name: str) -> Path:
        return Path("/proc/%d/root%s" % (self.fleet.lab.host(HOST).init_pid, name))

    @property
    def engine(self) -> Engine:
        return Engine(str(self.path("/run/docker.sock")))

    def post(self, path: str, body: Any = None, kind: str = "application/json") -> Dict[str, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=120)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(self.path("/run/docker.sock")))
        connection.request("POST", path, body if kind != "application/json" else json.dumps(body),
                           {"Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, text
        return dict(json.loads(text)) if text.startswith("{") and "\n{" not in text else {}

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("localhost", timeout=120)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(self.path("/run/docker.sock")))
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def process(self) -> str:
        return self.fleet.say(HOST, "systemctl", "show", "docker", "--property", "MainPID")

    def module(self, *options: str, **parameters: Any) -> Dict[str, Any]:
        return self.fleet.tasks(HOST, [{"gpuops.nvidia.container_runtime": parameters}], *options).result(
            HOST, "container_runtime")

    def configure(self, **parameters: Any) -> Dict[str, Any]:
        result = self.module(**parameters)
        assert not result.get("failed"), result
        return result

    def rewrite(self, text: Optional[str]) -> None:
        if text is None:
            self.path(FILE).unlink()
        else:
            self.path(FILE).write_text(text)


@pytest.fixture(scope="module")
def dock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dock]:
    lab = new_lab("docker")
    lab.up(parse({"name": "docker", "control_plane": False,
                  "hosts": [{"name": HOST, "board": "l40s", "gpus": 1, "containerd": "2.2"}]}, "test_docker.py"))
    dock = Dock(Fleet(lab, tmp_path_factory.mktemp("docker")))
    programs = workshop().build("docker") / "bin"
    for name in ("dockerd", "docker-proxy"):
        shutil.copy(programs / name, dock.path("/usr/bin/" + name))
    dock.path("/etc/docker").mkdir()
    dock.rewrite(DELIVERED)
    dock.path(FILE).chmod(0o600)
    dock.path("/etc/containerd/config.toml").write_text(CONTAINERD)
    dock.path("/etc/systemd/system/docker.service").write_text(UNIT)
    lab.ssh(HOST, ["sh", "-c", "systemctl restart containerd && systemctl daemon-reload && systemctl start docker"])
    images = workshop().build("images")
    image = images / json.loads((images / "index.json").read_text())[IMAGE]
    dock.post("/images/load", image.read_bytes(), "application/x-tar")
    yield dock
    lab.down()


@pytest.fixture
def sleeper(dock: Dock) -> Iterator[str]:
    """A container that runs."""
    made = dock.post("/containers/create", {"Image": IMAGE, "Cmd": ["sleep", "100000"],
                                            "HostConfig": {"NetworkMode": "none"}})["Id"]
    dock.post("/containers/%s/start" % made)
    assert made in dock.engine.running_containers()
    yield str(made)
    dock.post("/containers/%s/stop?t=0" % made)


@pytest.fixture(autouse=True)
def clean(dock: Dock) -> Iterator[None]:
    yield
    dock.rewrite(DELIVERED)
    dock.fleet.say(HOST, "sh", "-c", "rm -rf /var/lib/gpuops; systemctl reset-failed; systemctl restart docker")


def test_a_reload_brings_the_runtime_and_containers_go_on(dock: Dock, sleeper: str) -> None:
    process = dock.process()
    planned = dock.module("--check")
    assert [step["action"] for step in planned["plan"]["steps"]] == ["runtime_config.edit", "runtime.reload"]
    assert dock.path(FILE).read_text() == DELIVERED
    done = dock.configure()
    assert done["plan"]["steps"] == planned["plan"]["steps"] and "s3cret" not in json.dumps(done)
    assert dock.engine.info()["Runtimes"]["nvidia"]["path"] == BINARY
    assert dock.engine.info()["DefaultRuntime"] == "runc"
    assert dock.process() == process
    assert sleeper in dock.engine.running_containers()
    assert dock.path(FILE).stat().st_mode & 0o777 == 0o600
    assert not dock.configure()["changed"]


@pytest.mark.variation
def test_a_reload_that_was_put_off_is_made_up_for(dock: Dock, sleeper: str) -> None:
    process = dock.process()
    first = dock.configure(allowed_disruption="none")
    assert [step["action"] for step in first["deferred"]] == ["runtime.reload"]
    assert "nvidia" not in dock.engine.info()["Runtimes"]
    second = dock.configure()
    assert [step["action"] for step in second["plan"]["steps"]] == ["runtime.reload"]
    assert "nvidia" in dock.engine.info()["Runtimes"] and dock.process() == process
    assert sleeper in dock.engine.running_containers()


@pytest.mark.variation
def test_a_default_comes_by_a_reload_and_goes_by_a_restart(dock: Dock, sleeper: str) -> None:
    process = dock.process()
    dock.configure(default_handler=True)
    assert dock.engine.info()["DefaultRuntime"] == "nvidia" and dock.process() == process
    gone = dock.configure(default_handler=False)
    assert [step["action"] for step in gone["plan"]["steps"]] == ["runtime_config.edit", "runtime.restart"]
    assert dock.engine.info()["DefaultRuntime"] == "runc" and dock.process() != process
    assert "nvidia" in dock.engine.info()["Runtimes"]
    assert sleeper in dock.engine.running_containers()


@pytest.mark.variation
def test_a_reload_alone_leaves_the_default(dock: Dock) -> None:
    """Why a restart: a default that daemon.json names no more is the daemon's until its end."""
    dock.configure(default_handler=True)
    dock.rewrite(DELIVERED)
    dock.fleet.say(HOST, "systemctl", "reload", "docker")
    time.sleep(2)
    assert dock.engine.info()["DefaultRuntime"] == "nvidia"


def test_removal_gives_the_bytes_back(dock: Dock, sleeper: str) -> None:
    dock.configure(default_handler=True, handlers={"nvidia-legacy": None})
    assert {"nvidia", "nvidia-legacy"} <= set(dock.engine.info()["Runtimes"])
    dock.configure(state="absent")
    assert dock.path(FILE).read_text() == DELIVERED
    assert dock.engine.info()["DefaultRuntime"] == "runc" and "nvidia" not in dock.engine.info()["Runtimes"]
    assert sleeper in dock.engine.running_containers()
    assert not dock.configure(state="absent")["changed"]


def test_a_restart_that_would_end_containers_is_refused(dock: Dock) -> None:
    dock.rewrite(DELIVERED.replace('"live-restore": true', '"live-restore": false'))
    dock.fleet.say(HOST, "systemctl", "restart", "docker")
    dock.configure(default_handler=True)
    made = dock.post("/containers/create", {"Image": IMAGE, "Cmd": ["sleep", "100000"],
                                            "HostConfig": {"NetworkMode": "none", "Runtime": "runc"}})["Id"]
    dock.post("/containers/%s/start" % made)
    before, process = dock.path(FILE).read_text(), dock.process()
    result = dock.module(state="absent")
    assert result["failed"] and "1 running containers, and live-restore is off" in result["msg"]
    assert (dock.path(FILE).read_text(), dock.process()) == (before, process)
    assert made in dock.engine.running_containers()
    dock.post("/containers/%s/stop?t=0" % made)
    dock.configure(state="absent")
    assert dock.engine.info()["DefaultRuntime"] == "runc"


@pytest.mark.variation
def test_cdi_is_on_unless_it_is_switched_off(dock: Dock) -> None:
    assert dock.engine.info()["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"]
    dock.rewrite(DELIVERED.replace('"time-namespaces": false', '"time-namespaces": false, "cdi": false'))
    dock.fleet.say(HOST, "systemctl", "restart", "docker")
    assert not dock.engine.info()["CDISpecDirs"]
    done = dock.configure()
    assert [step["action"] for step in done["plan"]["steps"]] == ["runtime_config.edit", "runtime.restart"]
    assert dock.engine.info()["CDISpecDirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert json.loads(dock.path(FILE).read_text())["features"] == {
        "containerd-snapshotter": False, "time-namespaces": False, "cdi": True}


def test_what_dockerd_refuses_is_told_and_not_written(dock: Dock) -> None:
    broken = DELIVERED.replace('"bridge"', '"brigde"')
    dock.rewrite(broken)
    result = dock.module()
    assert result["failed"] and "brigde" in result["msg"] and dock.path(FILE).read_text() == broken


def test_a_containerd_for_kubernetes_beside_it_has_to_be_told_apart(dock: Dock) -> None:
    dock.path("/etc/containerd/config.toml").write_text("version = 2\n")
    dock.fleet.say(HOST, "systemctl", "restart", "containerd")
    result = dock.module()
    assert result["failed"] and "several container runtimes" in result["msg"]
    assert dock.configure(runtime="docker")["changed"]
    dock.path("/etc/containerd/config.toml").write_text(CONTAINERD)
    dock.fleet.say(HOST, "systemctl", "restart", "containerd")


@pytest.mark.variation
def test_killed_before_any_change_docker_starts_and_the_next_run_completes(dock: Dock) -> None:
    there, inner = dock.path("/root/kills"), Path("ansible_collections", "gpuops", "nvidia", "plugins", "module_utils")
    shutil.copytree(collections_root() / inner, there / inner, ignore=shutil.ignore_patterns("__pycache__"))
    (there / "libraries.zip").write_bytes(archive()[0])
    for name in ("runtime_kills.py", "docker_kills.py"):
        shutil.copy(Path(__file__).parent / name, there)
    # So many restarts in a row are no fault here
    dock.path("/etc/systemd/system/docker.service").write_text(UNIT.replace(
        "[Unit]\n", "[Unit]\nStartLimitIntervalSec=0\n"))
    dock.fleet.say(HOST, "systemctl", "daemon-reload")
    text = DELIVERED.replace('"bridge"', '"runtimes": { "nvidia": { "path": "/opt/old" } },\n  "bridge"')
    options = {"adopt": True, "default_handler": True, "handlers": {"nvidia-cdi": ""}, "runtime": "docker"}
    done = dock.fleet.lab.host(HOST).ssh(["python3", "/root/kills/docker_kills.py"],
                                         feed=json.dumps({"files": {FILE: text}, "options": options}))
    told = json.loads(done.stdout)
    assert told["faults"] == []
    assert min(told["changes"].values()) >= 6


def output(dock: Dock, command: List[str], **host: Any) -> str:
    """What a container says until its end."""
    made = dock.post("/containers/create", {"Image": IMAGE, "Cmd": command, "Tty": True,
                                            "HostConfig": {"NetworkMode": "none", **host}})["Id"]
    dock.post("/containers/%s/start" % made)
    dock.post("/containers/%s/wait" % made)
    return dock.get("/containers/%s/logs?stdout=1&stderr=1" % made)


@pytest.mark.variation
def test_after_site_a_container_gets_the_gpu_that_it_asks_for(dock: Dock) -> None:
    """Everything of the collection on a host whose runtime is Docker, found by itself."""
    dock.fleet.play("gpuops.nvidia.site")
    listed = ["sh", "-c", "ls /dev/nvidia0 /dev/nvidiactl"]
    assert output(dock, listed).count("No such file") == 2
    request = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}
    for told in ({}, {"Runtime": "nvidia"}):
        assert output(dock, listed, DeviceRequests=[request], **told).split() == ["/dev/nvidia0", "/dev/nvidiactl"]
    dock.fleet.play("gpuops.nvidia.uninstall")
    assert dock.path(FILE).read_text() == DELIVERED
