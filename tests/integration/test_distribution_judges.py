# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our change on k3s, RKE2, k0s and MicroK8s, judged by real containerds over what the distributions make of it.

The distributions themselves do not run here. k3s renders its configuration with Go's text/template: so does the
test, from a template of the same tables. What k0s merges and MicroK8s substitutes is done here after their sources.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import pytest
import tomlkit
from made_edits import WorkedOut, make, work_out

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import judge, rancher
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import Containerd
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.model import Service
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.policy import Policy
from gpulab.parts.registry import workshop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="starts containerd: needs root")

CORPUS = Path(__file__).resolve().parent / "corpus" / "k3s"
# Nothing is found here by k3s' own search, unless a test puts it there
BINARY = "/opt/nvidia/nvidia-container-runtime"
PRESENT = Policy(True, "nvidia", BINARY, False, True, "",
                        handlers=(("nvidia-legacy", "/opt/nvidia/nvidia-container-runtime.legacy"),))
OURS = ("nvidia", "nvidia-legacy")


def containerd(release: str) -> str:
    return str(workshop().build("containerd-" + release) / "bin/containerd")


def service_of(distribution: str, release: str, root: str) -> Service:
    major, minor = (int(number) for number in release.split("."))
    return Service("containerd", distribution, distribution + ".service", True, os.getpid(), time.time() + 60,
                   containerd(release), (major, minor), root, "/x.sock")


def worked_out(host: Host, service: Service, policy: Policy = PRESENT) -> WorkedOut:
    return work_out(Containerd(), host, Journal(host), policy, service)


def edits_of(host: Host, service: Service, policy: Policy = PRESENT) -> Any:
    planned = worked_out(host, service, policy)
    assert planned.refusal is None, planned.refusal
    return planned.edits


