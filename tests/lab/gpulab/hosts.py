# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One simulated host: its files, its life (start, stop, reboot, reset) and the ssh way into it."""
from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import stat
import string
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from . import cgroups, disk
from .network import PREFIX, Network
from .paths import RunPaths
from .processes import Daemon, LabError, children, run, wait_for
from .supervisor import Machine
from .topology import IMAGES, HostSpec

TEMPLATES = Path(__file__).resolve().parents[1] / "host" / "templates"
SUPERVISOR_PATH = Path(__file__).resolve().parents[1]
SANDBOX_IMAGE = "registry.k8s.io/pause:3.10"
SSH_SECONDS = 60.0
ADMIN, ADMIN_ID = "admin", 1000

# By runtime: the directory beside a host's files that holds its images, where the host sees it, and its socket.
STORES: Dict[str, Tuple[str, str, str]] = {
    "containerd": ("containerd", "/var/lib/containerd", "/run/containerd/containerd.sock"),
    "cri-o": ("containers", "/var/lib/containers", "/run/crio/crio.sock"),
}

# By image: where a host has the file of its distribution's repositories, and that file.
RPM_SOURCES: Dict[str, Tuple[str, str]] = {
    "el9": ("etc/yum.repos.d", "rocky.repo"), "sles15": ("etc/zypp/repos.d", "sles.repo")}

# Their configuration is version 2; later ones read version 3.
OLD_CONTAINERDS = ("debian", "1.7")

# Without this capability nobody may lower an OOM score, which is the first thing runc does for a pod.
CAP_SYS_RESOURCE = 24


def has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


@dataclass(frozen=True)
class HostParts:
    """The built things a host is made of. base: what root is a layer over."""

    root: Path
    layer: Path
    silicon: Optional[Path]
    kubernetes: Optional[Path]
    containerd: Optional[Path]
    store: Optional[Path]
    package_key: Path
    crio: Optional[Path] = None
    base: Optional[Path] = None

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({key: value and str(value) for key, value in asdict(self).items()}, indent=2))

    @classmethod
    def load(cls, path: Path) -> "HostParts":
        table = json.loads(path.read_text())
        return cls(**{key: value and Path(value) for key, value in table.items()})


@dataclass(frozen=True)
class Membership:
    """What a joined host needs to know and hold of its cluster."""

    ca: Path
    kubeconfig: Path
    certificate: Path
    key: Path
    api_server: str
    service_address: str


