# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""k3s, RKE2, k0s and MicroK8s on a host: the right service is found, restarted or waited for, and its CRI knows us.

Their services are stand-ins (distribution_services.py) around the real containerd, systemd and CRI.
"""
from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
from laboratory import Fleet, new_lab
from test_distribution_judges import TEMPLATE

from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import Containerd
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cri import CriClient
from gpulab.parts.registry import workshop
from gpulab.topology import parse

HOST = "dist"
HERE = Path(__file__).resolve().parent
BINARY = "/opt/nvidia/nvidia-container-runtime"
UNITS = {"k3s": "k3s-agent", "rke2": "rke2-server", "k0s": "k0sworker",
         "microk8s": "snap.microk8s.daemon-containerd"}
SOCKETS = {"k3s": "/run/k3s/containerd/containerd.sock", "rke2": "/run/k3s/containerd/containerd.sock",
           "k0s": "/run/k0s/containerd.sock", "microk8s": "/var/snap/microk8s/common/run/containerd.sock"}
PROGRAMS = {"k3s": "/var/lib/rancher/k3s/data/current/bin", "rke2": "/var/lib/rancher/rke2/data/current/bin",
            "k0s": "/var/lib/k0s/bin", "microk8s": "/snap/microk8s/current/bin"}
UNIT = """\
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/distribution_services.py %s
KillMode=process
"""


class Node:
    """A host on which one distribution runs at a time."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.name = ""

    def path(self, name: str) -> Path:
        return Path("/proc/%d/root%s" % (self.fleet.lab.host(HOST).init_pid, name))

    def install(self, name: str, release: str, *directories: str) -> None:
        self.name = name
        for directory in (PROGRAMS[name], "/usr/local/lib", *directories):
            self.path(directory).mkdir(parents=True, exist_ok=True)
        shutil.copy(workshop().build("containerd-" + release) / "bin/containerd", self.path(PROGRAMS[name]))
        shutil.copy(workshop().build("k3s-render") / "bin/k3s-render", self.path("/usr/local/bin/k3s-render"))
        shutil.copy(HERE / "distribution_services.py", self.path("/usr/local/lib/distribution_services.py"))
        self.path("/etc/systemd/system/%s.service" % UNITS[name]).write_text(UNIT % name)

    def start(self) -> None:
        self.fleet.lab.ssh(HOST, [
            "sh", "-c", "systemctl daemon-reload; systemctl restart %s; i=0; until test -S %s; do sleep 0.2; "
            "i=$((i+1)); test $i -lt 100 || exit 1; done" % (UNITS[self.name], SOCKETS[self.name])])

    def remove(self) -> None:
        self.fleet.say(HOST, "sh", "-c", (
            "systemctl stop %s; pkill -x containerd; rm -rf /etc/systemd/system/%s.service /var/lib/rancher /etc/k0s "
            "/etc/rancher /var/lib/k0s /snap /var/snap /var/lib/gpuops /run/k3s /run/k0s /opt/nvidia "
            "/usr/bin/nvidia-container-runtime; systemctl daemon-reload") % (UNITS[self.name], UNITS[self.name]))

    def configure(self, **options: Any) -> Dict[str, Any]:
        parameters = {"handler_binary": BINARY, **options}
        result = self.fleet.tasks(HOST, [{"gpuops.nvidia.container_runtime": parameters}]).result(
            HOST, "container_runtime")
        assert not result.get("failed"), result["msg"]
        return result

    def handlers(self) -> Dict[str, str]:
        """{handler: its program} that the running daemon tells."""
        status = CriClient(str(self.path(SOCKETS[self.name]))).status()
        assert status.ready, status.problem
        runtimes = status.topic("config")["containerd"]["runtimes"]
        assert set(runtimes) == set(Containerd().running_handlers(status) or ())
        return {name: (each.get("options") or {}).get("BinaryName", "") for name, each in runtimes.items()}

    def default(self) -> str:
        status = CriClient(str(self.path(SOCKETS[self.name]))).status()
        return str(status.topic("config")["containerd"]["defaultRuntimeName"])


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("dist")
    lab.up(parse({"name": "dist", "control_plane": False,
                  "hosts": [{"name": HOST, "board": "l40s", "gpus": 1, "containerd": "2.2"}]}, "test_distributions.py"))
    lab.ssh(HOST, ["systemctl", "disable", "--now", "containerd"])
    yield Fleet(lab, tmp_path_factory.mktemp("dist"))
    lab.down()


@pytest.fixture
def node(fleet: Fleet) -> Iterator[Node]:
    node = Node(fleet)
    yield node
    node.remove()


def render_as_k3s(node: Node, name: str, release: str, base: str, program: str) -> str:
    directory = "/var/lib/rancher/%s/agent/etc/containerd" % name
    node.install(name, release, directory)
    for template in (HERE / "corpus" / "k3s").glob("base-*.tmpl"):
        shutil.copy(template, node.path(directory))
    node.path(directory + "/generation").write_text("%s %s" % (base, program))
    node.start()
    return directory


