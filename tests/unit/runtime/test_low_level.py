# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which programs the container runtime of a host starts containers with."""
from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import low_level
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.model import Service


def containerd_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *programs: str) -> Host:
    host = Host(str(tmp_path))
    host.write("/etc/containerd/config.toml", text)
    host.write("/proc/42/environ", "A=b\0PATH=/opt/bin:/usr/bin\0")
    for program in programs:
        host.write(program, "", mode=0o755)
    service = Service("containerd", "", "containerd.service", True, 42, 0.0, "/usr/bin/containerd", (1, 7),
                      "/etc/containerd/config.toml", "/run/containerd/containerd.sock")
    monkeypatch.setattr(low_level, "find", lambda _host: service)
    return host


CRI = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s]\n'
OPTIONS = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.%s.options]\n%s = "%s"\n'


@pytest.mark.parametrize(("text", "programs", "found"), [
    ("version = 2\n", ["/opt/bin/runc", "/usr/bin/runc"], ("/opt/bin/runc",)),
    (CRI % "runc" + OPTIONS % ("runc", "BinaryName", "/usr/libexec/runc"), ["/usr/libexec/runc"],
     ("/usr/libexec/runc",)),
    (CRI % "runc" + OPTIONS % ("runc", "binaryName", "crun"), ["/usr/bin/crun"], ("/usr/bin/crun",)),
    (CRI % "crun" + OPTIONS % ("crun", "BinaryName", "/opt/crun"), ["/opt/crun", "/opt/bin/runc"], ("/opt/crun",)),
    (CRI % "runc" + OPTIONS % ("runc", "BinaryName", "/usr/bin/nvidia-container-runtime"), ["/opt/bin/runc"],
     ("/opt/bin/runc",)),
    (CRI % "runc" + OPTIONS % ("runc", "BinaryName", "/gone/runc"), ["/opt/bin/runc"], ()),
    ("version = 2\n[broken", ["/opt/bin/runc"], ()),
])
def test_the_runtimes_in_use_are_those_of_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, programs: List[str], found: Any
) -> None:
    assert low_level.in_use(containerd_host(tmp_path, monkeypatch, text, *programs)) == found


def test_cri_os_own_runtime_is_taken_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = containerd_host(tmp_path, monkeypatch, "", "/usr/libexec/crio/crun", "/usr/libexec/crio/runc")
    service = Service("crio", "", "crio.service", True, 42, 0.0, "/usr/bin/crio", (1, 34), "/etc/crio/crio.conf",
                      "/run/crio/crio.sock")
    monkeypatch.setattr(low_level, "find", lambda _host: service)
    host.write("/etc/crio/crio.conf.d/10-crio.conf", """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
""")
    assert low_level.in_use(host) == ("/usr/libexec/crio/crun", "/usr/libexec/crio/runc")


def test_a_directory_of_one_release_is_named_by_what_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = "/var/lib/rancher/k3s/data/%s/bin" % ("0f" * 32)
    host = containerd_host(tmp_path, monkeypatch, "version = 2\n", release + "/runc")
    host.write("/proc/42/environ", "PATH=%s\0" % release)
    assert low_level.in_use(host) == (release + "/runc",)
    (tmp_path / "var/lib/rancher/k3s/data/current").symlink_to("0f" * 32)
    assert low_level.in_use(host) == ("/var/lib/rancher/k3s/data/current/bin/runc",)
