# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which container runtime is it: asked of the process behind the kubelet's socket, not of the PATH.

A connection to a Unix socket tells the process that listens on it (SO_PEERCRED); that process tells its program, its
configuration file and, by its control group, its systemd unit. Only where nothing runs are the units asked.
"""
from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.runtimes import KNOWN_RUNTIMES, KnownRuntime
from .cri import CriClient, CriError, peer_pid
from .model import Service, started_at

KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
# Where packages and kubeadm leave options of a kubelet that does not run just now
KUBELET_FLAGS = ("/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet", "/etc/sysconfig/kubelet")
# The kubelet's own default (KubeletConfiguration, containerRuntimeEndpoint)
KUBELET_DEFAULT = "/run/containerd/containerd.sock"
ENDPOINT = "--container-runtime-endpoint"
# The runtime is told from what runs
AUTO = "auto"
# Their kubelet is no process of its own, so its socket cannot be asked of it
EMBEDDED_KUBELET = ("k3s", "microk8s")


def find(host: Host, runtime: str = AUTO, config_file: str = "") -> Optional[Service]:
    """The runtime that Kubernetes uses, or the one that is named. Raises GpuOpsError when it is not clear.

    runtime:     AUTO, or a KnownRuntime's name.
    config_file: its root configuration file, '' to take the daemon's own.
    """
    endpoint = kubelet_endpoint(host)
    service = _behind(host, endpoint, runtime, config_file) if endpoint else None
    if service is not None:
        return service
    if endpoint and runtime == AUTO:
        service = _installed(host, _at(host, endpoint), config_file)
        if service is not None:
            return service
        raise GpuOpsError(
            "runtime.kubelet_without_runtime",
            found="a kubelet that uses %s, where no runtime answers and none is installed" % endpoint,
            wanted="a container runtime behind the kubelet's socket",
            remedy="install the runtime, or correct the kubelet's `containerRuntimeEndpoint`",
        )
    places = [place for place in KNOWN_RUNTIMES if runtime in (AUTO, place.name)]
    running = _without_bystanders(host, _running(host, places, runtime, config_file))
    _check_one(running, "and no kubelet that says which it uses")
    return running[0] if running else _installed(host, places, config_file)


def rediscover(host: Host, runtime: str, config_file: str, socket_path: str) -> Optional[Service]:
    """The runtime of a socket that find() has found before."""
    return _behind(host, socket_path, runtime, config_file) or find(host, runtime, config_file)


def kubelet_endpoint(host: Host) -> str:
    """The socket that the kubelet of this host uses, '' when there is none."""
    for argv in _kubelets(host):
        told = option(argv, ENDPOINT)
        config = option(argv, "--config")
        if not told and config:
            told = _configured(host, config)
        return _socket_of(told) or KUBELET_DEFAULT
    for path in KUBELET_FLAGS:
        match = re.search(ENDPOINT + r"[= ]([^\s\"']+)", host.read(path) or "")
        if match:
            return _socket_of(match.group(1))
    return _socket_of(_configured(host, KUBELET_CONFIG))


def kubelet_uses_systemd(host: Host) -> bool:
    """Whether the kubelet's cgroup driver is systemd: runtime and kubelet have to agree."""
    told, paths = [], []
    for argv in _kubelets(host):
        told.append(option(argv, "--cgroup-driver"))
        paths.append(option(argv, "--config"))
    for path in paths or [KUBELET_CONFIG]:
        match = re.search(r"(?m)^cgroupDriver:\s*[\"']?(\w+)", host.read(path) or "") if path else None
        told.append(match.group(1) if match else "")
    return next((each for each in told if each), "") == "systemd"


def option(argv: Sequence[str], *names: str) -> str:
    """Value of a command line's option, '' when it is not given."""
    for position, word in enumerate(argv):
        for name in names:
            if word == name and position + 1 < len(argv):
                return argv[position + 1]
            if word.startswith(name + "="):
                return word[len(name) + 1:]
    return ""


def _kubelets(host: Host) -> List[List[str]]:
    """Command lines of the kubelets that run here; one in a container of its own PID namespace is another host's."""
    found = []
    own = host.link("/proc/self/ns/pid")
    for number in host.list("/proc"):
        if number.isdigit() and (host.read("/proc/%s/comm" % number) or "").strip() == "kubelet":
            if own is None or host.link("/proc/%s/ns/pid" % number) == own:
                found.append(_argv(host, int(number)))
    return found


def _configured(host: Host, path: str) -> str:
    match = re.search(r"(?m)^containerRuntimeEndpoint:\s*[\"']?([^\"'\s]+)", host.read(path) or "")
    return match.group(1) if match else ""


def _socket_of(endpoint: str) -> str:
    return endpoint[len("unix://"):] if endpoint.startswith("unix://") else endpoint


def _at(host: Host, socket_path: str) -> List[KnownRuntime]:
    wanted = host.resolve(socket_path)
    return [place for place in KNOWN_RUNTIMES if wanted in [host.resolve(path) for path in place.sockets]]


def _running(host: Host, places: Sequence[KnownRuntime], runtime: str, config_file: str) -> List[Service]:
    found: Dict[int, Service] = {}
    for place in places:
        for path in place.sockets:
            service = _behind(host, path, runtime, config_file) if host.exists(path) else None
            if service is not None:
                found.setdefault(service.pid, service)
    return list(found.values())


