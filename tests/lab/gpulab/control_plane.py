# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real Kubernetes control plane of one lab: etcd, API server, controller manager and scheduler on this machine."""
from __future__ import annotations

import base64
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from .hosts import Membership
from .network import API_PORT, API_SERVICE_ADDRESS, SERVICE_RANGE, Network
from .pki import Authority
from .processes import Daemon, LabError, run, wait_for

READY_SECONDS = 60.0
SERVERS, CLIENTS = ("etcd", "kube-apiserver"), ("kube-controller-manager", "kube-scheduler")
COMPONENTS = (*SERVERS, *CLIENTS)


class ControlPlane:
    def __init__(self, network: Network, directory: Path, kubeconfig: Path, program: Path) -> None:
        self.network = network
        self.directory = directory
        self.kubeconfig = kubeconfig
        self.program = program
        self.authority = Authority(directory / "pki")
        self.daemons = {name: Daemon(name, directory) for name in COMPONENTS}
        self.audit_log = directory / "audit.log"

    def prepare(self) -> None:
        """Keys, certificates and the kubeconfigs of everybody on this machine."""
        self.authority.create()
        self.authority.signing_key("service-accounts")
        self.authority.issue("kube-apiserver", "kube-apiserver", alternatives=(
            "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc",
            "DNS:kubernetes.default.svc.cluster.local", "DNS:localhost", "IP:127.0.0.1",
            "IP:%s" % API_SERVICE_ADDRESS, "IP:%s" % self.network.controller))
        self.authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        for name in CLIENTS:
            user = "system:%s" % name
            self.authority.kubeconfig(self.directory / ("%s.kubeconfig" % name), self.network.api_url,
                                      self.authority.issue(name, user), user)
        admin = self.authority.issue("admin", "gpulab-admin", "system:masters")
        self.authority.kubeconfig(self.kubeconfig, self.network.api_url, admin, "gpulab-admin")

    def membership(self, host: str, address: str) -> Membership:
        """The credentials that make a host the node of its name, and of no other."""
        user = "system:node:%s" % host
        credential = self.authority.issue("node-%s" % host, user, "system:nodes",
                                          ("DNS:%s" % host, "IP:%s" % address))
        kubeconfig = self.authority.kubeconfig(self.directory / ("node-%s.kubeconfig" % host), self.network.api_url,
                                               credential, user)
        return Membership(self.authority.certificate, kubeconfig, credential.certificate, credential.key,
                          "%s:%d" % (self.network.controller, API_PORT), API_SERVICE_ADDRESS)

    def user(self, name: str) -> Path:
        """A kubeconfig of a user who may do nothing yet."""
        path = self.directory / ("user-%s.kubeconfig" % name)
        return self.authority.kubeconfig(path, self.network.api_url, self.authority.issue("user-" + name, name), name)

    def requests(self, user: str) -> List[Dict[str, Any]]:
        """What a user has asked the API server for, oldest first: entries of its audit log."""
        entries = [json.loads(line) for line in self.audit_log.read_text().splitlines()]
        return [entry for entry in entries if entry["user"]["username"] == user]

    def stored(self, prefix: str = "/registry/") -> Dict[str, str]:
        """{key: value in base64} of what etcd holds, byte for byte."""
        def coded(text: str) -> str:
            return base64.b64encode(text.encode()).decode()

        asked = {"key": coded(prefix), "range_end": coded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        request = urllib.request.Request("http://%s:2379/v3/kv/range" % self.network.loopback,
                                         json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        return {base64.b64decode(each["key"]).decode(): each["value"] for each in found.get("kvs", ())}

    def start(self) -> None:
        for name, argv in zip(SERVERS, (self._etcd(), self._api_server())):
            self.daemons[name].start(argv)
        self._start_clients()

    def _start_clients(self) -> None:
        """Those that do not run. Where an API server takes long to be ready, they give it up and end."""
        for name, argv in zip(CLIENTS, (self._controller_manager(), self._scheduler())):
            self.daemons[name].start(argv)

    def wait(self) -> None:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))

        def ready() -> bool:
            for daemon in map(self.daemons.__getitem__, SERVERS):
                if daemon.pid is None:
                    raise LabError("%s ended; the end of %s:\n%s" % (daemon.name, daemon.log_file, daemon.log_tail()))
            self._start_clients()
            try:
                with urllib.request.urlopen(self.network.api_url + "/readyz", timeout=2, context=context) as answer:
                    return bool(answer.status == 200)
            except (OSError, urllib.error.URLError):
                return False
        wait_for("API server at %s" % self.network.api_url, ready, READY_SECONDS,
                 str(self.daemons["kube-apiserver"].log_file))
        # Until the controller manager has made it, every pod is refused.
        account = self.kubectl(["get", "serviceaccount", "default", "--output=name"])

        def has_account() -> bool:
            self._start_clients()
            return _succeeds(account)
        wait_for("service account default", has_account, READY_SECONDS,
                 str(self.daemons["kube-controller-manager"].log_file), pause=0.3)

    def leave_nodes_alone(self) -> None:
        """Nobody writes into Nodes that have no kubelet any more, and no pod is scheduled."""
        self._run_controllers("*,-node-lifecycle-controller,-ttl-controller")

    def work_out_budgets_only(self) -> None:
        """Nobody writes into any object but PodDisruptionBudgets: what their pods and owners are is up to the test."""
        self._run_controllers("disruption-controller")

    def _run_controllers(self, names: str) -> None:
        for name in CLIENTS:
            self.daemons[name].stop()
        self.daemons["kube-controller-manager"].start([*self._controller_manager(), "--controllers=%s" % names])

    def stop(self) -> None:
        """Nothing of it is kept, so nobody is asked to finish first."""
        for name in reversed(COMPONENTS):
            self.daemons[name].stop(seconds=0.2)

    def kubectl(self, argv: Sequence[str]) -> List[str]:
        return [str(self.program), "kubectl", "--kubeconfig=%s" % self.kubeconfig, *argv]

    def nodes_ready(self) -> Tuple[str, ...]:
        form = "{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=='Ready')].status} {end}"
        done = subprocess.run(self.kubectl(["get", "nodes", "-o", "jsonpath=%s" % form]), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, check=False)
        return tuple(word[:-len("=True")] for word in done.stdout.split() if word.endswith("=True"))

    def forget_node(self, host: str) -> None:
        run(self.kubectl(["delete", "node", host, "--ignore-not-found", "--wait=false"]))

    def _etcd(self) -> List[str]:
        client, peer = ("http://%s:%d" % (self.network.loopback, port) for port in (2379, 2380))
        return ["etcd", "--name=gpulab", "--data-dir=%s" % (self.directory / "etcd"),
                "--listen-client-urls=%s" % client, "--advertise-client-urls=%s" % client,
                "--listen-peer-urls=%s" % peer, "--initial-advertise-peer-urls=%s" % peer,
                "--initial-cluster=gpulab=%s" % peer,
                # It outlives no power cut, and each write of each laboratory would wait for one disk
                "--unsafe-no-fsync"]

    def _api_server(self) -> List[str]:
        pki = self.authority.directory
        return [
            str(self.program), "kube-apiserver",
            "--etcd-servers=http://%s:2379" % self.network.loopback,
            "--bind-address=%s" % self.network.controller, "--advertise-address=%s" % self.network.controller,
            "--secure-port=%d" % API_PORT, "--service-cluster-ip-range=%s" % SERVICE_RANGE,
            "--tls-cert-file=%s" % (pki / "kube-apiserver.crt"),
            "--tls-private-key-file=%s" % (pki / "kube-apiserver.key"),
            "--client-ca-file=%s" % (pki / "ca.crt"), "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--service-account-key-file=%s" % (pki / "service-accounts.key"),
            "--service-account-signing-key-file=%s" % (pki / "service-accounts.key"),
            "--kubelet-client-certificate=%s" % (pki / "kubelet-client.crt"),
            "--kubelet-client-key=%s" % (pki / "kubelet-client.key"),
            "--kubelet-certificate-authority=%s" % (pki / "ca.crt"),
            # Host names of nodes are known inside the lab only.
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=lease",
            "--audit-policy-file=%s" % self._audit_policy(), "--audit-log-path=%s" % self.audit_log,
        ]

    def _audit_policy(self) -> Path:
        """Who asked for what, without the objects; of the parts of Kubernetes themselves, nothing."""
        unheard = [{"level": "None", "userGroups": ["system:nodes", "system:serviceaccounts"]},
                   {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager",
                                               "system:kube-scheduler", "system:anonymous"]}]
        path = self.directory / "audit-policy.json"
        path.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
                                    "omitStages": ["RequestReceived"], "rules": [*unheard, {"level": "Metadata"}]}))
        return path

    def _controller_manager(self) -> List[str]:
        pki = self.authority.directory
        return [
            str(self.program), "kube-controller-manager",
            "--kubeconfig=%s" % (self.directory / "kube-controller-manager.kubeconfig"),
            "--bind-address=%s" % self.network.loopback, "--leader-elect=false", "--use-service-account-credentials",
            "--service-account-private-key-file=%s" % (pki / "service-accounts.key"),
            "--root-ca-file=%s" % (pki / "ca.crt"),
            "--cluster-signing-cert-file=%s" % (pki / "ca.crt"), "--cluster-signing-key-file=%s" % (pki / "ca.key"),
        ]

    def _scheduler(self) -> List[str]:
        return [str(self.program), "kube-scheduler",
                "--kubeconfig=%s" % (self.directory / "kube-scheduler.kubeconfig"),
                "--bind-address=%s" % self.network.loopback, "--leader-elect=false"]


def _succeeds(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          check=False).returncode == 0
