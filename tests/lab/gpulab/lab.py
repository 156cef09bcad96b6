# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A whole laboratory: what the command line and the tests work with."""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

from . import memory
from . import network as networks
from .aptrepo import KEY_PART, PUBLIC_KEY
from .cache import Workshop
from .control_plane import ControlPlane
from .hosts import STORES, Host, HostParts, in_parallel, remove_tree
from .limits import raise_limits
from .network import Network
from .parts import crio, served
from .parts.registry import workshop
from .parts.stores import store_name
from .paths import RunPaths, running_labs
from .processes import LabError, run, wait_for
from .repositories import Repositories
from .topology import LAYERED, HostSpec, Topology, load, parse

DEFAULT_NAME = "gpulab"
NODE_SECONDS = 60.0

# First word of a URL path: the part that is served below it.
REPOSITORIES: Dict[str, str] = {
    "cuda": "apt-nvidia", "libnvidia-container": "apt-toolkit", "debian": served.SERVED}
# By image: those that only a laboratory with such a host serves
REPOSITORIES_OF: Dict[str, Dict[str, str]] = {
    "el9": {"cuda-rpm": "rpm-nvidia", "el9": "rpm-el9"},
    "sles15": {"cuda-sles15": "rpm-nvidia-sles15", "sles15": "rpm-sles15"},
    "trixie": {"debian-trixie": "apt-debian-trixie"},
}


def say(text: str) -> None:
    print("[lab] %s" % text, file=sys.stderr, flush=True)


