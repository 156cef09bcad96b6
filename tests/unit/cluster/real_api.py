# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real API server with its etcd, on free ports of the loopback address, and nothing else of a cluster.

What depends on how the server itself answers writers side by side is tested against it: no double is a judge of that.
"""
from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from gpulab.parts.registry import workshop
from gpulab.pki import Authority
from gpulab.processes import Daemon, wait_for

READY_SECONDS = 90.0
# What a server that is told to end may take over the requests that it has
LEAVE_SECONDS = 20.0
# Of its log, in MiB, before the server begins another file
AUDIT_MIB = 20000


class RealApi:
    """Running from start() to stop().

    kubeconfig: of one who may do everything.
    audit_log:  what the server has been asked about `audited` resources, with the objects that it answered with.
    """

    def __init__(self, directory: Path, audited: Sequence[str] = (), nodes: bool = False) -> None:
        """nodes: whether it knows nodes by their names, and keeps each to its own objects."""
        self._nodes = nodes
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.audit_log = directory / "audit.log"
        self._audited = list(audited)
        self._authority = Authority(directory / "pki")
        self._etcd, self._server, self._manager = (
            Daemon(name, directory) for name in ("etcd", "kube-apiserver", "kube-controller-manager"))
        self._serve: List[str] = []
        self._url = ""

    def start(self) -> None:
        pki = self._authority
        pki.create()
        pki.signing_key("service-accounts")
        served = pki.issue("server", "kube-apiserver", alternatives=("DNS:localhost", "IP:127.0.0.1"))
        client, peer, secure = free_ports(3)
        self._url = "https://127.0.0.1:%d" % secure
        pki.kubeconfig(self.kubeconfig, self._url, pki.issue("admin", "admin", "system:masters"), "admin")
        etcd, peers = ("http://127.0.0.1:%d" % port for port in (client, peer))
        self._etcd.start([
            "etcd", "--name=test", "--data-dir=%s" % (self.directory / "etcd-data"), "--listen-client-urls=" + etcd,
            "--advertise-client-urls=" + etcd, "--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers,
            "--initial-cluster=test=" + peers, "--unsafe-no-fsync"])
        self._serve = [
            program(), "kube-apiserver", "--etcd-servers=" + etcd, "--bind-address=127.0.0.1",
            "--secure-port=%d" % secure, "--service-cluster-ip-range=10.96.0.0/16",
            "--tls-cert-file=%s" % served.certificate, "--tls-private-key-file=%s" % served.key,
            "--client-ca-file=%s" % pki.certificate,
            *(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"] if self._nodes else
              ["--authorization-mode=RBAC"]),
            "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=%s" % (pki.directory / "service-accounts.key"),
            "--service-account-signing-key-file=%s" % (pki.directory / "service-accounts.key"), *self._auditing()]
        self._start_server()

    def _auditing(self) -> List[str]:
        if not self._audited:
            return []
        policy = self.directory / "audit-policy.json"
        policy.write_text(json.dumps({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {"level": "RequestResponse", "resources": [
                    {"group": "", "resources": [name, name + "/*"]} for name in self._audited]},
                {"level": "None"}]}))
        return ["--audit-policy-file=%s" % policy, "--audit-log-path=%s" % self.audit_log,
                "--audit-log-maxsize=%d" % AUDIT_MIB]

    def _start_server(self) -> None:
        self._server.start(self._serve)
        context = ssl.create_default_context(cafile=str(self._authority.certificate))

        def ready() -> bool:
            assert self._server.pid is not None, self._server.log_tail()
            try:
                with urllib.request.urlopen(self._url + "/readyz", timeout=2, context=context) as answer:
                    return bool(answer.status == 200)
            except (OSError, urllib.error.URLError):
                return False

        wait_for("API server at %s" % self._url, ready, READY_SECONDS, str(self._server.log_file))

    def manage(self, *controllers: str) -> None:
        """Run these of Kubernetes' own controllers."""
        self._manager.start([
            program(), "kube-controller-manager", "--kubeconfig=%s" % self.kubeconfig, "--leader-elect=false",
            "--secure-port=0", "--controllers=" + ",".join(controllers)])

    def restart(self, seconds: float, whole: bool = True) -> None:
        """Away for so long at least. whole: as a control plane that is upgraded, what it has begun it ends first;
        else it dies in the midst of it."""
        self._server.stop(LEAVE_SECONDS, signal.SIGTERM if whole else signal.SIGKILL)
        time.sleep(seconds)
        self._start_server()

    def hang(self, seconds: float) -> None:
        """Accept and answer nothing for so long."""
        pid = self._server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        for daemon in (self._manager, self._server, self._etcd):
            daemon.stop(seconds=0.2)

    def client(self) -> Client:
        return Client(Connection(kubeconfig=str(self.kubeconfig)))

    def kubelet(self, node: str) -> Path:
        """A kubeconfig as the kubelet of this node has it."""
        path = self.directory / ("%s.kubelet.conf" % node)
        credential = self._authority.issue("kubelet-" + node, "system:node:" + node, "system:nodes")
        return self._authority.kubeconfig(path, self._url, credential, "system:node:" + node)

    def user(self, name: str, *rules: Dict[str, Any]) -> Path:
        """A kubeconfig of a user with these rules of RBAC."""
        path = self.directory / ("%s.kubeconfig" % name)
        self._authority.kubeconfig(path, self._url, self._authority.issue("user-" + name, name), name)
        rbac, client = "/apis/rbac.authorization.k8s.io/v1", self.client()
        client.create(rbac + "/clusterroles", {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
            "rules": list(rules)})
        client.create(rbac + "/clusterrolebindings", {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]})
        return path

    def versions(self, path: str, seconds: int, begun: threading.Event) -> Iterator[Dict[str, Any]]:
        """Every version of one object from now on, as the server's watch tells them. begun: set when it listens."""
        client = self.client()
        place, _separator, name = path.rpartition("/")
        query = {"watch": "1", "fieldSelector": "metadata.name=" + name, "timeoutSeconds": str(seconds),
                 "resourceVersion": client.get(place)["metadata"]["resourceVersion"]}
        answer = client._api.rest_client.pool_manager.request(
            "GET", client.url + place, fields=query, preload_content=False)
        begun.set()
        text = b""
        for part in answer.stream(65536):
            text += part
            *lines, text = text.split(b"\n")
            for line in lines:
                yield json.loads(line)["object"]


def node(name: str, **labels: str) -> Dict[str, Any]:
    """A Ready Node with GPUs."""
    return {"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", **labels}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                                       "lastHeartbeatTime": "2026-07-01T12:00:00Z",
                                       "lastTransitionTime": "2026-07-01T12:00:00Z"}]}}


@contextmanager
def watched(server: RealApi, path: str, seconds: int = 300) -> Iterator[List[Dict[str, Any]]]:
    """All versions that an object has in the meantime."""
    seen: List[Dict[str, Any]] = []
    over, begun = threading.Event(), threading.Event()

    def watch() -> None:
        for item in server.versions(path, seconds, begun):
            seen.append(item)
            if over.is_set():
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    assert begun.wait(30)
    yield seen
    over.set()
    server.client().patch(path, {"metadata": {"annotations": {"over": "true"}}})
    thread.join(30)
    assert not thread.is_alive()


def program() -> str:
    return str(workshop().build("kubernetes") / "bin" / "kubernetes")


def free_ports(number: int) -> List[int]:
    held = [socket.socket() for _ in range(number)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