def effective(host: Host, service: Service) -> Dict[str, Any]:
    """What containerd makes of the files as they lie there: it reads paths of this machine, so these are mapped."""
    root = Path(host.path(service.root))
    text = root.read_text()
    mapped = root.with_name("mapped.toml")
    mapped.write_text(text.replace('"/var/lib', '"' + host.path("/var/lib")).replace('"/etc/k0s', '"' + host.path(
        "/etc/k0s")).replace('"/run/k0s', '"' + host.path("/run/k0s")))
    done = subprocess.run([service.binary, "--config", str(mapped), "config", "dump"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    dumped = toml.parse("dump", done.stdout)
    dumped.pop("imports", None)
    return dumped


def beside_ours(before: Dict[str, Any], after: Dict[str, Any]) -> List[Tuple[str, ...]]:
    return [path for path, _old, _new in judge.differences(before, after)
            if path[2:4] != ("containerd", "runtimes") or path[4] not in OURS]


def handlers(dumped: Dict[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for section in dumped["plugins"].values():
        found.update(section.get("containerd", {}).get("runtimes", {}) if isinstance(section, dict) else {})
    return found


@dataclass
class K3s:
    """A directory of k3s with what lies beside its rendered file."""

    host: Host
    base: str
    imports: bool
    directory: str = "/var/lib/rancher/k3s/agent/etc/containerd"

    @property
    def root(self) -> str:
        return self.directory + "/config.toml"

    @property
    def template(self) -> str:
        return self.directory + ("/config-v3.toml.tmpl" if self.base == "base-v3" else "/config.toml.tmpl")

    def start(self, found: Tuple[str, ...] = (), default: str = "") -> None:
        """What a start of the service renders; found: handlers whose programs it finds."""
        data = {
            "Program": "k3s-with-imports" if self.imports else "k3s", "Folder": self.directory, "SystemdCgroup": True,
            "ExtraRuntimes": {name: {"RuntimeType": "io.containerd.runc.v2", "BinaryName": "/usr/bin/" + name}
                              for name in found},
            "NodeConfig": {"DefaultRuntime": default},
        }
        own = [self.host.path(self.template)] if self.host.exists(self.template) else []
        done = subprocess.run(
            [str(workshop().build("k3s-render") / "bin/k3s-render"), str(CORPUS / (self.base + ".tmpl")), *own],
            input=json.dumps(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.host.write(self.root, done.stdout)


# Templates of users, in front of ours: the base and something more, or a configuration of their own
OWN: Dict[str, Optional[str]] = {
    "none": None,
    "the base alone": rancher.BASE,
    "the base and no end of the line": rancher.BASE.rstrip("\n"),
    "another handler": rancher.BASE + '\n[@CRI.containerd.runtimes.kata]\n  runtime_type = "io.containerd.kata.v2"\n',
    "a condition": rancher.BASE + '{{ if .SystemdCgroup }}\n[debug]\n  level = "warn" # quiet\n{{ end }}\n',
    "a comment in the template": "{{- /* kept by hand */ -}}\n" + rancher.BASE + "# the end\n",
    "no base": 'version = @VERSION\n[@CRI.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
               "[@CRI.containerd.runtimes.runc.options]\n  SystemdCgroup = {{ .SystemdCgroup }}\n",
}
# (template of the distribution, whether it imports, containerd)
GENERATIONS = (("base-v2", False, "1.7"), ("base-v3", False, "2.0"), ("base-v3", False, "2.2"),
               ("base-v3", True, "2.2"), ("base-v3", True, "2.3"), ("base-v3", True, "2.4"))


def own_text(name: str, base: str) -> Optional[str]:
    cri = "plugins.'io.containerd.cri.v1.runtime'" if base == "base-v3" else 'plugins."io.containerd.grpc.v1.cri"'
    text = OWN[name]
    return None if text is None else text.replace("@CRI", cri).replace("@VERSION", base[-1])


@pytest.mark.parametrize("own", list(OWN))
@pytest.mark.parametrize(("base", "imports", "release"), GENERATIONS,
                         ids=lambda value: str(value) if isinstance(value, str) else "with imports" if value else "-")
def test_k3s_renders_our_handlers_and_nothing_else_of_ours(
    base: str, imports: bool, release: str, own: str, tmp_path: Path
) -> None:
    k3s = K3s(Host(str(tmp_path)), base, imports)
    host, service, text = k3s.host, service_of("k3s", release, k3s.root), own_text(own, base)
    if text is not None:
        host.write(k3s.template, text)
    k3s.start()
    before = effective(host, service)
    assert not set(OURS) & set(handlers(before))

    edit, = edits_of(host, service)
    joins = imports and own != "no base"
    assert edit.path == (k3s.directory + "/config-v3.toml.d/99-gpuops-nvidia.toml" if joins else k3s.template)
    make(Containerd(), host, [edit])
    k3s.start()
    after = effective(host, service)
    assert handlers(after)["nvidia"]["options"]["BinaryName"] == BINARY
    assert handlers(after)["nvidia"]["options"]["SystemdCgroup"] is True
    assert set(OURS) <= set(handlers(after)) and beside_ours(before, after) == []
    assert edits_of(host, service) == ()

    # the program is installed after all, where k3s looks: TOML must not have the handler twice
    k3s.start(found=("nvidia",))
    assert {"nvidia", "nvidia-legacy"} <= set(handlers(effective(host, service)))

    k3s.start()
    make(Containerd(), host, edits_of(host, service, replace(PRESENT, present=False)))
    assert host.read(k3s.template) == text
    k3s.start()
    assert effective(host, service) == before


@pytest.mark.parametrize(("base", "imports", "release"), GENERATIONS[2:4])
def test_a_handler_that_k3s_finds_takes_no_file(base: str, imports: bool, release: str, tmp_path: Path) -> None:
    k3s = K3s(Host(str(tmp_path)), base, imports)
    k3s.start(found=("nvidia", "crun"))
    service = service_of("k3s", release, k3s.root)
    found = replace(PRESENT, handler_binary="/usr/bin/nvidia", handlers=())
    assert edits_of(k3s.host, service, found) == ()
    default, = edits_of(k3s.host, service, replace(found, default_handler=True))
    assert default.path == "/etc/rancher/k3s/config.yaml.d/99-gpuops-nvidia.yaml"
    make(Containerd(), k3s.host, [default])
    k3s.start(found=("nvidia", "crun"), default="nvidia")
    effective(k3s.host, service)
    assert edits_of(k3s.host, service, replace(found, default_handler=True)) == ()


@pytest.mark.parametrize("release", ["2.2", "2.3", "2.4"])
def test_a_handler_of_the_operator_is_taken_over_by_a_drop_in(release: str, tmp_path: Path) -> None:
    k3s = K3s(Host(str(tmp_path)), "base-v3", True)
    k3s.start(found=("nvidia",))
    service, told = service_of("rke2", release, k3s.root), replace(PRESENT, adopt=True, handlers=())
    before = effective(k3s.host, service)
    refusal = worked_out(k3s.host, service, replace(told, adopt=False)).refusal
    assert refusal and re.search(r"config.toml:\d+ defines the handler 'nvidia' with BinaryName", refusal.found)
    make(Containerd(), k3s.host, edits_of(k3s.host, service, told))
    k3s.start(found=("nvidia",))
    after = effective(k3s.host, service)
    assert handlers(after)["nvidia"]["options"]["BinaryName"] == BINARY
    assert beside_ours(before, after) == [] and edits_of(k3s.host, service, told) == ()
    make(Containerd(), k3s.host, edits_of(k3s.host, service, replace(told, present=False)))
    assert effective(k3s.host, service) == before


@pytest.mark.parametrize(("base", "imports", "release"), GENERATIONS)
def test_the_daemon_starts_with_what_k3s_renders(base: str, imports: bool, release: str, tmp_path: Path) -> None:
    k3s = K3s(Host(str(tmp_path)), base, imports)
    service = service_of("k3s", release, k3s.root)
    k3s.start()
    make(Containerd(), k3s.host, edits_of(k3s.host, service))
    k3s.start()
    effective(k3s.host, service)
    assert plugin_states(service.binary, tmp_path / k3s.directory[1:] / "mapped.toml", tmp_path) == {"ok"}


def plugin_states(binary: str, config: Path, directory: Path) -> Set[str]:
    """States of the CRI plugins of a daemon that starts with a file, in namespaces of its own."""
    ctr, socket = str(workshop().build("containerd-2.2") / "bin/ctr"), str(directory / "c.sock")
    (directory / "data").mkdir()
    script = 'ip link set lo up; mount -t tmpfs tmpfs "$1"; shift; exec "$@"'
    data = str(directory / "data")
    daemon = subprocess.Popen(
        ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script, "sh", data, binary,
         "--config", str(config), "--address", socket, "--root", data + "/root", "--state", data + "/state"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and daemon.poll() is None:
            done = subprocess.run([ctr, "--address", socket, "--timeout", "2s", "plugins", "ls"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            rows = [line.split() for line in done.stdout.splitlines()]
            if done.returncode == 0:
                return {row[-1] for row in rows if tuple(row[:2]) in (
                    ("io.containerd.grpc.v1", "cri"), ("io.containerd.cri.v1", "runtime"))}
            time.sleep(0.05)
        return {"containerd does not start"}
    finally:
        daemon.terminate()
        daemon.wait()


# k0s

K0S_ROOT, K0S_MERGED = "/etc/k0s/containerd.toml", "/run/k0s/containerd-cri.toml"
K0S_DIRECTORY = "/etc/k0s/containerd.d"


def k0s_apply(host: Host, service: Service) -> None:
    """What k0s does with its directory: up to 1.35 it merges sections of the CRI plugin to one file (configurer.go)."""
    if service.release >= (2, 0):
        host.write(K0S_ROOT, '# k0s_managed=true\n# A placeholder.\nversion = 3\nimports = ["%s/*.toml"]\n'
                             "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = 'pause:1'\n"
                   % K0S_DIRECTORY)
        return
    done = subprocess.run([service.binary, "config", "default"], stdout=subprocess.PIPE, text=True, check=True)
    section = "io.containerd.grpc.v1.cri"
    merged: Dict[str, Any] = {"version": 2, "plugins": {section: toml.parse("", done.stdout)["plugins"][section]}}
    rest = []
    for path in host.glob(K0S_DIRECTORY + "/*.toml"):
        data = toml.parse(path, host.read(path) or "")
        if section in data.get("plugins", {}):
            merge(merged, data)
        else:
            rest.append(path)
    host.write(K0S_MERGED, tomlkit.dumps(merged))
    host.write(K0S_ROOT, "# k0s_managed=true\nversion = 2\nimports = %s\n" % json.dumps([*rest, K0S_MERGED]))


def merge(total: Dict[str, Any], more: Dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(total.get(key), dict):
            merge(total[key], value)
        else:
            total[key] = value


@pytest.fixture(params=["1.7", "2.2", "2.4"])
def k0s(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tuple[Host, Service]]:
    host, service = Host(str(tmp_path)), service_of("k0s", request.param, K0S_ROOT)
    (tmp_path / K0S_DIRECTORY[1:]).mkdir(parents=True)
    k0s_apply(host, service)
    yield host, service


@pytest.mark.parametrize("default", [False, True])
def test_k0s_gets_our_handlers_and_loses_them_again(k0s: Tuple[Host, Service], default: bool) -> None:
    host, service = k0s
    wanted = replace(PRESENT, default_handler=default)
    before = effective(host, service)
    edit, = edits_of(host, service, wanted)
    assert edit.path == K0S_DIRECTORY + "/99-gpuops-nvidia.toml"
    make(Containerd(), host, [edit])
    k0s_apply(host, service)
    after = effective(host, service)
    assert handlers(after)["nvidia"]["options"]["BinaryName"] == BINARY
    assert [path for path in beside_ours(before, after)
            if path[2:] not in (("enable_cdi",), ("containerd", "default_runtime_name"))] == []
    assert edits_of(host, service, wanted) == ()
    assert (host.read(K0S_ROOT) or "").startswith("# k0s_managed=true\n")
    make(Containerd(), host, edits_of(host, service, replace(wanted, present=False)))
    k0s_apply(host, service)
    assert effective(host, service) == before


def test_k0s_takes_over_the_handler_of_another_file(k0s: Tuple[Host, Service]) -> None:
    host, service = k0s
    version, name = (3, "io.containerd.cri.v1.runtime") if service.release >= (2, 0) else (
        2, "io.containerd.grpc.v1.cri")
    section = 'plugins."%s".containerd.runtimes.nvidia' % name
    host.write(K0S_DIRECTORY + "/50-site.toml", (
        'version = %d\n[%s]\n  runtime_type = "io.containerd.runc.v2"\n[%s.options]\n'
        '  BinaryName = "/usr/local/nvidia/toolkit/nvidia-container-runtime"\n' % (version, section, section)))
    k0s_apply(host, service)
    before, told = effective(host, service), replace(PRESENT, adopt=True)
    make(Containerd(), host, edits_of(host, service, told))
    k0s_apply(host, service)
    after = effective(host, service)
    assert handlers(after)["nvidia"]["options"]["BinaryName"] == BINARY
    assert edits_of(host, service, told) == ()
    make(Containerd(), host, edits_of(host, service, replace(told, present=False)))
    k0s_apply(host, service)
    assert effective(host, service) == before


# MicroK8s

SNAP = "/var/snap/microk8s/current/args"
TEMPLATE = """\
version = 2
oom_score = 0

[grpc]
  max_recv_message_size = 16777216

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10" # pinned
  enable_selinux = false

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "${SNAPSHOTTER}"
    default_runtime_name = "${RUNTIME}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "${RUNTIME_TYPE}"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime]
      runtime_type = "${RUNTIME_TYPE}"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia-container-runtime.options]
        BinaryName = "nvidia-container-runtime"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${SNAP_DATA}/opt/cni/bin"
    conf_dir = "${SNAP_DATA}/args/cni-network"

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "${SNAP_DATA}/args/certs.d"
"""
VARIABLES = {"SNAPSHOTTER": "overlayfs", "RUNTIME_TYPE": "io.containerd.runc.v2", "RUNTIME": "runc",
             "SNAP_DATA": "/var/snap/microk8s/current"}


def microk8s_start(host: Host) -> None:
    text = host.read(SNAP + "/containerd-template.toml") or ""
    for name, value in VARIABLES.items():
        text = text.replace("${%s}" % name, value)
    host.write(SNAP + "/containerd.toml", text)


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("release", ["1.7", "2.2"])
def test_microk8s_renders_our_handlers_and_gets_its_template_back(
    release: str, default: bool, tmp_path: Path
) -> None:
    host, service = Host(str(tmp_path)), service_of("microk8s", release, SNAP + "/containerd.toml")
    host.write(SNAP + "/containerd-template.toml", TEMPLATE)
    microk8s_start(host)
    before, wanted = effective(host, service), replace(PRESENT, default_handler=default)
    make(Containerd(), host, edits_of(host, service, wanted))
    microk8s_start(host)
    after = effective(host, service)
    assert handlers(after)["nvidia"]["options"]["BinaryName"] == BINARY
    assert [path for path in beside_ours(before, after)
            if path[2:] not in (("enable_cdi",), ("containerd", "default_runtime_name"))] == []
    assert edits_of(host, service, wanted) == ()
    make(Containerd(), host, edits_of(host, service, replace(wanted, present=False)))
    assert host.read(SNAP + "/containerd-template.toml") == TEMPLATE
    microk8s_start(host)
    assert effective(host, service) == before