class Lab:
    """One running (or not yet running) laboratory, found by its name."""

    def __init__(self, name: Optional[str] = None) -> None:
        self.name = name or os.environ.get("GPULAB_NAME") or DEFAULT_NAME
        self.paths = RunPaths(self.name)

    # What is there

    @property
    def is_up(self) -> bool:
        return self.paths.record.is_file()

    @property
    def topology(self) -> Topology:
        return parse(self._record()["topology"], str(self.paths.record))

    @property
    def network(self) -> Network:
        return Network(**self._record()["network"])

    @property
    def hosts(self) -> Dict[str, Host]:
        topology, network = self.topology, self.network
        return {spec.name: Host(self.name, spec, position, network, topology.hosts)
                for position, spec in enumerate(topology.hosts)}

    def host(self, name: str) -> Host:
        self.topology.host(name)
        return self.hosts[name]

    @property
    def kubeconfig(self) -> Path:
        return self.paths.kubeconfig

    @property
    def inventory(self) -> Path:
        return self.paths.inventory

    @property
    def repositories(self) -> Repositories:
        return Repositories(self.network, self.paths.packages)

    @property
    def control_plane(self) -> Optional[ControlPlane]:
        if not self.topology.control_plane:
            return None
        return ControlPlane(self.network, self.paths.control_plane, self.paths.kubeconfig,
                            self.paths.control_plane / "kubernetes")

    def _record(self) -> Dict[str, Any]:
        try:
            record: Dict[str, Any] = json.loads(self.paths.record.read_text())
        except FileNotFoundError:
            running = ", ".join(running_labs()) or "none"
            raise LabError("no lab called %s is up (running: %s); start it with `up TOPOLOGY`"
                           % (self.name, running)) from None
        return record

    # Life

    def up(self, wanted: Union[str, Topology]) -> None:
        """Bring the laboratory up, or repair it when it runs with this topology already."""
        topology = load(wanted) if isinstance(wanted, str) else wanted
        started = time.monotonic()
        with self._locked():
            self._refuse_another(topology)
            shop = workshop()
            for name in shop.order(parts_of(topology)):
                shop.build(name)
            built = time.monotonic()
            self._claim(topology)
            self._start(shop)
        say("%s is up: %d host(s), %.1f s%s" % (self.name, len(topology.hosts), time.monotonic() - built, (
            " (parts: %.1f s)" % (built - started) if built - started > 1 else "")))

    def _start(self, shop: Workshop) -> None:
        hosts = self.hosts
        raise_limits()
        memory.bring_up(self.paths.written)
        networks.bring_up(self.network, len(hosts))
        self.repositories.start({path: shop.path(part) for path, part in repositories_of(self.topology).items()})
        self._write_access(list(hosts.values()))
        plane = self.control_plane
        if plane:
            say("control plane: etcd, API server, controller manager, scheduler")
            plane.prepare()
            self._write_program_link(shop.path("kubernetes") / "bin" / "kubernetes")
            plane.start()
        for host in hosts.values():
            self._boot(host, _host_parts(shop, host.spec))
        in_parallel(list(hosts.values()))
        say("hosts answer: %s" % ", ".join(hosts))
        if plane:
            plane.wait()
            self._wait_joined([host.name for host in hosts.values() if host.spec.join])

    def _boot(self, host: Host, parts: HostParts) -> None:
        if host.supervisor.pid is not None:
            return
        host.stop()
        if not host.prepared:
            host.wipe()
            plane = self.control_plane
            host.prepare(parts, plane.membership(host.name, host.address) if plane and host.spec.join else None)
        say("booting %s (%s)" % (host.name, _describe(host.spec)))
        host.start()

    def _wait_joined(self, names: Sequence[str]) -> None:
        plane = self.control_plane
        if plane and names:
            wait_for("nodes Ready: %s" % ", ".join(names), lambda: set(names) <= set(plane.nodes_ready()), NODE_SECONDS,
                     "journalctl -u kubelet on the host", pause=0.3)
            say("nodes are Ready: %s" % ", ".join(names))

    def _write_access(self, hosts: Sequence[Host]) -> None:
        """Key, known hosts and inventory: what ssh and Ansible need."""
        self.paths.ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.paths.ssh_key.with_suffix(".pub").is_file():
            self.paths.ssh_key.unlink(missing_ok=True)
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpulab", "-f", self.paths.ssh_key])
        self.paths.known_hosts.write_text("".join(host.known_host_line() + "\n" for host in hosts))
        self.paths.inventory.write_text(inventory_text(self, hosts))

    def _write_program_link(self, program: Path) -> None:
        """Which build of Kubernetes this lab runs; later builds of the parts do not change it under a running lab."""
        link = self.paths.control_plane / "kubernetes"
        if not link.is_symlink():
            link.symlink_to(program)

    def serve(self, word: str, part: str) -> None:
        """Serve one more repository, at http://packages.gpulab:8480/WORD/, until the next `up`."""
        shop = workshop()
        shop.build(part)
        self.repositories.start({**self.repositories.served(), word: shop.path(part)})

    # One host of a running lab

    def reset(self, name: str) -> None:
        """Make a host what it was when it was delivered: bare, with a healthy board, joined if it joins."""
        host = self.host(name)
        with self._locked():
            parts = HostParts.load(host.parts_file)
            host.stop()
            host.wipe()
            plane = self.control_plane
            if plane and host.spec.join:
                plane.forget_node(name)
            self._boot(host, parts)
            host.wait()
            if host.spec.join:
                self._wait_joined([name])

    def reboot(self, name: str) -> None:
        self.host(name).reboot()

    def kill(self, name: str) -> None:
        """A power cut; `start` turns the host on again."""
        self.host(name).kill()

    def start(self, name: str) -> None:
        host = self.host(name)
        host.start()
        host.wait()

    def ssh(self, host: str, argv: Sequence[str], check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.host(host).ssh(argv, check=check)

    def kubectl(self, argv: Sequence[str], check: bool = True, feed: Optional[str] = None,
                ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(self.kubectl_command(argv), input=feed or "", stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if check and done.returncode != 0:
            raise LabError("kubectl %s ended with %d: %s" % (" ".join(argv), done.returncode, done.stderr.strip()))
        return done

    def kubectl_command(self, argv: Sequence[str]) -> List[str]:
        plane = self.control_plane
        if plane is None:
            raise LabError("lab %s has no control plane (control_plane: false in its topology)" % self.name)
        return plane.kubectl(argv)

    def _refuse_another(self, topology: Topology) -> None:
        if self.is_up and self.topology != topology:
            raise LabError("lab %s runs with another topology (%s, wanted %s); end it first: lab --name %s down"
                           % (self.name, self.topology.name, topology.name, self.name))

    def _claim(self, topology: Topology) -> None:
        """Write down what is about to be started, before anything is: `down` cleans by this record."""
        if self.is_up:
            return
        # A killed `down` removes its record early; what it left is not a host to boot from.
        self._forget()
        self.paths.top.mkdir(parents=True)
        with _lock(self.paths.top.parent / ".networks.lock"):
            taken = [Lab(each).network.number for each in running_labs()]
            network = networks.choose(self.name, taken)
            record = {"topology": topology.as_json(), "network": {"bridge": network.bridge, "number": network.number}}
            scratch = self.paths.record.with_suffix(".new")
            scratch.write_text(json.dumps(record, indent=2))
            scratch.replace(self.paths.record)

    def down(self) -> None:
        """End everything that belongs to this lab and forget it. Works on any remains of a killed `up`."""
        with self._locked():
            if self.is_up:
                for host in self.hosts.values():
                    host.stop()
                self.repositories.stop()
                if self.control_plane:
                    self.control_plane.stop()
                networks.take_down(self.network)
            self._forget()

    def _forget(self) -> None:
        memory.take_down(self.paths.written)
        remove_tree(self.paths.top)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if os.geteuid() != 0:
            raise LabError("the laboratory boots hosts and needs root; run it with sudo")
        self.paths.lock.parent.mkdir(parents=True, exist_ok=True)
        with _lock(self.paths.lock):
            yield


def repositories_of(topology: Topology) -> Dict[str, str]:
    served = dict(REPOSITORIES)
    for spec in topology.hosts:
        served.update(REPOSITORIES_OF.get(spec.image, {}))
    return served


def parts_of(topology: Topology) -> List[str]:
    """The parts that must be built before the topology can come up."""
    names = ["host-layer", *repositories_of(topology).values()]
    for spec in topology.hosts:
        names.append("root-%s" % spec.image)
        if spec.board:
            names.append("silicon")
        if spec.join:
            names.append(_store(spec))
        if spec.runtime == "cri-o":
            names.append(crio.LAYER)
        if spec.containerd != "debian":
            names.append("containerd-%s" % spec.containerd)
    if topology.control_plane:
        names.append("kubernetes")
    return sorted(set(names))


def _store(spec: HostSpec) -> str:
    image = LAYERED.get(spec.image, spec.image)
    return crio.store_part(image) if spec.runtime == "cri-o" else store_name(image, spec.containerd)


def _host_parts(shop: Workshop, spec: HostSpec) -> HostParts:
    return HostParts(
        root=shop.path("root-%s" % spec.image) / "root",
        layer=shop.path("host-layer"),
        silicon=shop.path("silicon") if spec.board else None,
        kubernetes=shop.path("kubernetes") if spec.join else None,
        containerd=shop.path("containerd-%s" % spec.containerd) if spec.containerd != "debian" else None,
        store=shop.path(_store(spec)) / STORES[spec.runtime][0] if spec.join else None,
        package_key=shop.path(KEY_PART.name) / PUBLIC_KEY,
        crio=shop.path(crio.LAYER) if spec.runtime == "cri-o" else None,
        base=shop.path("root-%s" % LAYERED[spec.image]) / "root" if spec.image in LAYERED else None)


def _describe(spec: HostSpec) -> str:
    board = "%d x %s" % (spec.gpus, spec.board) if spec.board else "no GPU"
    runtime = "containerd %s" % spec.containerd if spec.runtime == "containerd" else "CRI-O"
    return "%s, %s, %s%s" % (spec.image, board, runtime, ", joins" if spec.join else "")


def inventory_text(lab: Lab, hosts: Sequence[Host]) -> str:
    """An Ansible inventory. JSON is YAML, and needs no library to write."""
    entries = {host.name: {"ansible_host": host.address} for host in hosts}
    gpu_hosts: Dict[str, Dict[str, str]] = {host.name: {} for host in hosts if host.spec.gpus}
    variables = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(lab.paths.ssh_key),
        "ansible_ssh_common_args": "-o UserKnownHostsFile=%s -o IdentitiesOnly=yes" % lab.paths.known_hosts,
        "gpulab_packages_url": "http://packages.gpulab:%d" % networks.PACKAGES_PORT,
        "gpulab_kubeconfig": str(lab.kubeconfig) if lab.topology.control_plane else "",
    }
    document = {"all": {"hosts": entries, "vars": variables, "children": {"gpu_nodes": {"hosts": gpu_hosts}}}}
    return json.dumps(document, indent=2) + "\n"


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another command that works on it (%s)" % path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