def _without_bystanders(host: Host, running: Sequence[Service]) -> List[Service]:
    """Without those that are not Kubernetes': a kubelet inside its distribution uses that one's; Docker's containerd
    has its CRI switched off."""
    embedded = [service for service in running if service.distribution in EMBEDDED_KUBELET]
    if len(embedded) == 1:
        return embedded
    if len(running) < 2:
        return list(running)
    return [service for service in running if service.backend == "docker" or _told_version(host, service.socket)]


def _check_one(services: Sequence[Service], why: str) -> None:
    if len(services) > 1:
        raise GpuOpsError(
            "runtime.several",
            found="several container runtimes: %s, %s" % (", ".join(
                "%s (%s, %s)" % (service.name, service.unit, service.socket)
                for service in services), why),
            wanted="one runtime to configure",
            remedy="name it with `runtime`",
            option="runtime",
        )


def _behind(host: Host, socket_path: str, runtime: str, config_file: str) -> Optional[Service]:
    """The runtime whose process listens on a socket, if it is one that is asked for."""
    pid = peer_pid(host.path(socket_path))
    if pid == 0:
        return None
    argv = _argv(host, pid)
    program = host.link("/proc/%d/exe" % pid) or ""
    unit = _unit_of(host, pid)
    # systemd listens itself for a service that it starts on demand
    named = _at(host, socket_path) if pid == 1 else _places_of(host, socket_path, argv, program, unit)
    if not named or runtime not in (AUTO, named[0].name):
        return None
    place = named[0]
    if pid == 1 or place.backend == "docker" and os.path.basename(program) != place.program:
        # what listens is cri-dockerd, or nobody yet: the daemon with the configuration is another process
        service = _installed(host, [place], config_file)
        return service if service is not None and service.active else None
    return _service(host, place, socket_path, pid, argv, program, unit, config_file)


def _places_of(
    host: Host, socket_path: str, argv: Sequence[str], program: str, unit: str
) -> List[KnownRuntime]:
    """By its unit, else by its paths, else by its socket, else by its program."""
    names = {os.path.basename(argv[0]) if argv else "", os.path.basename(program)}
    told = [program, *argv]
    tests = (
        [place for place in KNOWN_RUNTIMES if unit in place.units],
        [place for place in KNOWN_RUNTIMES
         if any(word.startswith(directory) for directory in place.directories for word in told)],
        _at(host, socket_path),
        [place for place in KNOWN_RUNTIMES if place.program in names and not place.distribution],
    )
    return next((found for found in tests if found), [])


def _service(
    host: Host, place: KnownRuntime, socket_path: str, pid: int, argv: Sequence[str], program: str, unit: str,
    config_file: str,
) -> Optional[Service]:
    binary = program.replace(" (deleted)", "")
    answered = "" if program.endswith(" (deleted)") else _told_version(host, socket_path)
    release = _release(answered) or _release(host.run([binary, "--version"], check=False).stdout)
    if release is None:
        return None
    root = config_file or option(argv, *place.options) or place.root
    if not root.startswith("/"):
        root = os.path.normpath(os.path.join(host.link("/proc/%d/cwd" % pid) or "/", root))
    return Service(
        backend=place.backend, distribution=place.distribution, unit=unit or place.units[0], active=True, pid=pid,
        started=started_at(host, pid), binary=binary, release=release, root=root, socket=socket_path,
        arguments=tuple(argv),
    )


def _installed(host: Host, places: Sequence[KnownRuntime], config_file: str) -> Optional[Service]:
    """A runtime by its unit: it does not answer on its socket, or is not started."""
    found: List[Service] = []
    for place in places:
        for name in place.units:
            unit = host.unit(name)
            if unit.get("LoadState") == "loaded":
                service = _of_unit(host, place, name, unit, config_file)
                if service is not None:
                    found.append(service)
    candidates = [service for service in found if service.active] or found
    if len({service.backend + service.distribution for service in candidates}) > 1:
        _check_one(candidates, "none of which answers")
    return candidates[0] if candidates else None


def _of_unit(
    host: Host, place: KnownRuntime, name: str, unit: Mapping[str, str], config_file: str
) -> Optional[Service]:
    pid = int(unit.get("MainPID") or "0")
    argv = _argv(host, pid) if pid else []
    program = (host.link("/proc/%d/exe" % pid) or "").replace(" (deleted)", "") if pid else ""
    binary = program or host.which(place.program) or ""
    release = _release(host.run([binary, "--version"], check=False).stdout) if binary else None
    if release is None:
        return None
    return Service(
        backend=place.backend, distribution=place.distribution, unit=name, active=unit.get("ActiveState") == "active",
        pid=pid, started=started_at(host, pid), binary=binary, release=release,
        root=config_file or option(argv, *place.options) or place.root, socket=place.sockets[0],
        arguments=tuple(argv),
    )


def _argv(host: Host, pid: int) -> List[str]:
    return (host.read("/proc/%d/cmdline" % pid) or "").rstrip("\0").split("\0")


def _unit_of(host: Host, pid: int) -> str:
    """The innermost service of a process' control group, '' when it is in none."""
    for line in (host.read("/proc/%d/cgroup" % pid) or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controllers == "name=systemd":
            services = [part for part in path.split("/") if part.endswith(".service")]
            if services:
                return services[-1]
    return ""


def _told_version(host: Host, socket_path: str) -> str:
    try:
        return " ".join(CriClient(host.path(socket_path), timeout=5).version())
    except CriError:
        return ""


def _release(told: str) -> Optional[Tuple[int, int]]:
    match = re.search(r"\bv?(\d+)\.(\d+)\.\d+", told)
    return (int(match.group(1)), int(match.group(2))) if match else None
