# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The container runtimes that are known, and where each one lies when it is installed as its makers do it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class KnownRuntime:
    """A container runtime as its makers install it; what runs on a host may lie elsewhere.

    name:         what a policy calls it.
    backend:      the daemon, 'containerd', 'crio' or 'docker'.
    distribution: the Kubernetes distribution that brings it, '' for none.
    sockets:      where it answers.
    units:        systemd units that start it.
    root:         its root configuration file.
    program:      name of the daemon's program.
    options:      those of its command line that name the root configuration file.
    directories:  paths that tell this distribution from others with the same socket.
    """

    name: str
    backend: str
    distribution: str
    sockets: Tuple[str, ...]
    units: Tuple[str, ...]
    root: str
    program: str
    options: Tuple[str, ...] = ("--config", "-c")
    directories: Tuple[str, ...] = ()


KNOWN_RUNTIMES = (
    KnownRuntime(
        "containerd", "containerd", "", ("/run/containerd/containerd.sock",), ("containerd.service",),
        "/etc/containerd/config.toml", "containerd"),
    KnownRuntime(
        "crio", "crio", "", ("/run/crio/crio.sock",), ("crio.service", "cri-o.service"), "/etc/crio/crio.conf", "crio"),
    KnownRuntime(
        "k3s", "containerd", "k3s", ("/run/k3s/containerd/containerd.sock",), ("k3s.service", "k3s-agent.service"),
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "containerd", directories=("/var/lib/rancher/k3s/",)),
    KnownRuntime(
        "rke2", "containerd", "rke2", ("/run/k3s/containerd/containerd.sock",),
        ("rke2-server.service", "rke2-agent.service"),
        "/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "containerd",
        directories=("/var/lib/rancher/rke2/",)),
    KnownRuntime(
        "k0s", "containerd", "k0s", ("/run/k0s/containerd.sock",), ("k0sworker.service", "k0scontroller.service"),
        "/etc/k0s/containerd.toml", "containerd", directories=("/var/lib/k0s/", "/etc/k0s/")),
    KnownRuntime(
        "microk8s", "containerd", "microk8s", ("/var/snap/microk8s/common/run/containerd.sock",),
        ("snap.microk8s.daemon-containerd.service",), "/var/snap/microk8s/current/args/containerd.toml", "containerd",
        directories=("/var/snap/microk8s/", "/snap/microk8s/")),
    KnownRuntime(
        "docker", "docker", "", ("/run/docker.sock", "/run/cri-dockerd.sock"), ("docker.service",),
        "/etc/docker/daemon.json", "dockerd", ("--config-file",)),
)