@pytest.mark.parametrize(("name", "release", "base", "program", "file"), [
    pytest.param("k3s", "1.7", "base-v2", "k3s", "config.toml.tmpl", marks=pytest.mark.variation),
    pytest.param("rke2", "2.2", "base-v3", "k3s", "config-v3.toml.tmpl", marks=pytest.mark.variation),
    pytest.param("k3s", "2.2", "base-v3", "k3s-with-imports", "config-v3.toml.d/99-gpuops-nvidia.toml",
                 marks=pytest.mark.variation),
    ("rke2", "2.3", "base-v3", "k3s-with-imports", "config-v3.toml.d/99-gpuops-nvidia.toml"),
])
def test_k3s_and_rke2(node: Node, name: str, release: str, base: str, program: str, file: str) -> None:
    directory = render_as_k3s(node, name, release, base, program)
    assert set(node.handlers()) == {"runc"}
    done = node.configure()
    assert [step["subject"] for step in done["plan"]["steps"]] == [directory + "/" + file, UNITS[name] + ".service"]
    assert node.handlers()["nvidia"] == BINARY
    assert not node.configure()["changed"]

    default = node.configure(default_handler=True)
    assert "/etc/rancher/%s/config.yaml.d/99-gpuops-nvidia.yaml" % name in [
        step["subject"] for step in default["plan"]["steps"]]
    assert node.default() == "nvidia"

    node.configure(state="absent")
    assert (set(node.handlers()), node.default()) == ({"runc"}, "runc")
    assert not node.path(directory + "/" + file).exists() and not node.path("/etc/rancher").exists()


@pytest.mark.variation
def test_a_program_that_k3s_finds_takes_a_restart_alone(node: Node) -> None:
    render_as_k3s(node, "k3s", "2.2", "base-v3", "k3s-with-imports")
    program = node.path("/usr/bin/nvidia-container-runtime")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    done = node.configure(handler_binary="/usr/bin/nvidia-container-runtime")
    assert [step["action"] for step in done["plan"]["steps"]] == ["runtime.restart"]
    assert node.handlers()["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert not node.configure(handler_binary="/usr/bin/nvidia-container-runtime")["changed"]
    # another program is wanted: k3s' own finding is overruled, and comes back
    node.configure(adopt=True)
    assert node.handlers()["nvidia"] == BINARY
    node.configure(state="absent")
    assert node.handlers()["nvidia"] == "/usr/bin/nvidia-container-runtime"


def test_k0s_is_waited_for(node: Node) -> None:
    node.install("k0s", "2.2", "/etc/k0s/containerd.d")
    node.start()
    main = node.fleet.say(HOST, "systemctl", "show", UNITS["k0s"], "--property", "MainPID")
    pid = node.fleet.say(HOST, "pgrep", "-f", "/var/lib/k0s/bin/containerd")
    done = node.configure()
    assert [step["action"] for step in done["plan"]["steps"]] == ["runtime_config.write", "runtime.wait"]
    assert node.handlers()["nvidia"] == BINARY
    assert node.fleet.say(HOST, "pgrep", "-f", "/var/lib/k0s/bin/containerd") != pid
    assert not node.configure()["changed"]
    pid = node.fleet.say(HOST, "pgrep", "-f", "/var/lib/k0s/bin/containerd")
    node.configure(state="absent")
    assert node.fleet.say(HOST, "pgrep", "-f", "/var/lib/k0s/bin/containerd") != pid
    assert set(node.handlers()) == {"runc"}
    assert node.fleet.say(HOST, "systemctl", "show", UNITS["k0s"], "--property", "MainPID") == main
    assert list(node.path("/etc/k0s/containerd.d").iterdir()) == []


@pytest.mark.parametrize("release", [pytest.param("1.7", marks=pytest.mark.variation), "2.2"])
def test_microk8s(node: Node, release: str) -> None:
    args = "/var/snap/microk8s/current/args"
    node.install("microk8s", release, args)
    template = node.path(args + "/containerd-template.toml")
    template.write_text(TEMPLATE)
    node.start()
    done = node.configure(default_handler=True)
    assert [step["subject"] for step in done["plan"]["steps"]] == [
        args + "/containerd-template.toml", UNITS["microk8s"] + ".service"]
    assert (node.handlers()["nvidia"], node.default()) == (BINARY, "nvidia")
    assert not node.configure(default_handler=True)["changed"]
    node.configure(state="absent")
    assert template.read_text() == TEMPLATE
    assert node.default() == "runc" and "nvidia" not in node.handlers()


def test_two_distributions_are_told_apart(node: Node) -> None:
    directory = render_as_k3s(node, "k3s", "2.2", "base-v3", "k3s-with-imports")
    node.fleet.say(HOST, "systemctl", "start", "containerd")
    try:
        result = node.fleet.tasks(HOST, [{"gpuops.nvidia.container_runtime": {}}]).result(HOST, "container_runtime")
        told = json.dumps(result["plan"]["steps"])
        assert directory in told and '"/etc/containerd' not in told
    finally:
        node.fleet.say(HOST, "systemctl", "stop", "containerd")