class Host:
    def __init__(self, lab: str, spec: HostSpec, position: int, network: Network,
                 neighbours: Sequence[HostSpec]) -> None:
        self.lab = lab
        self.spec = spec
        self.name = spec.name
        self.position = position
        self.network = network
        self.neighbours = tuple(neighbours)
        self.paths = RunPaths(lab)
        self.directory = self.paths.host(spec.name)
        self.written = self.paths.written / spec.name
        self.supervisor = Daemon("supervisor", self.directory)

    @property
    def address(self) -> str:
        return self.network.host(self.position)

    @property
    def silicon(self) -> Path:
        return self.directory / "silicon"

    @property
    def console(self) -> Path:
        return self.supervisor.log_file

    @property
    def cgroup(self) -> str:
        return "gpulab.%s.%s" % (self.lab, self.name)

    @property
    def _store(self) -> Tuple[str, str, str]:
        return STORES[self.spec.runtime]

    @property
    def identity(self) -> uuid.UUID:
        """The same at every `up`, as a machine keeps its serial number."""
        return uuid.uuid5(uuid.NAMESPACE_DNS, "%s.%s.gpulab" % (self.name, self.lab))

    # Files

    @property
    def parts_file(self) -> Path:
        """Which builds the host is made of: a reset gives the same host again, whatever was built since."""
        return self.directory / "parts.json"

    @property
    def prepared(self) -> bool:
        """True once `prepare` came to its end, and nothing of it is lost: memory forgets at the machine's boot."""
        return (self.directory / "machine.json").is_file() and (self.written / "upper").is_dir()

    def prepare(self, parts: HostParts, membership: Optional[Membership]) -> None:
        """Write a bare host. Not called while the host runs."""
        for name in ("root", "silicon", self._store[0], "kubelet", "conf"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        for name in ("upper", "work"):
            (self.written / name).mkdir(parents=True, exist_ok=True)
        if parts.silicon and self.spec.board:
            from . import silicon
            silicon.write_board(self.silicon, self.spec.board, self.spec.gpus)
        if parts.store:
            copy_store(parts.store, self.directory / self._store[0])
        self._write_boot_settings(membership)
        self._write_identity(parts)
        self._write_runtime(parts)
        if membership:
            self._write_kubelet(membership)
        parts.save(self.parts_file)
        self._machine(parts).save(self.directory)

    def wipe(self) -> None:
        """Throw away everything that the host wrote since it was delivered."""
        (self.directory / "machine.json").unlink(missing_ok=True)
        disk.image(self.directory).unlink(missing_ok=True)
        remove_tree(self.written)
        for name in ("silicon", self._store[0], "kubelet", "conf"):
            remove_tree(self.directory / name)

    def _machine(self, parts: HostParts) -> Machine:
        binds = {"silicon": "/var/lib/gpusim", self._store[0]: self._store[1], "kubelet": "/var/lib/kubelet"}
        readonly: Dict[Path, str] = {self.directory / "conf": "/etc/gpulab"}
        if parts.silicon:
            readonly[parts.silicon / "gpusim"] = "/usr/lib/gpusim"
        if parts.kubernetes and self.spec.join:
            readonly[parts.kubernetes / "bin"] = "/usr/lib/kubernetes"
        if parts.containerd:
            readonly[parts.containerd / "bin"] = "/usr/local/lib/containerd"
        return Machine(
            machine="%s-%s" % (self.lab, self.name), hostname=self.name, bridge=self.network.bridge,
            cgroup=self.cgroup, uuid=str(self.identity),
            written=str(self.written),
            layers=tuple(str(layer) for layer in (parts.crio, parts.layer, parts.root, parts.base) if layer),
            binds=tuple("%s:%s" % (self.directory / name, inside) for name, inside in binds.items()),
            binds_readonly=tuple("%s:%s" % pair for pair in readonly.items()), disk=self.spec.disk)

    def _write_boot_settings(self, membership: Optional[Membership]) -> None:
        routes = ["%s@%s" % (self.network.pods(position), self.network.host(position))
                  for position in range(len(self.neighbours)) if position != self.position]
        settings = {
            "GPULAB_ADDRESS": self.address, "GPULAB_PREFIX": str(PREFIX), "GPULAB_GATEWAY": self.network.controller,
            "GPULAB_POD_ROUTES": " ".join(routes),
            "GPULAB_API_SERVER": membership.api_server if membership else "",
            "GPULAB_SERVICE_ADDRESS": membership.service_address if membership else "",
        }
        text = "".join('%s="%s"\n' % pair for pair in settings.items())
        (self.directory / "conf" / "host.env").write_text(text)

    def _write_identity(self, parts: HostParts) -> None:
        names = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback",
                 "%s packages.gpulab" % self.network.controller]
        names += ["%s %s" % (self.network.host(position), spec.name) for position, spec in enumerate(self.neighbours)]
        self._put("etc/hosts", "\n".join(names) + "\n")
        self._put("etc/hostname", self.name + "\n")
        self._put("etc/machine-id", self.identity.hex + "\n", 0o444)
        self._put("root/.ssh/authorized_keys", self.paths.ssh_key.with_suffix(".pub").read_text(), 0o600)
        host_key = self._host_key()
        self._put("etc/ssh/ssh_host_ed25519_key", host_key.read_text(), 0o600)
        self._put("etc/ssh/ssh_host_ed25519_key.pub", host_key.with_suffix(".pub").read_text())
        self._write_admin(parts)
        if parts.silicon:
            self._put("etc/ld.so.preload", "/usr/lib/gpusim/lib/libgpusim-uname.so\n")
        self._write_sources(parts)
        if self.spec.image not in RPM_SOURCES:
            self._write_initramfs()

    def _write_sources(self, parts: HostParts) -> None:
        """The distribution's own packages."""
        if self.spec.image in RPM_SOURCES:
            directory, template = RPM_SOURCES[self.spec.image]
            self._fill("%s/%s" % (directory, template), template, {})
            return
        self._put("usr/share/keyrings/gpulab-debian.asc", parts.package_key.read_text())
        served = "debian" if self.spec.image in IMAGES else "debian-%s" % self.spec.image
        self._fill("etc/apt/sources.list.d/debian.sources", "debian.sources",
                   {"served": served, "suite": self.spec.image})

    def _write_initramfs(self) -> None:
        """Of all modules nouveau alone, with what it needs: an initramfs of most modules takes ten times as long, a
        whole processor for 24 seconds, and every driver that comes or goes makes one."""
        self._put("etc/initramfs-tools/conf.d/gpulab", "MODULES=list\n")
        self._put("etc/initramfs-tools/hooks/gpulab", (TEMPLATES / "initramfs-hook").read_text(), 0o755)

    def _write_admin(self, parts: HostParts) -> None:
        """Whom Ansible logs in as on most machines: a person without root's rights who may use sudo."""
        for name, line in (("passwd", "{0}:x:{1}:{1}::/home/{0}:/bin/bash"), ("group", "{0}:x:{1}:"),
                           ("shadow", "{0}:*:20000:0:99999:7:::"), ("gshadow", "{0}:!::")):
            delivered = parts.root / "etc" / name
            status = delivered.stat()
            self._put("etc/" + name, delivered.read_text() + line.format(ADMIN, ADMIN_ID) + "\n",
                      stat.S_IMODE(status.st_mode))
            self._own("etc/" + name, status.st_uid, status.st_gid)
        self._put("etc/sudoers.d/" + ADMIN, "%s ALL=(ALL) NOPASSWD: ALL\n" % ADMIN, 0o440)
        home = "home/%s" % ADMIN
        self._put(home + "/.ssh/authorized_keys", self.paths.ssh_key.with_suffix(".pub").read_text(), 0o600)
        for inside, mode in ((home, 0o755), (home + "/.ssh", 0o700), (home + "/.ssh/authorized_keys", 0o600)):
            self._upper(inside).chmod(mode)
            self._own(inside, ADMIN_ID, ADMIN_ID)

    def _own(self, inside: str, uid: int, gid: int) -> None:
        path = self._upper(inside)
        # Whoever is not root prepares hosts only to look at them.
        if os.geteuid() == 0:
            os.chown(path, uid, gid)

    def _host_key(self) -> Path:
        """Kept outside the host's files, so that a reset host is still the known host."""
        key = self.paths.ssh / ("host_%s" % self.name)
        if not key.with_suffix(".pub").is_file():
            key.unlink(missing_ok=True)
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name, "-f", key])
        return key

    def known_host_line(self) -> str:
        return "%s %s" % (self.address, self._host_key().with_suffix(".pub").read_text().strip())

    def _write_runtime(self, parts: HostParts) -> None:
        if self.spec.runtime != "containerd":
            return
        values = {"sandbox": SANDBOX_IMAGE, "restrict_oom": "false" if has_capability(CAP_SYS_RESOURCE) else "true"}
        if parts.containerd:
            self._fill("etc/systemd/system/containerd.service", "containerd.service", {})
            for program in sorted((parts.containerd / "bin").iterdir()):
                self._link("usr/local/bin/%s" % program.name, "/usr/local/lib/containerd/%s" % program.name)
        self._fill("etc/containerd/config.toml",
                   "containerd-v2.toml" if self.spec.containerd in OLD_CONTAINERDS else "containerd-v3.toml", values)

    def _write_kubelet(self, membership: Membership) -> None:
        self._put("etc/kubernetes/pki/ca.crt", membership.ca.read_text())
        self._put("etc/kubernetes/kubelet.conf", membership.kubeconfig.read_text(), 0o600)
        self._fill("etc/cni/net.d/10-gpulab.conflist", "cni.conflist", {"pods": self.network.pods(self.position)})
        self._link("etc/systemd/system/multi-user.target.wants/kubelet.service", "/etc/systemd/system/kubelet.service")
        kubelet = self.directory / "kubelet"
        (kubelet / "pki").mkdir(exist_ok=True)
        (kubelet / "config.yaml").write_text(string.Template(
            (TEMPLATES / "kubelet-config.yaml").read_text()).substitute({"socket": self._store[2]}))
        shutil.copyfile(membership.certificate, kubelet / "pki" / "kubelet.crt")
        shutil.copyfile(membership.key, kubelet / "pki" / "kubelet.key")
        (kubelet / "pki" / "kubelet.key").chmod(0o600)
        (kubelet / "kubeadm-flags.env").write_text(
            'KUBELET_KUBEADM_ARGS="--hostname-override=%s --node-ip=%s"\n' % (self.name, self.address))

    def _fill(self, inside: str, template: str, values: Mapping[str, str]) -> None:
        self._put(inside, string.Template((TEMPLATES / template).read_text()).substitute(values))

    def _put(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self._upper(inside)
        path.write_text(text)
        path.chmod(mode)

    def _link(self, inside: str, target: str) -> None:
        path = self._upper(inside)
        if not path.is_symlink():
            path.symlink_to(target)

    def _upper(self, inside: str) -> Path:
        """A path in the upper layer, its parents with the lower layers' modes: they are what the overlay shows."""
        upper = self.written / "upper"
        path = upper / inside
        for parent in reversed(path.relative_to(upper).parents):
            directory = upper / parent
            if not directory.is_dir():
                directory.mkdir()
                directory.chmod(0o700 if str(parent) in ("root", "root/.ssh") else 0o755)
        return path

    # Life

    def start(self) -> None:
        """Boot the host unless it runs; returns at once."""
        if self.supervisor.pid is not None:
            return
        cgroups.remove(self.cgroup)
        self.supervisor.start(
            ["unshare", "--mount", "--propagation", "private",
             sys.executable, "-m", "gpulab.supervisor", self.directory],
            {"PYTHONPATH": str(SUPERVISOR_PATH)})

    def stop(self) -> None:
        """Pull the plug."""
        self.supervisor.stop(seconds=0.2)
        cgroups.remove(self.cgroup)
        disk.wait_released(self.directory)

    @property
    def init_pid(self) -> Optional[int]:
        """The host's process 1, as this machine numbers it; /proc/PID/root is the host's file system."""
        supervisor = self.supervisor.pid
        for nspawn in children(supervisor) if supervisor else ():
            for pid in children(nspawn):
                return pid
        return None

    def answers(self) -> bool:
        """True when sshd greets: cheaper than a login, which is the next thing anybody does."""
        try:
            with socket.create_connection((self.address, 22), timeout=0.5) as connection:
                connection.settimeout(1.0)
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def wait(self, seconds: float = SSH_SECONDS) -> None:
        def ready() -> bool:
            if self.supervisor.pid is None:
                raise LabError("host %s stopped while it booted; the end of %s:\n%s"
                               % (self.name, self.console, self.supervisor.log_tail()))
            return self.answers()
        wait_for("host %s: ssh at %s" % (self.name, self.address), ready, seconds, str(self.console))

    def boot_id(self) -> str:
        return self.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def reboot(self, seconds: float = SSH_SECONDS) -> None:
        """Reboot in order, as an admin does, and wait for the new boot."""
        before = self.boot_id()
        self.ssh(["systemctl", "reboot"], check=False)
        deadline = time.monotonic() + seconds

        def is_new() -> bool:
            if not self.answers():
                return False
            found = self.ssh(["cat", "/proc/sys/kernel/random/boot_id"], check=False)
            return found.returncode == 0 and found.stdout.strip() != before
        wait_for("host %s: a new boot" % self.name, is_new, max(1.0, deadline - time.monotonic()), str(self.console))

    def kill(self) -> None:
        """A power cut: no process of the host sees it coming. The host stays off until it is started.

        What nobody has synced is lost where the host has a disk of its own, and else kept.
        """
        supervisor = self.supervisor.pid
        if self.spec.disk and supervisor is not None:
            disk.cut(self.directory, supervisor)
        self.stop()

    # The way in

    def ssh_command(self, *options: str) -> List[str]:
        return ["ssh", "-q", "-i", str(self.paths.ssh_key), "-o", "UserKnownHostsFile=%s" % self.paths.known_hosts,
                "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=10", *options, "root@%s" % self.address]

    def ssh(self, argv: Sequence[str], check: bool = True, feed: Optional[str] = None,
            ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run([*self.ssh_command("-o", "BatchMode=yes"), shlex.join(argv)], input=feed or "",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if check and done.returncode != 0:
            raise LabError("on %s: %s ended with %d: %s%s"
                           % (self.name, shlex.join(argv), done.returncode, done.stdout, done.stderr))
        return done


def remove_tree(path: Path) -> None:
    """Remove a tree that may hold an overlay's work directory (mode 000) or immutable leftovers of pods."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        run(["rm", "-rf", "--one-file-system", path])


def copy_store(store: Path, target: Path) -> None:
    """Give a host its images: contents by hard link (no runtime rewrites them), databases and locks as copies.

    A store that is there already, from a lab that was killed half-way, is made anew.
    """
    remove_tree(target)
    run(["cp", "-al", store, target])
    for database in sorted([*target.rglob("*.db"), *target.rglob("*.lock")]):
        copy = database.with_suffix(".copy")
        shutil.copy2(database, copy)
        os.replace(copy, database)


def in_parallel(hosts: Sequence[Host], seconds: float = SSH_SECONDS) -> Tuple[float, ...]:
    """Wait for all hosts; they boot side by side, so the sum of the waits is the longest boot."""
    started = time.monotonic()
    times = []
    for host in hosts:
        host.wait(seconds)
        times.append(time.monotonic() - started)
    return tuple(times)
